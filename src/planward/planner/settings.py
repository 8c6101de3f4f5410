"""Which weights a planner loads, and with which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planward.core import paths
from planward.core.model_folders import check_model_folder
from planward.core.registry import load_params
from planward.core.runs import iter_run_files
from planward.params import PARAMS_FILE, ModelConfig, ParamsError, PromptConfig, validate_section
from planward.tasks.planning.config import PlanningParams, ValConfig

PUBLISHED_FILE = "planward.json"  # in a published model's folder: task, prompt, and the text of the template
DEFAULT_SEED = 3407
DEFAULT_BATCH_SIZE = 64
# Without planward.json and params.yaml: the prompts of models/base, and chat prompts for models with a chat template.
COMPACT_PROMPT = PromptConfig(style="compact", max_tokens=768, max_completion_tokens=80)
CHAT_PROMPT = PromptConfig(style="full", max_tokens=3072, max_completion_tokens=512)


@dataclass(frozen=True)
class PlannerSettings:
    """Settings of a planner.

    Attributes:
        template: the text of the prompt's template, which replaces `prompt.template`; None: that file.
        batch_size: completions generated together.
        seed: of samples and random worked examples, unless a call names another.
    """

    model: ModelConfig
    prompt: PromptConfig
    template: str | None
    val: ValConfig
    batch_size: int
    seed: int


def find_model(model: str | Path | None) -> Path:
    """Return the folder of weights that `model` names: a folder, a run in results/models, or None, the best run.

    Raises:
        ParamsError: there is none; the message says what to name.
    """
    if model is None:
        return _find_best_model()
    folder, run = Path(model), paths.results().models / str(model)
    if not folder.is_dir() and run.is_dir():
        return run
    check_model_folder(str(model), "model")
    return folder


def load_settings(folder: Path) -> PlannerSettings:
    """Load the settings for the weights in `folder`.

    Prompts are those of planward.json in the folder, else of params.yaml in the working directory, else the defaults;
    all else is of params.yaml, else the defaults.

    Raises:
        ParamsError: a file is faulty, or the model is of another task.
    """
    params = load_params() if PARAMS_FILE.exists() else None
    assert params is None or isinstance(params, PlanningParams)
    published_file = folder / PUBLISHED_FILE
    template = None
    if published_file.exists():
        prompt, template = _read_published(published_file)
    elif params is not None:
        prompt = params.prompt
    else:
        prompt = CHAT_PROMPT if _has_chat_template(folder) else COMPACT_PROMPT
    model = {"path": str(folder)}
    return PlannerSettings(
        model=params.model.model_copy(update=model) if params else _build_default_model(folder),
        prompt=prompt,
        template=template,
        val=params.val if params else ValConfig(timeout=10, workers=2),
        batch_size=params.evaluate.batch_size if params else DEFAULT_BATCH_SIZE,
        seed=params.seed if params else DEFAULT_SEED,
    )


def _find_best_model() -> Path:
    """Return the weights of the run that solves most test problems, over its numbers of worked examples."""
    if not PARAMS_FILE.exists():
        raise ParamsError("no params.yaml here, so no run to choose from; fix: name a folder of weights as the model")
    params, results, rates = load_params(), paths.results(), dict[Path, float]()
    for run, file in iter_run_files(results.predictions, "*.json", params):
        folder = Path(params.model.path) if run.method == "base" else results.model(run)
        shares = json.loads(file.read_text(encoding="utf-8"))["success_rate"].values()
        if folder.is_dir():
            rates[folder] = sum(shares) / len(shares)
    if not rates:
        raise ParamsError(
            f"{results.predictions}: no evaluated run whose weights are in {results.models}; fix: name a folder of "
            f"weights as the model, such as {params.model.path}"
        )
    return max(rates, key=lambda folder: rates[folder])


def _read_published(file: Path) -> tuple[PromptConfig, str | None]:
    """Read the prompt settings of a published model, and the text of its template."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParamsError(f"{file}: not JSON: {error}") from None
    if not isinstance(content, Mapping) or "prompt" not in content:
        raise ParamsError(f"{file}: no key `prompt`; fix: publish the model again")
    if (task := content.get("task", "planning")) != "planning":
        raise ParamsError(f"{file}: a model of the task {task}, which writes no plans")
    prompt, template = validate_section(PromptConfig, content["prompt"], f"{file}: prompt"), content.get("template")
    return prompt.model_copy(update={"template": None}), template


def _build_default_model(folder: Path) -> ModelConfig:
    return ModelConfig(
        path=str(folder), backend="transformers", load_in_4bit=False, lora=None, gradient_checkpointing=False
    )


def _has_chat_template(folder: Path) -> bool:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).chat_template is not None

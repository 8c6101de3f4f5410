"""A trained model as a folder that Transformers, vLLM and Planward load without the project that trained it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planward.core import paths
from planward.core.files import write_json
from planward.core.model_folders import check_model_folder, find_adapter_base
from planward.core.runs import Run
from planward.params import Params
from planward.publication import examples, gguf
from planward.publication.folders import copy_files, write_description, write_folder, write_params
from planward.publication.model_card import render_model_card
from planward.publication.provenance import PublicationError, find_provenance

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "max_length")  # of no use to greedy decoding
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class ModelOptions:
    """What the command line asks for.

    Attributes:
        adapter: publish the LoRA adapter alone.
        base: what the hub calls the base; None: what its card says.
        licence: None: what the base's card says.
        converter: convert_hf_to_gguf.py; None: no GGUF.
        check: test problems to compare completions on; 0: none.
    """

    adapter: bool = False
    base: str | None = None
    licence: str | None = None
    converter: str | None = None
    check: int = 4


@dataclass(frozen=True)
class Check:
    """Of `total` greedy completions of the published folder, `equal` are those that evaluation stored."""

    equal: int
    total: int


def publish_model(params: Params, run: Run, target: Path, options: ModelOptions) -> Check:
    """Write weights, tokenizer, generation settings, planward.json, parameter files and a model card into `target`.

    Raises:
        PublicationError: the run has no weights, predictions or tables, or `options` ask for what there is not.
    """
    weights = paths.results(params.task).model(run)
    if not weights.is_dir():
        raise PublicationError(f"{weights}: no such folder; fix: `dvc repro`, or `dvc pull {weights}`")
    command = _check_options(weights, options)
    provenance = find_provenance(weights)
    samples = examples.select_examples(params, run, max(options.check, 1))
    with write_folder(target) as folder:
        write_weights(params, weights, folder, adapter=options.adapter)
        if options.adapter:
            (folder / "config.json").unlink(missing_ok=True)  # beside it, Transformers takes an adapter for a model
        if options.adapter and options.base:
            _rename_base(folder / ADAPTER_CONFIG, options.base)
        write_generation_config(folder, weights, params)
        evaluate = {"do_sample": False, "max_new_tokens": params.prompt.max_completion_tokens}
        write_description(
            folder, params, run.as_dict(params.task), {"evaluate": evaluate | params.evaluate.model_dump()}
        )
        write_params(folder, params)
        if options.adapter and options.base:  # on a hub
            check = Check(0, 0)
        else:
            check = check_completions(folder, samples[: options.check], params)
        card = render_model_card(
            params, run, folder, target.name, provenance, samples[0], check, options, has_gguf=command is not None
        )
        card.save(folder / "README.md")
        if command is not None:
            gguf.convert_to_gguf(command, folder, folder / f"{run.name}.gguf", run.name)
    return check


def write_weights(params: Params, weights: Path, folder: Path, *, adapter: bool) -> None:
    """Copy weights and tokenizer; an adapter is merged unless it is wanted alone."""
    if adapter or not (weights / ADAPTER_CONFIG).exists():
        copy_files(weights, folder)
        return
    from planward.inference import models

    settings = params.model.model_copy(update={"backend": "transformers", "load_in_4bit": False})
    models.save_model(*models.load_model(settings, str(weights), max_tokens=0, seed=0), folder)


def write_generation_config(folder: Path, weights: Path, params: Params) -> None:
    """Write generation_config.json: greedy, as many tokens and with the settings and end tokens that evaluation had.

    Args:
        weights: the run's, as evaluation loads them.
    """
    from transformers import AutoTokenizer

    from planward.inference.models import list_end_tokens

    stored_settings = read_generation_settings(weights)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    ends = list_end_tokens(tokenizer.eos_token_id, stored_settings.get("eos_token_id"))
    settings = {
        "do_sample": False,
        "max_new_tokens": params.prompt.max_completion_tokens,
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": tokenizer.pad_token_id,
    }
    unused_keys = {*SAMPLING_KEYS, "_from_model_config"}  # by the last one Transformers may rebuild the settings
    kept_settings = {key: value for key, value in stored_settings.items() if key not in unused_keys}
    write_json(folder / "generation_config.json", kept_settings | settings)


def read_generation_settings(weights: Path) -> dict[str, Any]:
    """Read the generation settings that a network loaded from `weights` has; an adapter has those of its base.

    Raises:
        ParamsError: an adapter's base is no folder.
    """
    while (base := find_adapter_base(weights)) is not None:
        check_model_folder(str(base), str(weights / ADAPTER_CONFIG))
        weights = base
    path = weights / "generation_config.json"
    if path.exists():
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return settings
    from transformers import GenerationConfig

    config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
    return dict(GenerationConfig.from_model_config(config).to_diff_dict())


def check_completions(folder: Path, samples: list[examples.Example], params: Params) -> Check:
    """Complete the prompts of samples with the model in a folder."""
    options = params.prompt.chat_template_options
    return Check(examples.count_equal_completions(folder, samples, options) if samples else 0, len(samples))


def _check_options(weights: Path, options: ModelOptions) -> list[str] | None:
    """Return the converter's command; raises PublicationError where options and weights do not fit."""
    if options.adapter and not (weights / ADAPTER_CONFIG).exists():
        raise PublicationError(
            f"--adapter: {weights} holds full weights, no adapter; fix: leave it out, or train with `model.lora` and "
            "`merge: false`"
        )
    if options.adapter and options.converter:
        raise PublicationError("--gguf: an adapter alone is not converted; fix: leave --adapter out")
    return None if options.converter is None else gguf.find_converter(options.converter)


def _rename_base(path: Path, base: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, config | {"base_model_name_or_path": base})

"""All that can be known before stages run, in one error."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from planward.core import paths
from planward.core.model_folders import find_start_weights
from planward.core.registry import load_params
from planward.inference.models import BackendError
from planward.params import Params
from planward.preflight.backends import (
    list_attention_faults,
    list_backend_faults,
    list_precision_warnings,
    list_unsloth_faults,
    list_vllm_faults,
)
from planward.preflight.models import ModelFiles, inspect_model, list_chat_faults, list_template_faults
from planward.preflight.resources import (
    DiskUse,
    compute_disk_use,
    compute_least_memory,
    list_disk_faults,
    list_folder_faults,
    list_memory_faults,
)
from planward.preflight.services import list_endpoint_faults, list_logger_faults
from planward.preflight.stages import SELECTORS_TRACK, Need, StageNeeds
from planward.preflight.verifier import list_val_faults
from planward.selectors.config import load_selectors_config
from planward.training.generation import check_reference

MAX_NAMES = 3  # stages that a line lists
GENERATING = ("grpo", "evaluate", "sample", "transfer-evaluate")  # whose completions may be vLLM's
Value = TypeVar("Value")


class PreflightError(ValueError):
    """Stages cannot run; the message has a line for each fault."""


def check_stage(stage: StageNeeds, params: Params) -> None:
    """Check a stage that is about to run, and print warnings; raises PreflightError with all its faults."""
    preflight = _Preflight([stage], local=True)
    print_warnings(preflight.list_warnings(stage, params))
    if faults := preflight.list_faults(stage, params) + preflight.list_disk_faults():
        raise PreflightError("\n".join([f"{stage.label} cannot run: {_count(faults)}", *(f"  {f}" for f in faults)]))


def check_stages(stages: Sequence[StageNeeds], *, local: bool = True) -> None:
    """Check stages before the first of them runs, and print warnings.

    Raises PreflightError with all faults, and the stages concerned.

    Args:
        local: on this machine, so that its GPU and memory count.
    """
    if local:
        print_warnings(list_warnings(stages))
    if faults := find_faults(stages, local=local):
        lines = [f"  {fault} ({list_names(names)})" for fault, names in faults.items()]
        raise PreflightError("\n".join([f"stages cannot run: {_count(lines)}", *lines]))


def find_faults(stages: Sequence[StageNeeds], *, local: bool = True) -> dict[str, list[str]]:
    """Return the faults of stages, each with the names of those that it concerns."""
    preflight, faults = _Preflight(stages, local=local), defaultdict[str, list[str]](list)
    for stage in stages:
        if stage.needs != Need.NOTHING:
            for fault in preflight.list_faults(stage, preflight.load_params(stage.task)):
                faults[fault].append(stage.label)
    for fault in preflight.list_disk_faults():
        faults[fault] = list(preflight.disk_uses)
    return dict(faults)


def list_warnings(stages: Sequence[StageNeeds]) -> list[str]:
    """Return what would make stages slow on this machine."""
    preflight, warnings = _Preflight(stages, local=True), dict[str, None]()
    for stage in stages:
        if Need.WEIGHTS in stage.needs:
            warnings |= dict.fromkeys(preflight.list_warnings(stage, preflight.load_params(stage.task)))
    return list(warnings)


def print_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def list_names(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _count(faults: Sequence[str]) -> str:
    return f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"


class _Preflight:
    """Checks of stages that run one after the other; what several of them share is looked at once."""

    def __init__(self, stages: Sequence[StageNeeds], *, local: bool) -> None:
        self.local = local
        self.split_again = {stage.task for stage in stages if stage.family == "split"}
        self.model_folders = {  # of stages that come first; what is there now does not count
            str(paths.results(stage.task).model(stage.run))
            for stage in stages
            if stage.run is not None and Need.TRAINING in stage.needs
        }
        self.disk_uses = dict[str, DiskUse]()
        self.cache = dict[tuple[str, ...], object]()

    def load_params(self, task: str) -> Params:
        return self._once(("params", task), lambda: load_params(task))

    def list_faults(self, stage: StageNeeds, params: Params) -> list[str]:
        needs, faults = stage.needs, list[str]()
        if stage.family == "grpo" and stage.run is not None:
            params = params.variant(stage.run.method).move_grpo_lora()
        if Need.PLANNER in needs:
            faults += list_planner_faults(params)
        if Need.PROBLEMS in needs and stage.run is not None:
            faults += list_size_faults(params, stage.run.size, is_split=stage.task not in self.split_again)
        if Need.PROMPTS in needs:
            faults += self._once(("template", stage.task), lambda: list_template_faults(params.prompt))
        if Need.LOGGERS in needs:
            faults += self._once(("loggers",), lambda: list_logger_faults(params.logging))
        if Need.ENDPOINT in needs and stage.run is not None:
            faults += self._list_tokenizer_faults(params)
            faults += list_endpoint_faults(params, stage.run.method)
        if Need.WEIGHTS in needs and (stage.family != "sample" or params.evaluate.samples.count):
            faults += self._list_weights_faults(stage, params)
        if Need.VAL in needs and hasattr(params, "val"):
            faults += self._once(("VAL",), list_val_faults)
        for folder in _list_folders(stage):
            faults += list_folder_faults(folder)
        return list(dict.fromkeys(" ".join(fault.split()) for fault in faults))

    def list_warnings(self, stage: StageNeeds, params: Params) -> list[str]:
        if stage.family == "selectors-beams":
            source = f"{paths.params_file(SELECTORS_TRACK)}: precision"
            return list_precision_warnings(load_selectors_config().precision, source)
        if Need.WEIGHTS in stage.needs and stage.track != SELECTORS_TRACK:
            return list_precision_warnings(params.model.precision, f"{paths.params_file(stage.task)}: model.precision")
        return []

    def list_disk_faults(self) -> list[str]:
        """Of the stages so far together."""
        return list_disk_faults(list(self.disk_uses.values()))

    def _list_weights_faults(self, stage: StageNeeds, params: Params) -> list[str]:
        path, source = find_weights(stage, params)
        if not path:
            return []
        is_made, file = path in self.model_folders, paths.params_file(stage.task)
        base = params.model.path
        model = self._inspect(base, f"{file}: model.path") if is_made else self._inspect(path, source)
        faults = [*model.faults]
        faults += list_backend_faults(params.model, stage.task, local=self.local)
        if params.model.generation != "vllm" or stage.family not in GENERATING or stage.family == "grpo":
            faults += list_attention_faults(params.model, stage.task, local=self.local)
        if stage.family in GENERATING:
            weights = None if is_made else path
            faults += list_vllm_faults(params, weights, trains=stage.family == "grpo", local=self.local)
        if stage.family == "grpo":
            faults += list_unsloth_faults(params)
            faults += [] if is_made else list_reference_faults(params, path)
        if Need.PROMPTS in stage.needs:
            faults += list_chat_faults(base if is_made else path, params.prompt)
        if not model.parameters:
            return faults
        trains = Need.TRAINING in stage.needs
        if trains:
            self.disk_uses[stage.label] = compute_disk_use(stage, params, model.parameters)
        has_server = params.model.generation == "vllm" and params.model.vllm.mode == "server"
        is_elsewhere = has_server and stage.family in GENERATING and not trains
        if self.local and not is_elsewhere:
            grpo = stage.family == "grpo"
            least = {
                cuda: compute_least_memory(params, model.parameters, trains=trains, grpo=grpo, cuda=cuda)
                for cuda in (True, False)
            }
            faults += list_memory_faults(least, f"{file}: model.path" if is_made else source)
        return faults

    def _list_tokenizer_faults(self, params: Params) -> list[str]:
        """Of an endpoint: `model.path` counts its tokens."""
        source = f"{paths.params_file(params.task)}: model.path"
        return [*self._inspect(params.model.path, source).faults, *list_chat_faults(params.model.path, params.prompt)]

    def _inspect(self, path: str, source: str) -> ModelFiles:
        return self._once(("model", path), lambda: inspect_model(path, source))

    def _once(self, key: tuple[str, ...], compute: Callable[[], Value]) -> Value:
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]  # type: ignore[return-value]


def find_weights(stage: StageNeeds, params: Params) -> tuple[str, str]:
    """Return the folder of the model that a stage loads, "" if none, and the file and key that name it."""
    file, run = paths.params_file(stage.task), stage.run
    if stage.track == SELECTORS_TRACK:
        config = load_selectors_config()
        if stage.family == "selectors-embed" and config.embeddings != "model":
            return "", ""
        return str(config.model), f"{paths.params_file(SELECTORS_TRACK)}: model"
    if stage.family == "grpo" and run is not None:
        return find_start_weights(params, run), f"{file}: grpo.from"
    if run is None or run.method == "base" or stage.family == "sft":
        return params.model.path, f"{file}: model.path"
    return str(paths.results(stage.task).model(run)), stage.name


def list_reference_faults(params: Params, path: str) -> list[str]:
    """Return why GRPO's KL term cannot be against the start weights at `path`."""
    try:
        check_reference(params, path)
    except BackendError as error:
        return [f"{paths.params_file(params.task)}: {error}"]
    return []


def list_planner_faults(params: Params) -> list[str]:
    """Return whether the planner of reference plans is missing."""
    planner = getattr(getattr(params, "problems", None), "planner", "")
    if planner != "fast-downward" or find_spec("up_fast_downward") is not None:
        return []
    file = paths.params_file(params.task)
    return [
        f"{file}: problems.planner: needs up-fast-downward, which is not installed; "
        "fix: pip install -e '.[fast-downward]', or problems.planner: search"
    ]


def list_size_faults(params: Params, size: int, *, is_split: bool) -> list[str]:
    """Return why there cannot be a training set of a size: by the counts of the split, or of problems to generate.

    Args:
        is_split: the present split is the one that is trained on.
    """
    file, counts = paths.params_file(params.task), _count_training_problems(params, is_split=is_split)
    if not counts:
        return []
    source, share = f"{file}: dataset_sizes", size // len(counts)
    if size % len(counts):
        fix = f"a multiple of {len(counts)}, such as {(share + 1) * len(counts)}"
        return [f"{source}: {size} cannot be balanced over {len(counts)} domains; fix: {fix}"]
    return [
        f"{source}: {size} needs {share} training problems of {domain}, and there are {count} at most; "
        "fix: more problems of it, or a smaller size"
        for domain, count in sorted(counts.items())
        if count < share
    ]


def _count_training_problems(params: Params, *, is_split: bool) -> Mapping[str, int]:
    """Count a split's training problems by domain, or else those to be generated; empty where neither is known."""
    metrics, problems = paths.results(params.task).split / "metrics.json", getattr(params, "problems", None)
    if is_split and metrics.exists():
        counts: dict[str, int] = json.loads(metrics.read_text(encoding="utf-8"))["kept_by_domain"]["train"]
        return counts
    if getattr(problems, "source", "") != "generated":
        return {}
    domains = problems.generated  # type: ignore[union-attr]
    held_out = params.split.held_out_domains
    return {domain: int(sizes["count"]) for domain, sizes in domains.items() if domain not in held_out}


def _list_folders(stage: StageNeeds) -> list[Path]:
    """Return folders that a stage writes."""
    results = paths.SELECTORS if stage.track == SELECTORS_TRACK else paths.results(stage.task)
    folders = [results.timing]
    if Need.LOGGERS in stage.needs:
        folders += [results.models, results.training, paths.CHECKPOINTS]
    elif Need.VAL in stage.needs and Need.PROMPTS in stage.needs:
        folders += [results.transfer.predictions if stage.family == "transfer-evaluate" else results.predictions]
    return folders

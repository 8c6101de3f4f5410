"""Folders of models: safetensors, tokenizer and configuration. DVC hashes them, so a hub's name is not enough."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planward.core.paths import MODELS, results
from planward.core.runs import Run
from planward.params import Params, ParamsError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def hub_folder(name: str) -> Path:
    """Where the model ORG/NAME of a hub is fetched to: models/name."""
    return MODELS / name.rpartition("/")[2].lower()


def find_start_weights(params: Params, run: Run) -> str:
    """The folder that `grpo.from` names for a run of GRPO."""
    if params.grpo.start == "sft":
        return str(results(params.task).model(replace(run, method="sft")))
    return params.model.path if params.grpo.start == "base" else params.grpo.start


def check_model_folder(path: str, source: str = "") -> None:
    """Check that a model is a folder.

    Args:
        source: file and key that name the model, for the message.

    Raises:
        ParamsError: it is none; the message says how to get it.
    """
    if Path(path).is_dir():
        return
    fix = "correct it, or make or fetch the model first (`planward fetch-model ORG/NAME` writes models/name)"
    if HUB_NAME.fullmatch(path) and Path(path).parent != MODELS and not Path(path).parent.is_dir():
        fix = f"planward fetch-model {path}, and set it to {hub_folder(path)}"
    raise ParamsError(f"{source}{': ' if source else ''}no folder {path}; fix: {fix}")

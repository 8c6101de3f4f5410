"""Folders of models: safetensors, tokenizer and configuration. DVC hashes them, so a hub's name is not enough."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from planward.core.paths import MODELS, results
from planward.core.runs import Run
from planward.params import Params, ParamsError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def hub_folder(name: str) -> Path:
    """Where the model ORG/NAME of a hub is fetched to: models/name."""
    return MODELS / name.rpartition("/")[2].lower()


def find_start_weights(params: Params, run: Run) -> str:
    """The folder that `grpo.from` names for a run of GRPO."""
    if params.grpo.start == "sft":
        return str(results(params.task).model(replace(run, method="sft")))
    return params.model.path if params.grpo.start == "base" else params.grpo.start


def find_adapter_base(folder: Path) -> Path | None:
    """The folder that an adapter names as its base; None where `folder` holds full weights."""
    config = folder / "adapter_config.json"
    if not config.exists():
        return None
    return Path(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"])


def check_model_folder(path: str, source: str = "") -> None:
    """Check that a model is a folder that needs neither pickles nor code of its own, and no adapter on itself.

    Args:
        source: file and key that name the model, for the message.

    Raises:
        ParamsError: it is none; the message says how to get one.
    """
    if Path(path).is_dir():
        _check_weights(Path(path))
        _check_code(Path(path) / "config.json")
        _check_bases(Path(path))
        return
    fix = "correct it, or make or fetch the model first (`planward fetch-model ORG/NAME` writes models/name)"
    if HUB_NAME.fullmatch(path) and Path(path).parent != MODELS and not Path(path).parent.is_dir():
        fix = f"planward fetch-model {path}, and set it to {hub_folder(path)}"
    raise ParamsError(f"{source}{': ' if source else ''}no folder {path}; fix: {fix}")


def _check_weights(folder: Path) -> None:
    """Raise ParamsError where the weights are pickles: reading one may run any code in it."""
    stem = "adapter_model" if (folder / "adapter_config.json").exists() else "*model"
    pickles = sorted(file for end in PICKLES for file in folder.glob(f"{stem}*{end}"))
    if pickles and not any(folder.glob(f"{stem}*.safetensors")):
        raise ParamsError(
            f"{pickles[0]}: a pickle, which may run any code when it is read, and there are no safetensors; fix: load "
            "it where you trust it, and save it with save_pretrained(folder), which writes safetensors"
        )


def _check_code(config: Path) -> None:
    """Raise ParamsError where a model has code of its own and is of no type that Transformers knows."""
    content: Any = None
    with suppress(OSError, ValueError):  # Transformers names such faults
        content = json.loads(config.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "auto_map" not in content:
        return
    from transformers import CONFIG_MAPPING

    if content.get("model_type") not in CONFIG_MAPPING:
        raise ParamsError(
            f"{config}: auto_map asks for code of the model's own, which is never run, and Transformers does not know "
            f"the model type {content.get('model_type')!r}; fix: take a model that Transformers supports"
        )


def _check_bases(folder: Path) -> None:
    """Raise ParamsError where an adapter's base is the adapter itself, or an adapter on it."""
    chain, base = [folder], _read_base(folder)
    while base is not None:
        chain.append(base)
        if os.path.realpath(base) in map(os.path.realpath, chain[:-1]):
            raise ParamsError(
                f"{chain[-2] / 'adapter_config.json'}: base_model_name_or_path: a circle of adapters, "
                f"{' on '.join(map(str, chain))}; fix: name the folder of the weights that the adapter was trained on"
            )
        base = _read_base(base)


def _read_base(folder: Path) -> Path | None:
    with suppress(OSError, ValueError, KeyError, TypeError):  # PEFT names such faults
        return find_adapter_base(folder)
    return None

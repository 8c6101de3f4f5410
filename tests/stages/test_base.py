"""The stage that trains the shipped base model leaves each of its files complete or as it was."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from planward.core.files import CannotWriteError
from planward.pretraining import base_model, held_out
from planward.stages import base
from support import ROOT


class Saved:
    """A model and a tokenizer, each of one file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def save_pretrained(self, folder: Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, self.name).write_text("new")

    def num_parameters(self) -> int:
        return 1


class Full(Saved):
    def save_pretrained(self, folder: Path) -> None:
        super().save_pretrained(folder)
        raise OSError(errno.ENOSPC, "No space left on device")


def test_models_base_is_replaced_file_by_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / "models/base"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "models/params.yaml", project / "models/params.yaml")
    for name in ("README.md", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("old")
    monkeypatch.setattr(held_out, "compute_held_out_metrics", lambda *_: {})

    def run(model: Saved) -> dict[str, str]:
        network_and_tokenizer: tuple[Any, ...] = model, Saved("tokenizer.json")
        monkeypatch.setattr(base_model, "pretrain", lambda *_: network_and_tokenizer)
        base.run()
        return {file.name: file.read_text() for file in folder.iterdir() if file.name != "metrics.json"}

    with pytest.raises(CannotWriteError, match="No space left on device"):
        run(Full("model.safetensors"))
    assert {file.read_text() for file in folder.iterdir()} == {"old"}
    assert run(Saved("model.safetensors")) == {"README.md": "old", "model.safetensors": "new", "tokenizer.json": "new"}
    assert not (project / ".checkpoints/base").exists()

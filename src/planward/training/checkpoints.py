"""Interrupted runs: where a run keeps its checkpoints, which of them is whole, what else it must remember.

The folder lies outside results/: DVC deletes a stage's outputs before it runs the stage.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

import planward
from planward.records import Record, write_json

ROOT = Path(".checkpoints")
JOURNAL = "journal.json"


@dataclass
class Journal:
    """What a run has done so far beside its weights."""

    curves: list[dict[str, Any]] = field(default_factory=list)  # step, and the values of some curves
    consumed: list[dict[str, Any]] = field(
        default_factory=list
    )  # the prompts that GRPO really trained on, one row each


def fingerprint(
    settings: Mapping[str, Any],
    records: Iterable[Record],
    schedule: Iterable[Mapping[str, Any]],
    model: str,
    processes: int,
) -> str:
    """Return 16 hexadecimal digits that change with anything a resumed run would have to share, its code included."""
    digest = hashlib.sha256(code_digest())
    parts: list[Any] = [settings, [record.model_dump() for record in records], list(schedule), processes]
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    folder = Path(model)
    digest.update(model.encode())
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


@cache
def code_digest() -> bytes:
    """Of the sources that a run's results depend on, and of the trainers' versions."""
    digest = hashlib.sha256("".join(map(version, ("torch", "transformers", "trl", "peft"))).encode())
    package = Path(planward.__file__).parent
    for part in ("curriculum", "evaluation", "pddl", "tasks", "training"):
        for file in sorted((package / part).rglob("*.py")):
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + file.read_bytes())
    return digest.digest()


def resume(folder: Path, steps: int | None = None) -> tuple[Path | None, Journal]:
    """Return the newest whole checkpoint, of no more than `steps`, with its journal; (None, empty) where there is none.

    A journal is written last and names every file with its size, so a run killed while it saved leaves a
    checkpoint without one, which is passed over and removed.
    """
    state = PartialState()
    found: tuple[Path | None, Journal] = (None, Journal())
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        journal = _read(checkpoint)
        if journal is not None and (steps is None or _step(checkpoint) <= steps):
            found = checkpoint, journal
            break
    state.wait_for_everyone()
    if state.is_main_process:
        for checkpoint in folder.glob("checkpoint-*"):
            if checkpoint != found[0]:
                shutil.rmtree(checkpoint)
    state.wait_for_everyone()
    return found


class Keeper(TrainerCallback):
    """Completes each checkpoint with the journal, then removes the older ones."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder = folder
        self.journal = journal

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        processes = PartialState()
        processes.wait_for_everyone()  # every process writes its own random state
        if processes.is_main_process:
            checkpoint = self.folder / f"checkpoint-{state.global_step}"
            write_json(checkpoint / JOURNAL, {"files": _sizes(checkpoint), "journal": asdict(self.journal)})
            for older in self.folder.glob("checkpoint-*"):
                if _step(older) < state.global_step:
                    shutil.rmtree(older)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _sizes(checkpoint: Path) -> dict[str, int]:
    files = (file for file in checkpoint.rglob("*") if file.is_file() and not file.name.startswith(JOURNAL))
    return {str(file.relative_to(checkpoint)): file.stat().st_size for file in files}


def _read(checkpoint: Path) -> Journal | None:
    file = checkpoint / JOURNAL
    if not file.exists():
        return None
    saved = json.loads(file.read_text(encoding="utf-8"))
    return Journal(**saved["journal"]) if saved["files"] == _sizes(checkpoint) else None

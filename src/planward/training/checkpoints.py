"""Resuming interrupted runs: checkpoints with a journal of what the trainer itself does not save."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback

import planward
from planward.core.files import write_json
from planward.core.records import Record
from planward.training.termination import Terminated, Termination

JOURNAL = "journal.json"
# Packages that a trained model depends on.
PACKAGES = ("core", "curriculum", "evaluation", "inference", "pddl", "tasks", "training", "val")


@dataclass
class Journal:
    """The state of a run beside weights, optimizer and random generators."""

    curves: list[dict[str, Any]] = field(default_factory=list)  # rows: step, and values of some curves
    consumed: list[dict[str, Any]] = field(default_factory=list)  # rows: the prompts that GRPO trained on
    files: list[str] = field(default_factory=list)  # names of the run's files beside its checkpoints


def compute_fingerprint(
    settings: Mapping[str, Any],
    records: Iterable[Record],
    schedule: Iterable[Mapping[str, Any]],
    model: str,
    processes: int,
) -> str:
    """Return 16 hexadecimal digits over everything that a resumed run must share, Planward's code included."""
    digest = hashlib.sha256(compute_code_digest())
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
def compute_code_digest() -> bytes:
    """Return a digest of the source files and prompt templates of `PACKAGES`, and of the trainers' versions."""
    digest = hashlib.sha256("".join(map(version, ("torch", "transformers", "trl", "peft"))).encode())
    root = Path(planward.__file__).parent
    for package in PACKAGES:
        for file in sorted(chain((root / package).rglob("*.py"), (root / package).rglob("*.jinja"))):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.digest()


def restore_checkpoint(folder: Path, max_steps: int | None = None) -> tuple[Path | None, Journal]:
    """Return the newest complete checkpoint of up to `max_steps` and its journal; (None, empty) if there is none.

    All other checkpoints, and the files beside them that the journal does not name, are deleted. The journal is written
    last and lists every file with its size, so a checkpoint that was interrupted while saving is recognised.
    """
    state = PartialState()
    restored: tuple[Path | None, Journal] = (None, Journal())
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_parse_step, reverse=True):
        journal = _read_journal(checkpoint)
        if journal is not None and (max_steps is None or _parse_step(checkpoint) <= max_steps):
            restored = checkpoint, journal
            break
    state.wait_for_everyone()
    if state.is_main_process:
        _delete_others(folder, *restored)
    state.wait_for_everyone()
    return restored


class CheckpointCallback(TrainerCallback):
    """Writes the journal into each checkpoint; then deletes older ones, and files that the journal no longer names.

    After SIGTERM it has a checkpoint written at the end of the step, and raises Terminated.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder = folder
        self.journal = journal
        self.termination = Termination()

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self.termination.watch()

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self.termination.stop_watching()

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        if _is_any(self.termination.is_requested):
            self.termination.is_requested = control.should_save = True

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        processes = PartialState()
        processes.wait_for_everyone()  # every process writes its own random state
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        if processes.is_main_process:
            sizes = _list_sizes(checkpoint, self.journal)
            write_json(checkpoint / JOURNAL, {"files": sizes, "journal": asdict(self.journal)})
            _delete_others(self.folder, checkpoint, self.journal)
        if self.termination.is_requested:
            self.termination.stop_watching()
            processes.wait_for_everyone()
            raise Terminated(f"ended by SIGTERM after step {state.global_step}; the same command goes on from there")


def _is_any(value: bool) -> bool:
    """Whether `value` is true in any process."""
    processes = PartialState()
    if processes.num_processes == 1:
        return value
    flag = torch.tensor(int(value), device=processes.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


def _parse_step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _delete_others(folder: Path, checkpoint: Path | None, journal: Journal) -> None:
    """Delete everything in `folder` but the checkpoint and the files that the journal names."""
    for path in folder.glob("*"):
        if path.is_dir() and path != checkpoint:
            shutil.rmtree(path)
        elif path.is_file() and path.name not in journal.files:
            path.unlink()


def _list_sizes(checkpoint: Path, journal: Journal) -> dict[str, int]:
    files = [file for file in checkpoint.rglob("*") if file.is_file() and not file.name.startswith(JOURNAL)]
    sizes = {str(file.relative_to(checkpoint)): file.stat().st_size for file in files}
    beside = {f"../{name}": checkpoint.with_name(name) for name in journal.files}
    return sizes | {name: file.stat().st_size for name, file in beside.items() if file.exists()}


def _read_journal(checkpoint: Path) -> Journal | None:
    """Return a checkpoint's journal; None if the checkpoint or a file that the journal names is incomplete."""
    file = checkpoint / JOURNAL
    if not file.exists():
        return None
    saved = json.loads(file.read_text(encoding="utf-8"))
    journal = Journal(**saved["journal"])
    return journal if saved["files"] == _list_sizes(checkpoint, journal) else None

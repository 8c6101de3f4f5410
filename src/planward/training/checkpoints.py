"""Resuming interrupted runs: checkpoints with a journal of what the trainer itself does not save.

The journal is written last and has a digest of every file, so checkpoints that were interrupted, damaged or copied from
another run are recognised. They are set aside, and the run goes on from the one before.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import xxhash
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from planward.core.files import name_write_errors, write_json
from planward.training.termination import Terminated, Termination

JOURNAL = "journal.json"
NUM_KEPT = 2  # checkpoints: the newest, and one to go on from should it be damaged
UNUSABLE = "unusable-"  # prefix of a checkpoint that was set aside
BLOCK_SIZE = 2**20  # bytes that are read at once for a digest


class UnusableCheckpoint(Exception):
    """A run cannot go on from a checkpoint; the message says why."""


@dataclass
class Journal:
    """The state of a run beside weights, optimizer and random generators."""

    curves: list[dict[str, Any]] = field(default_factory=list)  # rows: step, and values of some curves
    consumed: list[dict[str, Any]] = field(default_factory=list)  # rows: the prompts that GRPO trained on
    files: list[str] = field(default_factory=list)  # names of the run's files beside its checkpoints


def restore_checkpoint(folder: Path, max_steps: int | None = None) -> tuple[Path | None, Journal]:
    """Return the newest usable checkpoint of up to `max_steps` and its journal; (None, empty) if there is none.

    Newer ones that cannot be used are set aside, as `unusable-checkpoint-STEP`, and named. All other checkpoints, and
    the files beside them that the journal does not name, are deleted.
    """
    resume_point: tuple[Path | None, Journal] = (None, Journal())
    if PartialState().is_main_process:
        for checkpoint in sorted(folder.glob("checkpoint-*"), key=_parse_step, reverse=True):
            if max_steps is not None and _parse_step(checkpoint) > max_steps:
                continue
            try:
                resume_point = checkpoint, _read_journal(checkpoint)
                break
            except UnusableCheckpoint as error:
                _set_aside(checkpoint, error)
        _delete_others(folder, {resume_point[0]: resume_point[1].files})
    [resume_point] = broadcast_object_list([resume_point])
    return resume_point


def run_trainer(trainer: Any, folder: Path, checkpoint: Path | None) -> None:
    """Run a trainer whose checkpoints are in `folder`, from one of them or from the start.

    Raises:
        CannotWriteError: the disk is full or `folder` is not writable; a half-written checkpoint is deleted.
    """
    is_endless = isinstance(trainer.train_dataset, IterableDataset)
    if checkpoint and is_endless and _parse_step(checkpoint) == trainer.args.max_steps:
        trainer._load_from_checkpoint(str(checkpoint))  # train() would add a step
        return
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except Exception:
        for path in folder.glob("checkpoint-*"):
            if PartialState().is_main_process and not (path / JOURNAL).exists():
                try:
                    with name_write_errors(path):
                        raise
                finally:
                    shutil.rmtree(path)
        raise


class CheckpointCallback(TrainerCallback):
    """Writes the journal into each checkpoint, and deletes older ones and files that their journals do not name.

    The newest `NUM_KEPT` stay; all but the last are deleted before another one is written, and at the end. So there
    are never more than `NUM_KEPT`, and always a complete one. After SIGTERM the callback has a checkpoint written at
    the end of the step, and raises Terminated.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder = folder
        self.journal = journal
        self.termination = Termination()
        self.is_ending = False  # in all processes at the same step, other than termination.is_requested
        # The files beside each complete checkpoint; restore_checkpoint leaves one at most.
        self.saved: dict[Path | None, list[str]] = {path: list(journal.files) for path in folder.glob("checkpoint-*")}

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        state.save_steps = args.save_steps  # a resumed trainer has the checkpoint's
        self.termination.watch()

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self.termination.stop_watching()
        self._keep(1)
        if PartialState().is_main_process:
            for path in self.folder.glob(f"{UNUSABLE}*"):
                _delete(path)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        if self.is_ending or _is_any(self.termination.is_requested):
            self.is_ending = control.should_save = True
        if control.should_save:
            self._keep(NUM_KEPT - 1)

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        processes = PartialState()
        processes.wait_for_everyone()  # every process writes its own random state
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        if processes.is_main_process:
            _write_journal(checkpoint, self.journal)
        self.saved[checkpoint] = list(self.journal.files)
        self._keep(NUM_KEPT)
        if self.is_ending:
            self.termination.stop_watching()
            processes.wait_for_everyone()
            raise Terminated(f"ended by SIGTERM after step {state.global_step}; the same command goes on from there")

    def _keep(self, count: int) -> None:
        """Delete all but the newest `count` checkpoints."""
        self.saved = dict(list(self.saved.items())[-count:])
        if self.saved and PartialState().is_main_process:
            _delete_others(self.folder, self.saved | {None: self.journal.files})


def _is_any(value: bool) -> bool:
    """Whether `value` is true in any process."""
    processes = PartialState()
    if processes.num_processes == 1:
        return value
    flag = torch.tensor(int(value), device=processes.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


def _parse_step(checkpoint: Path) -> int:
    """Return a checkpoint's step; -1 if its name has none."""
    match = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(match[1]) if match else -1


def _set_aside(checkpoint: Path, reason: UnusableCheckpoint) -> None:
    """Rename a checkpoint, in place of one that was set aside before, and say why."""
    aside = checkpoint.with_name(UNUSABLE + checkpoint.name)
    _delete(aside)
    checkpoint.rename(aside)
    print(f"warning: {checkpoint} is not used: {reason}; it is now {aside.name}, until the run is finished", flush=True)


def _delete_others(folder: Path, files_by_checkpoint: Mapping[Path | None, Iterable[str]]) -> None:
    """Delete everything in `folder` but these checkpoints, the files that they need, and what was set aside."""
    files = set(chain.from_iterable(files_by_checkpoint.values()))
    for path in folder.glob("*"):
        is_file = path.is_file() and path.name in files
        if not is_file and path not in files_by_checkpoint and not path.name.startswith(UNUSABLE):
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_journal(checkpoint: Path, journal: Journal) -> None:
    names = [*_list_files(checkpoint), *(f"../{name}" for name in journal.files)]
    digests = {name: _compute_digest(checkpoint / name) for name in names}
    content = {"checkpoint": _identify(checkpoint), "files": digests, "journal": asdict(journal)}
    write_json(checkpoint / JOURNAL, content | {"digest": _digest_content(content)})


def _read_journal(checkpoint: Path) -> Journal:
    """Return a checkpoint's journal; raises UnusableCheckpoint if a file is not what the run wrote."""
    file = checkpoint / JOURNAL
    try:
        content = json.loads(file.read_bytes())
        is_intact = content.pop("digest") == _digest_content(content)
    except (FileNotFoundError, NotADirectoryError):
        raise UnusableCheckpoint(f"it has no {JOURNAL}, so writing it was interrupted, or others wrote it") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        is_intact = False
    if not is_intact:
        raise UnusableCheckpoint(f"{file} is damaged")
    if content["checkpoint"] != _identify(checkpoint):
        raise UnusableCheckpoint(f"it is a copy of {content['checkpoint']}")
    if unknown := sorted(set(_list_files(checkpoint)) - content["files"].keys()):
        raise UnusableCheckpoint(f"{checkpoint / unknown[0]} is none of its files")
    for name, digest in content["files"].items():
        path = checkpoint / name
        if not path.is_file():
            raise UnusableCheckpoint(f"{path} is missing")
        size, expected_size = path.stat().st_size, int(digest.partition(":")[0])
        if size != expected_size:
            raise UnusableCheckpoint(f"{path} has {size} bytes, not {expected_size}")
        if _compute_digest(path) != digest:
            raise UnusableCheckpoint(f"{path} is damaged")
    return Journal(**content["journal"])


def _identify(checkpoint: Path) -> str:
    """Return the run's folder, which has its fingerprint, and the step."""
    return f"{checkpoint.parent.name}/{checkpoint.name}"


def _list_files(checkpoint: Path) -> list[str]:
    files = (file for file in checkpoint.rglob("*") if file.is_file() and not file.name.startswith(JOURNAL))
    return sorted(str(file.relative_to(checkpoint)) for file in files)


def _compute_digest(file: Path) -> str:
    """Return a file's size and XXH3 digest, which guards against damage, not attacks."""
    digest, block = xxhash.xxh3_128(), bytearray(BLOCK_SIZE)
    with file.open("rb") as stream:
        while count := stream.readinto(block):
            digest.update(memoryview(block)[:count])
    return f"{file.stat().st_size}:{digest.hexdigest()}"


def _digest_content(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())

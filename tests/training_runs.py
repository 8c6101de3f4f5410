"""SFT and GRPO runs on the letters task, and what they write."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

import letters
from planward.core.records import Record
from planward.core.runs import Run
from planward.params import Params
from planward.training import grpo, sft

TASK = letters.LettersTask()
RECORDS = letters.build_problems(24)
RUN = Run("grpo", len(RECORDS), 3407)


class Killed(Exception):
    """Simulates a power cut."""


class KillAfter(TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            raise Killed


class TerminateIn(TrainerCallback):
    """Sends SIGTERM during a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self.step - 1:
            os.kill(os.getpid(), signal.SIGTERM)


class KillAtEnd(TrainerCallback):
    def on_train_end(self, *_: Any, **__: Any) -> None:
        raise Killed


class StepRecorder(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.steps.append(state.global_step)


def run_grpo(
    name: str,
    params: Params,
    task: Any = TASK,
    callbacks: Sequence[TrainerCallback] = (),
    base: str = "base",
    validation: Sequence[Record] = (),
) -> list[dict[str, Any]]:
    """Train; return the rows of consumed.parquet."""
    schedule = letters.build_schedule(RECORDS, params.grpo.steps, params.grpo.batch_size)
    outputs = {"base": base, "model": Path(name), "training": Path("training", name), "run": RUN}
    grpo.train(task, RECORDS, schedule, params, callbacks=callbacks, validation=validation, **outputs)
    return read_rows(name, "consumed")


def run_sft(
    name: str,
    params: Params,
    callbacks: Sequence[TrainerCallback] = (),
    task: Any = TASK,
    validation: Sequence[Record] = (),
) -> None:
    outputs = {"base": "base", "model": Path(name), "training": Path("training", name)}
    run = replace(RUN, method="sft")
    sft.train(task, RECORDS, params, run=run, validation=validation, callbacks=callbacks, **outputs)


def load_weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(Path(name, "model.safetensors"))


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def read_files(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def read_rows(name: str, table: str) -> list[dict[str, Any]]:
    """Return the rows of training/NAME/TABLE.parquet."""
    return pq.read_table(Path("training", name, f"{table}.parquet")).to_pylist()


def read_curve(name: str, quantity: str) -> list[tuple[int, float]]:
    lines = Path("training", name, "curves", f"{quantity}.tsv").read_text().splitlines()
    assert lines[0] == f"step\t{quantity.rpartition('/')[2]}"
    return [(int(step), float(value)) for step, value in (line.split("\t") for line in lines[1:])]


def read_metrics(name: str) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(Path("training", name, "metrics.json").read_text())
    return metrics

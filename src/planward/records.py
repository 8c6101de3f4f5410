"""Records that pass between stages, and the small files that hold them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field

METHODS = ("base", "sft", "grpo")  # of every run, in the order of every table; any other is a variant of grpo
RULES = ("random", "similarity", "oracle")  # ways to choose worked examples that are not learned
POINTERS = ("pointer-sft", "pointer-rce", "pointer-grpo")
SELECTORS = ("random", "similarity", *POINTERS, "oracle")  # all of them, in the order of every table


class Label(StrEnum):
    """What a planning verifier says of a plan (SPEC names, kept in every file)."""

    SUCCESS = "success_plans"
    GOAL = "goal_not_satisfied"
    PRECONDITION = "precondition_violation"
    SAFETY = "safety_constraints_violation"
    FORMAT = "plan_format_error"


class CannotWriteError(OSError):
    """A file could not be written; the message names it."""


class VerifierError(RuntimeError):
    """The verifier is broken (missing, killed, timed out, unreadable): never the model's fault."""


@dataclass(frozen=True)
class Outcome:
    """What a verifier found, before any reward is given.

    `failing_step` counts from 1 and is set for precondition and safety violations only.
    `goals_satisfied` is None where the plan did not run to its end.
    """

    label: Label
    plan_size: int
    failing_step: int | None = None
    goals_satisfied: int | None = None
    goals_total: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """A task's judgement of one completion: `reward` in [-1, 1]; `success` is what tables count."""

    label: str
    reward: float
    success: bool
    detail: str = ""
    plan: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Run:
    """One trained model or selector, or an untrained one: what its weights, curves and predictions are named after."""

    method: str
    size: int  # training problems in all; 0 for base and for selectors that are rules
    seed: int

    @property
    def name(self) -> str:
        """`grpo-400-3407`; `base-0`, since there is one base."""
        return f"{self.method}-{self.size}-{self.seed}" if self.size else f"{self.method}-0"

    @classmethod
    def parsed(cls, name: str) -> Run | None:
        """The run that a name stands for; None where it is no run's. `400-3407` has the method ''."""
        if untrained := re.fullmatch(r"([a-z][\w-]*?)-0", name):
            return cls(untrained[1], 0, 0)
        found = re.fullmatch(r"(?:([a-z][\w-]*?)-)?(\d+)-(\d+)", name)
        return cls(found[1] or "", int(found[2]), int(found[3])) if found else None


BASE = Run("base", 0, 0)


class Meta(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    scenario: str = Field(min_length=1)
    domain_file: str = Field(min_length=1)
    problem_file: str = Field(min_length=1)


class Record(BaseModel):
    """One line of a problem file.

    `id` and `constrained` (it has safety constraints) are given by the split, `score` and `bucket` by the score stage.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: str
    response: str | None = None
    class_label: str | None = None
    meta: Meta
    id: str = ""
    constrained: bool = False
    score: float | None = None
    bucket: str | None = None

    @property
    def domain(self) -> str:
        return self.meta.scenario


class Prediction(BaseModel):
    """One completion on one test problem, with VAL's verdict: what every table is computed from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    domain: str
    bucket: str
    score: float
    constrained: bool = False  # the problem has safety constraints
    method: str  # base | sft | grpo | a variant of grpo
    dataset_size: int  # 0 for base
    seed: int  # of the training run; for base, params.seed
    shot_num: int
    shot_ids: list[str]  # may be fewer than shot_num where the prompt was too long
    prompt: str
    completion: str
    plan: str  # as extracted, one action a line
    label: str
    success: bool
    reward: float
    detail: str
    plan_size: int
    failing_step: int | None
    goals_satisfied: int | None
    goals_total: int | None


def read_records(path: Path) -> Iterator[Record]:
    """Stream records that a stage wrote (trusted: a bad line raises)."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Record.model_validate_json(line)


def read_predictions(path: Path) -> Iterator[Prediction]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Prediction.model_validate_json(line)


def write_jsonl(path: Path, rows: Iterable[BaseModel | dict[str, Any]]) -> int:
    """Write rows as JSON lines, whole or not at all; returns how many."""
    count = 0
    with written(path) as out:
        for row in rows:
            data = row.model_dump(exclude_none=True) if isinstance(row, BaseModel) else row
            out.write(json.dumps(data, ensure_ascii=False) + "\n")
            count += 1
    return count


def write_json(path: Path, data: Any) -> None:
    """Write JSON with sorted keys, whole or not at all."""
    with written(path) as out:
        json.dump(data, out, indent=2, sort_keys=True, ensure_ascii=False)
        out.write("\n")


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """Open `path` for writing text so that it appears complete or not at all; raises as `replaced` does."""
    with (
        replaced(path) as partial,
        io.TextIOWrapper(io.BufferedWriter(_Named(partial, "w")), encoding="utf-8", newline="\n") as out,
    ):
        yield out


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`; what is written there takes its place, complete or not at all.

    Raises:
        CannotWriteError: the disk is full or the folder cannot be written to; the message names `path`,
            and no partial file is left behind.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        ours = isinstance(error, OSError) and error.filename in (None, str(partial))
        if ours and not isinstance(error, CannotWriteError):
            raise _cannot_write(path, error) from error
        raise


class _Named(io.FileIO):
    """A file whose errors name it: those of a full disk do not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None


def _cannot_write(path: Path, error: BaseException) -> CannotWriteError:
    return CannotWriteError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")

"""Problems and predictions: the records that stages exchange as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TransferKind = Literal["renamed", "larger", "unseen"]
TRANSFER_KINDS: tuple[TransferKind, ...] = ("renamed", "larger", "unseen")  # in the order of every table


class Meta(BaseModel):
    """A problem's domain and PDDL files; a task may add keys of its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    scenario: str = Field(min_length=1)
    domain_file: str = Field(min_length=1)
    problem_file: str = Field(min_length=1)


class Record(BaseModel):
    """A problem: one line of a problem file.

    The split sets `id` and `constrained` (the problem has safety constraints), the score stage `score` and `bucket`.
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


class TransferProblem(Record):
    """A problem that is unlike those of training, with the worked examples of its prompts, in their order.

    A renamed problem has the `id` of its original.
    """

    kind: TransferKind
    known_to_base: bool  # it can be stated in the words that the shipped base model has for its domain
    examples: list[Record] = []


class Prediction(BaseModel):
    """One completion of one test problem, with VAL's verdict; all tables are computed from these rows."""

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
    shot_ids: list[str]  # fewer than shot_num where the prompt was too long
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


class SampledAnswer(BaseModel):
    """Sampled completions of one test problem, with VAL's verdicts; pass@k is computed from these rows.

    The lists have an entry for each completion.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    domain: str
    bucket: str
    constrained: bool
    method: str
    dataset_size: int  # 0 for base
    seed: int  # of the training run; for base, params.seed
    shot_num: int
    shot_ids: list[str]
    completions: list[str]
    tokens: list[int]  # sampled, with the one that ends the completion
    labels: list[str]
    successes: list[bool]
    plan_sizes: list[int]


def read_records(path: Path) -> Iterator[Record]:
    """Stream the records of a file that a stage wrote; an invalid line raises."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Record.model_validate_json(line)


def read_transfer_problems(path: Path) -> Iterator[TransferProblem]:
    """Stream the problems of a file that stage `transfer-problems` wrote; an invalid line raises."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield TransferProblem.model_validate_json(line)


def read_sampled_answers(path: Path) -> Iterator[SampledAnswer]:
    """Stream the rows of a file that stage `sample` wrote; an invalid line raises."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield SampledAnswer.model_validate_json(line)


def read_predictions(path: Path) -> Iterator[Prediction]:
    """Stream the predictions of a file; an invalid line raises."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Prediction.model_validate_json(line)

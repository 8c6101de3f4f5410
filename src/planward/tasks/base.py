"""The protocol between a task and the trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from planward.records import Record, Verdict

Messages = list[dict[str, str]]
Alias = Mapping[str, str]  # a renaming of a problem's objects, a permutation of their names; empty: as it is
AS_IS: Alias = MappingProxyType({})


class BadLine(ValueError):
    """A line of a problem file that cannot be used; the message is the reason that goes to quarantine."""


def claimed_record(line: Mapping[str, Any], domain: str) -> Record:
    """A line of a problem file as a record of the domain that it claims to be of; raises BadLine where it is none."""
    if isinstance(line.get("meta"), dict):
        line = {**line, "meta": {**line["meta"], "scenario": domain}}
    try:
        return Record.model_validate(line)
    except ValidationError as error:
        fault = error.errors()[0]
        raise BadLine(f"bad record: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def worth(reward: float, success: bool, kind: Literal["dense", "sparse"]) -> float:
    """What a trainer gets for a verdict under `grpo.reward`: dense, the verdict's reward; sparse, 1 or -1."""
    if kind == "dense":
        return reward
    return 1.0 if success else -1.0


class Task(Protocol):
    """What stages, trainers and evaluators may ask of a task.

    `prompt` returns plain text for models without a chat template, chat messages otherwise.
    `verify` judges one completion quickly, in training; `judge` is the authority behind every
    published number, and takes many at once.

    A problem may be put to a model in other words: `alias` draws them. Then `prompt` and `answer` speak in
    them, and a completion is in them until `original` has put it back; verdicts are always in the problem's own.
    """

    name: str
    labels: tuple[str, ...]  # of verdicts; success first
    domains: tuple[str, ...]  # that problems may be of

    def bring(self, folder: Path) -> None:
        """Write problems into an empty folder: JSON lines (*.jsonl) and the files that they name.

        Raises:
            ParamsError: params.yaml asks for problems that cannot be had.
        """
        ...

    def admitted(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """A line of `bring`'s files as a checked record with its `id` and a reference, and its digest `core`.

        Problems of one core go to one side of the split.

        Args:
            domain: what the line says it is of, or its file is named after; perhaps none of `domains`.

        Raises:
            BadLine: it is no usable line; says why.
            VerifierError: no verdict on its reference could be reached.
        """
        ...

    def difficulty(self, problem: Record) -> float | None:
        """The difficulty, on a scale of the problem's domain; None where nothing tells it."""
        ...

    def shots(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        """Up to `count` other problems of `pool` as worked examples, in the prompt's order: the query stands last.

        `seed` decides where there is a choice.
        """
        ...

    def alias(self, problem: Record, seed: str) -> Alias:
        """A random renaming of the problem's objects, the same for the same seed; empty where a task has none."""
        ...

    def core(self, problem: Record) -> str:
        """The same for problems that differ by the names of objects or by constraints only; others' differ."""
        ...

    def prompt(self, problem: Record, shots: Sequence[Record], alias: Alias = AS_IS) -> str | Messages:
        """The worked examples as they are, then the problem, renamed."""
        ...

    def answer(self, problem: Record, alias: Alias = AS_IS) -> str:
        """The reference completion, renamed, without the end-of-sequence token."""
        ...

    def original(self, completion: str, alias: Alias) -> str:
        """A completion on the renamed problem, as one on the problem as it is."""
        ...

    def verify(self, problem: Record, completion: str, alias: Alias = AS_IS) -> Verdict:
        """Raises VerifierError where no verdict could be reached."""
        ...

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        """Completions are in the problems' own words; raises VerifierError where no verdict could be reached."""
        ...

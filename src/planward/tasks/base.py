"""The protocol between a task and the trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from planward.records import Record, Verdict

Messages = list[dict[str, str]]


class Task(Protocol):
    """What a trainer or evaluator may ask of a task.

    `prompt` returns plain text for models without a chat template, chat messages otherwise.
    `verify` judges one completion quickly, in training; `judge` is the authority behind every
    published number, and takes many at once.
    """

    name: str
    labels: tuple[str, ...]

    def prompt(self, problem: Record, shots: Sequence[Record]) -> str | Messages: ...

    def answer(self, problem: Record) -> str:
        """The reference completion, without the end-of-sequence token."""
        ...

    def verify(self, problem: Record, completion: str) -> Verdict:
        """Raises VerifierError where no verdict could be reached."""
        ...

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        """Raises VerifierError where no verdict could be reached."""
        ...

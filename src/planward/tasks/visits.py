"""A problem as it is put to a model in training: by which names, after which worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from planward.params import Range
from planward.records import Record
from planward.tasks.base import AS_IS, Alias, Messages, Task
from planward.tasks.fitting import encode, fit


def draw_shots(task: Task, problem: Record, records: Sequence[Record], number: Range, seed: str) -> list[Record]:
    """Return shots, their number drawn in a range; fewer where there are fewer other problems of the kind."""
    count = Random(f"{seed}:{problem.id}:count").randint(*number)
    return task.shots(problem, records, count, seed)


@dataclass(frozen=True)
class Visit:
    """A problem as it is put to the model once: by which names, after which worked examples."""

    alias: Alias
    prompt: str | Messages
    ids: list[int]  # the prompt's tokens
    dropped: int  # shots that did not fit


def visit(
    task: Task,
    tokenizer: Any,
    problem: Record,
    records: Sequence[Record],
    seed: str,
    *,
    shots: Range,
    renaming: bool,
    limit: int,
) -> Visit:
    """Put a problem to the model, with names and shots that are drawn by `seed`, in up to `limit` tokens.

    Raises:
        PromptTooLong: the problem does not fit even without shots.
    """
    alias = task.alias(problem, seed) if renaming else AS_IS
    drawn = draw_shots(task, problem, records, shots, seed)
    ids: list[int] = []

    def length(candidate: str | Messages) -> int:
        ids[:] = encode(tokenizer, candidate)
        return len(ids)

    prompt, kept = fit(task, problem, drawn, length, limit, alias)
    return Visit(alias, prompt, ids, len(drawn) - len(kept))

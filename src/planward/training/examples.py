"""What a model is trained on: prompts with drawn shots, and reference answers that are known to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from accelerate import PartialState

from planward.params import Range
from planward.records import Record
from planward.tasks import fitting
from planward.tasks.base import AS_IS, Alias, Messages, Task
from planward.tasks.fitting import drawn_shots, encode, fit

NAMED = 5  # problems that an error message lists


class WrongReferences(ValueError):
    """Reference answers that the task's own verifier does not accept; the message names the first few."""


def draw_shots(problem: Record, records: Sequence[Record], least: int, most: int, seed: str) -> list[Record]:
    """Return between `least` and `most` drawn shots, fewer where the domain has fewer other problems."""
    count = Random(f"{seed}:{problem.id}:count").randint(least, most)
    return drawn_shots(problem, records, count, seed)


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
    drawn = draw_shots(problem, records, *shots, seed)
    ids: list[int] = []

    def length(candidate: str | Messages) -> int:
        ids[:] = encode(tokenizer, candidate)
        return len(ids)

    prompt, kept = fit(task, problem, drawn, length, limit, alias)
    return Visit(alias, prompt, ids, len(drawn) - len(kept))


def answer_ids(task: Task, tokenizer: Any, problem: Record, asked: Visit) -> list[int]:
    """Return the token ids of the reference answer in the visit's names, closed by the end-of-sequence token.

    They are the tokens that a model generates after the prompt's own: prompt and answer are tokenised apart.

    Raises:
        ValueError: the vocabulary lacks a word of the answer, or prompt and answer tokenise otherwise when
            they are written as one text, so that the model would learn a text no one writes.
    """
    answer = task.answer(problem, asked.alias)
    ids = fitting.answer_ids(tokenizer, problem.id, answer)
    if isinstance(asked.prompt, str):
        joined = (encode(tokenizer, asked.prompt + between + answer) for between in ("", " "))
        if asked.ids + ids[:-1] not in joined:
            raise ValueError(f"problem {problem.id}: prompt and answer tokenise otherwise when they are joined")
    return ids


def check_references(task: Task, records: Sequence[Record]) -> None:
    """Let `verify` and `judge` look at every reference answer; the main process does it for all.

    Raises:
        WrongReferences: some answer is not worth exactly 1 to both.
        VerifierError: no verdict could be reached.
    """
    state = PartialState()
    if state.is_main_process:
        answers = [(record, task.answer(record)) for record in records]
        verdicts = [task.verify(record, answer) for record, answer in answers]
        faults = [
            f"  {record.id} ({record.meta.problem_file}): {judge} says {verdict.label}, "
            f"reward {verdict.reward:g} {verdict.detail}".rstrip()
            for judge, judged in (("verify", verdicts), ("judge", task.judge(answers)))
            for record, verdict in zip(records, judged, strict=True)
            if verdict.reward != 1.0
        ]
        if faults:
            raise WrongReferences("\n".join([f"{len(faults)} reference answer(s) are not worth 1:", *faults[:NAMED]]))
    state.wait_for_everyone()

"""Reference answers as a model is trained on them, known to be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import PartialState

from planward.records import Record
from planward.tasks import fitting
from planward.tasks.base import Task
from planward.tasks.fitting import encode
from planward.tasks.visits import Visit

NAMED = 5  # problems that an error message lists


class WrongReferences(ValueError):
    """Reference answers that the task's own verifier does not accept; the message names the first few."""


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
        WrongReferences: some answer is no success to both.
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
            if not verdict.success
        ]
        if faults:
            raise WrongReferences("\n".join([f"{len(faults)} reference answer(s) are no success:", *faults[:NAMED]]))
    state.wait_for_everyone()

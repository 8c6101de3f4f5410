"""What a model is trained on: prompts with drawn shots, and reference answers that are known to be right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from accelerate import PartialState

from planward.records import Record
from planward.tasks.base import Messages, Task
from planward.tasks.fitting import drawn_shots, encode, fit

NAMED = 5  # problems that an error message lists


class WrongReferences(ValueError):
    """Reference answers that the task's own verifier does not accept; the message names the first few."""


def draw_shots(problem: Record, records: Sequence[Record], least: int, most: int, seed: str) -> list[Record]:
    """Return between `least` and `most` drawn shots, fewer where the domain has fewer other problems."""
    count = Random(f"{seed}:{problem.id}:count").randint(least, most)
    return drawn_shots(problem, records, count, seed)


def fitted_prompt(
    task: Task, tokenizer: Any, problem: Record, shots: Sequence[Record], limit: int
) -> tuple[str | Messages, list[int], int]:
    """Return the prompt, its token ids and how many shots were dropped to fit `limit` tokens."""
    prompt, kept = fit(task, problem, shots, lambda candidate: len(encode(tokenizer, candidate)), limit)
    return prompt, encode(tokenizer, prompt), len(shots) - len(kept)


def answer_ids(task: Task, tokenizer: Any, problem: Record, prompt: str | Messages) -> list[int]:
    """Return the token ids of the reference answer, closed by the end-of-sequence token.

    They are the tokens that a model generates after the prompt's own: prompt and answer are tokenised apart.

    Raises:
        ValueError: the vocabulary lacks a word of the answer, or prompt and answer tokenise otherwise when
            they are written as one text, so that the model would learn a text no one writes.
    """
    answer = task.answer(problem)
    ids = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"problem {problem.id}: the reference answer holds a word outside the model's vocabulary")
    if isinstance(prompt, str):
        apart = encode(tokenizer, prompt) + ids
        joined = (encode(tokenizer, prompt + between + answer) for between in ("", " "))
        if apart not in joined:
            raise ValueError(f"problem {problem.id}: prompt and answer tokenise otherwise when they are joined")
    return [*ids, tokenizer.eos_token_id]


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

"""Prompts that fit: worked examples are dropped until the prompt is short enough, never cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from planward.records import Record
from planward.tasks.base import AS_IS, Alias, Messages, Task


class PromptTooLong(ValueError):
    """A problem does not fit into the prompt even without a worked example."""


def fit(
    task: Task,
    problem: Record,
    shots: Sequence[Record],
    count_tokens: Callable[[str | Messages], int],
    limit: int,
    alias: Alias = AS_IS,
) -> tuple[str | Messages, list[Record]]:
    """Return the prompt with as many shots as fit into `limit` tokens, and the shots that were kept.

    `alias` renames the problem in the prompt, not the shots.
    Shots stand in the prompt in the order given, the query behind them, so the far end is the first shot:
    it goes first, the one next to the query goes last.

    Raises:
        PromptTooLong: the query alone takes more than `limit` tokens; the message names the problem.
    """
    for first in range(len(shots) + 1):
        kept = list(shots[first:])
        prompt = task.prompt(problem, kept, alias)
        tokens = count_tokens(prompt)
        if tokens <= limit:
            return prompt, kept
    raise PromptTooLong(
        f"problem {problem.id} ({problem.meta.problem_file}) takes {tokens} tokens without a worked example; "
        f"prompt.max_tokens is {limit}"
    )


def encode(tokenizer: Any, prompt: str | Messages) -> list[int]:
    """Return a prompt's token ids as a model is given them; messages go through the chat template."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    return list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))


def answer_ids(tokenizer: Any, problem: str, answer: str) -> list[int]:
    """Return the token ids of an answer, closed by the end-of-sequence token: what a model writes behind its prompt.

    Raises:
        ValueError: the vocabulary lacks a word of the answer; the message names the problem.
    """
    ids = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"problem {problem}: the reference answer holds a word outside the model's vocabulary")
    return [*ids, tokenizer.eos_token_id]

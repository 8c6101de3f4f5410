"""Prompts for training: a problem with randomly drawn object names and worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming, Task
from planward.params import PromptConfig, Range


@dataclass(frozen=True)
class TrainingPrompt:
    """A problem's prompt in one step of training."""

    renaming: Renaming  # of the problem's objects
    prompt: str | Messages
    ids: list[int]  # token ids of the prompt
    num_dropped: int  # worked examples that did not fit


def sample_training_prompt(
    task: Task,
    tokenizer: Any,
    problem: Record,
    records: Sequence[Record],
    seed: str,
    *,
    shot_range: Range,
    rename: bool,
    config: PromptConfig,
) -> TrainingPrompt:
    """Build a prompt of up to `config.max_tokens` tokens, with names and worked examples drawn by `seed`.

    Args:
        records: the pool of worked examples.
        shot_range: fewest and most worked examples.
        rename: rename the problem's objects.

    Raises:
        PromptTooLong: the problem does not fit even without worked examples.
    """
    renaming = task.draw_renaming(problem, seed) if rename else NO_RENAMING
    examples = draw_examples(task, problem, records, shot_range, seed)
    ids: list[int] = []

    def count_tokens(candidate: str | Messages) -> int:
        ids[:] = encode_prompt(tokenizer, candidate, config.chat_template_options)
        return len(ids)

    prompt, kept_examples = fit_prompt(task, problem, examples, count_tokens, config.max_tokens, renaming)
    return TrainingPrompt(renaming, prompt, ids, len(examples) - len(kept_examples))


def draw_examples(task: Task, problem: Record, records: Sequence[Record], shot_range: Range, seed: str) -> list[Record]:
    """Draw the number of worked examples within `shot_range`, then the examples; fewer where the pool has fewer."""
    shot_num = Random(f"{seed}:{problem.id}:count").randint(*shot_range)
    return task.select_examples(problem, records, shot_num, seed)

"""Replay: where all completions of a problem fail, a plan that was found earlier stands in for one of them.

The plan is the model's own, the last that succeeded on the problem, told in the names that the problem bears now. It
takes the place of a completion before anything is scored, so that its reward, length and mask are those of any
completion. The trainer takes it for on-policy: an earlier policy wrote it, and the loss makes no correction for that.
Such a group would teach nothing under a sparse reward, and only about failures under a dense one. Blending stored
successes into fresh groups is experience replay after RLEP (Zhang et al., 2025, arXiv:2507.07451); there they are added
to every group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from planward.records import Record
from planward.tasks.base import Alias, Task


class Replay:
    """The successes of one run.

    Args:
        limit: tokens that a completion may have.
        succeeds: whether a completion, in the problem's own words, solves it.
    """

    def __init__(self, task: Task, tokenizer: Any, limit: int, succeeds: Callable[[Record, str], bool]) -> None:
        self.task, self.tokenizer, self.limit, self.succeeds = task, tokenizer, limit, succeeds
        self.plans: dict[str, str] = {}

    def keep(self, problem: str, completion: str) -> None:
        """Remember a success, in the problem's own words."""
        self.plans[problem] = completion

    def stand_in(self, problem: Record, alias: Alias, group: Iterable[Sequence[int]]) -> list[int] | None:
        """Return the tokens of a stored success, if there is one and none of the group's completions succeeds."""
        stored = self.plans.get(problem.id)
        if stored is None or any(self._solves(problem, alias, tokens) for tokens in group):
            return None
        text = self.task.original(stored, {new: old for old, new in alias.items()})  # undoing that way leads there
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return tokens if len(tokens) <= self.limit and self._solves(problem, alias, tokens) else None

    def _solves(self, problem: Record, alias: Alias, tokens: Sequence[int]) -> bool:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return self.succeeds(problem, self.task.original(text, alias))

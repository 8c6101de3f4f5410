"""Replay: if all completions of a group fail, an earlier success on the problem replaces one of them.

The replayed plan is the model's own latest success on the problem, translated to the object names of the current
prompt. It replaces a completion before scoring, so its reward, length and mask are treated as any completion's. The
trainer takes it as on-policy: an earlier policy generated it, and the loss makes no correction for that. Without
replay, such a group has no gradient under a sparse reward, and under a dense one only that of failures. Adding stored
successes to fresh groups is experience replay as in RLEP (Zhang et al., 2025, arXiv:2507.07451), which adds them to
every group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from planward.core.records import Record
from planward.core.tasks import Renaming, Task


class ReplayBuffer:
    """The latest success on each problem of one run.

    Args:
        max_tokens: of a completion.
        is_success: whether a completion, in the problem's own names, solves it.
    """

    def __init__(self, task: Task, tokenizer: Any, max_tokens: int, is_success: Callable[[Record, str], bool]) -> None:
        self.task, self.tokenizer, self.max_tokens, self.is_success = task, tokenizer, max_tokens, is_success
        self.completions: dict[str, str] = {}

    def store(self, problem_id: str, completion: str) -> None:
        """Store a success, in the problem's own names."""
        self.completions[problem_id] = completion

    def find_replacement(self, problem: Record, renaming: Renaming, group: Iterable[Sequence[int]]) -> list[int] | None:
        """Return the tokens of a stored success; None without one, or if a completion of the group succeeds."""
        completion = self.completions.get(problem.id)
        if completion is None or any(self._solves(problem, renaming, tokens) for tokens in group):
            return None
        text = self.task.rename_completion(problem, completion, renaming)
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return tokens if len(tokens) <= self.max_tokens and self._solves(problem, renaming, tokens) else None

    def _solves(self, problem: Record, renaming: Renaming, tokens: Sequence[int]) -> bool:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return self.is_success(problem, self.task.undo_renaming(problem, text, renaming))

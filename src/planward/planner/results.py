"""What a planner returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planward.core.verdicts import Verdict
from planward.planner.costs import Cost


@dataclass(frozen=True)
class Attempt:
    """One completion with VAL's verdict.

    Attributes:
        turn: 0 for the first answer, then the number of the repair.
        completion: as the model wrote it, in the prompt's names; `verdict.plan` is in the problem's own.
        cost: of a valid plan; None otherwise.
        num_tokens: of the completion, with the one that ends it.
    """

    turn: int
    completion: str
    verdict: Verdict
    cost: Cost | None
    num_tokens: int

    @property
    def failing_step(self) -> int | None:
        """The action, counted from 1, that violates a precondition or a constraint."""
        return self.verdict.outcome.failing_step if self.verdict.outcome else None

    def as_dict(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "turn": self.turn,
            "completion": self.completion,
            "plan": verdict.plan.splitlines(),
            "label": verdict.label,
            "reward": verdict.reward,
            "failing_step": self.failing_step,
            "detail": verdict.detail,
            "cost": self.cost.value if self.cost else None,
            "tokens": self.num_tokens,
        }


@dataclass(frozen=True)
class PlanResult:
    """A problem's attempts, in the order in which they were drawn.

    Attributes:
        domain, problem: the PDDL files.
        num_examples: worked examples that were in the prompt.
        stop_reason: why there were fewer repairs than asked for; empty otherwise.
    """

    domain: str
    problem: str
    num_examples: int
    attempts: tuple[Attempt, ...]
    stop_reason: str = ""

    @property
    def chosen(self) -> Attempt:
        """The first of the valid plans with the lowest cost; without one, the first attempt with the best verdict."""
        return choose_attempt(self.attempts)

    @property
    def success(self) -> bool:
        """Whether there is a valid plan."""
        return self.chosen.verdict.success

    @property
    def plan(self) -> list[str] | None:
        """The actions of the valid plan; None where there is none."""
        return self.chosen.verdict.plan.splitlines() if self.success else None

    @property
    def verdict(self) -> Verdict:
        """VAL's verdict on the chosen attempt."""
        return self.chosen.verdict

    @property
    def cost(self) -> float | None:
        """The metric's value, or the number of actions where the problem has no metric; None without a valid plan."""
        return self.chosen.cost.value if self.chosen.cost else None

    @property
    def num_samples(self) -> int:
        """Number of completions that were drawn."""
        return len(self.attempts)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all completions."""
        return sum(attempt.num_tokens for attempt in self.attempts)

    def format_plan(self) -> str:
        """Render the valid plan as planners do: its actions, then a comment with the cost; empty without one."""
        cost = self.chosen.cost
        if self.plan is None or cost is None:
            return ""
        return "\n".join([*self.plan, f"; cost = {cost.value:g} ({'unit' if cost.unit else 'general'} cost)"]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        chosen_attempt = self.chosen
        return {
            "domain": self.domain,
            "problem": self.problem,
            "success": self.success,
            "plan": self.plan,
            "cost": self.cost,
            "unit_cost": chosen_attempt.cost.unit if chosen_attempt.cost else None,
            "label": chosen_attempt.verdict.label,
            "failing_step": chosen_attempt.failing_step,
            "detail": chosen_attempt.verdict.detail,
            "examples": self.num_examples,
            "samples": self.num_samples,
            "tokens": self.num_tokens,
            "stop_reason": self.stop_reason,
            "attempts": [attempt.as_dict() for attempt in self.attempts],
        }


def choose_attempt(attempts: tuple[Attempt, ...]) -> Attempt:
    """Return the first of the valid attempts with the lowest cost; without one, the first with the highest reward."""
    return min(attempts, key=lambda attempt: (-attempt.verdict.reward, attempt.cost.rank if attempt.cost else 0.0))

"""The reward of a plan, dense: how far it came before it failed."""

from __future__ import annotations

from collections.abc import Sequence

from planward.records import Label, Outcome, Verdict


def verdict(outcome: Outcome, plan: Sequence[str]) -> Verdict:
    """A verifier's outcome as the task's verdict on a plan, one action an item; raises as `reward` does."""
    success = outcome.label is Label.SUCCESS
    return Verdict(str(outcome.label), reward(outcome), success, outcome.detail, "\n".join(plan), outcome)


def reward(outcome: Outcome) -> float:
    """The reward in [-1, 1] for a verifier's outcome.

    Success is 1, a plan format error (and so an empty plan that does not reach the goal) -1. Between
    them each label has a band of its own, and a later failure is the better one inside it:

        safety_constraints_violation   -0.9 + 0.3 * failing step / plan size
        precondition_violation         -0.6 + 0.3 * failing step / plan size
        goal_not_satisfied             -0.3 + 0.3 * goals satisfied / goals

    Raises:
        ValueError: the outcome lacks the counts that its label needs, or they contradict each other.
    """
    match outcome.label:
        case Label.SUCCESS:
            return 1.0
        case Label.FORMAT:
            return -1.0
        case Label.GOAL:
            satisfied, total = outcome.goals_satisfied, outcome.goals_total
            if satisfied is None or total is None or not 0 <= satisfied < total:
                raise ValueError(f"a missed goal needs 0 <= goals satisfied < goals: {outcome}")
            return -0.3 + 0.3 * satisfied / total
        case Label.PRECONDITION:
            return -0.6 + 0.3 * _reached(outcome)
        case Label.SAFETY:
            return -0.9 + 0.3 * _reached(outcome)


def _reached(outcome: Outcome) -> float:
    """Share of the plan at which it failed, in (0, 1]."""
    step, size = outcome.failing_step, outcome.plan_size
    if step is None or not 1 <= step <= size:
        raise ValueError(f"a violation needs 1 <= failing step <= plan size: {outcome}")
    return step / size

"""Dense reward of a plan: how far it gets before it fails."""

from __future__ import annotations

from collections.abc import Sequence

from planward.core.verdicts import Label, Outcome, Verdict


def build_verdict(outcome: Outcome, plan: Sequence[str]) -> Verdict:
    """Build the verdict on a plan, one action per item, from a verifier's outcome; raises as `compute_reward`."""
    success = outcome.label is Label.SUCCESS
    return Verdict(str(outcome.label), compute_reward(outcome), success, outcome.detail, "\n".join(plan), outcome)


def compute_reward(outcome: Outcome) -> float:
    """Compute the reward of a verifier's outcome, in [-1, 1].

    Success is 1, a plan format error -1, and so is an empty plan that does not reach the goal. Between them each label
    has its own range, in which a later failure is better:

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
            num_satisfied, total = outcome.goals_satisfied, outcome.goals_total
            if num_satisfied is None or total is None or not 0 <= num_satisfied < total:
                raise ValueError(f"a missed goal needs 0 <= goals satisfied < goals: {outcome}")
            return -0.3 + 0.3 * num_satisfied / total
        case Label.PRECONDITION:
            return -0.6 + 0.3 * _compute_progress(outcome)
        case Label.SAFETY:
            return -0.9 + 0.3 * _compute_progress(outcome)


def _compute_progress(outcome: Outcome) -> float:
    """Share of the plan up to the failing step, in (0, 1]."""
    step, size = outcome.failing_step, outcome.plan_size
    if step is None or not 1 <= step <= size:
        raise ValueError(f"a violation needs 1 <= failing step <= plan size: {outcome}")
    return step / size

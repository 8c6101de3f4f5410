"""Rewards of planning outcomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planward.core.verdicts import Label, Outcome, Verdict
from planward.tasks.planning.reward import build_verdict, compute_reward

# Worst to best. Ranges of neighbouring labels may touch but not overlap.
ORDER = [Label.FORMAT, Label.SAFETY, Label.PRECONDITION, Label.GOAL, Label.SUCCESS]
SIZES = st.integers(1, 200)


def build_violation(label: Label, step: int, size: int) -> Outcome:
    return Outcome(label, size, failing_step=step, goals_total=2)


def build_missed_goal(goals_satisfied: int, goals_total: int, size: int = 3) -> Outcome:
    return Outcome(Label.GOAL, size, goals_satisfied=goals_satisfied, goals_total=goals_total)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    label = draw(st.sampled_from(ORDER))
    size = draw(SIZES)
    if label in {Label.SAFETY, Label.PRECONDITION}:
        return build_violation(label, draw(st.integers(1, size)), size)
    total = draw(SIZES)
    if label is Label.GOAL:
        return build_missed_goal(draw(st.integers(0, total - 1)), total, size)
    return Outcome(label, size, goals_total=total)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(Label.SUCCESS, 4), 1.0),
        (Outcome(Label.SUCCESS, 0), 1.0),
        (build_missed_goal(0, 2), -0.3),
        (build_missed_goal(1, 2), -0.15),
        (build_missed_goal(3, 4), -0.075),
        (build_violation(Label.PRECONDITION, 1, 4), -0.525),
        (build_violation(Label.PRECONDITION, 4, 4), -0.3),
        (build_violation(Label.SAFETY, 1, 3), -0.8),
        (build_violation(Label.SAFETY, 3, 3), -0.6),
        (Outcome(Label.FORMAT, 4), -1.0),
        (Outcome(Label.FORMAT, 0, detail="empty plan"), -1.0),
    ],
)
def test_rewards_of_each_label(outcome: Outcome, expected: float) -> None:
    assert compute_reward(outcome) == pytest.approx(expected)


@given(outcomes())
def test_rewards_are_in_range(outcome: Outcome) -> None:
    assert -1 <= compute_reward(outcome) <= 1
    assert (compute_reward(outcome) == 1) == (compute_reward(outcome) > 0) == (outcome.label is Label.SUCCESS)
    assert (compute_reward(outcome) == -1) == (outcome.label is Label.FORMAT)


@given(outcomes(), outcomes())
def test_ranges_of_labels_do_not_overlap(one: Outcome, other: Outcome) -> None:
    if ORDER.index(one.label) < ORDER.index(other.label):
        assert compute_reward(one) <= compute_reward(other)


@given(st.sampled_from([Label.SAFETY, Label.PRECONDITION]), SIZES, st.data())
def test_a_later_failure_is_better(label: Label, size: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(1, size), unique=True, min_size=min(2, size)))
    rewards = [compute_reward(build_violation(label, step, size)) for step in sorted(steps)]
    assert rewards == sorted(set(rewards))


@given(SIZES)
def test_more_goals_are_better(total: int) -> None:
    rewards = [compute_reward(build_missed_goal(goals_satisfied, total)) for goals_satisfied in range(total)]
    assert rewards == sorted(set(rewards))


def test_verdict_holds_outcome_and_plan() -> None:
    missed_outcome = Outcome(Label.GOAL, 2, goals_satisfied=1, goals_total=2, detail="missing: (on a b)")
    verdict = build_verdict(missed_outcome, ["(a)", "(b)"])
    assert verdict == Verdict("goal_not_satisfied", -0.15, False, "missing: (on a b)", "(a)\n(b)", missed_outcome)
    success_outcome = Outcome(Label.SUCCESS, 0)
    assert build_verdict(success_outcome, []) == Verdict("success_plans", 1.0, True, "", "", success_outcome)


GOAL, STEP = "a missed goal needs 0 <= goals satisfied < goals", "a violation needs 1 <= failing step <= plan size"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(Label.PRECONDITION, 3), STEP),
        (build_violation(Label.PRECONDITION, 0, 3), STEP),
        (build_violation(Label.SAFETY, 4, 3), STEP),
        (Outcome(Label.SAFETY, 0, failing_step=1), STEP),
        (Outcome(Label.GOAL, 3), GOAL),
        (Outcome(Label.GOAL, 3, goals_satisfied=1), GOAL),
        (Outcome(Label.GOAL, 3, goals_total=1), GOAL),
        (build_missed_goal(2, 2), GOAL),
        (build_missed_goal(-1, 2), GOAL),
        (build_missed_goal(0, 0), GOAL),
    ],
)
def test_contradictory_outcomes_are_refused(outcome: Outcome, message: str) -> None:
    with pytest.raises(ValueError) as error:
        compute_reward(outcome)
    assert str(error.value) == f"{message}: {outcome}"

"""The reward table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planward.records import Label, Outcome
from planward.tasks.planning.reward import reward

# Worst to best. At their ends two bands may touch; they never cross.
ORDER = [Label.FORMAT, Label.SAFETY, Label.PRECONDITION, Label.GOAL, Label.SUCCESS]
SIZES = st.integers(1, 200)


def violation(label: Label, step: int, size: int) -> Outcome:
    return Outcome(label, size, failing_step=step, goals_total=2)


def missed(satisfied: int, total: int, size: int = 3) -> Outcome:
    return Outcome(Label.GOAL, size, goals_satisfied=satisfied, goals_total=total)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    label = draw(st.sampled_from(ORDER))
    size = draw(SIZES)
    if label in {Label.SAFETY, Label.PRECONDITION}:
        return violation(label, draw(st.integers(1, size)), size)
    total = draw(SIZES)
    if label is Label.GOAL:
        return missed(draw(st.integers(0, total - 1)), total, size)
    return Outcome(label, size, goals_total=total)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(Label.SUCCESS, 4), 1.0),
        (Outcome(Label.SUCCESS, 0), 1.0),
        (missed(0, 2), -0.3),
        (missed(1, 2), -0.15),
        (missed(3, 4), -0.075),
        (violation(Label.PRECONDITION, 1, 4), -0.525),
        (violation(Label.PRECONDITION, 4, 4), -0.3),
        (violation(Label.SAFETY, 1, 3), -0.8),
        (violation(Label.SAFETY, 3, 3), -0.6),
        (Outcome(Label.FORMAT, 4), -1.0),
        (Outcome(Label.FORMAT, 0, detail="empty plan"), -1.0),
    ],
)
def test_the_table(outcome: Outcome, expected: float) -> None:
    assert reward(outcome) == pytest.approx(expected)


@given(outcomes())
def test_every_reward_is_in_range(outcome: Outcome) -> None:
    assert -1 <= reward(outcome) <= 1
    assert (reward(outcome) == 1) == (reward(outcome) > 0) == (outcome.label is Label.SUCCESS)
    assert (reward(outcome) == -1) == (outcome.label is Label.FORMAT)


@given(outcomes(), outcomes())
def test_classes_never_cross(one: Outcome, other: Outcome) -> None:
    if ORDER.index(one.label) < ORDER.index(other.label):
        assert reward(one) <= reward(other)


@given(st.sampled_from([Label.SAFETY, Label.PRECONDITION]), SIZES, st.data())
def test_a_later_failure_is_better(label: Label, size: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(1, size), unique=True, min_size=min(2, size)))
    rewards = [reward(violation(label, step, size)) for step in sorted(steps)]
    assert rewards == sorted(set(rewards))


@given(SIZES)
def test_more_goals_are_better(total: int) -> None:
    rewards = [reward(missed(satisfied, total)) for satisfied in range(total)]
    assert rewards == sorted(set(rewards))


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Label.PRECONDITION, 3),
        violation(Label.PRECONDITION, 0, 3),
        violation(Label.SAFETY, 4, 3),
        Outcome(Label.SAFETY, 0, failing_step=1),
        Outcome(Label.GOAL, 3),
        missed(2, 2),
        missed(0, 0),
    ],
)
def test_contradictions_are_refused(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="needs"):
        reward(outcome)

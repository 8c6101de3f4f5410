"""Utility and reward of decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planward.params import Economy, Params
from planward.tasks.economy.simulator import simulated
from planward.tasks.economy.states import AMOUNTS, State, stacked
from planward.tasks.economy.utility import GRID, WORST, decision_grid, rewards, utility

STATE = State(
    employed=True, age=40, wage=3000, income=1800, wealth=9000, disposable=2100, bracket=2, price=1.0, inflation=0.02,
    interest=0.03, unemployment=0.08, transfer=600, consumption=2000,
)  # fmt: skip
SHARES = st.floats(0, 1)
COINS = st.floats(0, 1e6)


@st.composite
def states(draw: st.DrawFn) -> State:
    amounts = {name: draw(COINS) for name in AMOUNTS} | {"wage": draw(st.floats(100, 1e5))}
    rates = {"inflation": draw(st.floats(-0.1, 0.2)), "interest": draw(st.floats(0, 0.2))}
    more = {"age": draw(st.floats(16, 90)), "price": draw(st.floats(0.1, 50)), "unemployment": draw(SHARES)}
    return replace(STATE, employed=draw(st.booleans()), **amounts, **rates, **more)


@pytest.fixture(scope="module")
def economy(shipped: Params) -> Economy:
    return shipped.economy


def best(state: State, economy: Economy) -> tuple[float, float]:
    work, consumption = decision_grid()
    place = int(rewards(stacked([state]), work, consumption, economy)[0].argmax())
    return float(work[place]), float(consumption[place])


def drawn(economy: Economy, employed: bool, count: int) -> NDArray[np.float64]:
    """Rewards of all decisions of the grid in states of a simulated economy: [count, GRID * GRID]."""
    panel = simulated(economy, 11)
    places = np.argwhere(panel.states.employed == employed)
    months, households = places[np.random.default_rng(0).choice(len(places), count, replace=False)].T
    return rewards(panel.states[months, households], *decision_grid(), economy)


@settings(max_examples=50)
@given(state=states(), work=SHARES, consumption=SHARES)
def test_every_decision_has_a_reward_above_that_of_no_decision(
    economy: Economy, state: State, work: float, consumption: float
) -> None:
    reward = rewards(stacked([state]), np.array([work]), np.array([consumption]), economy)[0, 0]
    assert -1 < WORST <= reward <= 1


@settings(max_examples=30)
@given(state=states())
def test_the_scale_is_used_from_end_to_end(economy: Economy, state: State) -> None:
    valued = rewards(stacked([state]), *decision_grid(), economy)
    assert valued.max() == 1
    assert valued.min() == WORST


@settings(max_examples=30)
@given(state=states(), factor=st.floats(0.1, 10), work=SHARES, consumption=SHARES)
def test_money_is_a_veil(economy: Economy, state: State, factor: float, work: float, consumption: float) -> None:
    """Where every amount and the price level are so many times higher, nothing changes."""
    dearer = replace(state, price=state.price * factor, **{name: getattr(state, name) * factor for name in AMOUNTS})
    value = utility(stacked([state, dearer]), np.array(work), np.array(consumption), economy)
    assert value[0] == pytest.approx(value[1], rel=1e-6, abs=1e-6)


@settings(max_examples=30)
@given(state=states(), work=SHARES, consumption=SHARES)
def test_more_wealth_is_no_worse_where_consumption_stays_as_it_was(
    economy: Economy, state: State, work: float, consumption: float
) -> None:
    calm = economy.model_copy(update={"preferences": economy.preferences.model_copy(update={"steadiness": 0.0})})
    richer = replace(state, wealth=state.wealth + 1000 * state.price)
    poor, rich = utility(stacked([state, richer]), np.array(work), np.array(consumption), calm)
    assert rich > poor


def test_what_a_household_is_told_moves_the_best_decision(economy: Economy) -> None:
    work, consumption = best(STATE, economy)
    assert 0 < work < 1
    assert 0 < consumption < 1
    assert best(replace(STATE, wealth=200_000), economy)[0] < work  # the rich work less
    assert best(replace(STATE, wealth=200_000), economy)[1] < consumption  # and spend less of what they have
    assert best(replace(STATE, age=66), economy)[1] > consumption  # few years left to save for
    jobless = replace(STATE, employed=False)
    lost = economy.model_copy(update={"labour": economy.labour.model_copy(update={"kept_offer": 0.0})})
    assert best(jobless, lost)[0] < work  # a benefit that falls with work
    assert best(jobless, economy)[0] > best(jobless, lost)[0]  # work helps to keep the offered job
    assert best(replace(STATE, consumption=6000), economy)[1] > consumption  # used to more
    assert best(replace(STATE, wage=1200), economy)[0] < work  # work that pays little
    assert best(replace(STATE, interest=0.15), economy)[1] <= consumption
    assert best(replace(STATE, inflation=0.15), economy)[1] >= consumption


@pytest.mark.parametrize("employed", [True, False])
def test_no_constant_decision_does_what_an_answer_to_the_state_does(economy: Economy, employed: bool) -> None:
    valued = drawn(economy, employed, 300)
    work, consumption = (axis[valued.argmax(axis=1)] for axis in decision_grid())
    assert min(work.std(), consumption.std()) > 0.15
    assert np.mean((work > 0) & (work < 1) & (consumption > 0) & (consumption < 1)) > 0.85
    assert valued.mean(axis=0).max() < 0.85  # of the best constant decision; the best answers have 1
    assert valued.mean() < 0.6  # of a decision at random


def test_the_grid_finds_the_ends_of_utility(economy: Economy) -> None:
    """Decisions between those of the grid add less than a hundredth of a reward."""
    panel = simulated(economy, 11)
    some = panel.states[60, :40]
    fine = np.linspace(0, 1, 4 * (GRID - 1) + 1)
    work, consumption = (axis.ravel() for axis in np.meshgrid(fine, fine))
    values = utility(some[:, None], work, consumption, economy)
    coarse = utility(some[:, None], *decision_grid(), economy)
    spread = coarse.max(axis=1) - coarse.min(axis=1)
    assert ((values.max(axis=1) - coarse.max(axis=1)) / spread).max() < 0.005
    assert ((coarse.min(axis=1) - values.min(axis=1)) / spread).max() < 0.005


@pytest.mark.parametrize("curvature", [1.0, 2.5])
def test_other_tastes_can_be_had(economy: Economy, curvature: float) -> None:
    taste = economy.preferences.model_copy(update={"curvature": curvature, "patience": 1.0})
    other = economy.model_copy(update={"preferences": taste})
    level = replace(STATE, interest=0.02, inflation=0.02)  # a real rate of 0: as many months as the horizon has
    valued = rewards(stacked([level]), *decision_grid(), other)
    assert np.isfinite(valued).all()
    assert valued.max() == 1


def test_logarithmic_utility_is_the_limit_of_isoelastic_utility(economy: Economy) -> None:
    def valued(curvature: float) -> NDArray[np.float64]:
        taste = economy.preferences.model_copy(update={"curvature": curvature})
        return rewards(stacked([STATE]), *decision_grid(), economy.model_copy(update={"preferences": taste}))

    np.testing.assert_allclose(valued(1.0), valued(1.00001), atol=1e-3)

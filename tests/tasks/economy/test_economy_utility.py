"""Utility and reward of decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planward.tasks.economy.environment.config import EconomyConfig, EconomyParams
from planward.tasks.economy.environment.simulator import simulate_economy
from planward.tasks.economy.environment.states import AMOUNTS, State, stack_states
from planward.tasks.economy.environment.utility import (
    GRID_SIZE,
    MIN_REWARD,
    build_decision_grid,
    compute_rewards,
    compute_utility,
)

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
def economy(shipped_economy: EconomyParams) -> EconomyConfig:
    return shipped_economy.economy


def find_best_decision(state: State, economy: EconomyConfig) -> tuple[float, float]:
    work, consumption = build_decision_grid()
    index = int(compute_rewards(stack_states([state]), work, consumption, economy)[0].argmax())
    return float(work[index]), float(consumption[index])


def compute_sample_rewards(economy: EconomyConfig, is_employed: bool, count: int) -> NDArray[np.float64]:
    """Rewards of all decisions of the grid in states of a simulated economy: [count, GRID_SIZE * GRID_SIZE]."""
    panel = simulate_economy(economy, 11)
    candidates = np.argwhere(panel.states.employed == is_employed)
    months, households = candidates[np.random.default_rng(0).choice(len(candidates), count, replace=False)].T
    return compute_rewards(panel.states[months, households], *build_decision_grid(), economy)


@settings(max_examples=50)
@given(state=states(), work=SHARES, consumption=SHARES)
def test_every_decision_is_rewarded_above_an_invalid_answer(
    economy: EconomyConfig, state: State, work: float, consumption: float
) -> None:
    reward = compute_rewards(stack_states([state]), np.array([work]), np.array([consumption]), economy)[0, 0]
    assert -1 < MIN_REWARD <= reward <= 1


@settings(max_examples=30)
@given(state=states())
def test_rewards_use_the_whole_scale(economy: EconomyConfig, state: State) -> None:
    rewards = compute_rewards(stack_states([state]), *build_decision_grid(), economy)
    assert rewards.max() == 1
    assert rewards.min() == MIN_REWARD


@settings(max_examples=30)
@given(state=states(), factor=st.floats(0.1, 10), work=SHARES, consumption=SHARES)
def test_utility_depends_on_real_amounts_only(
    economy: EconomyConfig, state: State, factor: float, work: float, consumption: float
) -> None:
    """Scaling every amount and the price level changes nothing."""
    scaled_state = replace(
        state, price=state.price * factor, **{name: getattr(state, name) * factor for name in AMOUNTS}
    )
    utilities = compute_utility(stack_states([state, scaled_state]), np.array(work), np.array(consumption), economy)
    assert utilities[0] == pytest.approx(utilities[1], rel=1e-6, abs=1e-6)


@settings(max_examples=30)
@given(state=states(), work=SHARES, consumption=SHARES)
def test_more_wealth_is_better_without_a_cost_of_changing_consumption(
    economy: EconomyConfig, state: State, work: float, consumption: float
) -> None:
    without_cost = economy.model_copy(
        update={"preferences": economy.preferences.model_copy(update={"steadiness": 0.0})}
    )
    richer = replace(state, wealth=state.wealth + 1000 * state.price)
    poor, rich = compute_utility(stack_states([state, richer]), np.array(work), np.array(consumption), without_cost)
    assert rich > poor


def test_the_best_decision_depends_on_the_state(economy: EconomyConfig) -> None:
    def best(state: State, economy: EconomyConfig = economy) -> tuple[float, float]:
        return find_best_decision(state, economy)

    work, consumption = best(STATE)
    assert 0 < work < 1
    assert 0 < consumption < 1
    assert best(replace(STATE, wealth=200_000))[0] < work  # the rich work less
    assert best(replace(STATE, wealth=200_000))[1] < consumption  # and spend a smaller share
    assert best(replace(STATE, age=66))[1] > consumption  # few years left to save for
    unemployed_state = replace(STATE, employed=False)
    no_offer_kept = economy.model_copy(update={"labour": economy.labour.model_copy(update={"kept_offer": 0.0})})
    assert best(unemployed_state, no_offer_kept)[0] < work  # the benefit falls with work
    assert best(unemployed_state)[0] > best(unemployed_state, no_offer_kept)[0]  # work helps to keep the offered job
    assert best(replace(STATE, consumption=6000))[1] > consumption  # a higher habit
    assert best(replace(STATE, wage=1200))[0] < work  # a low wage
    assert best(replace(STATE, interest=0.15))[1] <= consumption
    assert best(replace(STATE, inflation=0.15))[1] >= consumption


@pytest.mark.parametrize("is_employed", [True, False])
def test_no_constant_decision_is_as_good_as_one_for_each_state(economy: EconomyConfig, is_employed: bool) -> None:
    rewards = compute_sample_rewards(economy, is_employed, 300)
    work, consumption = (axis[rewards.argmax(axis=1)] for axis in build_decision_grid())
    assert min(work.std(), consumption.std()) > 0.15
    assert np.mean((work > 0) & (work < 1) & (consumption > 0) & (consumption < 1)) > 0.85
    assert rewards.mean(axis=0).max() < 0.85  # of the best constant decision; the best answers have 1
    assert rewards.mean() < 0.6  # of a random decision


def test_the_grid_covers_the_range_of_utility(economy: EconomyConfig) -> None:
    """Decisions between grid points extend the range by less than a hundredth of a reward."""
    panel = simulate_economy(economy, 11)
    states = panel.states[60, :40]
    fine = np.linspace(0, 1, 4 * (GRID_SIZE - 1) + 1)
    work, consumption = (axis.ravel() for axis in np.meshgrid(fine, fine))
    fine_utilities = compute_utility(states[:, None], work, consumption, economy)
    coarse_utilities = compute_utility(states[:, None], *build_decision_grid(), economy)
    spread = coarse_utilities.max(axis=1) - coarse_utilities.min(axis=1)
    assert ((fine_utilities.max(axis=1) - coarse_utilities.max(axis=1)) / spread).max() < 0.005
    assert ((coarse_utilities.min(axis=1) - fine_utilities.min(axis=1)) / spread).max() < 0.005


@pytest.mark.parametrize("curvature", [1.0, 2.5])
def test_other_preferences_are_possible(economy: EconomyConfig, curvature: float) -> None:
    preferences = economy.preferences.model_copy(update={"curvature": curvature, "patience": 1.0})
    other = economy.model_copy(update={"preferences": preferences})
    state = replace(STATE, interest=0.02, inflation=0.02)  # a real rate of 0: the weight is the horizon in months
    rewards = compute_rewards(stack_states([state]), *build_decision_grid(), other)
    assert np.isfinite(rewards).all()
    assert rewards.max() == 1


def test_logarithmic_utility_is_the_limit_of_isoelastic_utility(economy: EconomyConfig) -> None:
    def compute_with(curvature: float) -> NDArray[np.float64]:
        preferences = economy.preferences.model_copy(update={"curvature": curvature})
        return compute_rewards(
            stack_states([STATE]), *build_decision_grid(), economy.model_copy(update={"preferences": preferences})
        )

    np.testing.assert_allclose(compute_with(1.0), compute_with(1.00001), atol=1e-3)

"""The simulated economy: reproducible by seed, stable for all seeds, with households that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from planward.tasks.economy.environment.budgets import compute_income_tax, find_bracket
from planward.tasks.economy.environment.config import EconomyConfig, EconomyParams
from planward.tasks.economy.environment.simulator import Panel, UnstableEconomy, check_stability, simulate_economy
from planward.tasks.economy.environment.states import FIELDS


def change_simulator(economy: EconomyConfig, **changes: object) -> EconomyConfig:
    return economy.model_copy(update={"simulator": economy.simulator.model_copy(update=changes)})


@pytest.fixture(scope="module")
def panel(shipped_economy: EconomyParams) -> Panel:
    return simulate_economy(shipped_economy.economy, 3407)


def test_the_same_seed_gives_the_same_economy(shipped_economy: EconomyParams) -> None:
    economy = change_simulator(shipped_economy.economy, households=40, months=10)
    first, same, other = (simulate_economy(economy, seed) for seed in (1, 1, 2))
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(first.states, field), getattr(same.states, field))
    np.testing.assert_array_equal(first.work, same.work)
    assert (first.work != other.work).any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("households", "months"), [(400, 120), (60, 240), (150, 1200)])
def test_the_economy_is_stable_for_every_seed(
    shipped_economy: EconomyParams, seed: int, households: int, months: int
) -> None:
    economy = change_simulator(shipped_economy.economy, households=households, months=months)
    panel = simulate_economy(economy, seed)
    check_stability(panel, economy)
    settings, macro = economy.simulator, panel.macro
    assert macro["unemployment"].min() >= settings.unemployment[0] - 1 / households
    assert macro["unemployment"].max() <= settings.unemployment[1] + 1 / households
    assert abs(np.log(macro["price"][-1] / macro["price"][0])) * 12 / months < 0.08  # per year
    real_pay = macro["wage"] / macro["price"] / settings.pay
    assert 0.8 < real_pay.min() < real_pay.max() < 1.25
    assert all(np.isfinite(series).all() for series in macro.values())


def test_the_shipped_economy_is_moderate(panel: Panel) -> None:
    assert np.abs(panel.macro["inflation"]).max() < 0.1
    assert 0.04 < panel.macro["unemployment"].mean() < 0.13
    assert (panel.states.employed == 0).mean() == pytest.approx(panel.macro["unemployment"].mean(), abs=1e-4)


def test_money_grows_by_the_inflation_target_only(shipped_economy: EconomyParams) -> None:
    """Pay, taxes, benefits and spending only move money."""
    economy = change_simulator(shipped_economy.economy, months=24)
    states = simulate_economy(economy, 5).states
    money = states.wealth.sum(axis=1) + states.transfer.sum(axis=1)  # with the transfer that is paid next
    np.testing.assert_allclose(money[1:] / money[:-1] - 1, economy.simulator.inflation_target / 12, atol=1e-6)


def test_decisions_cover_their_range_and_households_differ(panel: Panel) -> None:
    for decisions in (panel.work, panel.consumption):
        assert decisions.min() < 0.02
        assert decisions.max() > 0.98
        assert decisions.std() > 0.2
        between_households = decisions.mean(axis=0).std()
        standard_error = (decisions.std(axis=0) / np.sqrt(len(decisions))).mean()
        assert between_households > 3 * standard_error
        np.testing.assert_array_equal(decisions, decisions.round(2))


def test_amounts_are_never_negative(panel: Panel) -> None:
    assert panel.states.wealth.min() >= 0
    assert panel.states.consumption.min() >= 0
    assert panel.states.age.min() >= 16


def test_an_unstable_economy_is_refused(shipped_economy: EconomyParams, panel: Panel) -> None:
    unstable_panel = Panel(
        panel.states, panel.work, panel.consumption, {**panel.macro, "inflation": panel.macro["price"] * 9}
    )
    with pytest.raises(UnstableEconomy, match=r"inflation is .* in month 0"):
        check_stability(unstable_panel, shipped_economy.economy)


def test_tax_is_progressive_and_continuous(shipped_economy: EconomyParams) -> None:
    tax = shipped_economy.economy.tax.model_copy(update={"thresholds": [1000.0, 3000.0], "rates": [0.1, 0.2, 0.5]})
    incomes = np.array([0.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0])
    np.testing.assert_allclose(compute_income_tax(incomes, tax), [0, 50, 100, 300, 500, 1000])
    np.testing.assert_array_equal(find_bracket(incomes, tax), [0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("section", "changes", "complaint"),
    [
        ("tax", {"rates": [0.1, 0.2]}, "one more rate than thresholds"),
        ("tax", {"thresholds": [1000, 500], "rates": [0.1, 0.2, 0.3]}, "positive and increasing"),
        ("tax", {"thresholds": [1000], "rates": [0.3, 0.2]}, "not decreasing"),
        ("tax", {"thresholds": [1000], "rates": [0.3, 1.0]}, "rates must be in"),
        ("simulator", {"unemployment": [0.2, 0.1]}, "lowest, highest"),
        ("simulator", {"first_age": 80}, "below preferences.last_age"),
    ],
)
def test_invalid_parameters_are_refused(
    shipped_economy: EconomyParams, section: str, changes: dict[str, Any], complaint: str
) -> None:
    raw = shipped_economy.economy.model_dump(mode="json")
    raw[section] |= changes
    with pytest.raises(ValidationError, match=complaint):
        EconomyConfig.model_validate(raw)

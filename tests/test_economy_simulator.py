"""The simulated economy: the same again for a seed, stable for all of them, with households that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from planward.params import Economy, Params
from planward.tasks.economy.budgets import bracket, income_tax
from planward.tasks.economy.simulator import Panel, UnsoundEconomy, check_sound, simulated
from planward.tasks.economy.states import FIELDS


def resized(economy: Economy, **changes: object) -> Economy:
    return economy.model_copy(update={"simulator": economy.simulator.model_copy(update=changes)})


@pytest.fixture(scope="module")
def panel(shipped: Params) -> Panel:
    return simulated(shipped.economy, 3407)


def test_a_seed_decides_everything(shipped: Params) -> None:
    few = resized(shipped.economy, households=40, months=10)
    one, same, other = simulated(few, 1), simulated(few, 1), simulated(few, 2)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(one.states, field), getattr(same.states, field))
    np.testing.assert_array_equal(one.work, same.work)
    assert (one.work != other.work).any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("households", "months"), [(400, 120), (60, 240), (150, 1200)])
def test_no_seed_lets_it_run_away(shipped: Params, seed: int, households: int, months: int) -> None:
    economy = resized(shipped.economy, households=households, months=months)
    panel = simulated(economy, seed)
    check_sound(panel, economy)
    settings, macro = economy.simulator, panel.macro
    assert macro["unemployment"].min() >= settings.unemployment[0] - 1 / households
    assert macro["unemployment"].max() <= settings.unemployment[1] + 1 / households
    assert abs(np.log(macro["price"][-1] / macro["price"][0])) * 12 / months < 0.08  # a year
    real_pay = macro["wage"] / macro["price"] / settings.pay
    assert 0.8 < real_pay.min() < real_pay.max() < 1.25
    assert all(np.isfinite(series).all() for series in macro.values())


def test_the_shipped_economy_is_a_calm_one(panel: Panel) -> None:
    assert np.abs(panel.macro["inflation"]).max() < 0.1
    assert 0.04 < panel.macro["unemployment"].mean() < 0.13
    assert (panel.states.employed == 0).mean() == pytest.approx(panel.macro["unemployment"].mean(), abs=1e-4)


def test_money_grows_by_the_inflation_target_and_nothing_else(shipped: Params) -> None:
    """What is earned, taxed, paid out and spent stays in the economy."""
    economy = resized(shipped.economy, months=24)
    states = simulated(economy, 5).states
    money = states.wealth.sum(axis=1) + states.transfer.sum(axis=1)  # with what the state is about to pay out
    np.testing.assert_allclose(money[1:] / money[:-1] - 1, economy.simulator.inflation_target / 12, atol=1e-6)


def test_decisions_spread_over_their_range_and_households_differ(panel: Panel) -> None:
    for decided in (panel.work, panel.consumption):
        assert decided.min() < 0.02
        assert decided.max() > 0.98
        assert decided.std() > 0.2
        between = decided.mean(axis=0).std()
        by_chance = (decided.std(axis=0) / np.sqrt(len(decided))).mean()
        assert between > 3 * by_chance
        np.testing.assert_array_equal(decided, decided.round(2))


def test_households_spend_what_they_have(panel: Panel) -> None:
    assert panel.states.wealth.min() >= 0
    assert panel.states.consumption.min() >= 0
    assert panel.states.age.min() >= 16


def test_a_broken_economy_is_told_apart(shipped: Params, panel: Panel) -> None:
    broken = Panel(panel.states, panel.work, panel.consumption, {**panel.macro, "inflation": panel.macro["price"] * 9})
    with pytest.raises(UnsoundEconomy, match=r"inflation is .* in month 0"):
        check_sound(broken, shipped.economy)


def test_tax_is_progressive_and_continuous(shipped: Params) -> None:
    tax = shipped.economy.tax.model_copy(update={"thresholds": [1000.0, 3000.0], "rates": [0.1, 0.2, 0.5]})
    incomes = np.array([0.0, 500.0, 1000.0, 2000.0, 3000.0, 4000.0])
    np.testing.assert_allclose(income_tax(incomes, tax), [0, 50, 100, 300, 500, 1000])
    np.testing.assert_array_equal(bracket(incomes, tax), [0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("section", "changes", "complaint"),
    [
        ("tax", {"rates": [0.1, 0.2]}, "one more than thresholds"),
        ("tax", {"thresholds": [1000, 500], "rates": [0.1, 0.2, 0.3]}, "positive and rising"),
        ("tax", {"thresholds": [1000], "rates": [0.3, 0.2]}, "rising"),
        ("tax", {"thresholds": [1000], "rates": [0.3, 1.0]}, "below 1"),
        ("simulator", {"unemployment": [0.2, 0.1]}, "least, most"),
        ("simulator", {"first_age": 80}, "below preferences.last_age"),
    ],
)
def test_an_economy_that_cannot_be_is_refused(
    shipped: Params, section: str, changes: dict[str, Any], complaint: str
) -> None:
    raw = shipped.economy.model_dump(mode="json")
    raw[section] |= changes
    with pytest.raises(ValidationError, match=complaint):
        Economy.model_validate(raw)

"""Expected utility of a household's decision in a state, in closed form, and its reward.

Amounts are coins divided by the price level, in units of `unit`; names are those of economy.preferences. With work w
and consumption c, both in [0, 1],

    m = a + y(w)                                     means: wealth and what is taken home (`budgets`)
    C = c m,  K = (1 - c) m                          spent, kept
    U = u(C + s) - e(age) w^(1 + 1/ν) / (1 + 1/ν) - (ζ/2) log²((C + s) / (C' + s)) + B^γ E[u(K + h + s)]

- u(x) = x^(1 - γ) / (1 - γ), log x for γ = 1: isoelastic utility, γ = `curvature`; s = `subsistence` keeps it finite.
- Disutility of work with the Frisch elasticity ν = `frisch`; e(age) = `effort` exp(`ageing` (age - 45)).
- The third term is the cost of another standard of living than last month's, C'; ζ = `steadiness`.
- The last is the value of what is kept, under the best plan for T months ahead with perfect foresight (Samuelson,
  Review of Economics and Statistics 51, 1969, 239-246): B = q + q² + ... + q^T, q = (β R^(1 - γ))^(1/γ),
  β = `patience`, R a month's real gross rate of interest, T = `foresight` times the months left until `last_age`.
- h, future income as far as it is counted on: `counted` T months of the transfer and of take-home pay for
  `usual_work`. Who has no job next month has the benefit in place of pay for as many of these months as it takes to
  find one on average. The expectation is over having a job next month (`jobs`).

Nothing else enters: a decision's utility follows from the state that the household is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.params import Economy, Preferences
from planward.tasks.economy.budgets import means, net_income
from planward.tasks.economy.jobs import finding, job_next_month
from planward.tasks.economy.states import States

if TYPE_CHECKING:
    from planward.tasks.economy.states import Numbers

GRID = 51  # decisions an axis over which utility is scaled: every 0.02
WORST = -0.999  # of a decision: -1 is left to what is none


def utility(states: States, work: Numbers, consumption: Numbers, economy: Economy) -> Numbers:
    """Expected utility; states and decisions are broadcast against each other."""
    tax, taste = economy.tax, economy.preferences
    have = means(states, work, tax) / taste.unit
    spent, kept = consumption * have, (1 - consumption) * have
    habit = states.consumption / states.price / taste.unit
    now = _isoelastic(spent + taste.subsistence, taste.curvature)
    burden = _effort(states.age, taste) * work ** (1 + 1 / taste.frisch) / (1 + 1 / taste.frisch)
    change = np.log((spent + taste.subsistence) / (habit + taste.subsistence))
    weight, with_job, without = _prospects(states, economy)
    chance = job_next_month(states.employed, work, states.unemployment, economy.labour)
    later = chance * _isoelastic(kept + with_job, taste.curvature)
    later = later + (1 - chance) * _isoelastic(kept + without, taste.curvature)
    return now - burden - taste.steadiness / 2 * change**2 + weight * later


def decision_grid() -> tuple[Numbers, Numbers]:
    """Work and consumption of evenly spaced decisions, each of shape [GRID * GRID]."""
    axis = np.linspace(0.0, 1.0, GRID)
    work, consumption = np.meshgrid(axis, axis, indexing="ij")
    return work.ravel(), consumption.ravel()


def utility_range(states: States, economy: Economy) -> tuple[Numbers, Numbers]:
    """The least and the most that a decision on the grid yields, each of the states' shape [n]."""
    work, consumption = decision_grid()
    grid = utility(states[:, None], work, consumption, economy)
    return grid.min(axis=-1), grid.max(axis=-1)


def scaled(utilities: Numbers, least: Numbers, most: Numbers) -> Numbers:
    """Utilities as rewards: 2 (U - least) / (most - least) - 1, kept inside [WORST, 1].

    Decisions between those of the grid may yield a little more or less than these; they get the reward at the end.
    """
    return np.clip(2 * (utilities - least) / (most - least) - 1, WORST, 1.0)


def rewards(states: States, work: Numbers, consumption: Numbers, economy: Economy) -> Numbers:
    """Rewards of many decisions in each of n states: [n, decisions] for decisions of shape [n or 1, decisions]."""
    least, most = utility_range(states, economy)
    return scaled(utility(states[:, None], work, consumption, economy), least[:, None], most[:, None])


def _prospects(states: States, economy: Economy) -> tuple[Numbers, Numbers, Numbers]:
    """Weight of later utility, and counted future income with a job next month and without one."""
    taste, tax = economy.preferences, economy.tax
    horizon = taste.foresight * 12 * np.maximum(taste.last_age - states.age, 1.0)
    real_rate = ((1 + states.interest) / (1 + states.inflation)) ** (1 / 12)
    growth = (taste.patience * real_rate ** (1 - taste.curvature)) ** (1 / taste.curvature)
    near_one = np.abs(growth - 1) < 1e-9
    q = np.where(near_one, 0.5, growth)
    months = np.where(near_one, horizon, q * (1 - q**horizon) / (1 - q))
    usual = np.full_like(states.wage, taste.usual_work)
    paid = States(**{**vars(states), "employed": np.ones_like(states.employed), "wealth": np.zeros_like(states.wealth)})
    pay = net_income(paid, usual, tax) / taste.unit  # with the transfer
    counted = taste.counted * horizon
    out_of_work = np.minimum(1 / finding(states.unemployment, economy.labour), counted)
    benefit = (tax.benefit * states.wage + states.transfer) / states.price / taste.unit
    with_job = counted * pay + taste.subsistence
    without = with_job - out_of_work * np.maximum(pay - benefit, 0.0)
    return months**taste.curvature, with_job, without


def _isoelastic(amount: Numbers, curvature: float) -> Numbers:
    if curvature == 1:
        return np.log(amount)
    return np.asarray(amount ** (1 - curvature) / (1 - curvature))


def _effort(age: Numbers, taste: Preferences) -> Numbers:
    return taste.effort * np.exp(taste.ageing * (age - 45))

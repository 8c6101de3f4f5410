"""Expected utility of a household's decision, in closed form, and its reward.

Amounts are coins divided by the price level, in units of `unit`; names are those of `economy.preferences`. With work w
and consumption c, both in [0, 1],

    m = a + y(w)                                     means: wealth and net income (`budgets`)
    C = c m,  K = (1 - c) m                          spending, savings
    U = u(C + s) - e(age) w^(1 + 1/ν) / (1 + 1/ν) - (ζ/2) log²((C + s) / (C' + s)) + B^γ E[u(K + h + s)]

- u(x) = x^(1 - γ) / (1 - γ), log x for γ = 1: isoelastic utility, γ = `curvature`; s = `subsistence` keeps it finite.
- Disutility of work with the Frisch elasticity ν = `frisch`; e(age) = `effort` exp(`ageing` (age - 45)).
- The third term is the cost of changing consumption from last month's, C'; ζ = `steadiness`.
- The last term values savings under the optimal plan for T months with perfect foresight (Samuelson, Review of
  Economics and Statistics 51, 1969, 239-246): B = q + q² + ... + q^T, q = (β R^(1 - γ))^(1/γ), β = `patience`,
  R the monthly real gross interest rate, T = `foresight` times the months left until `last_age`.
- h is future income, as far as it is counted on: `counted` T months of the transfer and of net pay for `usual_work`.
  A household without a job next month has the benefit in place of pay for the expected duration of a job search, within
  these months. The expectation is over having a job next month (`jobs`).

Utility depends on nothing that the household's state does not contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.tasks.economy.environment.budgets import compute_means, compute_net_income
from planward.tasks.economy.environment.config import EconomyConfig, PreferencesConfig
from planward.tasks.economy.environment.jobs import compute_finding_probability, compute_job_probability
from planward.tasks.economy.environment.states import States

if TYPE_CHECKING:
    from planward.tasks.economy.environment.states import FloatArray

GRID_SIZE = 51  # grid points per axis of the decisions over which utility is scaled: every 0.02
MIN_REWARD = -0.999  # of a decision; -1 is for completions that are none


def compute_utility(states: States, work: FloatArray, consumption: FloatArray, economy: EconomyConfig) -> FloatArray:
    """Compute expected utility; states and decisions are broadcast against each other."""
    tax, preferences = economy.tax, economy.preferences
    means = compute_means(states, work, tax) / preferences.unit
    spending, savings = consumption * means, (1 - consumption) * means
    habit = states.consumption / states.price / preferences.unit
    now = _compute_isoelastic_utility(spending + preferences.subsistence, preferences.curvature)
    effort = _compute_effort_weight(states.age, preferences) * work ** (1 + 1 / preferences.frisch)
    effort = effort / (1 + 1 / preferences.frisch)
    change = np.log((spending + preferences.subsistence) / (habit + preferences.subsistence))
    weight, with_job, without_job = _compute_future_income(states, economy)
    job_probability = compute_job_probability(states.employed, work, states.unemployment, economy.labour)
    later = job_probability * _compute_isoelastic_utility(savings + with_job, preferences.curvature)
    later = later + (1 - job_probability) * _compute_isoelastic_utility(savings + without_job, preferences.curvature)
    return now - effort - preferences.steadiness / 2 * change**2 + weight * later


def build_decision_grid() -> tuple[FloatArray, FloatArray]:
    """Work and consumption of evenly spaced decisions, each of shape [GRID_SIZE * GRID_SIZE]."""
    axis = np.linspace(0.0, 1.0, GRID_SIZE)
    work, consumption = np.meshgrid(axis, axis, indexing="ij")
    return work.ravel(), consumption.ravel()


def compute_utility_range(states: States, economy: EconomyConfig) -> tuple[FloatArray, FloatArray]:
    """Compute the lowest and the highest utility on the decision grid, each of the states' shape [n]."""
    work, consumption = build_decision_grid()
    utilities = compute_utility(states[:, None], work, consumption, economy)
    return utilities.min(axis=-1), utilities.max(axis=-1)


def scale_utilities(utilities: FloatArray, lowest: FloatArray, highest: FloatArray) -> FloatArray:
    """Scale utilities to rewards: 2 (U - lowest) / (highest - lowest) - 1, clipped to [MIN_REWARD, 1].

    Decisions between grid points may lie slightly outside the range; their rewards are clipped.
    """
    return np.clip(2 * (utilities - lowest) / (highest - lowest) - 1, MIN_REWARD, 1.0)


def compute_rewards(states: States, work: FloatArray, consumption: FloatArray, economy: EconomyConfig) -> FloatArray:
    """Compute rewards in each of n states: [n, decisions] for decisions of shape [n or 1, decisions]."""
    lowest, highest = compute_utility_range(states, economy)
    utilities = compute_utility(states[:, None], work, consumption, economy)
    return scale_utilities(utilities, lowest[:, None], highest[:, None])


def _compute_future_income(states: States, economy: EconomyConfig) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weight of later utility, and future income (h + s) with a job next month and without one."""
    preferences, tax = economy.preferences, economy.tax
    horizon = preferences.foresight * 12 * np.maximum(preferences.last_age - states.age, 1.0)
    real_rate = ((1 + states.interest) / (1 + states.inflation)) ** (1 / 12)
    growth = (preferences.patience * real_rate ** (1 - preferences.curvature)) ** (1 / preferences.curvature)
    near_one = np.abs(growth - 1) < 1e-9
    q = np.where(near_one, 0.5, growth)
    months = np.where(near_one, horizon, q * (1 - q**horizon) / (1 - q))
    usual_work = np.full_like(states.wage, preferences.usual_work)
    changes = {"employed": np.ones_like(states.employed), "wealth": np.zeros_like(states.wealth)}
    pay = compute_net_income(States(**{**vars(states), **changes}), usual_work, tax) / preferences.unit
    counted_months = preferences.counted * horizon
    search_months = np.minimum(1 / compute_finding_probability(states.unemployment, economy.labour), counted_months)
    benefit = (tax.benefit * states.wage + states.transfer) / states.price / preferences.unit
    with_job = counted_months * pay + preferences.subsistence  # `pay` includes the transfer
    without_job = with_job - search_months * np.maximum(pay - benefit, 0.0)
    return months**preferences.curvature, with_job, without_job


def _compute_isoelastic_utility(amount: FloatArray, curvature: float) -> FloatArray:
    if curvature == 1:
        return np.log(amount)
    return np.asarray(amount ** (1 - curvature) / (1 - curvature))


def _compute_effort_weight(age: FloatArray, preferences: PreferencesConfig) -> FloatArray:
    return preferences.effort * np.exp(preferences.ageing * (age - 45))

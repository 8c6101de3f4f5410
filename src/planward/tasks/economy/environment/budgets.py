"""Household budgets: progressive tax, benefit and transfer.

Results are real amounts, in coins at a price level of 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.tasks.economy.environment.config import TaxConfig
from planward.tasks.economy.environment.states import States

if TYPE_CHECKING:
    from planward.tasks.economy.environment.states import FloatArray


def compute_income_tax(income: FloatArray, tax: TaxConfig) -> FloatArray:
    """Compute a month's tax; each bracket's rate applies to the part of the income inside the bracket."""
    rate_steps = np.diff([0.0, *tax.rates])
    floors = np.array([0.0, *tax.thresholds])
    amount: FloatArray = np.zeros_like(income)
    for floor, step in zip(floors, rate_steps, strict=True):
        amount += step * np.maximum(income - floor, 0.0)
    return amount


def find_bracket(income: FloatArray, tax: TaxConfig) -> FloatArray:
    """Find the number of the bracket that an income reaches, from 0."""
    return np.searchsorted(np.array(tax.thresholds), income, side="left").astype(np.float64)


def compute_gross_income(states: States, work: FloatArray) -> FloatArray:
    """Compute pay and interest before tax."""
    return (work * states.wage + states.wealth * states.interest / 12) / states.price


def compute_net_income(states: States, work: FloatArray, tax: TaxConfig) -> FloatArray:
    """Compute pay and interest after tax, plus the transfer and, for the unemployed, a benefit that falls with work."""
    gross = compute_gross_income(states, work)
    benefit = (1 - states.employed) * tax.benefit * states.wage * (1 - work)
    return gross - compute_income_tax(gross, tax) + (benefit + states.transfer) / states.price


def compute_means(states: States, work: FloatArray, tax: TaxConfig) -> FloatArray:
    """Compute the means that can be spent this month: wealth plus net income."""
    return states.wealth / states.price + compute_net_income(states, work, tax)

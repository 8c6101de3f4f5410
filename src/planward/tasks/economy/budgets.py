"""What a household takes home and may spend: progressive tax, benefit, transfer. Amounts are worth, at a price of 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.params import Tax
from planward.tasks.economy.states import States

if TYPE_CHECKING:
    from planward.tasks.economy.states import Numbers


def income_tax(income: Numbers, tax: Tax) -> Numbers:
    """A month's tax on a month's income: each bracket's rate is due on the part of the income inside it."""
    steps = np.diff([0.0, *tax.rates])
    floors = np.array([0.0, *tax.thresholds])
    due: Numbers = np.zeros_like(income)
    for floor, step in zip(floors, steps, strict=True):
        due += step * np.maximum(income - floor, 0.0)
    return due


def bracket(income: Numbers, tax: Tax) -> Numbers:
    """Number of the bracket that an income reaches, from 0."""
    return np.searchsorted(np.array(tax.thresholds), income, side="left").astype(np.float64)


def gross_income(states: States, work: Numbers) -> Numbers:
    """Pay and interest before tax."""
    return (work * states.wage + states.wealth * states.interest / 12) / states.price


def net_income(states: States, work: Numbers, tax: Tax) -> Numbers:
    """Pay and interest after tax, with the transfer and, for the unemployed, a benefit that falls with work."""
    gross = gross_income(states, work)
    benefit = (1 - states.employed) * tax.benefit * states.wage * (1 - work)
    return gross - income_tax(gross, tax) + (benefit + states.transfer) / states.price


def means(states: States, work: Numbers, tax: Tax) -> Numbers:
    """What can be spent this month: wealth and disposable income."""
    return states.wealth / states.price + net_income(states, work, tax)

"""The state of a household in one month: all that a decision's utility depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

EMPLOYED, UNEMPLOYED = "employed", "unemployed"
SCENARIOS = (EMPLOYED, UNEMPLOYED)


@dataclass(frozen=True)
class State:
    """What a household knows when it decides. Amounts are in coins of the day.

    Attributes:
        employed: it has a job; otherwise it has the offer of one.
        age: years.
        wage: a month's gross pay for full time, in the job or in the one offered.
        income: last month's gross pay and interest.
        wealth: at the start of the month.
        disposable: last month's income after tax, with benefit and transfer.
        bracket: number of the tax bracket that last month's income reached, from 0.
        price: price level, 1 when the economy starts.
        inflation: change of the price level over the last twelve months, a share.
        interest: a year's, a share.
        unemployment: rate, a share.
        transfer: paid to every household this month.
        consumption: spent last month.
    """

    employed: bool
    age: float
    wage: float
    income: float
    wealth: float
    disposable: float
    bracket: int
    price: float
    inflation: float
    interest: float
    unemployment: float
    transfer: float
    consumption: float

    @property
    def scenario(self) -> str:
        return EMPLOYED if self.employed else UNEMPLOYED


@dataclass(frozen=True)
class States:
    """Many states, one array a field, all of one shape; `employed` and `bracket` are numbers too."""

    employed: Numbers
    age: Numbers
    wage: Numbers
    income: Numbers
    wealth: Numbers
    disposable: Numbers
    bracket: Numbers
    price: Numbers
    inflation: Numbers
    interest: Numbers
    unemployment: Numbers
    transfer: Numbers
    consumption: Numbers

    def __getitem__(self, places: Any) -> States:
        """The states at these places of every array (any NumPy index)."""
        return States(*(getattr(self, field)[places] for field in FIELDS))

    def listed(self) -> list[State]:
        """The states one by one, of arrays with one axis."""
        kinds: dict[str, type] = {"employed": bool, "bracket": int}
        columns = [map(kinds.get(field, float), getattr(self, field)) for field in FIELDS]
        return [State(*row) for row in zip(*columns, strict=True)]


FIELDS = tuple(field.name for field in fields(State))
AMOUNTS = ("wage", "income", "wealth", "disposable", "transfer", "consumption")

DECIMALS = {"age": 2, "price": 4, "inflation": 4, "interest": 4, "unemployment": 4, **dict.fromkeys(AMOUNTS, 2)}
BOUNDS = {  # what a state may say at all; the simulator stays far inside
    "age": (0.0, 120.0),
    "bracket": (0, 31),
    "price": (1e-3, 1e6),
    "inflation": (-0.99, 10.0),
    "interest": (-0.5, 10.0),
    "unemployment": (0.0, 1.0),
    **dict.fromkeys(AMOUNTS, (0.0, 1e12)),
    "wage": (1e-2, 1e12),
}


def stacked(states: Sequence[State]) -> States:
    """The states as arrays of shape [len(states)]."""
    table = np.array([astuple(state) for state in states], dtype=np.float64).reshape(len(states), len(FIELDS))
    return States(*table.T)


def rounded(states: States) -> States:
    """The states as they are written down: amounts with two decimals, rates with four."""
    return States(*(np.round(getattr(states, field), DECIMALS.get(field, 0)) for field in FIELDS))


def parsed_state(raw: object) -> State:
    """A state out of JSON.

    Raises:
        ValueError: a key is missing or unknown, or a value is of the wrong type or out of range; says which.
    """
    if not isinstance(raw, dict):
        raise ValueError("state is not an object")
    if wrong := sorted(map(str, raw.keys() ^ set(FIELDS))):
        raise ValueError(f"state has missing or unknown keys: {', '.join(wrong)}")
    if not isinstance(raw["employed"], bool):
        raise ValueError("state.employed is not true or false")
    for field, (least, most) in BOUNDS.items():
        value = raw[field]
        kinds = int if field == "bracket" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"state.{field} is not a {'whole ' if field == 'bracket' else ''}number")
        if not least <= value <= most:
            raise ValueError(f"state.{field} = {value} is not in [{least:g}, {most:g}]")
    numbers: dict[str, Any] = {f: raw[f] if f == "bracket" else float(raw[f]) for f in BOUNDS}
    return State(employed=raw["employed"], **numbers)

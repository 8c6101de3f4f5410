"""The state of a household in one month: everything that the utility of a decision depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

EMPLOYED, UNEMPLOYED = "employed", "unemployed"
SCENARIOS = (EMPLOYED, UNEMPLOYED)


@dataclass(frozen=True)
class State:
    """What a household knows when it decides. Amounts are in coins at current prices.

    Attributes:
        employed: whether it has a job; otherwise it has the offer of one.
        age: in years.
        wage: gross monthly pay for full time, in its job or in the offered one.
        income: last month's gross pay and interest.
        wealth: at the start of the month.
        disposable: last month's income after tax, with benefit and transfer.
        bracket: number of the tax bracket that last month's income reached, from 0.
        price: price level, 1 at the start of the economy.
        inflation: change of the price level over the last twelve months, as a share.
        interest: rate per year, as a share.
        unemployment: rate, as a share.
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
    """States as one array per field, all of the same shape; `employed` and `bracket` are floats too."""

    employed: FloatArray
    age: FloatArray
    wage: FloatArray
    income: FloatArray
    wealth: FloatArray
    disposable: FloatArray
    bracket: FloatArray
    price: FloatArray
    inflation: FloatArray
    interest: FloatArray
    unemployment: FloatArray
    transfer: FloatArray
    consumption: FloatArray

    def __getitem__(self, index: Any) -> States:
        """Index every array (any NumPy index)."""
        return States(*(getattr(self, field)[index] for field in FIELDS))

    def to_list(self) -> list[State]:
        """Convert arrays with one axis to single states."""
        types: dict[str, type] = {"employed": bool, "bracket": int}
        columns = [map(types.get(field, float), getattr(self, field)) for field in FIELDS]
        return [State(*row) for row in zip(*columns, strict=True)]


FIELDS = tuple(field.name for field in fields(State))
AMOUNTS = ("wage", "income", "wealth", "disposable", "transfer", "consumption")

DECIMALS = {"age": 2, "price": 4, "inflation": 4, "interest": 4, "unemployment": 4, **dict.fromkeys(AMOUNTS, 2)}
BOUNDS = {  # of valid states; the simulator stays far inside
    "age": (0.0, 120.0),
    "bracket": (0, 31),
    "price": (1e-3, 1e6),
    "inflation": (-0.99, 10.0),
    "interest": (-0.5, 10.0),
    "unemployment": (0.0, 1.0),
    **dict.fromkeys(AMOUNTS, (0.0, 1e12)),
    "wage": (1e-2, 1e12),
}


def stack_states(states: Sequence[State]) -> States:
    """Stack states into arrays of shape [len(states)]."""
    table = np.array([astuple(state) for state in states], dtype=np.float64).reshape(len(states), len(FIELDS))
    return States(*table.T)


def round_states(states: States) -> States:
    """Round states to the precision of problem files: amounts to two decimals, rates to four."""
    return States(*(np.round(getattr(states, field), DECIMALS.get(field, 0)) for field in FIELDS))


def parse_state(raw: object) -> State:
    """Parse a state from JSON.

    Raises:
        ValueError: a key is missing or unknown, or a value is of the wrong type or out of range; names it.
    """
    if not isinstance(raw, dict):
        raise ValueError("state is not an object")
    if wrong_keys := sorted(map(str, raw.keys() ^ set(FIELDS))):
        raise ValueError(f"state has missing or unknown keys: {', '.join(wrong_keys)}")
    if not isinstance(raw["employed"], bool):
        raise ValueError("state.employed is not true or false")
    for field, (lowest, highest) in BOUNDS.items():
        value = raw[field]
        types = int if field == "bracket" else (int, float)
        if isinstance(value, bool) or not isinstance(value, types):
            raise ValueError(f"state.{field} is not a {'whole ' if field == 'bracket' else ''}number")
        if not lowest <= value <= highest:
            raise ValueError(f"state.{field} = {value} is not in [{lowest:g}, {highest:g}]")
    numbers: dict[str, Any] = {f: raw[f] if f == "bracket" else float(raw[f]) for f in BOUNDS}
    return State(employed=raw["employed"], **numbers)

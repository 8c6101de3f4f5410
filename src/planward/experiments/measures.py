"""How the answers of a cell are measured and compared: success of single problems, or means over households.

A cell is a frame of answers of one run, as `overlap` makes it. Rates are shares; differences are b minus a.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pandas as pd

from planward.reporting.answers import Solved
from planward.reporting.comparison import Uncertainty, differences, rates
from planward.reporting.economy import differences as answer_differences
from planward.reporting.households import Households
from planward.reporting.tables import Row

Cells = Sequence[pd.DataFrame]


class Measure(Protocol):
    """`rates` gives value, ci_low and ci_high of each cell; `differences` those of each pair, and
    p, test, detectable_difference."""

    quantity: str
    unit: float  # a difference of 1 in these units: 100 where differences are points of a hundred

    def rates(self, cells: Cells) -> list[Row]: ...

    def differences(self, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> list[Row]: ...


class Success:
    """The share of problems solved; see `reporting.comparison`."""

    quantity, unit = "success", 100.0

    def __init__(self, by: Uncertainty) -> None:
        self.by = by

    def rates(self, cells: Cells) -> list[Row]:
        found = rates([_solved(cell) for cell in cells], _domains(cells[0]), self.by) if cells else []
        return [_renamed(row, success_rate="value") for row in found]

    def differences(self, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> list[Row]:
        solved = [(_solved(a), _solved(b)) for a, b in pairs]
        return differences(solved, _domains(pairs[0][0]), self.by) if pairs else []


class HouseholdMeans:
    """The mean of a column of answers to households' states; see `reporting.households`."""

    def __init__(self, column: str, quantity: str, unit: float, draws: Households) -> None:
        self.column, self.quantity, self.unit, self.draws = column, quantity, unit, draws

    def rates(self, cells: Cells) -> list[Row]:
        return [_counts(cell) | self._estimate("value", cell, self.column, 1.0) for cell in cells]

    def differences(self, pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> list[Row]:
        rows = []
        for a, b in pairs:
            values = (self._values(a), self._values(b))
            gaps = answer_differences(*values)
            smallest = self.draws.detectable(values, "reward")
            rows.append(
                _counts(a)
                | self._estimate("difference", gaps, "difference", self.unit)
                | {"interval": "households", "p": self.draws.p_value(gaps, "difference")}
                | {"test": "sign-flip of households", "detectable_difference": self.unit * smallest}
            )
        return rows

    def _values(self, cell: pd.DataFrame) -> pd.DataFrame:
        """One answer a problem and seed, the mean over numbers of worked examples, in the column `reward`."""
        keys = ["id", "household", "seed"]
        return cell.groupby(keys, as_index=False)[self.column].mean().rename(columns={self.column: "reward"})

    def _estimate(self, name: str, rows: pd.DataFrame, column: str, unit: float) -> Row:
        value, low, high = self.draws.mean(rows, column)
        return {name: unit * value, "ci_low": unit * low, "ci_high": unit * high}


def _solved(cell: pd.DataFrame) -> Solved:
    shape = (cell["seed"].nunique(), cell["shot_num"].nunique(), -1)
    solved: Solved = cell["success"].to_numpy(bool).reshape(shape)
    return solved


def _domains(cell: pd.DataFrame) -> list[str]:
    return list(cell["domain"][: cell["id"].nunique()])


def _counts(cell: pd.DataFrame) -> Row:
    return {"seeds": cell["seed"].nunique(), "n": cell["id"].nunique(), "households": cell["household"].nunique()}


def _renamed(row: dict[str, Any], **names: str) -> Row:
    return {names.get(key, key): value for key, value in row.items()}

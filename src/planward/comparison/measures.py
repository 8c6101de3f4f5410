"""How the cells of two experiments are measured and compared: success of single problems, or means over clusters.

A cell is a frame of the predictions of one run, as `overlap` makes it. Rates are shares; differences are b minus a.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd

from planward.analysis.cells import Uncertainty, compute_differences, compute_rates
from planward.analysis.clusters import ClusterBootstrap, pair_predictions
from planward.analysis.success_arrays import Successes
from planward.analysis.tables import Row
from planward.comparison.experiment import Subject
from planward.comparison.overlap import Overlap

CellPair = tuple[pd.DataFrame, pd.DataFrame]


class Measure(Protocol):
    """A quantity of cells, and its paired difference."""

    quantity: str

    def compute_rates(self, cells: Sequence[pd.DataFrame]) -> list[Row]:
        """Compute value, ci_low and ci_high of each cell, beside its seeds and its problems n."""
        ...

    def compute_differences(self, pairs: Sequence[CellPair]) -> list[Row]:
        """Compute difference, ci_low, ci_high, p, test and detectable_difference of each pair."""
        ...


class SuccessMeasure:
    """The share of problems solved; differences in points. See `analysis.cells`."""

    quantity = "success"

    def __init__(self, uncertainty: Uncertainty) -> None:
        self.uncertainty = uncertainty

    def compute_rates(self, cells: Sequence[pd.DataFrame]) -> list[Row]:
        if not cells:
            return []
        rates = compute_rates([_build_array(cell) for cell in cells], _list_domains(cells[0]), self.uncertainty)
        return [rate | {"value": rate["success_rate"]} for rate in rates]

    def compute_differences(self, pairs: Sequence[CellPair]) -> list[Row]:
        arrays = [(_build_array(a), _build_array(b)) for a, b in pairs]
        return compute_differences(arrays, _list_domains(pairs[0][0]), self.uncertainty) if pairs else []


class ClusterMeasure:
    """The mean of a column, whose intervals and tests resample whole clusters. See `analysis.clusters`."""

    def __init__(self, column: str, scale: float, bootstrap: ClusterBootstrap) -> None:
        """Measure the mean of `column`; a difference of 1 is reported as `scale`: 100 for points."""
        self.quantity, self.scale, self.bootstrap = column, scale, bootstrap

    def compute_rates(self, cells: Sequence[pd.DataFrame]) -> list[Row]:
        return [_count(cell) | self._estimate("value", cell, self.quantity, 1.0) for cell in cells]

    def compute_differences(self, pairs: Sequence[CellPair]) -> list[Row]:
        rows, cluster = [], self.bootstrap.column
        for a, b in pairs:
            means = self._average_shots(a), self._average_shots(b)
            differences = pair_predictions(*means, self.quantity, cluster)
            detectable = self.bootstrap.compute_detectable_difference(means, self.quantity)
            rows.append(
                _count(a)
                | self._estimate("difference", differences, "difference", self.scale)
                | {"interval": f"{cluster}s", "p": self.bootstrap.compute_p_value(differences, "difference")}
                | {"test": f"sign-flip of {cluster}s", "detectable_difference": self.scale * detectable}
            )
        return rows

    def _average_shots(self, cell: pd.DataFrame) -> pd.DataFrame:
        """One row a problem and seed: the mean over numbers of worked examples."""
        return cell.groupby(["id", self.bootstrap.column, "seed"], as_index=False)[self.quantity].mean()

    def _estimate(self, name: str, rows: pd.DataFrame, column: str, scale: float) -> Row:
        value, low, high = self.bootstrap.estimate_mean(rows, column)
        return {name: scale * value, "ci_low": scale * low, "ci_high": scale * high}


def build_measures(subject: Subject, overlap: Overlap, uncertainty: Uncertainty) -> list[Measure]:
    """The measures of a subject, success first; with a resampling unit of clusters, and mean reward as well."""
    if subject.resampling_unit is None:
        return [SuccessMeasure(uncertainty)]
    frame = next(iter(overlap.runs.values()))[0]
    bootstrap = ClusterBootstrap(frame[subject.resampling_unit], uncertainty)
    return [ClusterMeasure("success", 100.0, bootstrap), ClusterMeasure("reward", 1.0, bootstrap)]


def _build_array(cell: pd.DataFrame) -> Successes:
    shape = (cell["seed"].nunique(), cell["shot_num"].nunique(), -1)
    array: Successes = cell["success"].to_numpy(bool).reshape(shape)
    return array


def _list_domains(cell: pd.DataFrame) -> list[str]:
    return list(cell["domain"][: cell["id"].nunique()])


def _count(cell: pd.DataFrame) -> Row:
    return {"seeds": cell["seed"].nunique(), "n": cell["id"].nunique()}

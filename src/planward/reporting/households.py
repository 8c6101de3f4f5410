"""Measures of answers to households' states, with intervals that resample whole households.

The months of a household are alike, so its answers tell less than as many answers to strangers would. Hence households
are drawn with replacement, each with all its answers: the cluster bootstrap (Field and Welsh, Journal of the Royal
Statistical Society B 69, 2007, 369-390). Where a method has several seeds, these are drawn as well, independently. A
measure is that of a single run, averaged over seeds: two runs that each give one answer to everything do not differ
from it because their answers differ from each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from planward.reporting.comparison import Uncertainty
from planward.reporting.statistics import detectable_mean, sign_flip

GRID = 2**14  # of the test: differences of households are rounded to this part of the sum of their sizes
Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A measure and its interval; NaN where there is nothing to measure."""

    value: float
    low: float
    high: float


class Households:
    """Draws of households, the same for every measure of every cell.

    Rows of a cell are answers, with the columns `household` and `seed` and those that are measured; a missing value is
    an answer that does not count. Measures average over the seeds that have any.
    """

    def __init__(self, names: pd.Series, by: Uncertainty) -> None:
        """`names` may hold a household many times."""
        self.index = pd.Index(sorted(set(names)))
        self.by = by
        count = len(self.index)
        drawn = np.random.default_rng(by.seed).multinomial(count, np.full(count, 1 / count), size=by.resamples)
        self.times: Array = drawn.astype(np.float64)  # [draws, households]

    def mean(self, rows: pd.DataFrame, column: str) -> Estimate:
        return self._estimate(rows, [rows[column]], lambda n, x: x / n)

    def spread(self, rows: pd.DataFrame, column: str) -> Estimate:
        """The standard deviation of the answers of a run."""
        x = _centred(rows, rows[column])
        return self._estimate(rows, [x, x * x], lambda n, x, xx: _root(xx / n - (x / n) ** 2))

    def correlation(self, rows: pd.DataFrame, a: str, b: str) -> Estimate:
        """Spearman's; in a resample, answers keep the ranks that they have among all. NaN where either is constant."""
        both = rows[[a, b]].notna().all(axis=1)
        x, y = (_centred(rows, rows[column].where(both).groupby(rows["seed"]).rank()) for column in (a, b))

        def pearson(n: Array, x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
            scale = _root(xx / n - (x / n) ** 2) * _root(yy / n - (y / n) ** 2)
            correlation: Array = (xy / n - x * y / n**2) / np.where(scale > 0, scale, np.nan)
            return correlation

        return self._estimate(rows, [x, y, x * x, y * y, x * y], pearson)

    def p_value(self, rows: pd.DataFrame, column: str) -> float:
        """Two-sided p of the paired permutation test: may the two methods be swapped on any household as a whole?

        `column` holds differences. Their sum over each household keeps or changes its sign; the distribution of the
        total under all ways to do so is computed (`statistics.sign_flip`), after rounding to `GRID`.
        """
        sums = rows.groupby("household")[column].sum().to_numpy()
        size = np.abs(sums).sum()
        return sign_flip(np.rint(sums * (GRID / size)).astype(np.int64)) if size else 1.0

    def detectable(self, cells: Sequence[pd.DataFrame], column: str) -> float:
        """The largest of the smallest detectable differences of all pairs of cells, which answer the same problems.

        What this test finds with 80 % power: `statistics.detectable_mean` of the differences of the households' sums,
        divided by the problems of a household. Where a problem has several answers, their mean counts. NaN where there
        are no two cells, or none that differ.
        """
        if len(cells) < 2:
            return float("nan")
        each = [cell.groupby(["household", "id"])[column].mean() for cell in cells]
        sums: Array = np.stack([means.groupby("household").sum().to_numpy(np.float64) for means in each])
        households, problems = sums.shape[1], len(each[0])
        gaps = pdist(sums - sums.mean(axis=1, keepdims=True), "sqeuclidean") / households  # variances of differences
        return detectable_mean(float(gaps.max()), households, self.by.confidence) * float(households / problems)

    def _estimate(self, rows: pd.DataFrame, terms: list[pd.Series], measure: Callable[..., Array]) -> Estimate:
        """A measure of sums over answers: `measure` is given the count of answers and the sum of each term."""
        present = terms[0].notna().to_numpy()
        values = np.stack([np.ones(present.sum()), *(term.to_numpy(np.float64)[present] for term in terms)], axis=1)
        seeds, seed = np.unique(rows["seed"].to_numpy(), return_inverse=True)
        sums = np.zeros((len(seeds), len(self.index), values.shape[1]))
        np.add.at(sums, (seed[present], self.index.get_indexer(rows["household"])[present]), values)
        with np.errstate(divide="ignore", invalid="ignore"):
            single = measure(*np.moveaxis(sums.sum(axis=1), -1, 0))  # [seeds]
            value = float(_mean(single, np.ones(len(seeds))))
            if np.isnan(value):
                return Estimate(value, value, value)
            drawn = measure(*np.moveaxis(np.tensordot(self.times, sums, axes=(1, 1)), -1, 0))  # [draws, seeds]
            luck = np.random.default_rng([self.by.seed, len(seeds)])
            runs = luck.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=len(drawn))
            tail = (1 - self.by.confidence) / 2
            low, high = np.nanquantile(_mean(drawn, runs), [tail, 1 - tail])
        return Estimate(value, float(low), float(high))


def _mean(values: Array, weights: NDArray[np.generic]) -> Array:
    """The weighted mean over the last axis of the values that are not missing."""
    kept = np.where(np.isnan(values), 0.0, weights.astype(np.float64))
    mean: Array = (np.nan_to_num(values) * kept).sum(axis=-1) / kept.sum(axis=-1)
    return mean


def _centred(rows: pd.DataFrame, values: pd.Series) -> pd.Series:
    """Values less the median of their run: sums of squares keep their digits, and of a constant they are 0."""
    return values - values.groupby(rows["seed"]).transform("median")


def _root(square: Array) -> Array:
    root: Array = np.sqrt(np.maximum(square, 0.0))
    return root

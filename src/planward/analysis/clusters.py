"""Measures of clustered predictions, with intervals that resample whole clusters.

Predictions on problems of one cluster (the months of a household, say) are alike, so they carry less information than
as many independent ones. Hence clusters are drawn with replacement, each with all its predictions: the cluster
bootstrap (Field and Welsh, Journal of the Royal Statistical Society B 69, 2007, 369-390). Where a method has several
seeds, these are drawn as well, independently. A measure is computed for each run and averaged over seeds: two runs that
each give one constant completion do not differ from it because their completions differ from each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from planward.analysis.cells import Uncertainty
from planward.analysis.statistics import compute_detectable_mean, compute_sign_flip_p

GRID = 2**14  # the test rounds the clusters' differences to this fraction of the sum of their sizes
Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A measure and its interval; NaN where there is nothing to measure."""

    value: float
    low: float
    high: float


class ClusterBootstrap:
    """Draws of clusters, the same for every measure of every cell.

    Rows of a cell are predictions, with a column that names the cluster, the column `seed` and those that are measured;
    rows where the measured value is missing do not count. Measures average over the seeds that have any.
    """

    def __init__(self, clusters: pd.Series, uncertainty: Uncertainty) -> None:
        """Draw clusters.

        Args:
            clusters: the cluster of each row, with repetitions; the name of the series is the column that every cell
                has them in.
        """
        self.column = str(clusters.name)
        self.index = pd.Index(sorted(set(clusters)))
        self.uncertainty = uncertainty
        count = len(self.index)
        rng = np.random.default_rng(uncertainty.seed)
        draws = rng.multinomial(count, np.full(count, 1 / count), size=uncertainty.resamples)
        self.counts: Array = draws.astype(np.float64)  # [draws, clusters]: how often each is drawn

    def estimate_mean(self, rows: pd.DataFrame, column: str) -> Estimate:
        return self._estimate(rows, [rows[column]], lambda n, x: x / n)

    def estimate_sd(self, rows: pd.DataFrame, column: str) -> Estimate:
        """The standard deviation over the predictions of a run."""
        x = _centre(rows, rows[column])
        return self._estimate(rows, [x, x * x], lambda n, x, xx: _root(xx / n - (x / n) ** 2))

    def estimate_correlation(self, rows: pd.DataFrame, a: str, b: str) -> Estimate:
        """Spearman's; in a resample, rows keep their ranks among all rows. NaN where either column is constant."""
        both = rows[[a, b]].notna().all(axis=1)
        x, y = (_centre(rows, rows[column].where(both).groupby(rows["seed"]).rank()) for column in (a, b))

        def compute_pearson(n: Array, x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
            scale = _root(xx / n - (x / n) ** 2) * _root(yy / n - (y / n) ** 2)
            correlation: Array = (xy / n - x * y / n**2) / np.where(scale > 0, scale, np.nan)
            return correlation

        return self._estimate(rows, [x, y, x * x, y * y, x * y], compute_pearson)

    def compute_p_value(self, rows: pd.DataFrame, column: str) -> float:
        """Two-sided p of the paired permutation test, whose null hypothesis swaps two methods on any whole cluster.

        The sum of the differences in `column` over each cluster keeps or changes its sign; the distribution of the
        total under all sign flips is computed (`statistics.compute_sign_flip_p`), after rounding to `GRID`.
        """
        sums = rows.groupby(self.column)[column].sum().to_numpy()
        size = np.abs(sums).sum()
        return compute_sign_flip_p(np.rint(sums * (GRID / size)).astype(np.int64)) if size else 1.0

    def compute_detectable_difference(self, cells: Sequence[pd.DataFrame], column: str) -> float:
        """The largest of the smallest detectable differences of all pairs of cells on the same problems.

        What the test finds with 80 % power: `statistics.compute_detectable_mean` of the differences of the clusters'
        sums, divided by the problems of a cluster. Several predictions of a problem are averaged. NaN where there are
        fewer than two cells, or none that differ.
        """
        if len(cells) < 2:
            return float("nan")
        means = [cell.groupby([self.column, "id"])[column].mean() for cell in cells]
        sums: Array = np.stack([mean.groupby(self.column).sum().to_numpy(np.float64) for mean in means])
        clusters, problems = sums.shape[1], len(means[0])
        variances = pdist(sums - sums.mean(axis=1, keepdims=True), "sqeuclidean") / clusters  # of the differences
        detectable = compute_detectable_mean(float(variances.max()), clusters, self.uncertainty.confidence)
        return detectable * float(clusters / problems)

    def _estimate(self, rows: pd.DataFrame, terms: list[pd.Series], measure: Callable[..., Array]) -> Estimate:
        """Estimate a measure of sums over rows: `measure` takes the number of rows and the sum of each term."""
        present = terms[0].notna().to_numpy()
        values = np.stack([np.ones(present.sum()), *(term.to_numpy(np.float64)[present] for term in terms)], axis=1)
        seeds, seed_indices = np.unique(rows["seed"].to_numpy(), return_inverse=True)
        sums = np.zeros((len(seeds), len(self.index), values.shape[1]))
        np.add.at(sums, (seed_indices[present], self.index.get_indexer(rows[self.column])[present]), values)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_seed = measure(*np.moveaxis(sums.sum(axis=1), -1, 0))  # [seeds]
            value = float(_average(by_seed, np.ones(len(seeds))))
            if np.isnan(value):
                return Estimate(value, value, value)
            replicates = measure(*np.moveaxis(np.tensordot(self.counts, sums, axes=(1, 1)), -1, 0))  # [draws, seeds]
            rng = np.random.default_rng([self.uncertainty.seed, len(seeds)])
            seed_counts = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=len(replicates))
            tail = (1 - self.uncertainty.confidence) / 2
            low, high = np.nanquantile(_average(replicates, seed_counts), [tail, 1 - tail])
        return Estimate(value, float(low), float(high))


def pair_predictions(a: pd.DataFrame, b: pd.DataFrame, value: str, cluster: str) -> pd.DataFrame:
    """Predictions of two cells on the same problems side by side.

    Predictions of the same seed are paired; the one run of a cell with one seed is paired with each of the other's.

    Args:
        value: the column that is compared.
        cluster: the column that names the cluster of a problem.

    Returns:
        The columns id, seed, `cluster`, VALUE_a, VALUE_b, and difference, b minus a.

    Raises:
        ValueError: the cells do not answer the same problems, each once a seed.
    """
    left, right = (cell.pivot(index="id", columns="seed", values=value) for cell in (a, b))
    if not left.index.equals(right.index) or left.isna().any(axis=None) or right.isna().any(axis=None):
        raise ValueError("two methods answered different problems; fix: evaluate both on the same test split")
    seeds = max(left.columns, right.columns, key=len)
    first, second = np.broadcast_arrays(left.to_numpy(), right.to_numpy())
    both = pd.DataFrame({"id": np.repeat(left.index, len(seeds)), "seed": np.tile(seeds, len(left))})
    both[cluster] = both["id"].map(a.drop_duplicates("id").set_index("id")[cluster])
    sides = {f"{value}_a": first.ravel(), f"{value}_b": second.ravel()}
    return both.assign(**sides, difference=(second - first).ravel())


def _average(values: Array, weights: NDArray[np.generic]) -> Array:
    """The weighted mean over the last axis of the values that are not missing."""
    present_weights = np.where(np.isnan(values), 0.0, weights.astype(np.float64))
    mean: Array = (np.nan_to_num(values) * present_weights).sum(axis=-1) / present_weights.sum(axis=-1)
    return mean


def _centre(rows: pd.DataFrame, values: pd.Series) -> pd.Series:
    """Subtract the median of each run: sums of squares keep their digits, and of a constant they are 0."""
    return values - values.groupby(rows["seed"]).transform("median")


def _root(square: Array) -> Array:
    root: Array = np.sqrt(np.maximum(square, 0.0))
    return root

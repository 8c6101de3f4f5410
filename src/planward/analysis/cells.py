"""Rates and paired differences of methods, each with the interval and test that fits its predictions.

A cell holds the successes of one method: booleans of shape [seeds, shot_nums, problems]. One prediction a problem:
Wilson's and Newcombe's intervals, McNemar's exact test. Several: the predictions of a problem are averaged, intervals
are bootstrapped over seeds and problems, stratified by domain, and the test flips signs of the problems' mean
differences. Where all resamples agree, as at 0 %, the bootstrap would claim certainty: then the interval is Wilson's or
Newcombe's, of one prediction a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from planward.analysis.statistics import (
    Pairs,
    bootstrap_intervals,
    compute_detectable_difference,
    compute_paired_interval,
    compute_sign_flip_p,
    compute_wilson_interval,
)
from planward.analysis.success_arrays import Successes

ROUNDING = 1e-9  # of means that are equal
RATE_COLUMNS = ["seeds", "n", "successes", "success_rate", "ci_low", "ci_high", "interval"]
DIFFERENCE_COLUMNS = ["seeds", "n", "both", "only_a", "only_b", "difference", "ci_low", "ci_high", "interval"]
DIFFERENCE_COLUMNS += ["p", "test", "detectable_difference"]


@dataclass(frozen=True)
class Uncertainty:
    """How intervals are computed; `resamples` and `seed` are the bootstrap's."""

    confidence: float
    resamples: int
    seed: int


def compute_rates(cells: Sequence[Successes], strata: Sequence[str], uncertainty: Uncertainty) -> list[dict[str, Any]]:
    """Compute the columns `RATE_COLUMNS` of each cell; `n` counts problems, `successes` predictions.

    Args:
        strata: the domain of each problem.
    """
    intervals = _bootstrap([cell.mean(axis=1) for cell in cells if _has_several(cell)], strata, uncertainty)
    rows = []
    for cell in cells:
        seeds, shot_nums, n = cell.shape
        successes = int(cell.sum())
        low, high = next(intervals) if _has_several(cell) else (0.0, 0.0)
        is_resampled = high - low > ROUNDING
        if not is_resampled:
            low, high = compute_wilson_interval(successes / (seeds * shot_nums), n, uncertainty.confidence)
        rows.append(
            {"seeds": seeds, "n": n, "successes": successes, "success_rate": successes / (seeds * shot_nums * n)}
            | {"ci_low": low, "ci_high": high, "interval": "bootstrap" if is_resampled else "wilson"}
        )
    return rows


def compute_differences(
    pairs: Sequence[tuple[Successes, Successes]], strata: Sequence[str], uncertainty: Uncertainty
) -> list[dict[str, Any]]:
    """Compute the columns `DIFFERENCE_COLUMNS` of each pair (a, b): success of b minus success of a, in points.

    Runs of the same seed are compared; a method with one run is compared with every run of the other.
    `both`, `only_a` and `only_b` count pairs of predictions.
    """
    matched_pairs = [_match_seeds(a, b) for a, b in pairs]
    gaps = [b.mean(axis=1) - a.mean(axis=1) for a, b in matched_pairs if _has_several(a)]
    intervals = _bootstrap(gaps, strata, uncertainty)
    rows = []
    for a, b in matched_pairs:
        counts, (seeds, shot_nums, n) = Pairs.count(a.ravel(), b.ravel()), a.shape
        low, high = next(intervals) if _has_several(a) else (0.0, 0.0)
        is_resampled = high - low > ROUNDING
        if not is_resampled:
            low, high = compute_paired_interval(counts.scale(1 / (seeds * shot_nums)), uncertainty.confidence)
        means = b.mean(axis=(0, 1)) - a.mean(axis=(0, 1))  # of each problem
        detectable = compute_detectable_difference(float((means**2).mean()), n, uncertainty.confidence)
        rows.append(
            {"seeds": seeds, "n": n, "both": counts.both, "only_a": counts.only_a, "only_b": counts.only_b}
            | {"difference": 100 * counts.difference, "ci_low": 100 * low, "ci_high": 100 * high}
            | {"interval": "bootstrap" if is_resampled else "newcombe", "p": compute_p_value(a, b)}
            | {"test": "sign-flip" if _has_several(a) else "mcnemar", "detectable_difference": 100 * detectable}
        )
    return rows


def compute_largest_detectable(rates: NDArray[Any], confidence: float) -> float:
    """The largest of the smallest detectable differences of all pairs of rows, in points.

    The test would find any larger true difference between any two of the rows with 80 % power.

    Args:
        rates: shape [rows, problems]; a row's success on each problem, the mean where it has several predictions.

    Returns:
        NaN where there are fewer than two rows.
    """
    if len(rates) < 2:
        return float("nan")
    n = rates.shape[1]
    largest = float(pdist(rates.astype(np.float64), "sqeuclidean").max()) / n  # the detectable difference grows with it
    return 100 * compute_detectable_difference(largest, n, confidence)


def compute_p_value(a: Successes, b: Successes) -> float:
    """Two-sided exact p of the paired test between two cells: McNemar's where there is one prediction a problem."""
    a, b = _match_seeds(a, b)
    return compute_sign_flip_p(b.sum(axis=(0, 1), dtype=np.int64) - a.sum(axis=(0, 1), dtype=np.int64))


def _has_several(cell: Successes) -> bool:
    """Whether a problem has several predictions: from several seeds or with several numbers of worked examples."""
    return bool(cell.shape[0] * cell.shape[1] > 1)


def _match_seeds(a: Successes, b: Successes) -> tuple[Successes, Successes]:
    """Repeat the one run of a method for each run of the other."""
    arrays = np.broadcast_arrays(a, b)
    return arrays[0], arrays[1]


def _bootstrap(
    means: Sequence[NDArray[Any]], strata: Sequence[str], uncertainty: Uncertainty
) -> Iterator[tuple[float, float]]:
    """The interval of each array [seeds, problems]; arrays of the same shape are resampled together."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, mean in enumerate(means):
        by_shape[mean.shape].append(index)
    intervals: dict[int, tuple[float, float]] = {}
    for indices in by_shape.values():
        stacked_means = np.stack([means[index] for index in indices])
        bounds = bootstrap_intervals(
            stacked_means, strata, uncertainty.confidence, uncertainty.resamples, uncertainty.seed
        ).tolist()
        intervals |= {index: (low, high) for index, (low, high) in zip(indices, bounds, strict=True)}
    return (intervals[index] for index in range(len(means)))

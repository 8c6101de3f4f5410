"""Rates and paired differences of methods, each with the interval and test that its answers call for.

A cell holds the answers of one method: booleans of shape [seeds, shots, problems]. One answer a problem: Wilson's and
Newcombe's intervals, McNemar's exact test. Several: answers of a problem are averaged, and the intervals are
bootstrapped over seeds and problems, stratified by domain; the test flips signs of the problems' mean differences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from planward.reporting.answers import Solved
from planward.reporting.statistics import (
    Pairs,
    bootstrap_intervals,
    detectable_difference,
    paired_interval,
    sign_flip,
    wilson,
)

RATE = ["seeds", "n", "successes", "success_rate", "ci_low", "ci_high", "interval"]
DIFFERENCE = ["seeds", "n", "both", "only_a", "only_b", "difference", "ci_low", "ci_high", "interval"]
DIFFERENCE += ["p", "test", "detectable_difference"]


@dataclass(frozen=True)
class Uncertainty:
    """How intervals are made: `resamples` and `seed` are the bootstrap's."""

    confidence: float
    resamples: int
    seed: int


def rates(cells: Sequence[Solved], strata: Sequence[str], by: Uncertainty) -> list[dict[str, Any]]:
    """For each cell the columns `RATE`; `n` counts problems, `successes` answers.

    Args:
        strata: the domain of each problem.
    """
    pooled = _bootstrapped([cell.mean(axis=1) for cell in cells if _many(cell)], strata, by)
    rows = []
    for cell in cells:
        seeds, shots, n = cell.shape
        successes = int(cell.sum())
        low, high = next(pooled) if _many(cell) else wilson(successes, n, by.confidence)
        rows.append(
            {"seeds": seeds, "n": n, "successes": successes, "success_rate": successes / (seeds * shots * n)}
            | {"ci_low": low, "ci_high": high, "interval": "bootstrap" if _many(cell) else "wilson"}
        )
    return rows


def differences(pairs: Sequence[tuple[Solved, Solved]], strata: Sequence[str], by: Uncertainty) -> list[dict[str, Any]]:
    """For each pair (a, b) the columns `DIFFERENCE`: success of b minus success of a, in points of a hundred.

    Runs of the same seed are compared; a method with one run is compared with every run of the other.
    `both`, `only_a` and `only_b` count pairs of answers.
    """
    matched = [_matched(a, b) for a, b in pairs]
    gaps = [b.mean(axis=1) - a.mean(axis=1) for a, b in matched if _many(a)]
    pooled = _bootstrapped(gaps, strata, by)
    rows = []
    for a, b in matched:
        counts, (seeds, _, n) = Pairs.count(a.ravel().tolist(), b.ravel().tolist()), a.shape
        low, high = next(pooled) if _many(a) else paired_interval(counts, by.confidence)
        each = b.mean(axis=(0, 1)) - a.mean(axis=(0, 1))
        smallest = detectable_difference(float((each**2).mean()), n, by.confidence)
        rows.append(
            {"seeds": seeds, "n": n, "both": counts.both, "only_a": counts.only_a, "only_b": counts.only_b}
            | {"difference": 100 * counts.difference, "ci_low": 100 * low, "ci_high": 100 * high}
            | {"interval": "bootstrap" if _many(a) else "newcombe", "p": p_value(a, b)}
            | {"test": "sign-flip" if _many(a) else "mcnemar", "detectable_difference": 100 * smallest}
        )
    return rows


def detectable(answers: NDArray[Any], confidence: float) -> float:
    """The largest of the smallest detectable differences of all pairs of rows, in points of a hundred.

    So the test would find, with 80 % power, any larger true difference between two of the rows.

    Args:
        answers: shape [rows, problems]; a row's success on each problem, the mean where it has several answers.

    Returns:
        NaN where there are no two rows.
    """
    if len(answers) < 2:
        return float("nan")
    n = answers.shape[1]
    largest = float(pdist(answers.astype(np.float64), "sqeuclidean").max()) / n  # what is detectable grows with it
    return 100 * detectable_difference(largest, n, confidence)


def p_value(a: Solved, b: Solved) -> float:
    """Two-sided exact p of the paired test between two cells: McNemar's where there is one answer a problem."""
    a, b = _matched(a, b)
    return sign_flip(b.sum(axis=(0, 1), dtype=np.int64) - a.sum(axis=(0, 1), dtype=np.int64))


def _many(cell: Solved) -> bool:
    """Whether a problem has several answers: from several seeds or with several numbers of worked examples."""
    return bool(cell.shape[0] * cell.shape[1] > 1)


def _matched(a: Solved, b: Solved) -> tuple[Solved, Solved]:
    same = np.broadcast_arrays(a, b)
    return same[0], same[1]


def _bootstrapped(means: Sequence[NDArray[Any]], strata: Sequence[str], by: Uncertainty) -> Any:
    """An iterator over the interval of each array [seeds, problems]; those of a shape are resampled at once."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, mean in enumerate(means):
        alike[mean.shape].append(place)
    found: dict[int, tuple[float, float]] = {}
    for places in alike.values():
        stacked = np.stack([means[place] for place in places])
        bounds = bootstrap_intervals(stacked, strata, by.confidence, by.resamples, by.seed)
        found |= {place: (float(low), float(high)) for place, (low, high) in zip(places, bounds, strict=True)}
    return (found[place] for place in range(len(means)))

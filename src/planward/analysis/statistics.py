"""Intervals and tests for success rates on the same problems.

Rates and differences are shares (0 to 1), never percentages; pairs are counted as in McNemar's table. Where several
runs of a method (seeds) answered, their successes are arrays of shape [..., seeds, problems].
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm
from statsmodels.stats.proportion import proportion_confint

POWER = 0.8  # of the smallest detectable difference in tables: the convention, not a setting
RESAMPLES_PER_CHUNK = 500  # bounds memory, changes no result


@dataclass(frozen=True)
class Pairs:
    """Two methods on the same `n` problems: solved by both, by one of them only, by neither.

    Fractions are of problems with several predictions.
    """

    both: float
    only_a: float
    only_b: float
    neither: float

    @classmethod
    def count(cls, a: Sequence[bool] | NDArray[np.bool_], b: Sequence[bool] | NDArray[np.bool_]) -> Pairs:
        """Count the outcomes of two methods; `a[i]` and `b[i]` are of the same problem."""
        if len(a) != len(b):
            raise ValueError(f"of {len(a)} and {len(b)} outcomes, one is shorter")
        x, y = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
        return cls(*(int(np.count_nonzero(cell)) for cell in (x & y, x & ~y, ~x & y, ~x & ~y)))

    def scale(self, factor: float) -> Pairs:
        return Pairs(self.both * factor, self.only_a * factor, self.only_b * factor, self.neither * factor)

    @property
    def n(self) -> float:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Success of b minus success of a."""
        return (self.only_b - self.only_a) / self.n


def compute_wilson_interval(successes: float, n: float, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a success rate; exactly 0 or 1 where nothing or everything succeeded."""
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    return float(low) if successes else 0.0, float(high) if successes < n else 1.0


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of p values, in their order (Scandinavian Journal of Statistics 6, 1979, 65-70).

    statsmodels has it too, but runs the garbage collector on every call.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)
    adjusted_p_values = np.empty_like(values)
    adjusted_p_values[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0)
    return [float(value) for value in adjusted_p_values]


def compute_paired_interval(pairs: Pairs, confidence: float) -> tuple[float, float]:
    """Interval of `pairs.difference`: Newcombe's method 10 (Statistics in Medicine 17, 1998, 2635-2650).

    Wilson intervals of the two rates, combined with the correlation of the pairs, which is corrected for continuity
    when it is positive.
    """
    n, solved_a, solved_b = pairs.n, pairs.both + pairs.only_a, pairs.both + pairs.only_b
    rate_a, rate_b = solved_a / n, solved_b / n
    low_a, high_a = compute_wilson_interval(solved_a, n, confidence)
    low_b, high_b = compute_wilson_interval(solved_b, n, confidence)
    margins = solved_a * (n - solved_a) * solved_b * (n - solved_b)
    cross = pairs.both * pairs.neither - pairs.only_a * pairs.only_b
    phi = (max(cross - n / 2, 0.0) if cross > 0 else cross) / math.sqrt(margins) if margins else 0.0

    def compute_distance(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    low = pairs.difference - compute_distance(rate_b - low_b, high_a - rate_a)
    high = pairs.difference + compute_distance(high_b - rate_b, rate_a - low_a)
    return max(-1.0, low), min(1.0, high)


def bootstrap_intervals(
    values: NDArray[Any], strata: Sequence[Hashable], confidence: float, resamples: int, seed: int
) -> NDArray[np.float64]:
    """Percentile intervals of means over seeds and problems, by a two-way stratified bootstrap.

    A resample draws as many seeds as there are, and in each stratum as many problems as it holds, both with
    replacement, and takes every value of a drawn seed on a drawn problem: the pigeonhole bootstrap (Owen, Annals of
    Applied Statistics 1, 2007, 386-411), which is conservative where problems and seeds both matter. Drawing within
    strata keeps the composition of the test set, which was fixed in advance.

    Args:
        values: shape [cells, seeds, problems]; successes, shares, or their differences. All cells see the same draws,
            so a cell's interval does not depend on what other cells there are.
        strata: the stratum of each problem, its domain.
        resamples: number of draws over which percentiles are taken.
        seed: of the draws.

    Returns:
        Low and high of each cell, shape [cells, 2].
    """
    cells, seeds, problems = values.shape
    members = [np.flatnonzero(np.array(strata, dtype=object) == stratum) for stratum in sorted(set(strata), key=str)]
    rng, flat, means = np.random.default_rng(seed), values.reshape(cells * seeds, problems).astype(np.float64), []
    for start in range(0, resamples, RESAMPLES_PER_CHUNK):
        draws = min(RESAMPLES_PER_CHUNK, resamples - start)
        problem_counts = np.empty((draws, problems))  # how often each problem is drawn
        for indices in members:
            shares = np.full(len(indices), 1 / len(indices))
            problem_counts[:, indices] = rng.multinomial(len(indices), shares, size=draws)
        seed_counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws)
        sums = (flat @ problem_counts.T).reshape(cells, seeds, draws)
        means.append(np.einsum("csd,ds->cd", sums, seed_counts) / (seeds * problems))
    tail = (1 - confidence) / 2
    bounds: NDArray[np.float64] = np.quantile(np.concatenate(means, axis=1), [tail, 1 - tail], axis=1)
    return bounds.T


def compute_sign_flip_p(differences: Sequence[int] | NDArray[np.int64]) -> float:
    """Two-sided exact p of the paired permutation test, whose null hypothesis swaps the methods on any problem.

    The distribution of the sum under all 2^n sign flips is computed, not sampled: problems with the same absolute
    difference add a scaled binomial, and these are convolved. With one value a problem this is McNemar's exact test
    (Fisher, The Design of Experiments, 1935, section 21, for the test).

    Args:
        differences: of each problem, how many more of its predictions one method got right than the other.
    """
    sizes, counts = np.unique(np.abs(np.asarray(differences, dtype=np.int64)), return_counts=True)
    total = abs(int(np.sum(differences)))
    distribution = np.ones(1)  # at u: the probability that the differences with a plus sum to u
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if size:
            scaled_binomial = np.zeros(size * count + 1)
            scaled_binomial[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
            distribution = np.convolve(distribution, scaled_binomial)
    if not total:
        return 1.0
    largest = len(distribution) - 1  # all of them with a plus; the signed sum is 2u - largest
    return min(1.0, 2 * float(distribution[: (largest - total) // 2 + 1].sum()))


def compute_detectable_difference(discordance: float, n: float, confidence: float, power: float = POWER) -> float:
    """The smallest true difference that the paired test would find with 80 % power on `n` problems.

    Solves n d^2 = (z_a sqrt(s) + z_b sqrt(s - d^2))^2 for d (Connor, Biometrics 43, 1987, 207-211), where s is the mean
    squared difference of a problem (with one seed, the share of problems that just one method solves): the observed
    `discordance`, or d itself where that is larger, since with one seed a difference cannot exceed it. Before Holm's
    correction. 1.0 where n is too small to find anything.
    """
    z_a, z_b = float(norm.ppf((1 + confidence) / 2)), float(norm.ppf(power))

    def compute_excess(d: float) -> float:
        s = max(discordance, d)
        return math.sqrt(n) * d - z_a * math.sqrt(s) - z_b * math.sqrt(max(s - d * d, 0.0))

    return float(brentq(compute_excess, 1e-9, 1.0)) if compute_excess(1.0) > 0 else 1.0


def compute_detectable_mean(variance: float, n: int, confidence: float) -> float:
    """The smallest true mean that the sign-flip test of `n` numbers would find with 80 % power, in their unit.

    Solves n d^2 = (z_a sqrt(v + d^2) + z_b sqrt(v))^2 for d, where v is the `variance` of the numbers, assumed not to
    depend on their mean: under the null hypothesis the test takes the mean square, v + d^2, for the variance.
    NaN where the numbers do not vary, infinite where n is too small to find anything.
    """
    z_a, z_b = float(norm.ppf((1 + confidence) / 2)), float(norm.ppf(POWER))
    if not variance:
        return math.nan
    if n <= z_a * z_a:
        return math.inf
    deviations = math.sqrt(n) * z_b + math.sqrt(n * z_b**2 - (n - z_a**2) * (z_b**2 - z_a**2))
    return math.sqrt(variance) * deviations / (n - z_a**2)

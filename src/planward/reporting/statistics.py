"""Intervals and tests for success rates on the same problems.

Rates and differences are shares (0 to 1), never percentages; pairs are counted as in McNemar's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.stats import binomtest, norm
from statsmodels.stats.proportion import proportion_confint

POWER = 0.8  # of the smallest detectable difference; the convention, not a setting


@dataclass(frozen=True)
class Pairs:
    """Two methods on the same `n` problems: solved by both, by one of them only, by neither."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @classmethod
    def count(cls, a: Sequence[bool], b: Sequence[bool]) -> Pairs:
        """Count outcomes of two methods; `a[i]` and `b[i]` are of the same problem."""
        seen = [(bool(x), bool(y)) for x, y in zip(a, b, strict=True)]
        return cls(*(seen.count(cell) for cell in ((True, True), (True, False), (False, True), (False, False))))

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Success of b minus success of a."""
        return (self.only_b - self.only_a) / self.n


def wilson(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a success rate; exactly 0 or 1 where nothing or everything succeeded."""
    low, high = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    return float(low) if successes else 0.0, float(high) if successes < n else 1.0


def mcnemar_exact(pairs: Pairs) -> float:
    """Two-sided exact p of McNemar's test: are the problems that only one method solved split evenly?"""
    discordant = pairs.only_a + pairs.only_b
    return float(binomtest(pairs.only_a, discordant, 0.5).pvalue) if discordant else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of p values, in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def paired_interval(pairs: Pairs, confidence: float) -> tuple[float, float]:
    """Interval of `pairs.difference`: Newcombe's method 10 (Statistics in Medicine 17, 1998, 2635-2650).

    Wilson intervals of the two rates, combined with the correlation of the pairs, which is corrected for
    continuity when it is positive.
    """
    n, in_a, in_b = pairs.n, pairs.both + pairs.only_a, pairs.both + pairs.only_b
    rate_a, rate_b = in_a / n, in_b / n
    (low_a, high_a), (low_b, high_b) = wilson(in_a, n, confidence), wilson(in_b, n, confidence)
    margins = in_a * (n - in_a) * in_b * (n - in_b)
    cross = pairs.both * pairs.neither - pairs.only_a * pairs.only_b
    phi = (max(cross - n / 2, 0.0) if cross > 0 else cross) / math.sqrt(margins) if margins else 0.0

    def distance(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    low = pairs.difference - distance(rate_b - low_b, high_a - rate_a)
    high = pairs.difference + distance(high_b - rate_b, rate_a - low_a)
    return max(-1.0, low), min(1.0, high)


def detectable_difference(pairs: Pairs, confidence: float) -> float:
    """The smallest true difference that McNemar's test would find with 80 % power at this n.

    Solves n d^2 = (z_a sqrt(s) + z_b sqrt(s - d^2))^2 for d (Connor, Biometrics 43, 1987, 207-211), where s is
    the share of problems that just one method solves: the observed share, or d itself where that is larger,
    since a difference cannot exceed it. Before Holm's correction. 1.0 where n is too small to find anything.
    """
    z_a, z_b = float(norm.ppf((1 + confidence) / 2)), float(norm.ppf(POWER))
    observed = (pairs.only_a + pairs.only_b) / pairs.n

    def excess(d: float) -> float:
        s = max(observed, d)
        return math.sqrt(pairs.n) * d - z_a * math.sqrt(s) - z_b * math.sqrt(max(s - d * d, 0.0))

    return float(brentq(excess, 1e-9, 1.0)) if excess(1.0) > 0 else 1.0

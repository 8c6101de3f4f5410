"""How many test problems, and how many seeds, it takes to find a true difference between two methods.

Two claims are told apart. That two *trained models* differ is what the tables' paired test asks: more test problems
answer it, and its power is computed here exactly. That two *settings* differ, whichever seed they are trained with,
takes several seeds: what a difference varies by from seed to seed does not shrink with more problems.

Rates and differences are shares (0 to 1). `alpha` is the chance of finding a difference where there is none; with K
comparisons, Holm's first step asks for alpha / K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, chi2, nct, norm
from scipy.stats import t as student

MOST_PROBLEMS, MOST_SEEDS = 10_000_000, 1000  # more are never had
STEADY = 25  # problems around a solution in which exact power, a fine saw, is looked at
TAIL = 1e-12  # of the distribution of discordant problems, left out on either side


@dataclass(frozen=True)
class Components:
    """Variances of b's success minus a's, both with the same seed, on one problem.

    The difference is modelled as d + (of the pair of runs with a seed) + (of the problem) + (of both).
    """

    seed: float
    problem: float
    both: float
    seeds: int  # behind the estimate
    seed_bounds: tuple[float, float]  # interval of `seed`


def exact_power(difference: float, discordance: float, problems: int, alpha: float) -> float:
    """The chance that McNemar's exact test finds a true difference; with a difference of 0, that it errs.

    Of n problems a binomial number M is solved by just one of the two models, and of these a binomial number by b.
    Given M, the test rejects where the binomial's two-sided p is below alpha; its power is the mean over M (Duffy,
    Biometrics 40, 1984, 1005-1015).

    Args:
        discordance: the share of problems that just one model solves; the difference, where that is larger.
    """
    discordance = max(discordance, abs(difference))
    if not discordance:
        return 0.0
    low, high = binom.ppf([TAIL, 1 - TAIL], problems, discordance)
    m = np.arange(max(low, 1), high + 1)
    wins = binom.isf(alpha / 2, m, 0.5) + 1  # the fewest of M with which p is below alpha
    wins += 2 * binom.sf(wins - 1, m, 0.5) >= alpha
    share = (1 + difference / discordance) / 2  # of M, solved by b
    found = binom.sf(wins - 1, m, share) + binom.cdf(m - wins, m, share)
    return float(binom.pmf(m, problems, discordance) @ found)


def approximate_problems(difference: float, discordance: float, alpha: float, power: float) -> float:
    """Problems needed by Connor's formula (Biometrics 43, 1987, 207-211).

    n = ((z_a sqrt(s) + z_b sqrt(s - d^2)) / d)^2, where s is the discordance, or d if that is larger: the inverse of
    `statistics.detectable_difference`.
    """
    s = max(discordance, difference)
    normal = norm.isf(alpha / 2) * math.sqrt(s) + norm.isf(1 - power) * math.sqrt(max(s - difference**2, 0.0))
    return float(normal / difference) ** 2


def problems_needed(difference: float, discordance: float, alpha: float, power: float) -> int | None:
    """The fewest problems from which on `exact_power` is at least `power`; None where ten million are too few.

    Power grows with n but for a fine saw (whole numbers of wins), which is looked at around the solution.
    """

    def enough(n: int) -> bool:
        return exact_power(difference, discordance, n, alpha) >= power

    start = max(1, math.ceil(approximate_problems(difference, discordance, alpha, power)))
    found = _fewest(enough, start, MOST_PROBLEMS)
    if found is None:
        return None
    short = [n for n in range(max(1, found - STEADY), found + STEADY) if not enough(n)]
    return short[-1] + 1 if short else found


def exact_detectable(discordance: float, problems: int, alpha: float, power: float) -> float:
    """The smallest true difference that McNemar's exact test finds with this power; 1.0 where none is."""

    def excess(difference: float) -> float:
        return exact_power(difference, discordance, problems, alpha) - power

    return float(brentq(excess, 0.0, 1.0, xtol=1e-6)) if excess(1.0) > 0 else 1.0


def components(gaps: Sequence[NDArray[Any]], confidence: float, models: int = 1) -> Components | None:
    """Variance components of differences with several seeds, by the method of moments; None with one seed.

    Each array, of shape [seeds, problems], holds b's success minus a's in one cell of N and shot_num, as a two-way
    table without replication: the mean squares of seeds, of problems and of the rest are set equal to what they are
    expected to be (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4), averaged over cells. A
    negative estimate is 0. The interval of the seeds' component takes their mean square for a scaled chi-square.

    Args:
        models: how many of the cells have models of their own: those that differ in N.
    """
    seeds, problems = gaps[0].shape
    if seeds < 2 or problems < 2:
        return None
    of_seeds, of_problems, rest = np.mean([_mean_squares(np.asarray(gap, np.float64)) for gap in gaps], axis=0).tolist()
    tail, free = (1 - confidence) / 2, (seeds - 1) * models
    low, high = (max(0.0, (free * of_seeds / float(chi2.ppf(q, free)) - rest) / problems) for q in (1 - tail, tail))
    by_seed, by_problem = max(0.0, (of_seeds - rest) / problems), max(0.0, (of_problems - rest) / seeds)
    return Components(by_seed, by_problem, rest, seeds, (low, high))


def settings_power(difference: float, parts: Components, seeds: int, problems: float, alpha: float) -> float:
    """The chance that several seeds show that two settings differ, `problems` being `math.inf` for any number of them.

    The mean difference of k seeds on n problems has the variance s_seed^2 / k + s_problem^2 / n + s_both^2 / (k n);
    it is tested by Student's t with k - 1 degrees of freedom, the fewest that a sum of these parts can have
    (Satterthwaite, Biometrics Bulletin 2, 1946, 110-114). Its power is that of the noncentral t.
    """
    if seeds < 2:
        return 0.0
    variance = parts.seed / seeds + (parts.problem + parts.both / seeds) / problems
    critical = float(student.isf(alpha / 2, seeds - 1))
    if not variance:
        return 1.0
    shift = difference / math.sqrt(variance)
    # far off, scipy's noncentral t is not a number; there a normal mean over a chi of little spread decides
    found = float(nct.sf(critical, seeds - 1, shift))
    return found if math.isfinite(found) else float(norm.sf(critical - shift))


def seeds_needed(difference: float, parts: Components, problems: float, alpha: float, power: float) -> int | None:
    """The fewest seeds with which `settings_power` is at least `power`; None where a thousand are too few."""

    def enough(seeds: int) -> bool:
        return settings_power(difference, parts, seeds, problems, alpha) >= power

    return _fewest(enough, 2, MOST_SEEDS)


def _fewest(enough: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number that is enough, of those up to `most`, sought upwards from `start` and then between."""
    short, found = 0, start
    while not enough(found):
        if found >= most:
            return None
        short, found = found, min(2 * found, most)
    while found - short > 1:
        middle = (short + found) // 2
        short, found = (short, middle) if enough(middle) else (middle, found)
    return found


def _mean_squares(table: NDArray[np.float64]) -> list[float]:
    """Mean squares of rows, columns and the rest of a two-way table."""
    rows, columns = table.shape
    by_row, by_column = table.mean(axis=1) - table.mean(), table.mean(axis=0) - table.mean()
    rest = table - table.mean() - by_row[:, None] - by_column
    free = (rows - 1) * (columns - 1)
    return [
        columns * float((by_row**2).sum()) / (rows - 1),
        rows * float((by_column**2).sum()) / (columns - 1),
        float((rest**2).sum()) / free,
    ]

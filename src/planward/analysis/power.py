"""How many test problems, and how many seeds, it takes to find a true difference between two methods.

There are two claims. That two *trained models* differ is what the tables' paired test asks: more test problems answer
it, and its power is computed here exactly. That two *settings* differ, whichever seed they are trained with, takes
several seeds: the variance of a difference from seed to seed does not shrink with more problems.

Rates and differences are shares (0 to 1). `alpha` is the probability of finding a difference where there is none; with
K comparisons, Holm's first step requires alpha / K.
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

MAX_PROBLEMS, MAX_SEEDS = 10_000_000, 1000
WINDOW = 25  # problems on either side of a solution where exact power, which is not monotone, is checked
TAIL = 1e-12  # of the distribution of discordant problems, left out on either side


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of b's success minus a's, both with the same seed, on one problem.

    The difference is modelled as d + (effect of the seed) + (effect of the problem) + (interaction).
    """

    seed: float
    problem: float
    both: float
    seeds: int  # behind the estimate
    seed_bounds: tuple[float, float]  # interval of `seed`


def compute_exact_power(difference: float, discordance: float, problems: int, alpha: float) -> float:
    """The power of McNemar's exact test for a true difference; its error rate for a difference of 0.

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
    conditional_power = binom.sf(wins - 1, m, share) + binom.cdf(m - wins, m, share)
    return float(binom.pmf(m, problems, discordance) @ conditional_power)


def approximate_problems(difference: float, discordance: float, alpha: float, power: float) -> float:
    """Approximate the problems needed by Connor's formula (Biometrics 43, 1987, 207-211).

    n = ((z_a sqrt(s) + z_b sqrt(s - d^2)) / d)^2, where s is the discordance, or d if that is larger: the inverse of
    `statistics.compute_detectable_difference`.
    """
    s = max(discordance, difference)
    normal = norm.isf(alpha / 2) * math.sqrt(s) + norm.isf(1 - power) * math.sqrt(max(s - difference**2, 0.0))
    return float(normal / difference) ** 2


def compute_problems_needed(difference: float, discordance: float, alpha: float, power: float) -> int | None:
    """The fewest problems from which on the exact power is at least `power`; None where `MAX_PROBLEMS` are too few.

    Power is a saw-tooth function of n (wins are whole numbers), so the `WINDOW` around the solution is checked.
    """

    def is_enough(n: int) -> bool:
        return compute_exact_power(difference, discordance, n, alpha) >= power

    start = max(1, math.ceil(approximate_problems(difference, discordance, alpha, power)))
    solution = _find_smallest(is_enough, start, MAX_PROBLEMS)
    if solution is None:
        return None
    too_few = [n for n in range(max(1, solution - WINDOW), solution + WINDOW) if not is_enough(n)]
    return too_few[-1] + 1 if too_few else solution


def compute_exact_detectable(discordance: float, problems: int, alpha: float, power: float) -> float:
    """The smallest true difference that McNemar's exact test finds with this power; 1.0 where none is."""

    def compute_excess(difference: float) -> float:
        return compute_exact_power(difference, discordance, problems, alpha) - power

    return float(brentq(compute_excess, 0.0, 1.0, xtol=1e-6)) if compute_excess(1.0) > 0 else 1.0


def estimate_components(
    differences: Sequence[NDArray[Any]], confidence: float, models: int = 1
) -> VarianceComponents | None:
    """Variance components of differences with several seeds, by the method of moments; None with one seed.

    Each array, of shape [seeds, problems], holds b's success minus a's in one cell of N and shot_num, as a two-way
    table without replication: the mean squares of seeds, of problems and of the rest are equated with their
    expectations (Searle, Casella and McCulloch, Variance Components, 1992, chapter 4), averaged over cells. A negative
    estimate is set to 0. The interval of the seeds' component treats their mean square as a scaled chi-square.

    Args:
        models: how many of the cells have models of their own: those that differ in N.
    """
    seeds, problems = differences[0].shape
    if seeds < 2 or problems < 2:
        return None
    tables = [_compute_mean_squares(np.asarray(difference, np.float64)) for difference in differences]
    seed_square, problem_square, rest = np.mean(tables, axis=0).tolist()
    tail, degrees = (1 - confidence) / 2, (seeds - 1) * models
    quantiles = (float(chi2.ppf(q, degrees)) for q in (1 - tail, tail))
    low, high = (max(0.0, (degrees * seed_square / quantile - rest) / problems) for quantile in quantiles)
    by_seed, by_problem = max(0.0, (seed_square - rest) / problems), max(0.0, (problem_square - rest) / seeds)
    return VarianceComponents(by_seed, by_problem, rest, seeds, (low, high))


def compute_settings_power(
    difference: float, components: VarianceComponents, seeds: int, problems: float, alpha: float
) -> float:
    """The power to show with several seeds that two settings differ; `problems` may be `math.inf`.

    The mean difference of k seeds on n problems has the variance s_seed^2 / k + s_problem^2 / n + s_both^2 / (k n);
    it is tested by Student's t with k - 1 degrees of freedom, the fewest that a sum of these parts can have
    (Satterthwaite, Biometrics Bulletin 2, 1946, 110-114). Its power is that of the noncentral t.
    """
    if seeds < 2:
        return 0.0
    variance = components.seed / seeds + (components.problem + components.both / seeds) / problems
    critical = float(student.isf(alpha / 2, seeds - 1))
    if not variance:
        return 1.0
    shift = difference / math.sqrt(variance)
    # For a large shift scipy's noncentral t is NaN; there a normal mean over a chi of small spread is exact enough.
    power = float(nct.sf(critical, seeds - 1, shift))
    return power if math.isfinite(power) else float(norm.sf(critical - shift))


def compute_seeds_needed(
    difference: float, components: VarianceComponents, problems: float, alpha: float, power: float
) -> int | None:
    """The fewest seeds with which `compute_settings_power` is at least `power`; None where `MAX_SEEDS` are too few."""

    def is_enough(seeds: int) -> bool:
        return compute_settings_power(difference, components, seeds, problems, alpha) >= power

    return _find_smallest(is_enough, 2, MAX_SEEDS)


def _find_smallest(is_enough: Callable[[int], bool], start: int, maximum: int) -> int | None:
    """The smallest number up to `maximum` that is enough, by doubling from `start` and then bisection."""
    too_small, candidate = 0, start
    while not is_enough(candidate):
        if candidate >= maximum:
            return None
        too_small, candidate = candidate, min(2 * candidate, maximum)
    while candidate - too_small > 1:
        middle = (too_small + candidate) // 2
        too_small, candidate = (too_small, middle) if is_enough(middle) else (middle, candidate)
    return candidate


def _compute_mean_squares(table: NDArray[np.float64]) -> list[float]:
    """Mean squares of rows, columns and the rest of a two-way table."""
    rows, columns = table.shape
    by_row, by_column = table.mean(axis=1) - table.mean(), table.mean(axis=0) - table.mean()
    rest = table - table.mean() - by_row[:, None] - by_column
    degrees = (rows - 1) * (columns - 1)
    return [
        columns * float((by_row**2).sum()) / (rows - 1),
        rows * float((by_column**2).sum()) / (columns - 1),
        float((rest**2).sum()) / degrees,
    ]

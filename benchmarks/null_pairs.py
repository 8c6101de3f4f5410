"""The false-positive rate of `planward diff`: how often it finds a difference between experiments with equal settings.

    python benchmarks/null_pairs.py                                         results/predictions, 200 pairs a null
    python benchmarks/null_pairs.py --predictions A/predictions B/predictions
    dvc get . results/predictions --rev three-seeds -o /tmp/seeds           then --predictions /tmp/seeds

A pair is a table as `planward diff` makes it with one seed a side: McNemar's exact test in every cell of method, N and
number of worked examples, Holm's correction over the table, cells whose files are equal left out. Prediction files of
several seeds are split by seed. Of the nulls, the first two check the test itself, the last two what it does not cover:

drawn       both sides draw every result from the run's own success probability on the problem: the mean over its
            seeds and numbers of worked examples, shrunk to the run's mean by a beta-binomial's moments
swapped     real results of two sides, swapped at random, problem by problem with all their cells: the exact
            randomisation null, with the correlation between cells that real results have. Sides are two folders, two
            seeds, or, where there is only one of each, an experiment and itself with other numbers of worked examples
seeds       real pairs of seeds, trained with the same settings; as many as there are
simulated   simulated pairs of seeds: as `swapped`, but with a true difference between the sides of each run, drawn
            for each pair with the variance that real seeds of a run have (analysis of variance; its own interval is
            printed). Problems are assigned to the better side as often as this difference requires
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planward.analysis.cells import compute_p_value
from planward.analysis.outcomes import join_outcomes, parse_outcomes
from planward.analysis.power import VarianceComponents, estimate_components
from planward.analysis.statistics import adjust_p_values, compute_wilson_interval
from planward.analysis.success_arrays import SuccessArrays

ALPHA = 0.05
Side = NDArray[np.bool_]  # success in one experiment: [runs, shot_nums, problems]
Pair = tuple[Side, Side]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=Path, nargs="+", default=[Path("results/predictions")])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, experiments = np.random.default_rng(options.seed), [read_success(folder) for folder in options.predictions]
    first = experiments[0]
    seed_pairs = [pair for success in experiments for pair in combinations(list_sides(success), 2)]
    folder_pairs = [(list_sides(a)[0], list_sides(b)[0]) for a, b in combinations(experiments, 2)]
    runs = len(list_trained(first))
    print(f"{runs} trained runs and base, shots {first.shot_nums}, {len(first.problems)} problems")
    print(f"{'null':<10}{'pairs':>6}{'cells':>7}{'p < 0.05':>10}{'different':>11}{'tables with any':>17}  95 %")
    print_null("drawn", [draw_pair(first, rng) for _ in range(options.pairs)])
    pool = folder_pairs + seed_pairs or list(iter_rotations(list_sides(first)[0]))
    print_null("swapped", [swap_problems(pool[i % len(pool)], rng) for i in range(options.pairs)])
    if seed_pairs:
        print_null("seeds", seed_pairs)
        components = estimate_seed_variance(first)

        def simulate_pairs(variance: float) -> list[Pair]:
            return [simulate_seeds(seed_pairs[i % len(seed_pairs)], variance, rng) for i in range(options.pairs)]

        print_null("simulated", simulate_pairs(components.seed))
        low, high = (100 * bound**0.5 for bound in components.seed_bounds)
        print(f"success of a run varies between {components.seeds} seeds with a standard deviation of ", end="")
        print(f"{100 * components.seed**0.5:.2f} points ({low:.2f} to {high:.2f})")
        for name, variance in zip(("smaller", "larger"), components.seed_bounds, strict=True):
            print_null(f"  {name}", simulate_pairs(variance))
    else:
        print("seeds, simulated: need predictions of several seeds")


def read_success(folder: Path) -> SuccessArrays:
    """Read every prediction file in a folder."""
    frames = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            frames[str(path)] = parse_outcomes(str(path), lines)
    return SuccessArrays.from_outcomes(join_outcomes(frames))


def list_trained(success: SuccessArrays) -> list[NDArray[np.bool_]]:
    """Success of each trained run: [seeds, shot_nums, problems]."""
    return [array for (_, size), array in success.arrays.items() if size]


def list_sides(success: SuccessArrays) -> list[Side]:
    """One experiment for each seed."""
    return list(np.stack(list_trained(success), axis=1))


def draw_pair(success: SuccessArrays, rng: np.random.Generator) -> Pair:
    probabilities = np.stack([estimate_probabilities(array) for array in list_trained(success)])[:, None]
    shape = (len(probabilities), len(success.shot_nums), probabilities.shape[-1])
    return rng.random(shape) < probabilities, rng.random(shape) < probabilities


def estimate_probabilities(success: NDArray[np.bool_]) -> NDArray[np.float64]:
    """A run's success probability on each problem, shrunk: the mean of its beta posterior."""
    rates = success.reshape(-1, success.shape[-1]).mean(axis=0)
    draws, mean, variance = success.shape[0] * success.shape[1], rates.mean(), rates.var()
    binomial = mean * (1 - mean)
    # the variance of rates is that of the probabilities plus that of the draws: binomial * (1 + (draws - 1) r) / draws
    r = min(max((draws * variance / binomial - 1) / (draws - 1), 1e-6), 1 - 1e-6)
    prior = (1 - r) / r
    probabilities: NDArray[np.float64] = (draws * rates + prior * mean) / (draws + prior)
    return probabilities


def iter_rotations(side: Side) -> Iterator[Pair]:
    """Pair an experiment with itself at other numbers of worked examples."""
    for shift in range(1, side.shape[1]):
        yield side, np.roll(side, shift, axis=1)


def swap_problems(pair: Pair, rng: np.random.Generator) -> Pair:
    a, b = pair
    keep = rng.random(a.shape[-1]) < 0.5
    return np.where(keep, a, b), np.where(keep, b, a)


def simulate_seeds(pair: Pair, variance: float, rng: np.random.Generator) -> Pair:
    """A pair whose runs truly differ by seeds of this variance, otherwise as different as a real pair.

    A problem's results are swapped together, over all numbers of worked examples: b is better where it solves more.
    """
    a, b = pair
    better = np.sign(b.sum(axis=1).astype(int) - a.sum(axis=1))  # [runs, problems]: 1 where b is better
    largest = np.abs(b.mean(axis=1) - a.mean(axis=1)).mean(axis=-1)  # difference if one side were better everywhere
    true = rng.normal(0, (2 * variance) ** 0.5, len(a))
    share = np.clip((1 + true / np.maximum(largest, 1e-9)) / 2, 0, 1)
    b_better = rng.random(better.shape) < share[:, None]
    keep = np.where(better == 0, rng.random(better.shape) < 0.5, b_better == (better > 0))[:, None]
    return np.where(keep, a, b), np.where(keep, b, a)


def estimate_seed_variance(success: SuccessArrays) -> VarianceComponents:
    """Variance of a run's success between seeds, over all runs and numbers of worked examples."""
    arrays = list_trained(success)
    cells = [array[:, k].astype(float) for array in arrays for k in range(len(success.shot_nums))]
    components = estimate_components(cells, 1 - ALPHA, len(arrays))
    assert components
    return components


def print_null(name: str, pairs: Sequence[Pair]) -> None:
    """Print shares of cells and of tables in which something is found, with Wilson's interval for the tables."""
    unadjusted_num, adjusted_num, tables, cells = 0, 0, 0, 0
    for a, b in pairs:
        differing_cells = [(x, y) for run_a, run_b in zip(a, b, strict=True) if (run_a != run_b).any()
                  for x, y in zip(run_a, run_b, strict=True)]  # fmt: skip
        p_values = [compute_p_value(x[None, None], y[None, None]) for x, y in differing_cells]
        rejections = [p < ALPHA for p in adjust_p_values(p_values)]
        unadjusted_num, adjusted_num = unadjusted_num + sum(p < ALPHA for p in p_values), adjusted_num + sum(rejections)
        tables, cells = tables + any(rejections), cells + len(differing_cells)
    low, high = compute_wilson_interval(tables, len(pairs), 1 - ALPHA)
    print(
        f"{name:<10}{len(pairs):>6}{cells:>7}{unadjusted_num / cells:>10.2%}{adjusted_num / cells:>11.2%}"
        f"{tables / len(pairs):>17.1%}  [{low:.1%}, {high:.1%}]"
    )


if __name__ == "__main__":
    main()

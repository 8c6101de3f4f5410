"""How often `planward diff` calls something different where nothing is: on pairs of experiments with the same settings.

    python benchmarks/null_pairs.py                                         results/predictions, 200 pairs a null
    python benchmarks/null_pairs.py --predictions A/predictions B/predictions
    dvc get . results/predictions --rev three-seeds -o /tmp/seeds           then --predictions /tmp/seeds

A pair is a table as `planward diff` makes it with one seed a side: McNemar's exact test in every cell of method, N and
number of worked examples, Holm's correction over the table, cells without any difference in their answers' files left
out. Prediction files of several seeds are taken apart. Nulls, of which the first two ask whether the test does what
it says, the last two what it does not cover:

drawn       both sides draw every answer from the run's own success probability on the problem: the mean over its
            seeds and numbers of worked examples, shrunk to the run's mean as a beta-binomial's moments say
swapped     real answers of two sides, swapped at random, problem by problem with all their cells: the exact
            randomisation null, with the correlation between cells that real answers have. Sides are two folders, two
            seeds, or, where there is but one of each, an experiment and itself with other numbers of worked examples
seeds       real pairs of seeds, trained with the same settings; as many as there are
luck        pairs of seeds simulated: as `swapped`, but between the sides of each run stands a true difference, drawn
            anew for each pair with the variance that real seeds of a run have (analysis of variance; its own interval
            is printed). Answers to a problem turn to the side that is ahead as often as makes this difference
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planward.reporting.answers import Answers
from planward.reporting.comparison import p_value
from planward.reporting.outcomes import file_outcomes, joined_outcomes
from planward.reporting.power import Components, components
from planward.reporting.statistics import holm, wilson

ALPHA = 0.05
Side = NDArray[np.bool_]  # what one experiment solved: [runs, shots, problems]
Pair = tuple[Side, Side]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=Path, nargs="+", default=[Path("results/predictions")])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, stored = np.random.default_rng(asked.seed), [read(folder) for folder in asked.predictions]
    first = stored[0]
    real = [pair for answers in stored for pair in combinations(sides(answers), 2)]
    between = [pair for a, b in combinations(stored, 2) for pair in [(sides(a)[0], sides(b)[0])]]
    runs = len(trained(first))
    print(f"{runs} trained runs and base, shots {first.shots}, {len(first.problems)} problems")
    print(f"{'null':<10}{'pairs':>6}{'cells':>7}{'p < 0.05':>10}{'different':>11}{'tables with any':>17}  95 %")
    report("drawn", [drawn(first, rng) for _ in range(asked.pairs)])
    mixed = between + real or list(rotated(sides(first)[0]))
    report("swapped", [swapped(mixed[i % len(mixed)], rng) for i in range(asked.pairs)])
    if real:
        report("seeds", real)
        luck = variance(first)
        report("luck", [lucky(real[i % len(real)], luck.seed, rng) for i in range(asked.pairs)])
        low, high = (100 * bound**0.5 for bound in luck.seed_bounds)
        print(f"success of a run varies between {luck.seeds} seeds with a standard deviation of ", end="")
        print(f"{100 * luck.seed**0.5:.2f} points ({low:.2f} to {high:.2f})")
        for size, of in (("smaller", luck.seed_bounds[0]), ("larger", luck.seed_bounds[1])):
            report(f"  {size}", [lucky(real[i % len(real)], of, rng) for i in range(asked.pairs)])
    else:
        print("seeds, luck: one seed; predictions of several show them")


def read(folder: Path) -> Answers:
    """The answers of every prediction file in a folder."""
    frames = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            frames[str(path)] = file_outcomes(str(path), path.stem, lines)
    return Answers.of(joined_outcomes(frames))


def trained(answers: Answers) -> list[NDArray[np.bool_]]:
    """Answers of each trained run: [seeds, shots, problems]."""
    return [solved for (_, size), solved in answers.solved.items() if size]


def sides(answers: Answers) -> list[Side]:
    """One experiment for each seed."""
    return list(np.stack(trained(answers), axis=1))


def drawn(answers: Answers, rng: np.random.Generator) -> Pair:
    chances = np.stack([chance(solved) for solved in trained(answers)])[:, None]
    shape = (len(chances), len(answers.shots), chances.shape[-1])
    return rng.random(shape) < chances, rng.random(shape) < chances


def chance(solved: NDArray[np.bool_]) -> NDArray[np.float64]:
    """A run's success probability on each problem, shrunk: the mean of its beta posterior."""
    each = solved.reshape(-1, solved.shape[-1]).mean(axis=0)
    times, mean, spread = solved.shape[0] * solved.shape[1], each.mean(), each.var()
    binomial = mean * (1 - mean)
    # the variance of shares is that of the probabilities plus that of the draws: binomial * (1 + (times - 1) r) / times
    r = min(max((times * spread / binomial - 1) / (times - 1), 1e-6), 1 - 1e-6)
    prior = (1 - r) / r
    found: NDArray[np.float64] = (times * each + prior * mean) / (times + prior)
    return found


def rotated(side: Side) -> Iterator[Pair]:
    for turns in range(1, side.shape[1]):
        yield side, np.roll(side, turns, axis=1)


def swapped(pair: Pair, rng: np.random.Generator) -> Pair:
    a, b = pair
    kept = rng.random(a.shape[-1]) < 0.5
    return np.where(kept, a, b), np.where(kept, b, a)


def lucky(pair: Pair, variance: float, rng: np.random.Generator) -> Pair:
    """A pair whose runs truly differ by seeds of this variance, else as different as a real pair.

    A problem's answers are turned as one, over all numbers of worked examples: b is ahead where it solves more of them.
    """
    a, b = pair
    ahead = np.sign(b.sum(axis=1).astype(int) - a.sum(axis=1))  # [runs, problems]
    lead = np.abs(b.mean(axis=1) - a.mean(axis=1)).mean(axis=-1)  # of whoever is ahead, if it always were the same
    true = rng.normal(0, (2 * variance) ** 0.5, len(a))
    share = np.clip((1 + true / np.maximum(lead, 1e-9)) / 2, 0, 1)
    b_ahead = rng.random(ahead.shape) < share[:, None]
    kept = np.where(ahead == 0, rng.random(ahead.shape) < 0.5, b_ahead == (ahead > 0))[:, None]
    return np.where(kept, a, b), np.where(kept, b, a)


def variance(answers: Answers) -> Components:
    """Of a run's success between seeds, over all runs and numbers of worked examples."""
    cells = [solved[:, k].astype(float) for solved in trained(answers) for k in range(len(answers.shots))]
    found = components(cells, 1 - ALPHA, len(trained(answers)))
    assert found
    return found


def report(name: str, pairs: Sequence[Pair]) -> None:
    plain, different, any_different, cells = 0, 0, 0, 0
    for a, b in pairs:
        tested = [(x, y) for run_a, run_b in zip(a, b, strict=True) if (run_a != run_b).any()
                  for x, y in zip(run_a, run_b, strict=True)]  # fmt: skip
        p_values = [p_value(x[None, None], y[None, None]) for x, y in tested]
        adjusted = [p < ALPHA for p in holm(p_values)]
        plain, different = plain + sum(p < ALPHA for p in p_values), different + sum(adjusted)
        any_different, cells = any_different + any(adjusted), cells + len(tested)
    low, high = wilson(any_different, len(pairs), 1 - ALPHA)
    print(
        f"{name:<10}{len(pairs):>6}{cells:>7}{plain / cells:>10.2%}{different / cells:>11.2%}"
        f"{any_different / len(pairs):>17.1%}  [{low:.1%}, {high:.1%}]"
    )


if __name__ == "__main__":
    main()

"""What it takes to find a difference between two methods, by what their stored answers tell: `planward power`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

from planward.reporting.answers import Answers
from planward.reporting.names import title
from planward.reporting.power import (
    Components,
    approximate_problems,
    components,
    exact_detectable,
    problems_needed,
    seeds_needed,
)
from planward.reporting.statistics import detectable_difference

DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.1)  # answered for unless one is named
SEEDS = (2, 3, 5, 10)  # numbers of them that problems are counted for


@dataclass(frozen=True)
class Evidence:
    """What is known of two methods; `discordance` and `pooled` are by shot_num."""

    a: str
    b: str
    problems: int
    seeds: int
    discordance: dict[int, float]  # share of problems that just one of two runs with the same seed solves
    pooled: dict[int, float]  # mean squared difference of a problem, its seeds averaged; with one seed the same
    parts: Components | None


@dataclass(frozen=True)
class Needed:
    """What it takes to find one true difference; None: more than can be had."""

    difference: float
    problems: int | None  # with one seed, for McNemar's exact test of the two trained models
    approximate: int  # the same by Connor's formula
    problems_by_seeds: dict[int, int]  # with so many seeds each, for the sign-flip test of the trained models
    seeds: int | None  # that show the settings to differ, at the present number of problems
    seeds_at_most_problems: int | None  # and with any number of problems
    seeds_at_worst: int | None  # where seeds vary as much as the upper end of that estimate's interval says


@dataclass(frozen=True)
class Answer:
    """What there is, what it can find, and what it takes to find more."""

    alpha: float  # of one comparison
    power: float
    discordance: float  # the one reckoned with
    problems: int | None  # asked at present
    detectable: dict[int, float]  # by shot_num: the smallest true difference that is found at present
    evidence: Evidence | None
    needed: list[Needed]

    @property
    def json(self) -> dict[str, Any]:
        return asdict(self)


def evidence(answers: Answers, a: str, b: str, confidence: float) -> Evidence:
    """What stored answers tell of two methods at the largest N that both have; base stands against any.

    Variance components are estimated over every N and shot_num.

    Raises:
        ValueError: a method has no answers, or the two have no N in common.
    """
    runs = {method: {n: solved for (name, n), solved in answers.solved.items() if name == method} for method in (a, b)}
    if missing := [method for method, own in runs.items() if not own]:
        known = ", ".join(dict.fromkeys(name for name, _ in answers.solved))
        raise ValueError(f"no predictions of {' and '.join(missing)}; there are those of {known}")
    sizes = [own.keys() for own in runs.values() if 0 not in own]
    common = sorted(set.intersection(*map(set, sizes))) if sizes else [0]
    if not common:
        raise ValueError(f"{a} and {b} were not trained with the same number of problems: they cannot be compared")
    gaps = []  # of each N, b minus a: [seeds, shots, problems]
    for size in common:
        first, second = (own[size if size in own else 0].astype(np.float64) for own in runs.values())
        gaps.append(second - first)
    last = gaps[-1]
    cells = [gap[:, place] for gap in gaps for place in range(len(answers.shots))]
    first_title, second_title = (title(method, common[-1] if common[-1] in own else 0) for method, own in runs.items())
    return Evidence(
        a=first_title,
        b=second_title,
        problems=last.shape[2],
        seeds=last.shape[0],
        discordance=dict(zip(answers.shots, (last**2).mean(axis=(0, 2)).tolist(), strict=True)),
        pooled=dict(zip(answers.shots, (last.mean(axis=0) ** 2).mean(axis=1).tolist(), strict=True)),
        parts=components(cells, confidence, len(common)),
    )


def answer_from(known: Evidence, differences: Sequence[float], alpha: float, power: float) -> Answer:
    """What differences (shares) need where two methods are as discordant as they were where they were most."""
    if known.seeds == 1:
        found = {k: exact_detectable(s, known.problems, alpha, power) for k, s in known.discordance.items()}
    else:
        found = {k: detectable_difference(s, known.problems, 1 - alpha, power) for k, s in known.pooled.items()}
    most = max(known.discordance.values())
    needed = [_needed(d, most, known, alpha, power) for d in differences]
    return Answer(alpha, power, most, known.problems, found, known, needed)


def answer_by_hand(
    discordance: float, problems: int | None, differences: Sequence[float], alpha: float, power: float
) -> Answer:
    """The same for a discordance that is given, and for `problems` of one seed; without results, seeds tell nothing."""
    found = {} if problems is None else {0: exact_detectable(discordance, problems, alpha, power)}
    needed = [_needed(d, discordance, None, alpha, power) for d in differences]
    return Answer(alpha, power, discordance, problems, found, None, needed)


def _needed(d: float, discordance: float, known: Evidence | None, alpha: float, power: float) -> Needed:
    parts, by_seeds = known.parts if known else None, {}
    seeds = at_most = at_worst = None
    if known and parts:
        for k in SEEDS:  # averaging takes away what differs from seed to seed on a problem
            pooled = max(discordance - (1 - 1 / k) * parts.both, 0.0)
            by_seeds[k] = math.ceil(approximate_problems(d, pooled, alpha, power))
        seeds = seeds_needed(d, parts, known.problems, alpha, power)
        at_most = seeds_needed(d, parts, math.inf, alpha, power)
        at_worst = seeds_needed(d, replace(parts, seed=parts.seed_bounds[1]), math.inf, alpha, power)
    approximate = math.ceil(approximate_problems(d, discordance, alpha, power))
    exact = problems_needed(d, discordance, alpha, power)
    return Needed(d, exact, approximate, by_seeds, seeds, at_most, at_worst)


def printed(answer: Answer) -> Iterator[Table | str]:
    """The answer for people: tables, each under its heading, and sentences on what they do not tell."""
    known = answer.evidence
    yield f"Found: p < {answer.alpha:.3g} in the paired test, with {100 * answer.power:g} % power."
    if answer.detectable:
        asked = f"{answer.problems} problems" + (f" and {_counted(known.seeds, 'seed')}" if known else "")
        yield f"\nWhat {asked} can find" + (f", {known.b} minus {known.a}" if known else "")
        yield _present(answer)
    share = f"{100 * answer.discordance:.1f} %"
    yield f"\nTest problems needed to find that two trained models differ, where {share} are solved by one of them only"
    yield _problems(answer)
    if known is None:
        return
    if known.parts is None:
        yield (
            f"\nSuch a test is of the models that were trained: another seed trains others. Whether the settings of "
            f"{known.a} and {known.b} differ cannot be told from one seed, nor how many seeds that takes, since "
            "nothing shows how much the difference varies between them. To learn it, train several: "
            "dvc exp run -S 'seeds=[3407,1,2]'"
        )
        return
    yield "\nSeeds needed to find that the settings differ, whichever seed they are trained with"
    yield _seeds(answer)
    low, high = (100 * math.sqrt(bound) for bound in known.parts.seed_bounds)
    yield (
        f"From one seed to another the true difference varies with a standard deviation of "
        f"{100 * math.sqrt(known.parts.seed):.1f} points; {known.parts.seeds} seeds show it no better than between "
        f"{low:.1f} and {high:.1f}. More problems do not make it smaller. At worst: with the largest of these, on any "
        "number of problems."
    )


def _present(answer: Answer) -> Table:
    known, shots = answer.evidence, ["shots"] if answer.evidence else []
    table = _headed(*shots, "discordance, %", "smallest detectable difference, points")
    for shot_num, found in answer.detectable.items():
        cells = (
            [str(shot_num), f"{100 * known.discordance[shot_num]:.1f}"]
            if known
            else [f"{100 * answer.discordance:.1f}"]
        )
        table.add_row(*cells, f"{100 * found:.1f}")
    return table


def _problems(answer: Answer) -> Table:
    counts = list(answer.needed[0].problems_by_seeds)
    table = _headed("true difference, points", "1 seed", *(_counted(k, "seed") for k in counts))
    for row in answer.needed:
        seeds = [str(row.problems_by_seeds[k]) for k in counts]
        table.add_row(f"{100 * row.difference:g}", _or_none(row.problems), *seeds)
    return table


def _seeds(answer: Answer) -> Table:
    table = _headed("true difference, points", f"on {answer.problems} problems", "on any number", "at worst")
    for row in answer.needed:
        counts = (row.seeds, row.seeds_at_most_problems, row.seeds_at_worst)
        table.add_row(f"{100 * row.difference:g}", *map(_or_none, counts))
    return table


def _headed(*heads: str) -> Table:
    table = Table()
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _or_none(count: int | None) -> str:
    return "none is enough" if count is None else str(count)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""What it takes to find a difference between two methods, from their stored predictions: `planward power`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

from planward.analysis.names import format_run
from planward.analysis.power import (
    VarianceComponents,
    approximate_problems,
    compute_exact_detectable,
    compute_problems_needed,
    compute_seeds_needed,
    estimate_components,
)
from planward.analysis.statistics import compute_detectable_difference
from planward.analysis.success_arrays import SuccessArrays

DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.1)  # shares; used unless one is given
SEEDS = (2, 3, 5, 10)  # numbers of seeds for which problems are computed


@dataclass(frozen=True)
class Evidence:
    """What is known of two methods; `discordance` and `pooled` are by shot_num."""

    a: str
    b: str
    problems: int
    seeds: int
    discordance: dict[int, float]  # share of problems that just one of two runs with the same seed solves
    pooled: dict[int, float]  # mean squared difference of a problem, its seeds averaged; with one seed the same
    parts: VarianceComponents | None


@dataclass(frozen=True)
class Requirement:
    """What it takes to find one true difference; None: more than `power.MAX_PROBLEMS` or `power.MAX_SEEDS`."""

    difference: float
    problems: int | None  # with one seed, for McNemar's exact test of the two trained models
    approximate: int  # the same by Connor's formula
    problems_by_seeds: dict[int, int]  # by number of seeds of each, for the sign-flip test of the trained models
    seeds: int | None  # that show the settings to differ, at the present number of problems
    seeds_at_most_problems: int | None  # and with any number of problems
    seeds_at_worst: int | None  # with the upper end of the interval of the variance between seeds


@dataclass(frozen=True)
class PowerAnalysis:
    """The present evidence, what it can find, and what it takes to find more: the JSON of `planward power`."""

    alpha: float  # of one comparison
    power: float
    discordance: float  # that requirements are computed with
    problems: int | None  # present
    detectable: dict[int, float]  # by shot_num: the smallest true difference that is found at present
    evidence: Evidence | None
    needed: list[Requirement]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate_evidence(success: SuccessArrays, a: str, b: str, confidence: float) -> Evidence:
    """Estimate discordance and variances of two methods at the largest N that both have; base is paired with any N.

    Variance components are estimated over every N and shot_num.

    Raises:
        ValueError: a method has no predictions, the two have no N in common, or are the same.
    """
    if a == b:
        raise ValueError(f"{a} cannot be compared with itself: name two methods")
    runs = {method: {n: array for (name, n), array in success.arrays.items() if name == method} for method in (a, b)}
    if missing := [method for method, by_size in runs.items() if not by_size]:
        names = ", ".join(dict.fromkeys(name for name, _ in success.arrays))
        raise ValueError(f"no predictions of {' and '.join(missing)}; there are those of {names}")
    sizes = [by_size.keys() for by_size in runs.values() if 0 not in by_size]
    common = sorted(set.intersection(*map(set, sizes))) if sizes else [0]
    if not common:
        raise ValueError(f"{a} and {b} were not trained with the same number of problems: they cannot be compared")
    differences = []  # of each N, b minus a: [seeds, shot_nums, problems]
    for size in common:
        first, second = (by_size[size if size in by_size else 0].astype(np.float64) for by_size in runs.values())
        differences.append(second - first)
    last = differences[-1]
    cells = [difference[:, i] for difference in differences for i in range(len(success.shot_nums))]
    title_a, title_b = (
        format_run(method, common[-1] if common[-1] in by_size else 0) for method, by_size in runs.items()
    )
    return Evidence(
        a=title_a,
        b=title_b,
        problems=last.shape[2],
        seeds=last.shape[0],
        discordance=dict(zip(success.shot_nums, (last**2).mean(axis=(0, 2)).tolist(), strict=True)),
        pooled=dict(zip(success.shot_nums, (last.mean(axis=0) ** 2).mean(axis=1).tolist(), strict=True)),
        parts=estimate_components(cells, confidence, len(common)),
    )


def analyse_evidence(evidence: Evidence, differences: Sequence[float], alpha: float, power: float) -> PowerAnalysis:
    """Compute what differences (shares) require, at the largest discordance of any shot_num."""
    n, confidence = evidence.problems, 1 - alpha
    if evidence.seeds == 1:
        detectable = {k: compute_exact_detectable(s, n, alpha, power) for k, s in evidence.discordance.items()}
    else:
        detectable = {k: compute_detectable_difference(s, n, confidence, power) for k, s in evidence.pooled.items()}
    largest = max(evidence.discordance.values())
    requirements = [_compute_requirement(d, largest, evidence, alpha, power) for d in differences]
    return PowerAnalysis(alpha, power, largest, n, detectable, evidence, requirements)


def analyse_discordance(
    discordance: float, problems: int | None, differences: Sequence[float], alpha: float, power: float
) -> PowerAnalysis:
    """The same for a given discordance and `problems` of one seed; without results nothing is known of seeds."""
    detectable = {} if problems is None else {0: compute_exact_detectable(discordance, problems, alpha, power)}
    requirements = [_compute_requirement(d, discordance, None, alpha, power) for d in differences]
    return PowerAnalysis(alpha, power, discordance, problems, detectable, None, requirements)


def _compute_requirement(
    difference: float, discordance: float, evidence: Evidence | None, alpha: float, power: float
) -> Requirement:
    parts, problems_by_seeds = evidence.parts if evidence else None, {}
    seeds = at_most = at_worst = None
    if evidence and parts:
        for k in SEEDS:  # averaging over seeds removes part of the variance of the interaction
            pooled_discordance = max(discordance - (1 - 1 / k) * parts.both, 0.0)
            problems_by_seeds[k] = math.ceil(approximate_problems(difference, pooled_discordance, alpha, power))
        worst = replace(parts, seed=parts.seed_bounds[1])
        seeds = compute_seeds_needed(difference, parts, evidence.problems, alpha, power)
        at_most = compute_seeds_needed(difference, parts, math.inf, alpha, power)
        at_worst = compute_seeds_needed(difference, worst, math.inf, alpha, power)
    approximate = math.ceil(approximate_problems(difference, discordance, alpha, power))
    exact = compute_problems_needed(difference, discordance, alpha, power)
    return Requirement(difference, exact, approximate, problems_by_seeds, seeds, at_most, at_worst)


def render_analysis(analysis: PowerAnalysis) -> Iterator[Table | str]:
    """Render the analysis for the terminal: tables with their headings, and sentences on what they do not show."""
    evidence = analysis.evidence
    yield f"Found: p < {analysis.alpha:.3g} in the paired test, with {100 * analysis.power:g} % power."
    if analysis.detectable:
        sample = f"{analysis.problems} problems" + (f" and {_format_count(evidence.seeds, 'seed')}" if evidence else "")
        yield f"\nWhat {sample} can find" + (f", {evidence.b} minus {evidence.a}" if evidence else "")
        yield _render_detectable(analysis)
    share = f"{100 * analysis.discordance:.1f} %"
    yield f"\nTest problems needed to find that two trained models differ, where {share} are solved by one of them only"
    yield _render_problems(analysis)
    if evidence is None:
        return
    if evidence.parts is None:
        yield (
            "\nThis test compares the trained models; another seed trains others. Whether the settings of "
            f"{evidence.a} and {evidence.b} differ cannot be told from one seed, nor how many seeds that takes, since "
            "nothing shows how much the difference varies between them. To learn it, train several: "
            "dvc exp run -S 'seeds=[3407,1,2]'"
        )
        return
    yield "\nSeeds needed to find that the settings differ, whichever seed they are trained with"
    yield _render_seeds(analysis)
    low, high = (100 * math.sqrt(bound) for bound in evidence.parts.seed_bounds)
    yield (
        "From one seed to another the true difference varies with a standard deviation of "
        f"{100 * math.sqrt(evidence.parts.seed):.1f} points; {evidence.parts.seeds} seeds show it no better than "
        f"between {low:.1f} and {high:.1f}. More problems do not make it smaller. At worst: with the largest of these, "
        "on any number of problems."
    )


def _render_detectable(analysis: PowerAnalysis) -> Table:
    evidence = analysis.evidence
    table = _build_table(*(["shots"] if evidence else []), "discordance, %", "smallest detectable difference, points")
    for shot_num, detectable in analysis.detectable.items():
        cells = (
            [str(shot_num), f"{100 * evidence.discordance[shot_num]:.1f}"]
            if evidence
            else [f"{100 * analysis.discordance:.1f}"]
        )
        table.add_row(*cells, f"{100 * detectable:.1f}")
    return table


def _render_problems(analysis: PowerAnalysis) -> Table:
    counts = list(analysis.needed[0].problems_by_seeds)
    table = _build_table("true difference, points", "1 seed", *(_format_count(k, "seed") for k in counts))
    for row in analysis.needed:
        seeds = [str(row.problems_by_seeds[k]) for k in counts]
        table.add_row(f"{100 * row.difference:g}", _format_optional(row.problems), *seeds)
    return table


def _render_seeds(analysis: PowerAnalysis) -> Table:
    table = _build_table("true difference, points", f"on {analysis.problems} problems", "on any number", "at worst")
    for row in analysis.needed:
        counts = (row.seeds, row.seeds_at_most_problems, row.seeds_at_worst)
        table.add_row(f"{100 * row.difference:g}", *map(_format_optional, counts))
    return table


def _build_table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _format_optional(count: int | None) -> str:
    return "none is enough" if count is None else str(count)


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""Demonstrations: how choosing worked examples helps a frozen model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.params import Params
from planward.records import POINTERS, SELECTORS
from planward.reporting import figures
from planward.reporting.demonstrations import CEILING, FOCUS
from planward.reporting.figures import Figure
from planward.reporting.names import ALL, DIALECTS, PLAIN, detectable_note, percent, shots_title, title
from planward.reporting.results import Results
from planward.reporting.sections.breakdown import at
from planward.reporting.sections.elements import Table, p_text, pair_note, points, starts
from planward.reporting.sections.examples import Sample, choices_table, samples
from planward.reporting.sections.findings import tally, uncertainty_note
from planward.reporting.sections.learning import training_table
from planward.reporting.sections.selectors import (
    epochs_table,
    further_panels,
    quality_table,
    search_table,
    training_panels,
    unmoved,
)

BEAMS = "results/demonstrations/beams/train-metrics.json"
COLOURS = dict(zip(SELECTORS, (7, 5, 0, 2, 1, 4), strict=True))  # in the palette
PROBLEMS = {ALL: "all problems", PLAIN: "plain problems", DIALECTS: "problems in dialects"}


@dataclass(frozen=True)
class Section:
    """All that the page says of the track."""

    model: str
    most: int  # shots
    last: int  # N
    findings: list[str]
    heat: Table
    uncertainty: str
    groups: Table  # without rows where all problems are of one kind
    panels: list[Figure]
    tests: Table
    all_tests: Table
    choices: Table
    samples: list[Sample]
    training: list[list[Figure]]
    more_training: list[list[Figure]]
    epochs: Table | None
    numbers: Table | None
    quality: Table | None
    search: Table | None


def demonstrations(results: Results, params: Params) -> Section | None:
    """The section; None where no selector was evaluated."""
    found, alpha = results.demonstrations, 1 - params.compare.confidence
    cells, paired = found.cells, found.paired
    if cells.empty:
        return None
    kinds, last = _kinds(cells), int(cells["dataset_size"].max())
    all_problems = "Success in percent of a frozen model, by selector and number of worked examples"
    top = min(1.0, math.ceil(10 * float(cells["ci_high"].max())) / 10)
    return Section(
        model=str(params.demonstrations.model),
        most=int(cells["shot_num"].max()),
        last=last,
        findings=[*findings(cells, paired, alpha), *unmoved(found.epochs)],
        heat=heat_table(all_problems, cells, kinds[:1]),
        uncertainty=uncertainty_note(_of(cells, ALL), params.compare.confidence),
        groups=heat_table("Success in percent on plain problems and in dialects", cells, kinds[1:]),
        panels=[curves_panel(cells, kind, last, top) for kind in kinds],
        tests=tests_table(at(_pooled(paired), last), kinds, last),
        all_tests=all_tests_table(paired[_is_all(paired, "dialect") | _is_all(paired, "shot_num")]),
        choices=choices_table(found.choices, last),
        samples=samples(found.answers, found.languages),
        training=training_panels(found),
        more_training=further_panels(found),
        epochs=epochs_table(found.epochs),
        numbers=training_table(results.metrics, POINTERS, "Selectors in numbers"),
        quality=quality_table(results.metrics.get(BEAMS, {})),
        search=search_table(results.metrics.get(BEAMS, {})),
    )


def findings(cells: pd.DataFrame, paired: pd.DataFrame, alpha: float) -> list[str]:
    """Sentences on `FOCUS`: against similarity, in every cell, plain and in dialects, and below the ceiling."""
    mine = paired[paired["method_b"] == FOCUS]
    if mine.empty:
        return []
    last = int(mine["dataset_size"].max())
    pooled, single = at(_pooled(mine), last), mine[~_is_all(mine, "shot_num") & _is_all(mine, "dialect")]
    rates = at(_of(cells, ALL), last).groupby("selector")["success_rate"].mean()
    against = {str(row.method_a): row for row in _of(pooled, ALL).itertuples()}
    sentences = []
    if row := against.get("similarity"):
        sentences.append(
            f"With worked examples chosen by {FOCUS} (N = {last}), the frozen model solves {100 * rates[FOCUS]:.1f} % "
            f"of {row.n} test problems{_make_up(cells)}, over all numbers of examples; with those chosen by "
            f"similarity, {100 * rates['similarity']:.1f} %: {_verdict(row)}."
        )
    rivals = single[single["method_a"] != CEILING]
    if len(rivals):
        below = rivals[(rivals["difference"] < 0) & (rivals["p"] < alpha)]
        count = rivals.groupby("method_a").size().max()
        sentences.append(
            f"Of {count} cells, one for each N and number of worked examples, {FOCUS} is {tally(rivals, alpha)}. "
            f"Without Holm's correction, which a reader who looks for harm should leave out, it is worse than "
            f"another selector in {len(below)} of {len(rivals)} comparisons."
        )
    kinds = pooled[(pooled["method_a"] == "similarity") & ~_is_all(pooled, "dialect")]
    if len(kinds) > 1:
        parts = [f"on {PROBLEMS[row.dialect]} {_verdict(row)}" for row in kinds.itertuples()]
        sentences.append(f"Against similarity, at N = {last}, {FOCUS} is {'; '.join(parts)}.")
    if row := against.get(CEILING):
        way = ""
        if "random" in rates and rates[CEILING] > rates["random"]:
            share = (rates[FOCUS] - rates["random"]) / (rates[CEILING] - rates["random"])
            way = f" It goes {100 * share:.0f} % of the way from random choice to the {CEILING}."
        sentences.append(
            f"The {CEILING}, which sees the reference answer, solves {100 * rates[CEILING]:.1f} %; against it, {FOCUS} "
            f"at N = {last} is {_verdict(row)}.{way}"
        )
    return sentences


def heat_table(caption: str, cells: pd.DataFrame, kinds: Sequence[str]) -> Table:
    """Success by selector and N in rows and shot_num in columns, for each kind of problems; shaded by success.

    The shade is 0 at the lowest success of the table and 1 at the highest.
    """
    part = cells[cells["dialect"].isin(kinds)]
    shots = sorted(part["shot_num"].unique())
    places = {key: column for column, key in enumerate(((kind, k) for kind in kinds for k in shots), start=1)}
    low, high = part["success_rate"].min(), part["success_rate"].max()
    rows: list[list[Any]] = []
    marks: dict[tuple[int, int], str] = {}
    heat: dict[tuple[int, int], float] = {}
    for (selector, size), run in part.groupby(["selector", "dataset_size"], sort=False):
        row = [title(str(selector), int(size)), *[""] * len(places)]
        for cell in run.itertuples():
            place = len(rows), places[cell.dialect, cell.shot_num]
            row[place[1]] = percent(cell.success_rate, cell.ci_low, cell.ci_high)
            marks[place] = "best" if cell.best else "tied" if cell.tied else ""
            heat[place] = (cell.success_rate - low) / (high - low) if high > low else 0.0
        rows.append(row)
    n = part.groupby("dialect")["n"].max()
    groups = [("", 1), *((f"{PROBLEMS[kind]} (n = {n[kind]})", len(shots)) for kind in kinds)] if len(kinds) > 1 else []
    head = ["selector", *map(shots_title, [k for _, k in places])]
    return Table(caption, head, rows, marks, heat, groups, detectable_note(part["detectable_difference"]))


def curves_panel(cells: pd.DataFrame, kind: str, last: int, top: float) -> Figure:
    """Success over shot_num with its interval, a line a selector, at the largest N."""
    part = at(_of(cells, kind), last)
    series = {
        str(selector): list(rows[["shot_num", "success_rate", "ci_low", "ci_high"]].itertuples(index=False, name=None))
        for selector, rows in part.groupby("selector", sort=False)
    }
    heading = PROBLEMS[kind] + (f", N = {last}" if last else "")
    return figures.intervals(heading, series, "worked examples in the prompt", [COLOURS[s] for s in series], top)


def tests_table(paired: pd.DataFrame, kinds: Sequence[str], last: int) -> Table:
    """A row for each pair of selectors: difference and result on each kind of problems, all shot_num together."""
    rows = [
        [f"{b} against {a}", *(text for row in pair.itertuples() for text in (_points(row), row.result))]
        for (b, a), pair in paired.groupby(["method_b", "method_a"], sort=False)
    ]
    groups = [("", 1), *((PROBLEMS[kind], 2) for kind in kinds)]
    return Table(
        "Paired tests over all numbers of worked examples" + (f", N = {last}" if last else ""),
        ["comparison", *["difference, points", "result"] * len(kinds)],
        rows,
        groups=groups if len(kinds) > 1 else [],
        note=pair_note(paired["detectable_difference"]),
    )


def all_tests_table(paired: pd.DataFrame) -> Table:
    rows = [
        [
            *(f"{row.method_b} against {row.method_a}", PROBLEMS[row.dialect], row.dataset_size or "", row.shot_num),
            *(_points(row), f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.1f}"),
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "problems", "N", "shots", "difference, points", "p", "p (Holm)", "result"]
    head.append("detectable, points")
    return Table("Paired tests in every cell", head, rows, blocks=starts([row[0] for row in rows]))


def _verdict(row: Any) -> str:
    """`better, +5.1 [+2.0, +8.2] points, p < 0.001`."""
    return f"{row.result}, {_points(row)} points, p {p_text(row.p_holm)}"


def _points(row: Any) -> str:
    return points(row.difference, row.ci_low, row.ci_high)


def _is_all(table: pd.DataFrame, column: str) -> pd.Series:
    return table[column].astype(str) == ALL


def _make_up(cells: pd.DataFrame) -> str:
    """How many problems are plain and how many in dialects; nothing where all are of one kind."""
    if len(_kinds(cells)) == 1:
        return ""
    plain, dialects = (int(_of(cells, kind)["n"].iloc[0]) for kind in (PLAIN, DIALECTS))
    return f" ({plain} plain, {dialects} in dialects)"


def _of(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    return table[table["dialect"] == kind]


def _pooled(paired: pd.DataFrame) -> pd.DataFrame:
    return paired[_is_all(paired, "shot_num")]


def _kinds(cells: pd.DataFrame) -> list[str]:
    """All problems; the two kinds of them where there are both."""
    found = set(cells["dialect"])
    return [ALL, PLAIN, DIALECTS] if {PLAIN, DIALECTS} <= found else [ALL]

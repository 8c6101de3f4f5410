"""Section "Choosing worked examples": success of a frozen model by selector of the examples in its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.analysis.names import (
    ALL,
    DIALECTS,
    PLAIN,
    format_detectable_note,
    format_rate,
    format_run,
    format_shot_num,
)
from planward.analysis.selectors import CEILING, FOCUS
from planward.core.runs import POINTERS, SELECTORS
from planward.params import Params
from planward.report import figures
from planward.report.data import SelectorData
from planward.report.figures import Figure
from planward.report.sections.breakdown import select_size
from planward.report.sections.elements import Table, find_block_starts, format_difference, format_p, format_pair_note
from planward.report.sections.findings import format_tally, format_uncertainty_note
from planward.report.sections.learning import build_training_table
from planward.report.sections.selector_examples import SelectionSample, build_choices_table, build_selection_samples
from planward.report.sections.selector_training import (
    build_beam_quality_table,
    build_epochs_table,
    build_search_table,
    draw_further_panels,
    draw_training_panels,
    list_unchanged_phases,
)

COLOURS = dict(zip(SELECTORS, (7, 5, 0, 2, 1, 4), strict=True))  # numbers in the palette
PROBLEMS = {ALL: "all problems", PLAIN: "plain problems", DIALECTS: "problems in dialects"}


@dataclass(frozen=True)
class SelectorsSection:
    """The content of the section."""

    model: str
    max_shots: int
    size: int  # largest N
    findings: list[str]
    heat: Table
    uncertainty: str
    groups: Table  # plain problems and dialects; no rows where there is only one of the two
    panels: list[Figure]
    tests: Table
    all_tests: Table
    choices: Table
    samples: list[SelectionSample]
    training: list[list[Figure]]
    more_training: list[list[Figure]]
    epochs: Table | None
    metrics: Table | None
    quality: Table | None
    search: Table | None


def build_selectors_section(data: SelectorData, params: Params) -> SelectorsSection | None:
    """The section; None where no selector was evaluated."""
    alpha, cells, pairs = 1 - params.compare.confidence, data.cells, data.paired
    if cells.empty:
        return None
    groups, size = _list_groups(cells), int(cells["dataset_size"].max())
    caption = "Success in percent of a frozen model, by selector and number of worked examples"
    top = min(1.0, math.ceil(10 * float(cells["ci_high"].max())) / 10)
    return SelectorsSection(
        model=data.model,
        max_shots=int(cells["shot_num"].max()),
        size=size,
        findings=[*list_selector_findings(cells, pairs, alpha), *list_unchanged_phases(data.epochs)],
        heat=build_heat_table(caption, cells, groups[:1]),
        uncertainty=format_uncertainty_note(_select_group(cells, ALL), params.compare.confidence),
        groups=build_heat_table("Success in percent on plain problems and in dialects", cells, groups[1:]),
        panels=[draw_success_panel(cells, group, size, top) for group in groups],
        tests=build_tests_table(select_size(_select_pooled(pairs), size), groups, size),
        all_tests=build_all_tests_table(pairs[_is_all(pairs, "dialect") | _is_all(pairs, "shot_num")]),
        choices=build_choices_table(data.shots, size),
        samples=build_selection_samples(data.predictions, data.dialects),
        training=draw_training_panels(data),
        more_training=draw_further_panels(data),
        epochs=build_epochs_table(data.epochs),
        metrics=build_training_table(data.training, POINTERS, "Training metrics of the selectors"),
        quality=build_beam_quality_table(data.beams),
        search=build_search_table(data.beams),
    )


def list_selector_findings(cells: pd.DataFrame, paired: pd.DataFrame, alpha: float) -> list[str]:
    """Sentences on `FOCUS`: against similarity, in every cell, on plain problems and dialects, below the oracle."""
    rows = paired[paired["method_b"] == FOCUS]
    if rows.empty:
        return []
    size = int(rows["dataset_size"].max())
    pooled_rows = select_size(_select_pooled(rows), size)
    single = rows[~_is_all(rows, "shot_num") & _is_all(rows, "dialect")]
    rates = select_size(_select_group(cells, ALL), size).groupby("selector")["success_rate"].mean()
    by_rival = {str(row.method_a): row for row in _select_group(pooled_rows, ALL).itertuples()}
    sentences = []
    if row := by_rival.get("similarity"):
        sentences.append(
            f"With worked examples chosen by {FOCUS} (N = {size}), the frozen model solves {100 * rates[FOCUS]:.1f} % "
            f"of {row.n} test problems{_format_group_sizes(cells)}, over all numbers of examples; with those chosen by "
            f"similarity, {100 * rates['similarity']:.1f} %: {_format_comparison(row)}."
        )
    rivals = single[single["method_a"] != CEILING]
    if len(rivals):
        worse = rivals[(rivals["difference"] < 0) & (rivals["p"] < alpha)]
        count = rivals.groupby("method_a").size().max()
        sentences.append(
            f"Over {count} cells, one for each N and number of worked examples, {FOCUS} is "
            f"{format_tally(rivals, alpha)}. Without Holm's correction (look here for possible harm), it is worse than "
            f"another selector in {len(worse)} of {len(rivals)} comparisons."
        )
    by_group = pooled_rows[(pooled_rows["method_a"] == "similarity") & ~_is_all(pooled_rows, "dialect")]
    if len(by_group) > 1:
        parts = [f"on {PROBLEMS[row.dialect]} {_format_comparison(row)}" for row in by_group.itertuples()]
        sentences.append(f"Against similarity, at N = {size}, {FOCUS} is {'; '.join(parts)}.")
    if row := by_rival.get(CEILING):
        progress = ""
        if "random" in rates and rates[CEILING] > rates["random"]:
            share = (rates[FOCUS] - rates["random"]) / (rates[CEILING] - rates["random"])
            progress = f" That is {100 * share:.0f} % of the way from random choice to the {CEILING}."
        sentences.append(
            f"The {CEILING}, which sees the reference plan, solves {100 * rates[CEILING]:.1f} %; against it, {FOCUS} "
            f"at N = {size} is {_format_comparison(row)}.{progress}"
        )
    return sentences


def build_heat_table(caption: str, cells: pd.DataFrame, groups: Sequence[str]) -> Table:
    """Success by selector and N in rows and shot_num in columns, for each group of problems.

    The shade is 0 at the lowest success of the table and 1 at the highest.
    """
    part = cells[cells["dialect"].isin(groups)]
    numbers = sorted(part["shot_num"].unique())
    columns = {key: column for column, key in enumerate(((group, k) for group in groups for k in numbers), start=1)}
    low, high = part["success_rate"].min(), part["success_rate"].max()
    rows: list[list[Any]] = []
    marks: dict[tuple[int, int], str] = {}
    heat: dict[tuple[int, int], float] = {}
    for (selector, size), run in part.groupby(["selector", "dataset_size"], sort=False):
        row = [format_run(str(selector), int(size)), *[""] * len(columns)]
        for cell in run.itertuples():
            position = len(rows), columns[cell.dialect, cell.shot_num]
            row[position[1]] = format_rate(cell.success_rate, cell.ci_low, cell.ci_high)
            marks[position] = "best" if cell.best else "tied" if cell.tied else ""
            heat[position] = (cell.success_rate - low) / (high - low) if high > low else 0.0
        rows.append(row)
    n = part.groupby("dialect")["n"].max()
    heads = [("", 1), *((f"{PROBLEMS[group]} (n = {n[group]})", len(numbers)) for group in groups)]
    head = ["selector", *map(format_shot_num, [k for _, k in columns])]
    note = format_detectable_note(part["detectable_difference"])
    return Table(caption, head, rows, marks, heat, heads if len(groups) > 1 else [], note)


def draw_success_panel(cells: pd.DataFrame, group: str, size: int, top: float) -> Figure:
    """Success by shot_num with its interval, one line per selector, at N = `size`."""
    part = select_size(_select_group(cells, group), size)
    series = {
        str(selector): list(rows[["shot_num", "success_rate", "ci_low", "ci_high"]].itertuples(index=False, name=None))
        for selector, rows in part.groupby("selector", sort=False)
    }
    heading = PROBLEMS[group] + (f", N = {size}" if size else "")
    return figures.draw_intervals(heading, series, "worked examples in the prompt", [COLOURS[s] for s in series], top)


def build_tests_table(paired: pd.DataFrame, groups: Sequence[str], size: int) -> Table:
    """One row per pair of selectors: difference and result on each group of problems, over all shot_num."""
    rows = [
        [f"{b} against {a}", *(text for row in pair.itertuples() for text in (_format_points(row), row.result))]
        for (b, a), pair in paired.groupby(["method_b", "method_a"], sort=False)
    ]
    heads = [("", 1), *((PROBLEMS[group], 2) for group in groups)]
    return Table(
        "Paired tests over all numbers of worked examples" + (f", N = {size}" if size else ""),
        ["comparison", *["difference, points", "result"] * len(groups)],
        rows,
        groups=heads if len(groups) > 1 else [],
        note=format_pair_note(paired["detectable_difference"]),
    )


def build_all_tests_table(paired: pd.DataFrame) -> Table:
    rows = [
        [
            *(f"{row.method_b} against {row.method_a}", PROBLEMS[row.dialect], row.dataset_size or "", row.shot_num),
            *(_format_points(row), f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.1f}"),
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "problems", "N", "shots", "difference, points", "p", "p (Holm)", "result"]
    head.append("detectable, points")
    return Table("Paired tests in every cell", head, rows, blocks=find_block_starts([row[0] for row in rows]))


def _format_comparison(row: Any) -> str:
    """`better, +5.1 [+2.0, +8.2] points, p < 0.001`."""
    return f"{row.result}, {_format_points(row)} points, p {format_p(row.p_holm)}"


def _format_points(row: Any) -> str:
    return format_difference(row.difference, row.ci_low, row.ci_high)


def _format_group_sizes(cells: pd.DataFrame) -> str:
    """` (10 plain, 30 in dialects)`; empty where there is only one group."""
    if len(_list_groups(cells)) == 1:
        return ""
    plain, dialects = (int(_select_group(cells, group)["n"].iloc[0]) for group in (PLAIN, DIALECTS))
    return f" ({plain} plain, {dialects} in dialects)"


def _list_groups(cells: pd.DataFrame) -> list[str]:
    """All problems; then plain ones and those in dialects, where there are both."""
    return [ALL, PLAIN, DIALECTS] if {PLAIN, DIALECTS} <= set(cells["dialect"]) else [ALL]


def _select_group(table: pd.DataFrame, group: str) -> pd.DataFrame:
    return table[table["dialect"] == group]


def _select_pooled(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[_is_all(pairs, "shot_num")]


def _is_all(table: pd.DataFrame, column: str) -> pd.Series:
    return table[column].astype(str) == ALL

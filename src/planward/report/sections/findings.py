"""Section "Results": two sentences, the headline table, all paired comparisons."""

from __future__ import annotations

from typing import Any

import pandas as pd

from planward.analysis.names import (
    ORDERS,
    describe_intervals,
    describe_test,
    format_detectable_note,
    format_method,
    format_rate,
    format_run,
    format_shot_num,
    sort_key,
)
from planward.analysis.tables import TIED, classify_result
from planward.report.sections.elements import Table, find_block_starts, format_difference, format_p


def list_findings(paired: pd.DataFrame, cells: pd.DataFrame, alpha: float) -> list[str]:
    """Two sentences on the last method that is trained, and one on each endpoint.

    The first is on the largest N with the fewest examples, the second on all comparisons.
    """
    if paired.empty:
        return ["Only one method was evaluated, so there is nothing to compare."]
    methods = sorted(set(paired["method_b"]), key=lambda method: sort_key("method", method))
    endpoints = [method for method in methods if method not in ORDERS["method"]]
    findings = []
    if trained_methods := [method for method in methods if method not in endpoints]:
        tally = format_tally(paired[paired["method_b"] == trained_methods[-1]], alpha)
        findings = [
            _format_finding(trained_methods[-1], paired, cells, alpha),
            f"Tested at every N and number of worked examples, {format_method(trained_methods[-1])} is {tally}.",
        ]
    return findings + [_format_finding(method, paired, cells, alpha) for method in endpoints]


def _format_finding(method: str, pairs: pd.DataFrame, cells: pd.DataFrame, alpha: float) -> str:
    """A method's success at the largest N with the fewest examples, compared with the methods before it."""
    rows = pairs[pairs["method_b"] == method]
    size, shot_num = rows["dataset_size"].max(), rows["shot_num"].min()
    largest = rows[rows["dataset_size"].isin([0, size]) & (rows["shot_num"] == shot_num)]
    cell = cells[(cells["method"] == method) & cells["dataset_size"].isin([0, size]) & (cells["shot_num"] == shot_num)]
    seeds = int(cell["seeds"].iloc[0])
    rate = f"{100 * cell['success_rate'].iloc[0]:.1f} % of {cell['n'].iloc[0]} test problems"
    rate += f", the mean of {seeds} seeds" if seeds > 1 else ""
    at, others = (f" and N = {size}", "") if cell["dataset_size"].iloc[0] else ("", f" (others: N = {size})")
    return (
        f"With {shot_num} worked examples{at}, {format_method(method)} solves {rate}{others if size else ''}: "
        f"{', and '.join(_format_comparison(row, alpha) for row in largest.itertuples())}."
    )


def format_tally(paired: pd.DataFrame, alpha: float) -> str:
    """Count the comparisons in which b is better than, tied with and worse than each other method.

    `better than base in all 15 cells; better than SFT in 6 of 15, statistically tied in 9, worse in none`.
    """
    counts = []
    for method, rows in paired.groupby("method_a", sort=False):
        significant, name = rows["difference"][rows["p_holm"] < alpha], format_method(str(method))
        better, worse = int((significant > 0).sum()), int((significant < 0).sum())
        ties = len(rows) - better - worse
        outcomes = {f"better than {name}": better, f"{TIED} with {name}": ties, f"worse than {name}": worse}
        only = next((text for text, count in outcomes.items() if count == len(rows)), "")
        counts.append(
            f"{only} in all {len(rows)} cells"
            if only
            else f"better than {name} in {better or 'none'} of {len(rows)}, {TIED} in {ties or 'none'}, "
            f"worse in {worse or 'none'}"
        )
    return "; ".join(counts)


def _format_comparison(row: Any, alpha: float) -> str:
    name, interval = format_method(row.method_a), f"[{row.ci_low:.1f}, {row.ci_high:.1f}]"
    p = f"Holm-adjusted p {format_p(row.p_holm)}"
    if row.p_holm < alpha:
        direction = "more" if row.difference > 0 else "fewer"
        return f"{abs(row.difference):.1f} points {direction} than {name} ({interval}, {p})"
    smallest = f"smallest detectable difference about {row.detectable_difference:.1f} points"
    return f"statistically tied with {name} ({row.difference:+.1f} points {interval}, {p}; {smallest})"


def build_headline_table(cells: pd.DataFrame, subject: str = "Success in percent") -> Table:
    """Success by method, N and shot_num, intervals drawn; the best of each column and what ties with it are marked."""
    rows: list[list[Any]] = []
    marks: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], tuple[float, float, float]] = {}
    lowest, highest = cells["ci_low"].min(), cells["ci_high"].max()
    methods = []
    for (method, size), run in cells.groupby(["method", "dataset_size"], sort=False):
        methods.append(method)
        for column, cell in enumerate(run.itertuples(), start=1):
            position = len(rows), column
            marks[position] = "best" if cell.best else "tied" if cell.tied else ""
            low, value, high = (
                (end - lowest) / (highest - lowest) if highest > lowest else 0.5
                for end in (cell.ci_low, cell.success_rate, cell.ci_high)
            )
            spans[position] = low, value, high
        texts = [format_rate(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()]
        rows.append([format_run(str(method), int(size)), *texts])
    head = ["method", *(format_shot_num(shot_num) for shot_num in sorted(cells["shot_num"].unique()))]
    return Table(
        f"{subject} of {cells['n'].iloc[0]} test problems, by method, N and worked examples in the prompt",
        head,
        rows,
        marks,
        note=format_detectable_note(cells["detectable_difference"]),
        spans=spans,
        blocks=find_block_starts(methods),
    )


def format_uncertainty_note(cells: pd.DataFrame, confidence: float) -> str:
    """The note below a table: what its marks and brackets mean."""
    test, intervals = describe_test(cells), describe_intervals(cells)
    return (
        f"statistically tied with it (exact {test} test on the same problems, Holm's correction per column). "
        f"Brackets: {100 * confidence:g} % intervals ({intervals}), n = {cells['n'].iloc[0]} per cell."
    )


def build_seeds_table(seeds: pd.DataFrame) -> Table | None:
    """Success of every run; None where each method has a single seed."""
    if seeds.groupby(["method", "dataset_size"])["seed"].nunique().max() == 1:
        return None
    note = format_detectable_note(seeds["detectable_difference"])
    rows = [
        [format_run(str(method), int(size)), seed, *(f"{100 * rate:.1f}" for rate in run["success_rate"])]
        for (method, size, seed), run in seeds.groupby(["method", "dataset_size", "seed"], sort=False)
    ]
    head = ["method", "seed", *(format_shot_num(shot_num) for shot_num in sorted(seeds["shot_num"].unique()))]
    blocks = find_block_starts([row[0] for row in rows])
    return Table("Success in percent, by run", head, rows, note=note, blocks=blocks)


def build_comparisons_table(paired: pd.DataFrame, alpha: float) -> Table:
    rows = [
        [
            f"{format_method(row.method_b)} against {format_method(row.method_a)}",
            *(row.dataset_size or "", row.shot_num, row.both, row.only_b, row.only_a),
            format_difference(row.difference, row.ci_low, row.ci_high),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}"),
            classify_result(row.p_holm, row.difference, alpha),
            f"{row.detectable_difference:.1f}",
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "N", "shots", "both solve", "only the first", "only the second", "difference, points"]
    head += ["p", "p (Holm)", "result", "detectable, points"]
    return Table("Paired comparisons", head, rows, blocks=find_block_starts([row[2] for row in rows]))

"""Results: two sentences, the headline table, all comparisons."""

from __future__ import annotations

from typing import Any

import pandas as pd

from planward.reporting.names import (
    detectable_note,
    intervals_title,
    method_title,
    percent,
    rank,
    shots_title,
    test_title,
    title,
)
from planward.reporting.sections.elements import Table, p_text, points, starts
from planward.reporting.tables import TIED, result


def findings(paired: pd.DataFrame, cells: pd.DataFrame, alpha: float) -> list[str]:
    """Two sentences on the last method: its cell at the largest N and fewest shots, and all comparisons."""
    if paired.empty:
        return ["Only one method was evaluated, so there is nothing to compare."]
    focus = max(paired["method_b"], key=lambda method: rank("method", method))
    mine, name = paired[paired["method_b"] == focus], method_title(str(focus))
    size, shot_num = mine["dataset_size"].max(), mine["shot_num"].min()
    here = mine[(mine["dataset_size"] == size) & (mine["shot_num"] == shot_num)]
    cell = cells[(cells["method"] == focus) & (cells["dataset_size"] == size) & (cells["shot_num"] == shot_num)]
    seeds = int(cell["seeds"].iloc[0])
    rate = f"{100 * cell['success_rate'].iloc[0]:.1f} % of {cell['n'].iloc[0]} test problems"
    rate += f", the mean of {seeds} seeds" if seeds > 1 else ""
    return [
        f"With {shot_num} worked examples and N = {size}, {name} solves {rate}: "
        f"{', and '.join(_verdict(row, alpha) for row in here.itertuples())}.",
        f"Tested at every N and number of worked examples, {name} is {tally(mine, alpha)}.",
    ]


def tally(paired: pd.DataFrame, alpha: float) -> str:
    """How often b is better than, tied with and worse than each other method.

    `better than base in all 15 cells; better than SFT in 6 of 15, statistically tied in 9, worse in none`.
    """
    counts = []
    for method, rows in paired.groupby("method_a", sort=False):
        found, name = rows["difference"][rows["p_holm"] < alpha], method_title(str(method))
        better, worse = int((found > 0).sum()), int((found < 0).sum())
        tied = len(rows) - better - worse
        words = {f"better than {name}": better, f"{TIED} with {name}": tied, f"worse than {name}": worse}
        only = next((text for text, count in words.items() if count == len(rows)), "")
        counts.append(
            f"{only} in all {len(rows)} cells"
            if only
            else f"better than {name} in {better or 'none'} of {len(rows)}, {TIED} in {tied or 'none'}, "
            f"worse in {worse or 'none'}"
        )
    return "; ".join(counts)


def _verdict(row: Any, alpha: float) -> str:
    name, interval = method_title(row.method_a), f"[{row.ci_low:.1f}, {row.ci_high:.1f}]"
    p = f"Holm-adjusted p {p_text(row.p_holm)}"
    if row.p_holm < alpha:
        way = "more" if row.difference > 0 else "fewer"
        return f"{abs(row.difference):.1f} points {way} than {name} ({interval}, {p})"
    smallest = f"about {row.detectable_difference:.1f} points could have been found"
    return f"statistically tied with {name} ({row.difference:+.1f} points {interval}, {p}; {smallest})"


def headline(cells: pd.DataFrame) -> Table:
    """Success by method, N and shot_num with its interval drawn; the best of each column and its ties are marked."""
    rows: list[list[Any]] = []
    marks: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], tuple[float, float, float]] = {}
    lowest, highest = cells["ci_low"].min(), cells["ci_high"].max()
    methods = []
    for (method, size), run in cells.groupby(["method", "dataset_size"], sort=False):
        methods.append(method)
        for column, cell in enumerate(run.itertuples(), start=1):
            place = len(rows), column
            marks[place] = "best" if cell.best else "tied" if cell.tied else ""
            low, value, high = (
                (end - lowest) / (highest - lowest) if highest > lowest else 0.5
                for end in (cell.ci_low, cell.success_rate, cell.ci_high)
            )
            spans[place] = low, value, high
        texts = [percent(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()]
        rows.append([title(str(method), int(size)), *texts])
    head = ["method", *(shots_title(shot_num) for shot_num in sorted(cells["shot_num"].unique()))]
    return Table(
        f"Success in percent of {cells['n'].iloc[0]} test problems, by method, N and worked examples in the prompt",
        head,
        rows,
        marks,
        note=detectable_note(cells["detectable_difference"]),
        spans=spans,
        blocks=starts(methods),
    )


def uncertainty_note(cells: pd.DataFrame, confidence: float) -> str:
    """How a table's intervals and its marks were made."""
    return (
        f"statistically tied with it (exact {test_title(cells)} test on the same problems, Holm over the column). "
        f"Brackets: {100 * confidence:g} % intervals ({intervals_title(cells)}), n = {cells['n'].iloc[0]} a cell."
    )


def seeds_table(seeds: pd.DataFrame) -> Table | None:
    """Success of every single run; None where each method has one."""
    if seeds.groupby(["method", "dataset_size"])["seed"].nunique().max() == 1:
        return None
    note = detectable_note(seeds["detectable_difference"])
    rows = [
        [title(str(method), int(size)), seed, *(f"{100 * rate:.1f}" for rate in run["success_rate"])]
        for (method, size, seed), run in seeds.groupby(["method", "dataset_size", "seed"], sort=False)
    ]
    head = ["method", "seed", *(shots_title(shot_num) for shot_num in sorted(seeds["shot_num"].unique()))]
    blocks = starts([row[0] for row in rows])
    return Table("Success in percent, each run by itself", head, rows, note=note, blocks=blocks)


def comparisons(paired: pd.DataFrame, alpha: float) -> Table:
    rows = [
        [
            f"{method_title(row.method_b)} against {method_title(row.method_a)}",
            *(row.dataset_size, row.shot_num, row.both, row.only_b, row.only_a),
            points(row.difference, row.ci_low, row.ci_high),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}"),
            result(row.p_holm, row.difference, alpha),
            f"{row.detectable_difference:.1f}",
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "N", "shots", "both solve", "only the first", "only the second", "difference, points"]
    head += ["p", "p (Holm)", "result", "detectable, points"]
    return Table("Paired comparisons", head, rows, blocks=starts([row[2] for row in rows]))

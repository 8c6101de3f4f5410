"""Sections on success by domain and bucket, on labels and on safety constraints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pandas as pd

from planward.analysis.names import (
    ALL,
    format_detectable_note,
    format_method,
    format_rate,
    format_run,
    format_shot_num,
    sort_key,
)
from planward.analysis.tables import classify_result
from planward.report import figures
from planward.report.figures import Figure
from planward.report.sections.elements import Table, find_block_starts, format_difference, format_p

COLOURS = {"base": 7, "sft": 0, "grpo": 1}  # of methods; numbers in the palette
LABEL_COLOURS = {"success_plans": 2, "goal_not_satisfied": 5, "precondition_violation": 6}
LABEL_COLOURS |= {"safety_constraints_violation": 3, "plan_format_error": 7}


def draw_success_panels(table: pd.DataFrame, by: str, heading: str) -> list[Figure]:
    """Draw one panel per value of column `by`: success by shot_num, one line per method; base is in every panel."""
    panels = []
    values = set(table[by]) - ({0} if by == "dataset_size" else set())
    for value in sorted(values, key=lambda value: sort_key(by, value)) or [0]:
        part = table[table[by].isin([0, value])] if by == "dataset_size" else table[table[by] == value]
        series = {
            format_method(method): list(
                rows[["shot_num", "success_rate", "ci_low", "ci_high"]].itertuples(index=False, name=None)
            )
            for method, rows in part.groupby("method", sort=False)
        }
        colours = choose_colours(dict.fromkeys(part["method"]))
        panels.append(figures.draw_intervals(heading.format(value), series, "worked examples in the prompt", colours))
    return panels


def choose_colours(methods: Iterable[str]) -> list[int]:
    """The colours of methods; endpoints take, in turn, those that no other method has."""
    free = cycle(sorted(set(range(len(figures.PALETTE))) - set(COLOURS.values())))
    return [COLOURS[method] if method in COLOURS else next(free) for method in methods]


def build_success_table(table: pd.DataFrame, column: str, shot_num: int) -> Table:
    """Success of every run by the values of `column`, with `shot_num` worked examples."""
    part = table[table["shot_num"] == shot_num]
    values = sorted(set(part[column]), key=lambda value: sort_key(column, value))
    rows, methods = [], []
    for (method, size), run in part.groupby(["method", "dataset_size"], sort=False):
        methods.append(method)
        cells = {getattr(c, column): format_rate(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()}
        rows.append([format_run(str(method), int(size)), *(cells.get(value, "") for value in values)])
    counts = {getattr(c, column): c.n for c in part.itertuples()}
    head = ["method", *(f"{value} (n = {counts[value]})" for value in values)]
    note = format_detectable_note(part["detectable_difference"])
    caption = f"Success in percent by {column}, {format_shot_num(shot_num)}"
    return Table(caption, head, rows, note=note, blocks=find_block_starts(methods))


def build_domain_bucket_table(buckets: pd.DataFrame, shots: pd.DataFrame) -> Table | None:
    """Success of base and of the best run by domain and bucket, with the fewest worked examples, shaded.

    The best run is that of the headline table's first column. None where no problem has a bucket.
    """
    shot_num = int(shots["shot_num"].min())
    first = shots[shots["shot_num"] == shot_num]
    best = next(first[first["best"]].itertuples())
    runs = list(dict.fromkeys([("base", 0), (best.method, best.dataset_size)]))
    part = buckets[(buckets["shot_num"] == shot_num) & (buckets["domain"] != ALL)]
    cells = {(c.method, c.dataset_size, c.domain, c.bucket): c for c in part.itertuples() if c.n}
    names = sorted({bucket for *_, bucket in cells}, key=lambda bucket: sort_key("bucket", bucket))
    runs = [run for run in runs if any(key[:2] == run for key in cells)]
    if not runs:
        return None
    rows: list[list[Any]] = []
    heat: dict[tuple[int, int], float] = {}
    for domain in sorted({key[2] for key in cells}):
        counts = [cells[*runs[0], domain, name].n if (*runs[0], domain, name) in cells else 0 for name in names]
        rows.append([domain])
        for run in runs:
            for name in names:
                cell = cells.get((*run, domain, name))
                if cell:
                    heat[len(rows) - 1, len(rows[-1])] = cell.success_rate
                rows[-1].append(format_rate(cell.success_rate, cell.ci_low, cell.ci_high) if cell else "none")
        rows[-1] += counts
    groups = [("", 1), *((format_run(*run), len(names)) for run in runs), ("test problems", len(names))]
    return Table(
        f"Success in percent by domain and bucket, {format_shot_num(shot_num)}",
        ["domain", *names * (1 + len(runs))],
        rows,
        heat=heat,
        groups=groups,
        note=format_detectable_note(part["detectable_difference"], between="two methods, by domain and bucket"),
    )


def build_domain_comparisons(domains: pd.DataFrame, alpha: float) -> Table:
    """GRPO against SFT by domain, N and shot_num."""
    rows = [
        [
            *(row.domain, row.dataset_size, row.shot_num),
            format_difference(row.difference, row.ci_low, row.ci_high),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}", classify_result(row.p_holm, row.difference, alpha)),
            f"{row.detectable_difference:.1f}",
        ]
        for row in domains.itertuples()
    ]
    head = ["domain", "N", "shots", "GRPO minus SFT, points", "p", "p (Holm)", "result", "detectable, points"]
    return Table("GRPO against SFT by domain", head, rows, blocks=find_block_starts([row[1:3] for row in rows]))


def format_harm_finding(domains: pd.DataFrame, alpha: float) -> str:
    """A sentence on where GRPO is significantly below SFT, with and without Holm's correction."""
    if domains.empty:
        return ""
    below = domains[domains["difference"] < 0]
    before, after = (below[below[p] < alpha] for p in ("p", "p_holm"))
    worst = domains.loc[domains["difference"].idxmin()]
    cells = f"{len(domains)} cells of domain, N and number of worked examples"
    return (
        f"Of {cells}, GRPO is significantly below SFT in {len(after)} (with Holm's correction over all of them; "
        f"{len(before)} without it: look here for possible harm). The lowest: "
        f"{worst['domain']}, N = {worst['dataset_size']}, {format_shot_num(worst['shot_num'])}, "
        f"{format_difference(worst['difference'], worst['ci_low'], worst['ci_high'])} points, "
        f"uncorrected p {format_p(worst['p'])}."
    )


def draw_label_panels(table: pd.DataFrame) -> list[Figure]:
    """One panel for each shot_num: the share of each label, one bar per run."""
    order = _label_order(table)
    colours = [LABEL_COLOURS.get(label, i % len(figures.PALETTE)) for i, label in enumerate(order)]
    panels = []
    for shot_num, part in table.groupby("shot_num"):
        shares: dict[str, dict[str, float]] = {}
        for row in part.itertuples():
            shares.setdefault(format_run(row.method, row.dataset_size), {})[row.label] = row.share
        panels.append(figures.draw_bars(format_shot_num(shot_num), shares, order, colours))
    return panels


def build_label_table(table: pd.DataFrame) -> Table:
    """Counts of each label by run and shot_num."""
    order = _label_order(table)
    rows = []
    for (method, size, shot_num), part in table.groupby(["method", "dataset_size", "shot_num"], sort=False):
        counts = dict(zip(part["label"], part["count"], strict=True))
        rows.append([format_run(str(method), int(size)), shot_num, *(counts.get(label, 0) for label in order)])
    note = format_detectable_note(table["detectable_difference"])
    blocks = find_block_starts([row[0] for row in rows])
    return Table("Plans by label", ["method", "shots", *order], rows, note=note, blocks=blocks)


def _label_order(table: pd.DataFrame) -> list[str]:
    order = list(LABEL_COLOURS)
    return sorted(set(table["label"]), key=lambda label: (order.index(label) if label in order else len(order), label))


def build_constraint_tables(table: pd.DataFrame) -> list[Table]:
    """Success with and without constraints and the plans that violate one, with the fewest and the most examples."""
    tables, constrained_rows = [], table[table["constrained"]]
    numbers = sorted(constrained_rows["shot_num"].unique())
    for shot_num in dict.fromkeys([*numbers[:1], *numbers[-1:]]):
        success = build_success_table(add_constraint_kind(table), "problems", shot_num)
        runs = constrained_rows[constrained_rows["shot_num"] == shot_num].itertuples()
        violations = [f"{run.safety_violations} ({100 * run.safety_share:.1f} %)" for run in runs]
        caption = f"Success in percent with and without constraints, {format_shot_num(shot_num)}"
        rows = [[*cells, count] for cells, count in zip(success.rows, violations, strict=True)]
        head = [*success.head, "plans that violate a constraint"]
        tables.append(replace(success, caption=caption, head=head, rows=rows))
    return tables


def add_constraint_kind(table: pd.DataFrame) -> pd.DataFrame:
    """The table with column `problems`: whether they have constraints, in words."""
    kinds = {True: "with constraints", False: "without constraints"}
    return table.assign(problems=table["constrained"].map(kinds))


def parse_constraints(prompt: str) -> str:
    """The constraints of a prompt's last problem on one line, in either prompt style; empty where it has none."""
    start = prompt.lower().rfind("constraints")
    if start < 0:
        return ""
    text = prompt[start + len("constraints") :]
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:  # closes `(:constraints`; the compact style has no such bracket
            return " ".join(text[:end].split())
    return " ".join(text.strip().removesuffix("plan").split())


def select_size(table: pd.DataFrame, size: int) -> pd.DataFrame:
    """The rows of dataset size `size` and of untrained methods."""
    return table[table["dataset_size"].isin([0, size])]

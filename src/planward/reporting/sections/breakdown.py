"""Where methods succeed and how they fail: domains, buckets, labels, constraints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from planward.reporting import figures
from planward.reporting.figures import Figure
from planward.reporting.names import ALL, detectable_note, method_title, percent, rank, shots_title, title
from planward.reporting.sections.elements import Table, p_text, points, starts
from planward.reporting.tables import result

COLOURS = {"base": 7, "sft": 0, "grpo": 1}  # of methods, in the palette
LABELS = {"success_plans": 2, "goal_not_satisfied": 5, "precondition_violation": 6}  # their colours in the palette
LABELS |= {"safety_constraints_violation": 3, "plan_format_error": 7}


def success_panels(table: pd.DataFrame, by: str, heading: str) -> list[Figure]:
    """A panel for each value of `by`: success against shot_num, a line a method; base stands in each."""
    panels = []
    values = sorted(set(table[by]) - ({0} if by == "dataset_size" else set()), key=lambda value: rank(by, value)) or [0]
    for value in values:
        part = table[table[by].isin([0, value])] if by == "dataset_size" else table[table[by] == value]
        series = {
            method_title(method): list(
                rows[["shot_num", "success_rate", "ci_low", "ci_high"]].itertuples(index=False, name=None)
            )
            for method, rows in part.groupby("method", sort=False)
        }
        colours = [COLOURS[method] for method in dict.fromkeys(part["method"])]
        panels.append(figures.intervals(heading.format(value), series, "worked examples in the prompt", colours))
    return panels


def success_table(table: pd.DataFrame, column: str, shot_num: int) -> Table:
    """Success of every run on each value of `column`, with one number of worked examples."""
    part = table[table["shot_num"] == shot_num]
    values = sorted(set(part[column]), key=lambda value: rank(column, value))
    rows, methods = [], []
    for (method, size), run in part.groupby(["method", "dataset_size"], sort=False):
        methods.append(method)
        cells = {getattr(c, column): percent(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()}
        rows.append([title(str(method), int(size)), *(cells.get(value, "") for value in values)])
    counts = {getattr(c, column): c.n for c in part.itertuples()}
    head = ["method", *(f"{value} (n = {counts[value]})" for value in values)]
    note = detectable_note(part["detectable_difference"])
    caption = f"Success in percent by {column}, {shots_title(shot_num)}"
    return Table(caption, head, rows, note=note, blocks=starts(methods))


def domain_bucket_table(buckets: pd.DataFrame, shots: pd.DataFrame) -> Table | None:
    """Success by domain and bucket, with the fewest worked examples: of the base and of the best run, shaded.

    The best is that of the headline table's first column. None where no problem has a bucket.
    """
    shot_num = int(shots["shot_num"].min())
    first = shots[shots["shot_num"] == shot_num]
    best = next(first[first["best"]].itertuples())
    runs = list(dict.fromkeys([("base", 0), (best.method, best.dataset_size)]))
    part = buckets[(buckets["shot_num"] == shot_num) & (buckets["domain"] != ALL)]
    cells = {(c.method, c.dataset_size, c.domain, c.bucket): c for c in part.itertuples() if c.n}
    names = sorted({bucket for *_, bucket in cells}, key=lambda bucket: rank("bucket", bucket))
    shown = [run for run in runs if any(key[:2] == run for key in cells)]
    if not shown:
        return None
    rows: list[list[Any]] = []
    heat: dict[tuple[int, int], float] = {}
    for domain in sorted({key[2] for key in cells}):
        counts = [cells[*shown[0], domain, name].n if (*shown[0], domain, name) in cells else 0 for name in names]
        rows.append([domain])
        for run in shown:
            for name in names:
                cell = cells.get((*run, domain, name))
                if cell:
                    heat[len(rows) - 1, len(rows[-1])] = cell.success_rate
                rows[-1].append(percent(cell.success_rate, cell.ci_low, cell.ci_high) if cell else "none")
        rows[-1] += counts
    groups = [("", 1), *((title(*run), len(names)) for run in shown), ("test problems", len(names))]
    return Table(
        f"Success in percent by domain and bucket, {shots_title(shot_num)}",
        ["domain", *names * (1 + len(shown))],
        rows,
        heat=heat,
        groups=groups,
        note=detectable_note(part["detectable_difference"], between="two methods, by domain and bucket"),
    )


def domain_comparisons(domains: pd.DataFrame, alpha: float) -> Table:
    """GRPO against SFT in each domain, at each N and shot_num."""
    rows = [
        [
            *(row.domain, row.dataset_size, row.shot_num),
            points(row.difference, row.ci_low, row.ci_high),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}", result(row.p_holm, row.difference, alpha)),
            f"{row.detectable_difference:.1f}",
        ]
        for row in domains.itertuples()
    ]
    head = ["domain", "N", "shots", "GRPO minus SFT, points", "p", "p (Holm)", "result", "detectable, points"]
    return Table("GRPO against SFT by domain", head, rows, blocks=starts([row[1:3] for row in rows]))


def harm(domains: pd.DataFrame, alpha: float) -> str:
    """One sentence: whether GRPO is significantly below SFT in any domain, before and after Holm's correction."""
    if domains.empty:
        return ""
    below = domains[domains["difference"] < 0]
    before, after = (below[below[p] < alpha] for p in ("p", "p_holm"))
    worst = domains.loc[domains["difference"].idxmin()]
    cells = f"{len(domains)} cells of domain, N and number of worked examples"
    return (
        f"Of {cells}, GRPO is significantly below SFT in {len(after)} (Holm over all of them; "
        f"{len(before)} without the correction, which a reader who looks for harm should count). The lowest: "
        f"{worst['domain']}, N = {worst['dataset_size']}, {shots_title(worst['shot_num'])}, "
        f"{points(worst['difference'], worst['ci_low'], worst['ci_high'])} points, p {p_text(worst['p'])} by itself."
    )


def label_panels(table: pd.DataFrame) -> list[Figure]:
    order = _label_order(table)
    colours = [LABELS.get(label, i % len(figures.PALETTE)) for i, label in enumerate(order)]
    panels = []
    for shot_num, part in table.groupby("shot_num"):
        shares: dict[str, dict[str, float]] = {}
        for row in part.itertuples():
            shares.setdefault(title(row.method, row.dataset_size), {})[row.label] = row.share
        panels.append(figures.bars(shots_title(shot_num), shares, order, colours))
    return panels


def label_table(table: pd.DataFrame) -> Table:
    order = _label_order(table)
    rows = []
    for (method, size, shot_num), part in table.groupby(["method", "dataset_size", "shot_num"], sort=False):
        counts = dict(zip(part["label"], part["count"], strict=True))
        rows.append([title(str(method), int(size)), shot_num, *(counts.get(label, 0) for label in order)])
    note = detectable_note(table["detectable_difference"])
    blocks = starts([row[0] for row in rows])
    return Table("Plans by label", ["method", "shots", *order], rows, note=note, blocks=blocks)


def _label_order(table: pd.DataFrame) -> list[str]:
    known = list(LABELS)
    return sorted(set(table["label"]), key=lambda label: (known.index(label) if label in LABELS else len(known), label))


def constraint_tables(table: pd.DataFrame) -> list[Table]:
    """At the fewest and at the most shots: success with and without constraints, and plans that break one."""
    tables, asked = [], table[table["constrained"]]
    shots = sorted(asked["shot_num"].unique())
    for shot_num in dict.fromkeys([*shots[:1], *shots[-1:]]):
        success = success_table(by_kind(table), "problems", shot_num)
        runs = asked[asked["shot_num"] == shot_num].itertuples()
        broken = [f"{run.safety_violations} ({100 * run.safety_share:.1f} %)" for run in runs]
        caption = f"Success in percent with and without constraints, {shots_title(shot_num)}"
        rows = [[*cells, count] for cells, count in zip(success.rows, broken, strict=True)]
        head = [*success.head, "plans that break a constraint"]
        tables.append(replace(success, caption=caption, head=head, rows=rows))
    return tables


def by_kind(table: pd.DataFrame) -> pd.DataFrame:
    kinds = {True: "with constraints", False: "without constraints"}
    return table.assign(problems=table["constrained"].map(kinds))


def constraints_in(prompt: str) -> str:
    """The constraints of a prompt's last problem on one line, in either style of prompt; empty where it has none."""
    place = prompt.lower().rfind("constraints")
    if place < 0:
        return ""
    text = prompt[place + len("constraints") :]
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:  # the bracket that closes `(:constraints`; the compact style has none
            return " ".join(text[:end].split())
    return " ".join(text.strip().removesuffix("plan").split())


def at(table: pd.DataFrame, size: int) -> pd.DataFrame:
    return table[table["dataset_size"].isin([0, size])]

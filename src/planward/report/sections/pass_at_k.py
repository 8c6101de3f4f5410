"""Section "Best of several samples": success when up to k sampled plans are judged and the first valid one is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from planward.analysis.names import ALL, format_rate, format_run, format_shot_num, sort_key
from planward.params import METHODS
from planward.report import figures
from planward.report.figures import Figure
from planward.report.sections.elements import Table


@dataclass(frozen=True)
class PassAtKSection:
    finding: str
    shots: str  # how many worked examples were in the prompts
    samples: int  # of each problem
    panels: list[Figure]
    table: Table
    domains: Table | None


def build_pass_at_k_section(table: pd.DataFrame) -> PassAtKSection | None:
    """Build the section from the table `pass-at-k` of stage `compare`; None where it has no rows."""
    if table.empty:
        return None
    pooled_rows, single = table[table["domain"] == ALL], table[table["domain"] != ALL]
    return PassAtKSection(
        finding=_describe_last_run(pooled_rows),
        shots=format_shot_num(int(table["shot_num"].iloc[0])),
        samples=int(table["samples"].max()),
        panels=_draw_panels(pooled_rows),
        table=_build_table("Success in percent of the best of k samples", pooled_rows),
        domains=None if single.empty else _build_table("Success of the best of k samples by domain", single),
    )


def _describe_last_run(pooled_rows: pd.DataFrame) -> str:
    last = max(pooled_rows["method"], key=lambda method: sort_key("method", method))
    rows = pooled_rows[pooled_rows["method"] == last].sort_values("k")
    first, most = next(rows.itertuples()), next(rows.iloc[::-1].itertuples())
    run = format_run(str(first.method), int(first.dataset_size)).replace(", ", " at ")
    rates = [f"{format_rate(row.pass_at_k, row.ci_low, row.ci_high)} %" for row in (first, most)]
    times = most.tokens / first.tokens
    return (
        f"{run} solves {rates[0]} of {first.n} problems with one sample and {rates[1]} with up to {most.k}, for "
        f"{times:.1f} times as many tokens."
    )


def _draw_panels(pooled_rows: pd.DataFrame) -> list[Figure]:
    runs = {
        format_run(str(method), int(size)): rows.sort_values("k")
        for (method, size), rows in pooled_rows.groupby(["method", "dataset_size"], sort=False)
    }
    colours = [METHODS.index(str(rows["method"].iloc[0])) for rows in runs.values()]
    intervals = {
        name: list(zip(rows["k"], rows["pass_at_k"], rows["ci_low"], rows["ci_high"], strict=True))
        for name, rows in runs.items()
    }
    by_tokens = {name: list(zip(rows["tokens"], rows["pass_at_k"], strict=True)) for name, rows in runs.items()}
    top = min(1.0, math.ceil(10 * float(pooled_rows["ci_high"].max())) / 10)
    return [
        figures.draw_intervals("success of the best of k samples", intervals, "k", colours, top),
        figures.draw_lines(
            "success by sampled tokens", by_tokens, "tokens a problem", (0.0, top), colours=colours, marked=by_tokens
        ),
    ]


def _build_table(caption: str, table: pd.DataFrame) -> Table:
    """A row for each run, and domain but `all`; a column for each k, and the tokens of the smallest and the largest."""
    ks = sorted(table["k"].unique())
    has_domains = set(table["domain"]) != {ALL}
    rows = []
    for (domain, method, size), cells in table.groupby(["domain", "method", "dataset_size"], sort=False):
        by_k = {int(cell.k): cell for cell in cells.itertuples()}
        rates = [format_rate(by_k[k].pass_at_k, by_k[k].ci_low, by_k[k].ci_high) for k in ks]
        tokens = [f"{by_k[k].tokens:.0f}" for k in (ks[0], ks[-1])]
        name = format_run(str(method), int(size))
        rows.append([*([domain] if has_domains else []), name, by_k[ks[0]].n, *rates, *tokens])
    head = [*(["domain"] if has_domains else []), "method", "n", *(f"k = {k}" for k in ks)]
    return Table(caption, [*head, f"tokens, k = {ks[0]}", f"tokens, k = {ks[-1]}"], rows)

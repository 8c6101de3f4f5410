"""The tables of a judgement as one HTML file in the style of the report, without scripts or external resources.

Jinja2 escapes everything, so names in the file stay text; only figures drawn here are markup.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from planward.analysis.names import ALL, format_rate, format_shot_num
from planward.analysis.tables import TIED
from planward.core.verdicts import Label
from planward.judgement.tables import Tables
from planward.report import figures
from planward.report.figures import Figure
from planward.report.markup import build_environment
from planward.report.sections.elements import Table, find_block_starts, format_difference

MAX_BARS = 40  # cells in the figure of labels
MAX_PAIRS = 500  # rows of the table of paired tests; 400 models have 79,800


def render_page(name: str, metrics: dict[str, Any], tables: Tables) -> str:
    """Render the page as HTML; the same judgement gives the same text.

    Args:
        name: of the file that was judged.
    """
    parts = [_build_success_table(tables.success), _build_domains_table(tables.success)]
    template = build_environment().get_template("judgement.html.j2")
    text = template.render(
        name=name,
        metrics=metrics,
        success=[table for table in parts if table is not None],
        paired=_build_paired_table(tables.paired),
        label_panels=_draw_labels(tables.labels),
        labels=_build_labels_table(tables.labels),
        reasons=_build_reasons_table(metrics["quarantined_by_reason"]),
        confidence=f"{100 * tables.confidence:g}",
    )
    return f"{text.rstrip()}\n"


def _build_success_table(success: pd.DataFrame) -> Table:
    rows = [
        [row.model, row.shot_num, row.n, row.successes, format_rate(row.success_rate, row.ci_low, row.ci_high)]
        for row in success[success["domain"] == ALL].itertuples()
    ]
    head = ["model", "worked examples", "problems", "solved", "success %"]
    return Table("Success", head, rows, blocks=find_block_starts([row[0] for row in rows]))


def _build_domains_table(success: pd.DataFrame) -> Table | None:
    domains = sorted(set(success["domain"]) - {ALL})
    if len(domains) < 2:
        return None
    rows = []
    for (model, shot_num), group in success.groupby(["model", "shot_num"], sort=False):
        cells = {
            row.domain: format_rate(row.success_rate, row.ci_low, row.ci_high) for row in group.itertuples(index=False)
        }
        rows.append([model, shot_num, *(cells.get(domain, "") for domain in domains)])
    head = ["model", "worked examples", *domains]
    return Table("Success in each domain, in %", head, rows, blocks=find_block_starts([row[0] for row in rows]))


def _build_paired_table(pairs: pd.DataFrame) -> Table | None:
    rows = [
        [
            f"{row.model_b} minus {row.model_a}",
            *(row.shot_num, row.n),
            format_difference(row.difference, row.ci_low, row.ci_high),
            *(row.result, row.only_a, row.only_b, format_p(row.p), format_p(row.p_holm)),
            f"{row.detectable_difference:.1f}",
        ]
        for row in pairs.head(MAX_PAIRS).itertuples()
    ]
    head = ["models, b minus a", "worked examples", "shared problems", "points", "result", "only a", "only b"]
    head += ["p", "p, Holm", "detectable"]
    marks = {(i, 4): "tied" for i, row in enumerate(rows) if row[4] == TIED}
    note = f"The first {MAX_PAIRS:,} of {len(pairs):,} pairs; all are in paired.csv." if len(pairs) > MAX_PAIRS else ""
    return Table("Models on the problems that they share", head, rows, marks, note=note) if rows else None


def _build_labels_table(labels: pd.DataFrame) -> Table:
    rows = []
    for (model, shot_num), group in labels.groupby(["model", "shot_num"], sort=False):
        counts = dict(zip(group["label"], group["count"], strict=True))
        rows.append([model, shot_num, *(counts[str(label)] for label in Label)])
    head = ["model", "worked examples", *(str(label).replace("_", " ") for label in Label)]
    return Table("Completions by label", head, rows, blocks=find_block_starts([row[0] for row in rows]))


def _draw_labels(labels: pd.DataFrame) -> list[Figure]:
    """Shares of labels; none where there are too many models."""
    shares = {
        f"{model}, {format_shot_num(shot_num)}": dict(zip(group["label"], group["share"], strict=True))
        for (model, shot_num), group in labels.groupby(["model", "shot_num"], sort=False)
    }
    if len(shares) > MAX_BARS:
        return []
    order = [str(label) for label in Label]
    return [figures.draw_bars("Labels", shares, order, list(range(len(order))))]


def _build_reasons_table(reasons: dict[str, int]) -> Table | None:
    rows = [[reason, count] for reason, count in reasons.items()]
    return Table("Lines in quarantine", ["reason", "lines"], rows) if rows else None


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"

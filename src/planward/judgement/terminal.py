"""The tables of a judgement for a terminal. Names in the file are printed as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.analysis.names import ALL, format_rate
from planward.judgement.judgement import Judgement
from planward.judgement.page import format_p

MAX_ROWS = 60  # of a table; the rest is in the CSV file
MAX_DOMAIN_ROWS = 20  # of the table by domain; a longer one has all domains together
STYLES = {"better": "bold green", "worse": "bold red"}


def print_judgement(judgement: Judgement, console: Console) -> None:
    """Print counts, success by model and, in a short table, by domain, and the paired tests."""
    metrics, tables = judgement.metrics, judgement.tables
    reasons = ", ".join(f"{reason} {count}" for reason, count in metrics["quarantined_by_reason"].items())
    quarantine_text = f"{metrics['quarantined']:,} in quarantine{f' ({reasons})' if reasons else ''}"
    console.print(
        f"{metrics['lines']:,} lines: {metrics['judged']:,} judged, {quarantine_text}", style="bold", markup=False
    )
    success = tables.success
    if len(success) > MAX_DOMAIN_ROWS:
        success = success[success["domain"] == ALL]
    rows = [
        [row.model, row.shot_num, row.domain, row.n, format_rate(row.success_rate, row.ci_low, row.ci_high)]
        for row in success.itertuples()
    ]
    _print_table(console, "Success", ["model", "shots", "domain", "n", f"% [{100 * tables.confidence:g} %]"], rows)
    comparisons = [
        [
            *(row.model_a, row.model_b, row.shot_num, row.n),
            f"{row.difference:+.1f} [{row.ci_low:+.1f}, {row.ci_high:+.1f}]",
            *(f"{row.only_a}/{row.only_b}", format_p(row.p_holm), row.result),
        ]
        for row in tables.paired.itertuples()
    ]
    head = ["a", "b", "shots", "n", "b - a, points", "only a/b", "p Holm", "result"]
    _print_table(console, "Models on the problems that they share", head, comparisons)


def _print_table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, name in enumerate(head):
        is_number = all(str(row[i])[:1] in "+-<0123456789" for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows[:MAX_ROWS]:
        table.add_row(*(Text(str(cell), STYLES.get(str(cell), "")) for cell in row))
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"… {len(rows) - MAX_ROWS} more rows are in the CSV file", style="dim")

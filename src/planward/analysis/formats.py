"""The headline table in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd

from planward.analysis.names import (
    describe_intervals,
    describe_test,
    format_detectable_note,
    format_method,
    format_rate,
    format_shot_num,
)

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def render_markdown(cells: pd.DataFrame) -> str:
    """The headline table in Markdown: best cells bold, tied ones with a dagger; below, the detectable difference."""
    rows = _render_rows(cells, "**{}**", "{} †", lambda text: text.replace("|", r"\|"))
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    note = format_detectable_note(cells["detectable_difference"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + (f"\n{note}\n" if note else "")


def render_latex(cells: pd.DataFrame, confidence: float) -> str:
    """The headline table as a LaTeX `tabular` for booktabs."""
    head, *body = _render_rows(cells, r"\textbf{{{}}}", r"{}$^\dagger$", escape_latex)
    note = escape_latex(format_detectable_note(cells["detectable_difference"]))
    test = describe_test(cells)
    lines = [
        r"% Needs \usepackage{booktabs}. Success in percent with "
        f"{100 * confidence:g} % intervals ({describe_intervals(cells)}); bold: best of its",
        f"% column; dagger: statistically tied with the best (exact {test} test, Holm over the column).",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        *([rf"\multicolumn{{{len(head)}}}{{l}}{{\footnotesize {note}}} \\"] if note else []),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters."""
    return re.sub(r"[&%$#_{}~^\\]", lambda match: _LATEX[match[0]], text)


def _render_rows(cells: pd.DataFrame, best: str, tie: str, escape: Callable[[str], str]) -> list[list[str]]:
    """The heading and a row for each run; `best` and `tie` are the formats of such cells."""
    rows = [["method", "N", *map(format_shot_num, sorted(cells["shot_num"].unique()))]]
    for (method, size), run in cells.groupby(["method", "dataset_size"], sort=False):
        texts = [
            (best if c.best else tie if c.tied else "{}").format(format_rate(c.success_rate, c.ci_low, c.ci_high))
            for c in run.sort_values("shot_num").itertuples()
        ]
        rows.append([escape(format_method(str(method))), str(size), *texts])
    return rows

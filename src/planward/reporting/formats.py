"""The headline table for readers: Markdown and LaTeX."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from planward.reporting.names import (
    detectable_note,
    intervals_title,
    method_title,
    percent,
    shots_title,
    test_title,
)

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def markdown(cells: pd.DataFrame) -> str:
    """The headline table in Markdown: best cells bold, tied ones with a dagger; below, what it could have found."""
    rows = _written(cells, "**{}**", "{} †", lambda text: text.replace("|", r"\|"))
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    note = detectable_note(cells["detectable_difference"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + (f"\n{note}\n" if note else "")


def latex(cells: pd.DataFrame, confidence: float) -> str:
    """The headline table as a LaTeX `tabular` for booktabs."""
    head, *body = _written(cells, r"\textbf{{{}}}", r"{}$^\dagger$", escape_latex)
    note = escape_latex(detectable_note(cells["detectable_difference"]))
    lines = [
        r"% Needs \usepackage{booktabs}. Success in percent with "
        f"{100 * confidence:g} % intervals ({intervals_title(cells)}); bold: best of its",
        f"% column; dagger: statistically tied with the best (exact {test_title(cells)} test, Holm over the column).",
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
    """Text that LaTeX prints as it stands."""
    return re.sub(r"[&%$#_{}~^\\]", lambda match: _LATEX[match[0]], text)


def _written(cells: pd.DataFrame, best: str, tied: str, escape: Any) -> list[list[str]]:
    rows = [["method", "N", *map(shots_title, sorted(cells["shot_num"].unique()))]]
    for (method, size), run in cells.groupby(["method", "dataset_size"], sort=False):
        texts = [
            (best if c.best else tied if c.tied else "{}").format(percent(c.success_rate, c.ci_low, c.ci_high))
            for c in run.sort_values("shot_num").itertuples()
        ]
        rows.append([escape(method_title(str(method))), str(size), *texts])
    return rows

"""What the cards of models and selectors share: Markdown tables, fences, and the environment of their templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from planward.analysis.names import format_rate
from planward.publication.provenance import PublicationError


def render_card(template: str, **values: Any) -> str:
    """Render a template of this package as Markdown."""
    environment = Environment(
        loader=PackageLoader("planward.publication"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["fence"] = render_fence
    return environment.get_template(template).render(**values)


def render_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Render a Markdown table; columns after the first are aligned right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, marks, *rows))


def render_fence(text: str, language: str = "") -> str:
    """Render a fenced block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def format_row_rate(row: Any) -> str:
    """`76.9 [72.2, 81.0]` of a table's row."""
    return format_rate(row.success_rate, row.ci_low, row.ci_high)


def format_difference(row: Any) -> str:
    """`+30.3 [25.4, 35.0]` of a row of paired comparisons, in points."""
    return f"{row.difference:+.1f} [{row.ci_low:+.1f}, {row.ci_high:+.1f}]"


def format_p(p: float) -> str:
    """A p-value, with its size where it is small."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def read_table(path: Path, fix: str) -> pd.DataFrame:
    """Read a table of results; raises PublicationError with the `fix` where it is missing."""
    if not path.is_file():
        raise PublicationError(f"{path}: no such file, and the card is made of it; fix: {fix}")
    return pd.read_csv(path, keep_default_na=True)


def read_optional_table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()

"""Data files inside the page, as data addresses: saving them needs neither a server nor JavaScript."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from planward.core.tables import escape_formula


def format_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a heading row; floats to six significant digits, None as an empty cell, formulas escaped."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [f"{cell:.6g}" if isinstance(cell, float) else escape_formula(cell) for cell in row] for row in rows
    )
    return out.getvalue()


def build_csv_address(text: str) -> str:
    return f"data:text/csv;base64,{base64.b64encode(text.encode()).decode()}"


def build_csv_name(title: str) -> str:
    """The file name for the data below a title: `success-on-validation.csv`."""
    return f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-') or 'data'}.csv"

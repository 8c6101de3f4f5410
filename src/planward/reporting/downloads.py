"""Data that a page holds for its reader to save: addresses that need neither a server nor JavaScript."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a heading row; floats to six significant digits, None as nothing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return out.getvalue()


def csv_address(text: str) -> str:
    return f"data:text/csv;base64,{base64.b64encode(text.encode()).decode()}"


def csv_file(name: str) -> str:
    """What a file with the data of `name` is called: `success-on-validation.csv`."""
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'data'}.csv"

"""CSV files that spreadsheets may open: no cell of text is a formula."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planward.core.files import open_atomic

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


def escape_formula(cell: Any) -> Any:
    """Return a cell with an apostrophe before text that a spreadsheet would calculate, as OWASP advises."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV, atomically: floats to six significant digits, no index, formulas escaped."""
    from pandas.api.types import is_numeric_dtype

    texts = {name: table[name] for name in table.columns if not is_numeric_dtype(table[name])}
    escaped_columns = {name: list(map(escape_formula, column)) for name, column in texts.items()}
    changed_columns = {name: cells for name, cells in escaped_columns.items() if any(map(_differs, cells, texts[name]))}
    with open_atomic(path) as out:
        table.assign(**changed_columns).to_csv(out, index=False, float_format="%.6g", lineterminator="\n")


def _differs(cell: Any, other: Any) -> bool:
    return cell is not other

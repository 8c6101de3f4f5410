"""Tables and numbers as the page prints them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planward.report.downloads import build_csv_address, build_csv_name, format_csv

INTERVAL = re.compile(r"(\S+) \[(\S+), (\S+)\]")  # a value and its interval, as `format_difference` writes them
NUMERIC = re.compile(r"[-+<≥≤]? ?\d|\[")  # the start of a cell that holds a number
MAX_LINE_LENGTH = 30  # characters of a cell that is not broken into lines
Position = tuple[int, int]  # row and column of a cell


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[Any]]  # the first cell of a row is its heading
    marks: Mapping[Position, str] = field(default_factory=dict)  # best | tied
    heat: Mapping[Position, float] = field(default_factory=dict)  # shade of a cell, 0 to 1
    groups: Sequence[tuple[str, int]] = ()  # headings above the column heads, each with its number of columns
    note: str = ""  # printed below the table
    spans: Mapping[Position, tuple[float, float, float]] = field(default_factory=dict)  # low, value, high; 0 to 1
    blocks: Collection[int] = ()  # rows that start a new block

    @cached_property
    def text_columns(self) -> set[int]:
        """Columns of words, the first apart: aligned left, numbers right."""
        columns = [[str(row[column]) for row in self.rows] for column in range(len(self.head))]
        return {column for column, cells in enumerate(columns) if column and not any(map(NUMERIC.match, cells))}

    def parts(self, position: Position) -> tuple[str, str]:
        """The text of a cell: its value, and its interval (printed small) or an empty string."""
        text = str(self.rows[position[0]][position[1]])
        value, _, interval = text.partition(" ") if INTERVAL.fullmatch(text) else (text, "", "")
        return value, interval

    def style(self, position: Position) -> str:
        """The CSS classes of a cell."""
        row, column = position
        classes = {
            "text": column in self.text_columns,
            "long": len(str(self.rows[row][column])) > MAX_LINE_LENGTH and not self.parts(position)[1],
            "heat": position in self.heat,
            "span": position in self.spans,
            "trails": position in self.spans and bool(self.marks) and not self.marks.get(position),
        }
        return " ".join(name for name, applies in classes.items() if applies)

    @property
    def csv(self) -> str:
        """The table with one heading row; a value with its interval takes three columns."""
        groups = [name for name, width in self.groups for _ in range(width)] or [""] * len(self.head)
        head = [f"{group}: {name}" if group else name for group, name in zip(groups, self.head, strict=True)]
        split = {column for row in self.rows for column, cell in enumerate(row) if INTERVAL.fullmatch(str(cell))}
        names = [[name, f"{name}, low", f"{name}, high"] if i in split else [name] for i, name in enumerate(head)]
        rows = [[part for i, cell in enumerate(row) for part in _split_cell(cell, i in split)] for row in self.rows]
        return format_csv([name for parts in names for name in parts], rows)

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return build_csv_name(self.caption)

    @property
    def address(self) -> str:
        """The CSV file as a data address."""
        return build_csv_address(self.csv)


def find_block_starts(names: Sequence[Any]) -> set[int]:
    """The positions at which the name differs from the one before."""
    return {i for i in range(1, len(names)) if names[i] != names[i - 1]}


def format_difference(difference: float, low: float, high: float) -> str:
    """A difference with its interval, in percentage points: `+4.0 [-1.2, +9.1]`."""
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def format_pair_note(detectable_differences: Iterable[float]) -> str:
    """The note below a table of paired differences without a column of detectable differences."""
    differences = sorted(detectable_differences)
    if not differences:
        return ""
    sizes = " to ".join(dict.fromkeys(f"{value:.1f}" for value in (differences[0], differences[-1])))
    return f"Smallest detectable difference of a pair: {sizes} points (80 % power, before Holm's correction)."


def build_key_value_table(caption: str, values: Mapping[str, Any]) -> Table | None:
    rows = [[key, format_number(value)] for key, value in flatten(values)]
    return Table(caption, ["name", "value"], rows) if rows else None


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Leaves of nested metrics by dotted key, sorted."""
    leaves: list[tuple[str, Any]] = []
    for key, value in sorted(values.items()):
        leaves += flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return leaves


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def format_number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _split_cell(cell: Any, has_interval: bool) -> list[Any]:
    match = INTERVAL.fullmatch(str(cell)) if has_interval else None
    return list(match.groups()) if match else [cell, *["", ""] * has_interval]

"""Tables and numbers as the page prints them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planward.reporting.downloads import csv_address, csv_file, csv_text

INTERVAL = re.compile(r"(\S+) \[(\S+), (\S+)\]")  # a value and its interval, as `points` and `names.percent` write them
NUMERIC = re.compile(r"[-+<≥≤]? ?\d|\[")  # how a cell that holds a number begins
LONG = 30  # characters of a cell that is broken into lines
Place = tuple[int, int]  # row and column of a cell


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[Any]]  # the first cell of a row is its heading
    marks: Mapping[Place, str] = field(default_factory=dict)  # best | tied
    heat: Mapping[Place, float] = field(default_factory=dict)  # shade of a cell from 0 to 1
    groups: Sequence[tuple[str, int]] = ()  # headings over so many columns, from the first on
    note: str = ""  # printed under the table
    spans: Mapping[Place, tuple[float, float, float]] = field(default_factory=dict)  # low, value, high: drawn, 0 to 1
    blocks: Collection[int] = ()  # rows with which something new begins

    @cached_property
    def text_columns(self) -> set[int]:
        """Columns of words, beside the first; they stand at the left, numbers at the right."""
        cells = [[str(row[column]) for row in self.rows] for column in range(len(self.head))]
        return {column for column, found in enumerate(cells) if column and not any(map(NUMERIC.match, found))}

    def parts(self, place: Place) -> tuple[str, str]:
        """What the page prints of a cell: its value, and in small its interval, if it has one."""
        text = str(self.rows[place[0]][place[1]])
        value, _, interval = text.partition(" ") if INTERVAL.fullmatch(text) else (text, "", "")
        return value, interval

    def style(self, place: Place) -> str:
        """The classes of a cell: how it is aligned, broken into lines, shaded and drawn."""
        row, column = place
        classes = {
            "text": column in self.text_columns,
            "long": len(str(self.rows[row][column])) > LONG and not self.parts(place)[1],
            "heat": place in self.heat,
            "span": place in self.spans,
            "trails": place in self.spans and bool(self.marks) and not self.marks.get(place),
        }
        return " ".join(name for name, holds in classes.items() if holds)

    @property
    def csv(self) -> str:
        """The table with one heading row; a value with its interval takes three columns."""
        groups = [name for name, width in self.groups for _ in range(width)] or [""] * len(self.head)
        head = [f"{group}: {name}" if group else name for group, name in zip(groups, self.head, strict=True)]
        split = {column for row in self.rows for column, cell in enumerate(row) if INTERVAL.fullmatch(str(cell))}
        names = [[name, f"{name}, low", f"{name}, high"] if i in split else [name] for i, name in enumerate(head)]
        rows = [[part for i, cell in enumerate(row) for part in _parts(cell, i in split)] for row in self.rows]
        return csv_text([name for parts in names for name in parts], rows)

    @property
    def file(self) -> str:
        """What the CSV file is called."""
        return csv_file(self.caption)

    @property
    def address(self) -> str:
        """The CSV file as a data address."""
        return csv_address(self.csv)


def starts(names: Sequence[Any]) -> set[int]:
    """The places at which another name begins than the one before, the first apart."""
    return {place for place in range(1, len(names)) if names[place] != names[place - 1]}


def points(difference: float, low: float, high: float) -> str:
    """A difference with its interval, in points of a hundred: `+4.0 [-1.2, +9.1]`."""
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def pair_note(values: Iterable[float]) -> str:
    """The sentence under a table of paired differences that has no column for what each could have shown."""
    known = sorted(values)
    if not known:
        return ""
    sizes = " to ".join(dict.fromkeys(f"{value:.1f}" for value in (known[0], known[-1])))
    return f"Smallest detectable difference of a pair: {sizes} points (80 % power, before Holm's correction)."


def key_values(caption: str, values: Mapping[str, Any]) -> Table | None:
    rows = [[key, number(value)] for key, value in flat(values)]
    return Table(caption, ["name", "value"], rows) if rows else None


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Leaves of nested metrics by dotted key, sorted."""
    leaves: list[tuple[str, Any]] = []
    for key, value in sorted(values.items()):
        leaves += flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return leaves


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _parts(cell: Any, split: bool) -> list[Any]:
    found = INTERVAL.fullmatch(str(cell)) if split else None
    return list(found.groups()) if found else [cell, *["", ""] * split]

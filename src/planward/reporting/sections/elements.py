"""Tables and numbers as the page prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[Any]]  # the first cell of a row is its heading
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)  # best | tied, by row and column
    heat: Mapping[tuple[int, int], float] = field(default_factory=dict)  # shade of a cell from 0 to 1; likewise
    groups: Sequence[tuple[str, int]] = ()  # headings over so many columns, from the first on


def points(difference: float, low: float, high: float) -> str:
    """A difference with its interval, in points of a hundred: `+4.0 [-1.2, +9.1]`."""
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


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

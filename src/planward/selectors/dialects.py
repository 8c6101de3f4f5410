"""Dialects of problems."""

from __future__ import annotations

from planward.core.records import Record


def get_dialect(record: Record) -> int:
    """Number of the dialect that the problem is written in; 0, the plain domain, where its `meta` has none."""
    return int(getattr(record.meta, "dialect", 0))

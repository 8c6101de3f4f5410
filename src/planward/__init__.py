"""Planward: a reproducible pipeline that post-trains language models to plan."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `Planner` when it is used: it needs torch, and nothing in this package depends on it."""
    if name == "Planner":
        return import_module("planward.planner").Planner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

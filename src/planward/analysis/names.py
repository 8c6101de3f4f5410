"""What runs and results are called, and in which order they are listed, in every table, figure and sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from planward.core.runs import SELECTORS
from planward.params import BUCKETS, METHODS

TITLES = {"sft": "SFT", "grpo": "GRPO"}
ALL = "all"  # the domain that stands for all of them; likewise all numbers of worked examples, all problems
PLAIN, DIALECTS = "plain", "dialects"  # problems in their domain's original words, and in any other's

ORDERS: dict[str, Sequence[str]] = {
    "method": (*METHODS, *SELECTORS),
    "bucket": BUCKETS,
    "domain": (ALL,),
    "dialect": (ALL, PLAIN, DIALECTS),
    "shot_num": (ALL,),
}


def format_method(method: str) -> str:
    """`GRPO`; a variant keeps its name."""
    return TITLES.get(method, method)


def format_run(method: str, size: int) -> str:
    """A run in figures and text: `base`, `GRPO, N = 200`."""
    name = format_method(method)
    return f"{name}, N = {size}" if size else name


def format_shot_num(shot_num: int) -> str:
    """`1 shot`, `2 shots`."""
    return f"{shot_num} shot{'' if shot_num == 1 else 's'}"


def format_rate(rate: float, low: float, high: float) -> str:
    """A rate with its interval, in percent: `57.3 [52.1, 62.4]`."""
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def format_detectable_note(values: Iterable[float], unit: str = "points", between: str = "two rows") -> str:
    """The sentence under a table of rates on its column `detectable_difference`; '' where that holds no number.

    Args:
        unit: `points` (percentage points), or `units of reward`.
        between: what the table lets its reader compare.
    """
    differences = sorted(value for value in values if value == value)  # NaN: there was nothing to compare with
    if not differences:
        return ""
    digits = 1 if unit == "points" else 3
    ends = list(dict.fromkeys(f"{value:.{digits}f}" for value in (differences[0], differences[-1])))
    sizes = f"{' to '.join(ends)} {unit}{', depending on the column' if len(ends) > 1 else ''}"
    return f"Smallest detectable difference between {between}: {sizes} (80 % power, before Holm's correction)."


def sort_key(column: str, value: Any) -> tuple[int, Any]:
    """A sorting key: methods, selectors, buckets and dialects in their own order, `all` first, the rest by value."""
    order = ORDERS.get(column, ())
    return (order.index(value), "") if value in order else (len(order), value)


def sort_rows(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sort rows by the columns `by`, each in its own order."""
    keys = [tuple(sort_key(c, v) for c, v in zip(by, row, strict=True)) for row in frame[list(by)].itertuples(False)]
    return frame.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def describe_intervals(cells: pd.DataFrame) -> str:
    """How the intervals of a table's rates were computed."""
    seeds = cells["seeds"].max()
    phrase = f"stratified bootstrap over problems and {seeds} seeds"
    methods = set(cells["interval"])
    return {("wilson",): "Wilson", ("bootstrap",): phrase}.get(
        tuple(methods), f"{phrase}; Wilson for one seed and where all problems agree"
    )


def describe_test(cells: pd.DataFrame) -> str:
    """The exact paired test by which a table's cells are compared."""
    return "McNemar" if cells["seeds"].max() == 1 else "sign-flip permutation"

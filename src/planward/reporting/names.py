"""What results are called and in which order they stand, in every table, figure and sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from planward.params import BUCKETS
from planward.records import METHODS, SELECTORS

TITLES = {"sft": "SFT", "grpo": "GRPO"}
ALL = "all"  # the domain that stands for all of them; likewise all numbers of worked examples, all problems
PLAIN, DIALECTS = "plain", "dialects"  # problems in their domain's own words, and in any other's

ORDERS: dict[str, Sequence[str]] = {
    "method": (*METHODS, *SELECTORS),
    "bucket": BUCKETS,
    "domain": (ALL,),
    "dialect": (ALL, PLAIN, DIALECTS),
    "shot_num": (ALL,),
}


def method_title(method: str) -> str:
    """`GRPO`; a variant goes by its own name."""
    return TITLES.get(method, method)


def title(method: str, size: int) -> str:
    """How a run is called in figures and text: `base`, `GRPO, N = 200`."""
    name = method_title(method)
    return f"{name}, N = {size}" if size else name


def shots_title(shot_num: int) -> str:
    return f"{shot_num} shot{'' if shot_num == 1 else 's'}"


def percent(rate: float, low: float, high: float) -> str:
    """A rate with its interval, in percent: `57.3 [52.1, 62.4]`."""
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def detectable_note(values: Iterable[float], unit: str = "points", between: str = "two rows") -> str:
    """The sentence under a table of rates: what its column `detectable_difference` says, '' where that holds nothing.

    Args:
        unit: `points` of a hundred, or `units of reward`.
        between: what the table lets its reader compare.
    """
    known = sorted(value for value in values if value == value)  # NaN: there was nothing to compare with
    if not known:
        return ""
    digits = 1 if unit == "points" else 3
    ends = list(dict.fromkeys(f"{value:.{digits}f}" for value in (known[0], known[-1])))
    sizes = f"{' to '.join(ends)} {unit}{', depending on the column' if len(ends) > 1 else ''}"
    return f"Smallest detectable difference between {between}: {sizes} (80 % power, before Holm's correction)."


def rank(column: str, value: Any) -> tuple[int, Any]:
    """A sorting key: methods, selectors, buckets and dialects in their own order, `all` first, the rest by value."""
    known = ORDERS.get(column, ())
    return (known.index(value), "") if value in known else (len(known), value)


def ordered(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Rows sorted by the columns `by`, each in its own order."""
    keys = [tuple(rank(c, v) for c, v in zip(by, row, strict=True)) for row in frame[list(by)].itertuples(False)]
    return frame.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def intervals_title(cells: pd.DataFrame) -> str:
    """How the intervals of a table's rates were made."""
    seeds = cells["seeds"].max()
    pooled = f"stratified bootstrap over problems and {seeds} seeds"
    kinds = set(cells["interval"])
    return {("wilson",): "Wilson", ("bootstrap",): pooled}.get(tuple(kinds), f"{pooled}; Wilson where there is one")


def test_title(cells: pd.DataFrame) -> str:
    """Which exact paired test a table's cells are compared by."""
    return "McNemar" if cells["seeds"].max() == 1 else "sign-flip permutation"

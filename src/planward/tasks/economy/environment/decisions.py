"""Decisions as text: a strict parser for rewards, a lenient one for analysis only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

KEYS = ("work", "consumption")

_NUMBER = r"(?P<number>[-+]?(?>\d{1,400}\.?\d*|\.\d+)(?>e[-+]?\d{1,3})?)"  # atomic: no part of a longer number
_PAIR = {
    key: re.compile(rf"(?<![\w]){key}[\"'`*]*\s*[:=]\s*[\"'`*]*\s*{_NUMBER}\s*(?P<percent>%)?(?![\w])", re.IGNORECASE)
    for key in KEYS
}


class InvalidDecision(ValueError):
    """A completion is not a decision in the required form; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Decision:
    """A household's decision for one month.

    Attributes:
        work: share of full time worked, in [0, 1].
        consumption: share spent of the month's means (wealth and disposable income), in [0, 1].
    """

    work: float
    consumption: float


def format_decision(decision: Decision) -> str:
    """Format a decision as in prompts and completions: `{"work": 0.35, "consumption": 0.62}`.

    Uses two decimals, and more only where two would change the number; `parse_decision` returns the same decision.
    """
    return f'{{"work": {_format_share(decision.work)}, "consumption": {_format_share(decision.consumption)}}}'


def parse_decision(completion: str) -> Decision:
    """Parse a completion in exactly the required form; rewards are based on this.

    The form is one JSON object (RFC 8259) with the keys `work` and `consumption`, in this order, whose values are
    numbers in [0, 1], and nothing else but JSON white space.

    Raises:
        InvalidDecision: the completion is anything else.
    """
    try:
        pairs = json.loads(completion, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except InvalidDecision:
        raise
    except (ValueError, RecursionError) as error:  # invalid JSON, too many digits, nested too deeply
        raise InvalidDecision(f"not JSON: {error}") from None
    if not isinstance(pairs, _Pairs):
        raise InvalidDecision(f"not a JSON object but {type(pairs).__name__}")
    keys = tuple(key for key, _ in pairs)
    if keys != KEYS:
        raise InvalidDecision(f"keys {_format_keys(keys)}, not {_format_keys(KEYS)}")
    return Decision(*(_parse_share(key, value) for key, value in pairs))


def parse_decision_leniently(completion: str) -> Decision | None:
    """Parse a completion in any recognisable form; None where there is no decision. For analysis only.

    Accepts code fences, prose, single quotes, numbers as strings, percent and any order of keys, and takes the last
    number for each key. Numbers outside [0, 1] are rejected.
    """
    try:
        return parse_decision(completion)
    except InvalidDecision:
        pass
    shares = []
    for key in KEYS:
        matches = list(_PAIR[key].finditer(completion))
        if not matches:
            return None
        number = float(matches[-1]["number"]) / (100 if matches[-1]["percent"] else 1)
        if not 0 <= number <= 1:
            return None
        shares.append(abs(number))
    return Decision(*shares)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with duplicate keys and their order preserved."""


def _parse_share(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDecision(f"{key} is not a number")
    if not 0 <= value <= 1:
        raise InvalidDecision(f"{key} is not in [0, 1]")
    return abs(float(value))  # -0.0 is 0.0


def _refuse_constant(constant: str) -> None:
    raise InvalidDecision(f"{constant} is no JSON number")


def _format_share(share: float) -> str:
    short = f"{share:.2f}"
    return short if float(short) == share else repr(share)


def _format_keys(keys: tuple[str, ...]) -> str:
    names = ", ".join(json.dumps(key) for key in keys[:4])
    return f"({names}{', ...' if len(keys) > 4 else ''})"

"""Decisions and the texts that state them: one reader for rewards, another for analysis only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

KEYS = ("work", "consumption")

_NUMBER = r"(?P<number>[-+]?(?>\d{1,400}\.?\d*|\.\d+)(?>e[-+]?\d{1,3})?)"  # atomic: never a part of a longer number
_PAIR = {
    key: re.compile(rf"(?<![\w]){key}[\"'`*]*\s*[:=]\s*[\"'`*]*\s*{_NUMBER}\s*(?P<percent>%)?(?![\w])", re.IGNORECASE)
    for key in KEYS
}


class NotADecision(ValueError):
    """A completion is not what was asked for; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Decision:
    """A household's month.

    Attributes:
        work: share of full time worked, in [0, 1].
        consumption: share spent of the month's means (wealth and disposable income), in [0, 1].
    """

    work: float
    consumption: float


def canonical(decision: Decision) -> str:
    """The decision as the text that prompts show and answers have: `{"work": 0.35, "consumption": 0.62}`.

    Two decimals; more only where two would state another number. `strict` reads back the same decision.
    """
    return f'{{"work": {_text(decision.work)}, "consumption": {_text(decision.consumption)}}}'


def strict(completion: str) -> Decision:
    """The decision that a completion states in exactly the form asked for.

    That is one JSON object (RFC 8259) with the keys `work` and `consumption`, in this order, whose values are numbers
    in [0, 1]; around it and inside stands nothing else but JSON's white space.

    Raises:
        NotADecision: the completion is anything else.
    """
    try:
        pairs = json.loads(completion, object_pairs_hook=_Pairs, parse_constant=_refused)
    except NotADecision:
        raise
    except (ValueError, RecursionError) as error:  # no JSON, a number of too many digits, nested too deeply
        raise NotADecision(f"not JSON: {error}") from None
    if not isinstance(pairs, _Pairs):
        raise NotADecision(f"not a JSON object but {type(pairs).__name__}")
    keys = tuple(key for key, _ in pairs)
    if keys != KEYS:
        raise NotADecision(f"keys {_shown(keys)}, not {_shown(KEYS)}")
    return Decision(*(_share(key, value) for key, value in pairs))


def lenient(completion: str) -> Decision | None:
    """What a lenient reader would have taken a completion for; None where it finds no decision. For analysis only.

    It reads through code fences, prose, single quotes, strings, percent and any order of keys, and takes the last
    number given for each key. Numbers outside [0, 1] are no decision to it either.
    """
    try:
        return strict(completion)
    except NotADecision:
        pass
    shares = []
    for key in KEYS:
        found = list(_PAIR[key].finditer(completion))
        if not found:
            return None
        number = float(found[-1]["number"]) / (100 if found[-1]["percent"] else 1)
        if not 0 <= number <= 1:
            return None
        shares.append(abs(number))
    return Decision(*shares)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written: duplicate keys and their order are kept."""


def _share(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotADecision(f"{key} is not a number")
    if not 0 <= value <= 1:
        raise NotADecision(f"{key} is not in [0, 1]")
    return abs(float(value))  # -0.0 is 0.0


def _refused(constant: str) -> None:
    raise NotADecision(f"{constant} is no JSON number")


def _text(share: float) -> str:
    short = f"{share:.2f}"
    return short if float(short) == share else repr(share)


def _shown(keys: tuple[str, ...]) -> str:
    listed = ", ".join(json.dumps(key) for key in keys[:4])
    return f"({listed}{', ...' if len(keys) > 4 else ''})"

"""What tables need of the verdicts: counts, and one byte for each problem of a model and shot_num."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planward.judgement.verdicts import Judged

MAX_CELLS = 400
MAX_DOMAINS = 1 << 16  # whose positions take two bytes
_UNSEEN, _FAILED, _SOLVED = 0, 1, 2


class Cell(NamedTuple):
    model: str
    shot_num: int


class Tally:
    """Counts verdicts; a problem counts once for a model and shot_num."""

    def __init__(self) -> None:
        self.labels: dict[Cell, Counter[str]] = defaultdict(Counter)
        self.reasons: Counter[str] = Counter()
        self.judged_by: Counter[str] = Counter()
        self.first_reason = ""
        self._domains: dict[str, int] = {}
        self._problems: dict[str, int] = {}
        self._problem_domains = bytearray()  # two bytes a problem: the position of its domain in `domains`
        self._outcomes: dict[Cell, bytearray] = {}

    def add(self, judged: Judged) -> str | None:
        """Count a verdict; where it cannot be counted, count nothing and return the reason for quarantine."""
        cell = Cell(judged.model, judged.shot_num)
        if cell not in self._outcomes and len(self._outcomes) == MAX_CELLS:
            return (
                f"too many models: the file has {MAX_CELLS} other pairs of `model` and `shot_num`; "
                "fix: give all lines of a model the same `model`, or divide the file"
            )
        if judged.domain not in self._domains and len(self._domains) == MAX_DOMAINS:
            return f"too many domains: the file has {MAX_DOMAINS:,} others; fix: divide it"
        outcomes = self._outcomes.setdefault(cell, bytearray())
        problem = self._problems.get(judged.key)
        if problem is None:
            problem = self._problems[judged.key] = len(self._problems)
            domain = self._domains.setdefault(judged.domain, len(self._domains))
            self._problem_domains += domain.to_bytes(2, "little")
        if problem >= len(outcomes):
            outcomes.extend(bytes(max(problem + 1, len(outcomes) * 5 // 4) - len(outcomes)))
        if outcomes[problem] != _UNSEEN:
            return f"duplicate: {judged.model!r} has an earlier line on {judged.key!r} with {judged.shot_num} examples"
        outcomes[problem] = _SOLVED if judged.success else _FAILED
        self.labels[cell][judged.label] += 1
        self.judged_by[judged.judged_by] += 1
        return None

    def reject(self, number: int, reason: str) -> None:
        """Count a line for quarantine."""
        self.reasons[reason.partition(":")[0]] += 1
        self.first_reason = self.first_reason or f"line {number}: {reason}"

    @property
    def judged(self) -> int:
        return sum(labels.total() for labels in self.labels.values())

    @property
    def domains(self) -> list[str]:
        return list(self._domains)

    @property
    def problem_num(self) -> int:
        return len(self._problems)

    @property
    def cells(self) -> list[Cell]:
        """Models in the order of their first line, then numbers of worked examples."""
        models = list(dict.fromkeys(cell.model for cell in self.labels))
        return sorted(self.labels, key=lambda cell: (models.index(cell.model), cell.shot_num))

    def build_outcomes(self, cell: Cell) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which problems the cell has an answer to, and which it solved; shape [problems] each."""
        values = np.zeros(len(self._problems), dtype=np.uint8)
        outcomes = np.frombuffer(self._outcomes[cell], dtype=np.uint8)[: len(values)]
        values[: len(outcomes)] = outcomes
        return values != _UNSEEN, values == _SOLVED

    @property
    def problem_domains(self) -> NDArray[np.uint16]:
        """The position of each problem's domain in `domains`; shape [problems]."""
        return np.frombuffer(self._problem_domains, dtype="<u2")

"""What tables need of the verdicts: counts, and one byte for each problem of a model and shot_num."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planward.judgement.verdicts import Judged

MAX_CELLS = 400
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
        self.domains: list[str] = []
        self._problems: dict[str, int] = {}
        self._problem_domains = bytearray()  # two bytes a problem: the position of its domain in `domains`
        self._outcomes: dict[Cell, bytearray] = {}

    def add(self, judged: Judged) -> bool:
        """Count a verdict; returns False, and counts nothing, where its problem has one of this model and shot_num.

        Raises:
            ValueError: there are more than `MAX_CELLS` models and numbers of worked examples, or 65,536 domains.
        """
        cell = Cell(judged.model, judged.shot_num)
        outcomes = self._outcomes.get(cell)
        if outcomes is None:
            if len(self._outcomes) == MAX_CELLS:
                raise ValueError(
                    f"line {judged.number}: more than {MAX_CELLS} pairs of `model` and `shot_num`; "
                    "fix: give all lines of a model the same `model`, or divide the file"
                )
            outcomes = self._outcomes[cell] = bytearray()
        problem = self._problems.get(judged.key)
        if problem is None:
            problem = self._problems[judged.key] = len(self._problems)
            self._problem_domains += self._find_domain(judged.domain).to_bytes(2, "little")
        if problem >= len(outcomes):
            outcomes.extend(bytes(max(problem + 1, len(outcomes) * 5 // 4) - len(outcomes)))
        if outcomes[problem] != _UNSEEN:
            return False
        outcomes[problem] = _SOLVED if judged.success else _FAILED
        self.labels[cell][judged.label] += 1
        self.judged_by[judged.judged_by] += 1
        return True

    def reject(self, number: int, reason: str) -> None:
        """Count a line for quarantine."""
        self.reasons[reason.partition(":")[0]] += 1
        self.first_reason = self.first_reason or f"line {number}: {reason}"

    @property
    def judged(self) -> int:
        return sum(labels.total() for labels in self.labels.values())

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
        stored = np.frombuffer(self._outcomes[cell], dtype=np.uint8)[: len(values)]
        values[: len(stored)] = stored
        return values != _UNSEEN, values == _SOLVED

    @property
    def problem_domains(self) -> NDArray[np.uint16]:
        """The position of each problem's domain in `domains`; shape [problems]."""
        return np.frombuffer(self._problem_domains, dtype="<u2")

    def _find_domain(self, name: str) -> int:
        if name not in self.domains:
            if len(self.domains) == 1 << 16:
                raise ValueError("the lines have more than 65,536 domains")
            self.domains.append(name)
        return self.domains.index(name)

"""What a model is told about its failed plan."""

from __future__ import annotations

import re
from pathlib import Path

from planward.core.verdicts import Verdict

TEMPLATE = Path(__file__).parent / "templates/repair.jinja"
# VAL's advice: nested (Set ATOM to true), (Follow each of: A and B), (Follow one of: A or B).
SET_PATTERN = re.compile(r"\(Set (\([^()]*\)) to (true|false)\)")
FOLLOW_PATTERN = re.compile(r"Follow (?:each|one) of: ")


class FailureVariables:
    """The variables of repair templates: every public property is one."""

    def __init__(self, verdict: Verdict) -> None:
        assert verdict.outcome is not None
        self._verdict, self._outcome = verdict, verdict.outcome

    @property
    def label(self) -> str:
        """The verdict's label."""
        return self._verdict.label

    @property
    def plan(self) -> str:
        """The failed plan, one action a line; empty where the completion held none."""
        return self._verdict.plan

    @property
    def step(self) -> int | None:
        """The number of the action at which the plan fails; None for a missed goal and an unreadable plan."""
        return self._outcome.failing_step

    @property
    def action(self) -> str:
        """That action."""
        return self._verdict.plan.splitlines()[self.step - 1] if self.step else ""

    @property
    def reason(self) -> str:
        """Why it fails, in words: what would have to hold, which goals are missing, what cannot be read."""
        return describe_reason(self._verdict.detail.removeprefix(f"{self.action}: "))

    @property
    def goals_satisfied(self) -> int | None:
        """The number of goals that hold at the end; None where the plan does not run to its end."""
        return self._outcome.goals_satisfied

    @property
    def goals_total(self) -> int | None:
        """The number of goals."""
        return self._outcome.goals_total


def describe_reason(detail: str) -> str:
    """Put VAL's advice into words: `(Set (clear b) to true)` becomes `(clear b) must hold`."""
    text = SET_PATTERN.sub(lambda m: f"{m[1]} must {'hold' if m[2] == 'true' else 'not hold'}", detail)
    return FOLLOW_PATTERN.sub("", text).replace(" )", ")")

"""Verdicts on completions, and the outcomes that plan verifiers report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Label(StrEnum):
    """The label of a plan; the values are part of all result files."""

    SUCCESS = "success_plans"
    GOAL = "goal_not_satisfied"
    PRECONDITION = "precondition_violation"
    SAFETY = "safety_constraints_violation"
    FORMAT = "plan_format_error"


class VerifierError(RuntimeError):
    """The verifier itself failed (missing, killed, timed out, unreadable output), so there is no verdict."""


class VerifierDisagreement(VerifierError):
    """Two verifiers differ on a completion; the message says where to find it."""


@dataclass(frozen=True)
class Outcome:
    """A plan verifier's report on one plan, without a reward.

    `failing_step` counts from 1 and is set for precondition and safety violations only.
    `goals_satisfied` is None where the plan did not run to its end.
    """

    label: Label
    plan_size: int
    failing_step: int | None = None
    goals_satisfied: int | None = None
    goals_total: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """A task's judgement of one completion; `reward` is in [-1, 1], and tables count `success`."""

    label: str
    reward: float
    success: bool
    detail: str = ""
    plan: str = ""
    outcome: Outcome | None = None

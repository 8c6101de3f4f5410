"""Verdicts on chunks of lines: what one process does. Only compact results go back."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Literal

from planward import val
from planward.core.hashing import hash_fraction
from planward.core.lines import Line
from planward.core.tasks import InvalidLine
from planward.core.verdicts import Label, Outcome, VerifierDisagreement, VerifierError
from planward.judgement.lines import parse_answer
from planward.judgement.problems import Problem, ProblemIndex
from planward.pddl.expansion import check_files
from planward.pddl.expressions import PddlError, UnsupportedError
from planward.pddl.language import load_domain, load_problem
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.reward import build_verdict
from planward.val import InputError
from planward.val.known_problem import UNDECIDED

MAX_CACHED_VERDICTS = 20_000  # by problem and plan, of each process
MAX_CACHED_PROBLEMS = 2_000  # parsed, of each process
MAX_CHECKED_FILES = 100_000  # that are within the limits of `pddl.limits`, of each process
MAX_CACHED_CHARS = 2_000  # of a plan; longer ones are rare and would fill the memory
MAX_QUOTED_CHARS = 1_000  # of a bad line, in quarantine


# Whose verdict it is: none where the text holds no plan, both where VAL audited the in-process checker.
JudgedBy = Literal["val", "in-process", "both", "none"]


class Verifier(StrEnum):
    val = "val"
    fast = "fast"


@dataclass(frozen=True)
class Settings:
    """How plans are judged.

    Attributes:
        audit_share: of the plans judged in-process, those that VAL judges too.
        timeout: seconds for one run of VAL.
    """

    verifier: Verifier
    audit_share: float
    timeout: float


@dataclass(frozen=True)
class Judged:
    """A verdict as a line of the output, what the tables need, and the first bytes of the line that was read."""

    number: int
    text: str
    key: str
    domain: str
    model: str
    shot_num: int
    label: str
    success: bool
    judged_by: JudgedBy
    raw: bytes


@dataclass(frozen=True)
class Rejected:
    """A line for quarantine."""

    number: int
    reason: str
    raw: bytes

    @property
    def text(self) -> str:
        text = self.raw.decode("utf-8", "backslashreplace").strip()
        return json.dumps({"line": self.number, "reason": self.reason, "text": text[:MAX_QUOTED_CHARS]})


Result = Judged | Rejected | None  # of a line; None where it is blank


class Judge:
    """Judges lines; verdicts are cached by problem and plan."""

    def __init__(self, index: ProblemIndex, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self._cache: OrderedDict[tuple[str, str], tuple[Outcome, JudgedBy] | str] = OrderedDict()
        self._build_verifier = lru_cache(maxsize=MAX_CACHED_PROBLEMS)(build_verifier)
        self._check_files = lru_cache(maxsize=MAX_CHECKED_FILES)(check_files)

    def __call__(self, lines: Iterable[Line]) -> list[Result]:
        """Judge lines in their order; raises VerifierError, with the line's number."""
        return [self._judge_line(line) if line.raw.strip() else None for line in lines]

    def _judge_line(self, line: Line) -> Judged | Rejected:
        number = line.number
        try:
            answer = parse_answer(line)
            problem = self.index.find(answer)
            plan = extract_plan(answer.text)
            outcome, judged_by = self._judge_plan(problem, plan)
        except InvalidLine as reason:
            return Rejected(number, str(reason), line.raw[:MAX_QUOTED_CHARS])
        except VerifierError as error:
            raise VerifierError(f"line {number}: {error}") from None
        verdict = build_verdict(outcome, plan or [])
        row = {
            "line": number,
            "id": problem.key,
            "domain": problem.domain,
            "model": answer.model,
            "shot_num": answer.shot_num,
            "label": verdict.label,
            "success": verdict.success,
            "reward": verdict.reward,
            "detail": verdict.detail,
            "plan": verdict.plan,
            "plan_size": outcome.plan_size,
            "failing_step": outcome.failing_step,
            "goals_satisfied": outcome.goals_satisfied,
            "goals_total": outcome.goals_total,
            "judged_by": judged_by,
        }
        return Judged(
            number,
            json.dumps(row, ensure_ascii=False),
            problem.key,
            problem.domain,
            answer.model,
            answer.shot_num,
            verdict.label,
            verdict.success,
            judged_by,
            line.raw[:MAX_QUOTED_CHARS],
        )

    def _judge_plan(self, problem: Problem, plan: list[str] | None) -> tuple[Outcome, JudgedBy]:
        text = "\n".join(plan or [])  # without a plan, too, the files are checked
        key = (problem.key, text)
        entry = self._cache.pop(key, None) or self._verify_readable(problem, text)
        if len(text) <= MAX_CACHED_CHARS:
            self._cache[key] = entry
            if len(self._cache) > MAX_CACHED_VERDICTS:
                self._cache.popitem(last=False)
        if isinstance(entry, str):
            raise InvalidLine(entry)
        outcome, judged_by = entry
        if plan is None:
            return Outcome(Label.FORMAT, 0, goals_total=outcome.goals_total, detail="no plan in the completion"), "none"
        return outcome, judged_by

    def _verify_readable(self, problem: Problem, plan: str) -> tuple[Outcome, JudgedBy] | str:
        """As `_verify`; where the line is to blame, the reason for quarantine."""
        try:
            return self._verify(problem, plan)
        except VerifierDisagreement:
            raise
        except VerifierError as error:
            val.check_known_verdicts(self.settings.timeout)
            warnings.warn(str(error), stacklevel=2)
            return UNDECIDED
        except (PddlError, InputError) as error:
            return f"bad PDDL: {str(error).replace(f'{self.index.root}/', '')}"
        except RecursionError:
            return f"bad PDDL: {problem.problem_file.name}: nested too deeply"

    def _verify(self, problem: Problem, plan: str) -> tuple[Outcome, JudgedBy]:
        """Return a verdict and who gave it.

        Raises:
            PddlError, InputError: the problem's files are invalid.
            VerifierError: VAL gave no verdict.
            VerifierDisagreement: VAL's verdict differs from the in-process checker's.
        """
        files = (problem.domain_file, problem.problem_file)
        if self.settings.verifier is Verifier.val:
            self._check_files(*files)
            return val.validate(*files, plan, self.settings.timeout), "val"
        try:
            outcome = self._build_verifier(*files).verify(plan.split("\n") if plan else [])
        except UnsupportedError:
            self._check_files(*files)
            return val.validate(*files, plan, self.settings.timeout), "val"
        if hash_fraction(f"{problem.key}\n{plan}", "audit") >= self.settings.audit_share:
            return outcome, "in-process"
        by_val = val.validate(*files, plan, self.settings.timeout)
        if _select_compared(outcome) != _select_compared(by_val):
            raise VerifierDisagreement(
                f"the verifiers disagree on a plan for {problem.problem_file} (domain {problem.domain_file}): "
                f"in-process {outcome}, VAL {by_val}; the plan is {plan!r}; "
                "fix: use --verifier val, and report the case"
            )
        return outcome, "both"


def build_verifier(domain_file: Path, problem_file: Path) -> PlanVerifier:
    return PlanVerifier(load_problem(problem_file, load_domain(domain_file)))


def _select_compared(outcome: Outcome) -> tuple[object, ...]:
    return outcome.label, outcome.plan_size, outcome.failing_step, outcome.goals_satisfied, outcome.goals_total

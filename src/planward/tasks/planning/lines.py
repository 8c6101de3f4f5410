"""Validates the lines of problem files: their PDDL must parse and their reference plans must succeed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from planward.core.lines import find_file
from planward.core.records import Record
from planward.core.tasks import InvalidLine, Task, parse_record
from planward.core.verdicts import VerifierError
from planward.pddl.expressions import PddlError, UnsupportedError
from planward.pddl.language import Problem
from planward.pddl.search import SearchLimitError, UnsolvableError
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.identity import ProblemIdentity, identify_problem
from planward.tasks.planning.references import find_reference_plan
from planward.val import InputError, check_files, check_known_verdicts
from planward.val.known_problem import UNDECIDED

T = TypeVar("T")
MAX_PLAN_EXPANSION = 2_000_000  # atoms of a reference plan's actions, quantifiers expanded


class LineValidator:
    """Validates the lines of a folder of problems; VAL judges the first reference plan for each domain file."""

    def __init__(
        self, task: Task, params: PlanningParams, root: Path, load_problem: Callable[[str, str], Problem]
    ) -> None:
        """`load_problem` loads the files that a line names; the verifier of `task` uses it too, so it may cache."""
        self.task, self.params, self.root, self.load_problem = task, params, root, load_problem
        self.accepted_domains: set[str] = set()  # digests of domain files that VAL accepts

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """See `Task.validate_line`."""
        record, core, digest = self.validate_problem(line, domain)
        if digest not in self.accepted_domains:
            self.check_domain(record)
            self.accepted_domains.add(digest)
        return record, core

    def validate_problem(self, line: dict[str, Any], domain: str) -> tuple[Record, str, str]:
        """See `SplitValidation.validate_problem`; the key is a digest of the domain file."""
        record = parse_record(line, domain)
        paths = find_file(self.root, record.meta.domain_file), find_file(self.root, record.meta.problem_file)
        if domain not in self.params.difficulty:
            raise InvalidLine(f"unknown domain: {domain!r} has no entry under `difficulty` in params.yaml")
        try:
            load = partial(self.load_problem, record.meta.domain_file, record.meta.problem_file)
            identity: ProblemIdentity = identify_problem(*paths, load)
            if not identity.is_plain:
                self._call_verifier(lambda: check_files(*paths, self.params.val.timeout))
            if not record.response:
                plan = find_reference_plan(*paths, self.params.problems)
                record = record.model_copy(update={"response": "\n".join(plan)})
            if (record.response or "").count("(") * identity.action_size > MAX_PLAN_EXPANSION:
                raise InvalidLine("bad reference plan: its actions have too many atoms when quantifiers are expanded")
            verdict = self._call_verifier(lambda: self.task.verify(record, record.response or ""))
        except UnsupportedError as error:
            raise InvalidLine(f"no reference plan: {self._shorten(error)}") from None
        except (PddlError, InputError) as error:
            raise InvalidLine(f"bad PDDL: {self._shorten(error)}") from None
        except RecursionError:
            raise InvalidLine(f"bad PDDL: {record.meta.problem_file}: nested too deeply") from None
        except (UnsolvableError, SearchLimitError) as error:
            raise InvalidLine(f"no reference plan: {error}") from None
        if not verdict.success:
            raise InvalidLine(f"bad reference plan: {verdict.label}: {verdict.detail}")
        if not verdict.plan:
            raise InvalidLine("nothing to plan: the goal holds at the start")
        record = record.model_copy(update={"id": identity.id, "constrained": identity.constrained})
        return record, identity.core[:16], hashlib.sha256(paths[0].read_bytes()).hexdigest()

    def check_domain(self, record: Record) -> None:
        """Raise InvalidLine where VAL, which supports less than the parser, rejects the domain or the reference."""
        try:
            verdict = self._call_verifier(lambda: self.task.judge([(record, record.response or "")])[0])
        except InputError as error:
            raise InvalidLine(f"bad PDDL: {self._shorten(error)}") from None
        if not verdict.success:
            raise InvalidLine(f"bad reference plan: VAL says {verdict.label}: {verdict.detail}")

    def _call_verifier(self, verify: Callable[[], T]) -> T:
        """Return what VAL says; raises InvalidLine where it says nothing on this line and works on a known problem.

        Raises:
            VerifierError: VAL is broken.
        """
        try:
            return verify()
        except VerifierError as error:
            check_known_verdicts(self.params.val.timeout)
            warnings.warn(str(error), stacklevel=2)  # not in the quarantine: times and folders differ between runs
            raise InvalidLine(UNDECIDED) from None

    def _shorten(self, error: Exception) -> str:
        """Format an error with paths relative to the data root."""
        return str(error).replace(f"{self.root}/", "")

"""The planning task: PDDL problems, judged in-process in training and by VAL for every published number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from planward import val
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming
from planward.core.verdicts import Label, Outcome, Verdict
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.renaming import invert_names, rename_plan, rename_problem, rename_problem_text, sample_object_names
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.difficulty import parse_difficulty
from planward.tasks.planning.examples import sample_examples
from planward.tasks.planning.identity import identify_problem
from planward.tasks.planning.lines import LineValidator
from planward.tasks.planning.prompt import render_compact_prompt, render_full_prompt
from planward.tasks.planning.reward import build_verdict
from planward.tasks.planning.sources import generate_domain_records, prepare_problems

MIN_PLANS_WITH_PROGRESS = 200  # VAL takes seconds for more, so a progress bar is shown


class PlanningTask:
    """Implements `planward.core.tasks.Task` for problems whose PDDL files are below `root`."""

    name = "planning"
    labels = tuple(map(str, Label))

    def __init__(self, params: PlanningParams, root: Path) -> None:
        self.params, self.root = params, root
        self.domains = tuple(params.difficulty)
        self.line_validator = LineValidator(self, params, root)
        self.load_problem = lru_cache(maxsize=4096)(self._load_problem)
        self.build_verifier = lru_cache(maxsize=64)(lambda *files: PlanVerifier(self.load_problem(*files)))
        self.compute_core = cache(lambda *files: identify_problem(*(root / file for file in files)).core)

    def prepare_problems(self, folder: Path) -> None:
        prepare_problems(self.params, folder)

    def generation_units(self) -> list[str]:
        """The domains to generate; each has its own random generator."""
        problems = self.params.problems
        return list(problems.generated) if problems.source == "generated" else []

    def generate_unit(self, unit: str, folder: Path) -> Iterator[Record]:
        return generate_domain_records(self.params, unit, folder)

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        return self.line_validator.validate_line(line, domain)

    def score_difficulty(self, problem: Record) -> float | None:
        """Parse the difficulty from the file's name; None where the name does not match the domain's pattern."""
        return parse_difficulty(problem.meta.problem_file, self.params.difficulty[problem.domain])

    def select_examples(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        return sample_examples(problem, pool, count, seed)

    def draw_renaming(self, problem: Record, seed: str) -> Renaming:
        """Exchange names as `pddl.renaming` allows; empty for PDDL that only VAL supports."""
        try:
            return sample_object_names(self._load(problem), Random(f"{seed}:{problem.id}"))
        except UnsupportedError:
            return NO_RENAMING

    def core_digest(self, problem: Record) -> str:
        """Digest of the problem without constraints; of its words for PDDL that only VAL supports."""
        return str(self.compute_core(problem.meta.domain_file, problem.meta.problem_file))

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str | Messages:
        if self.params.prompt.style == "compact":
            renamed = rename_problem(self._load(problem), renaming) if renaming else self._load(problem)
            return render_compact_prompt(renamed, [(self._load(e), self.reference_completion(e)) for e in examples])
        texts = [(self._read_text(e.meta.problem_file), self.reference_completion(e)) for e in examples]
        text = rename_problem_text(self._read_text(problem.meta.problem_file), renaming)
        return render_full_prompt(self._read_text(problem.meta.domain_file), text, texts)

    def reference_completion(self, problem: Record, renaming: Renaming = NO_RENAMING) -> str:
        """Return the reference plan, one action per line; raises ValueError where the record has none."""
        plan = extract_plan(problem.response or "")
        if not plan:
            raise ValueError(f"{problem.id or problem.meta.problem_file}: the record holds no reference plan")
        return rename_plan("\n".join(plan), renaming)

    def undo_renaming(self, completion: str, renaming: Renaming) -> str:
        return rename_plan(completion, invert_names(renaming)) if renaming else completion

    def verify(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> Verdict:
        completion = self.undo_renaming(completion, renaming)
        plan = extract_plan(completion)
        if plan is None:
            return _build_prose_verdict()
        try:
            verifier = self.build_verifier(problem.meta.domain_file, problem.meta.problem_file)
            return build_verdict(verifier.verify(plan), plan)
        except UnsupportedError as reason:
            warnings.warn(f"VAL judges {problem.domain}: {reason}", stacklevel=2)
            return self.judge([(problem, completion)])[0]

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        plans = [extract_plan(completion) for _, completion in pairs]
        jobs = [
            (self.root / record.meta.domain_file, self.root / record.meta.problem_file, "\n".join(plan))
            for (record, _), plan in zip(pairs, plans, strict=True)
            if plan is not None
        ]
        limits = self.params.val
        caption = "VAL" if len(jobs) > MIN_PLANS_WITH_PROGRESS else None
        outcomes = iter(val.validate_many(jobs, limits.timeout, limits.workers, caption))
        return [_build_prose_verdict() if plan is None else build_verdict(next(outcomes), plan) for plan in plans]

    def _load(self, record: Record) -> Problem:
        return self.load_problem(record.meta.domain_file, record.meta.problem_file)

    def _load_problem(self, domain_file: str, problem_file: str) -> Problem:
        return load_problem(self.root / problem_file, load_domain(self.root / domain_file))

    def _read_text(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")


def _build_prose_verdict() -> Verdict:
    return build_verdict(Outcome(Label.FORMAT, 0, detail="no plan in the completion"), [])

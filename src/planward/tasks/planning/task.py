"""The planning task: PDDL problems, judged in-process while training and by VAL for every published number."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from planward import val
from planward.params import Params
from planward.pddl.expressions import Unsupported
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.renaming import random_names, renamed_plan, renamed_problem, renamed_problem_text, undone
from planward.pddl.simulation import PlanChecker
from planward.records import Label, Outcome, Record, Verdict
from planward.tasks.base import AS_IS, Alias, Messages
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.difficulty import difficulty_score
from planward.tasks.planning.examples import drawn_shots
from planward.tasks.planning.identity import identified
from planward.tasks.planning.lines import Lines
from planward.tasks.planning.prompt import compact_prompt, full_prompt
from planward.tasks.planning.reward import verdict
from planward.tasks.planning.sources import bring

LONG = 200  # plans; VAL takes seconds for more, which deserve a progress bar


class PlanningTask:
    """Implements `planward.tasks.base.Task` for problems whose PDDL files lie under `root`."""

    name = "planning"
    labels = tuple(map(str, Label))

    def __init__(self, params: Params, root: Path) -> None:
        self.params, self.root = params, root
        self.domains = tuple(params.difficulty)
        self.lines = Lines(self, params, root)
        self.problem = lru_cache(maxsize=4096)(self._problem)
        self.checker = lru_cache(maxsize=64)(lambda *files: PlanChecker(self.problem(*files)))
        self.core_of = cache(lambda *files: identified(*(root / file for file in files)).core)

    def bring(self, folder: Path) -> None:
        bring(self.params, folder)

    def admitted(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        return self.lines.admitted(line, domain)

    def difficulty(self, problem: Record) -> float | None:
        """Read from the file's name; None where the name does not match the domain's pattern."""
        return difficulty_score(problem.meta.problem_file, self.params.difficulty[problem.domain])

    def shots(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        return drawn_shots(problem, pool, count, seed)

    def alias(self, problem: Record, seed: str) -> Alias:
        """Names exchanged as `pddl.renaming` allows; none for PDDL that only VAL reads."""
        try:
            return random_names(self._parsed(problem), Random(f"{seed}:{problem.id}"))
        except Unsupported:
            return AS_IS

    def core(self, problem: Record) -> str:
        """The problem's digest without constraints; of its words for PDDL that only VAL reads."""
        return str(self.core_of(problem.meta.domain_file, problem.meta.problem_file))

    def prompt(self, problem: Record, shots: Sequence[Record], alias: Alias = AS_IS) -> str | Messages:
        if self.params.prompt.style == "compact":
            query = renamed_problem(self._parsed(problem), alias) if alias else self._parsed(problem)
            return compact_prompt(query, [(self._parsed(s), self.answer(s)) for s in shots])
        texts = [(self._text(s.meta.problem_file), self.answer(s)) for s in shots]
        asked = renamed_problem_text(self._text(problem.meta.problem_file), alias)
        return full_prompt(self._text(problem.meta.domain_file), asked, texts)

    def answer(self, problem: Record, alias: Alias = AS_IS) -> str:
        """The reference plan, one action a line; raises ValueError where the record has none."""
        plan = extract_plan(problem.response or "")
        if not plan:
            raise ValueError(f"{problem.id or problem.meta.problem_file}: the record holds no reference plan")
        return renamed_plan("\n".join(plan), alias)

    def original(self, completion: str, alias: Alias) -> str:
        return renamed_plan(completion, undone(alias)) if alias else completion

    def verify(self, problem: Record, completion: str, alias: Alias = AS_IS) -> Verdict:
        completion = self.original(completion, alias)
        plan = extract_plan(completion)
        if plan is None:
            return _prose()
        try:
            checker = self.checker(problem.meta.domain_file, problem.meta.problem_file)
            return verdict(checker.check(plan), plan)
        except Unsupported as reason:
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
        caption = "VAL" if len(jobs) > LONG else None
        outcomes = iter(val.validate_many(jobs, limits.timeout, limits.workers, caption))
        return [_prose() if plan is None else verdict(next(outcomes), plan) for plan in plans]

    def _parsed(self, record: Record) -> Problem:
        return self.problem(record.meta.domain_file, record.meta.problem_file)

    def _problem(self, domain_file: str, problem_file: str) -> Problem:
        return load_problem(self.root / problem_file, load_domain(self.root / domain_file))

    def _text(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")


def _prose() -> Verdict:
    outcome = Outcome(Label.FORMAT, 0, detail="no plan in the completion")
    return verdict(outcome, [])

"""Compare the in-process verifier with VAL; docs/reference/agreement.md says what is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from candidate_plans import Candidate
from planward import val
from planward.core.verdicts import Label, Outcome
from planward.pddl.language import Problem
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.domains import GENERATED_DOMAINS, find_plan
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.domains.instances import Instance
from planward.val.inputs import read_inputs
from planward.val.plans import FormatError, parse_plan

MAX_SAMPLES = 100  # problems to sample until one meets the conditions


@dataclass(frozen=True)
class Disagreement:
    """A plan on which the verifiers differ; where one of them raised an error, its text is the outcome."""

    candidate: Candidate
    in_process: Outcome | str
    by_val: Outcome | str

    def __str__(self) -> str:
        sides = (("in-process", self.in_process), ("VAL", self.by_val))
        verdicts = "".join(
            f"\n    {name}: {' '.join(map(str, select_compared_fields(outcome)))}" for name, outcome in sides
        )
        return f"{self.candidate.kind}: {' '.join(map(ascii, self.candidate.plan))}{verdicts}"


@dataclass
class Agreement:
    """Counts of compared plans, of their kinds and of VAL's labels, and the disagreements.

    VAL's process ran for `val_runs` of the plans; the others are format errors that `planward.val` finds itself.
    """

    plans: int = 0
    val_runs: int = 0
    labels: Counter[Label] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)

    def __iadd__(self, other: Agreement) -> Agreement:
        self.plans += other.plans
        self.val_runs += other.val_runs
        self.labels += other.labels
        self.kinds += other.kinds
        self.disagreements += other.disagreements
        return self


def compare_verifiers(
    problem: Problem,
    domain_file: Path,
    problem_file: Path,
    candidates: Iterable[Candidate],
    timeout: float = val.DEFAULT_TIMEOUT_S,
) -> Agreement:
    """Judge every plan in-process for `problem`, and by VAL with the files, one process at a time.

    Args:
        timeout: seconds for one run of VAL.

    Raises:
        UnsupportedError: only VAL can judge the problem.
        InputError: brackets or sections of the files are invalid; what VAL's own parser finds counts as an outcome.
    """
    agreement, verifier, inputs = Agreement(), PlanVerifier(problem), read_inputs(domain_file, problem_file)
    for candidate in candidates:
        text = "\n".join(candidate.plan)
        by_val = _capture_outcome(partial(val.validate, domain_file, problem_file, text, timeout))
        in_process = _capture_outcome(partial(verifier.verify, candidate.plan))
        agreement.plans += 1
        agreement.kinds[candidate.kind] += 1
        if isinstance(by_val, Outcome):
            agreement.labels[by_val.label] += 1
        with suppress(FormatError):
            parse_plan(text, inputs)
            agreement.val_runs += 1
        if select_compared_fields(in_process) != select_compared_fields(by_val):
            agreement.disagreements.append(Disagreement(candidate, in_process, by_val))
    return agreement


def select_compared_fields(outcome: Outcome | str) -> tuple[object, ...]:
    """Return the fields of an outcome that the verifiers must agree on: all but the explanation."""
    if isinstance(outcome, str):
        return (outcome,)
    return outcome.label, outcome.failing_step, outcome.plan_size, outcome.goals_satisfied, outcome.goals_total


def sample_instance(rng: Random, domain: str, sizes: Mapping[str, tuple[int, int]], safety: bool) -> Instance:
    """Sample a generated problem whose goal is initially open; with `safety`, under satisfiable constraints.

    Args:
        sizes: smallest and largest value of each size, as in `problems.generated` of params.yaml.

    Raises:
        RuntimeError: no problem of these sizes was sampled that meets the conditions.
    """
    for _ in range(MAX_SAMPLES):
        sampled_sizes = {name: rng.randint(*bounds) for name, bounds in sizes.items()}
        instance = GENERATED_DOMAINS[domain].generate(rng, sampled_sizes)
        if set(instance.init) >= set(instance.goal) or not (plan := find_plan(domain, instance)):
            continue
        if not safety:
            return instance
        if result := constrain_instance(rng, domain, instance, plan):
            return result[0]
    raise RuntimeError(f"{domain}: none of {MAX_SAMPLES} sampled problems meets the conditions")


def extract_candidates(completions: Iterable[str]) -> list[Candidate]:
    """Return the distinct plans in models' completions; a completion without a plan reaches no verifier."""
    plans = dict.fromkeys(tuple(plan) for text in completions if (plan := extract_plan(text)) is not None)
    return [Candidate("model", plan) for plan in plans]


def _capture_outcome(judge: Callable[[], Outcome]) -> Outcome | str:
    """Return the outcome, or the error raised instead: a verifier that fails on a plan is a finding."""
    try:
        return judge()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

"""Add safety constraints to generated problems, and keep the problems solvable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from planward.core.verdicts import Label
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, find_plan
from planward.tasks.planning.domains.instances import Instance

MAX_SAMPLES = 20  # sets of constraints to try before a problem stays without


def constrain_instance(
    rng: Random, domain: str, instance: Instance, plan: Sequence[str]
) -> tuple[Instance, list[str]] | None:
    """Add constraints to a problem, with a plan that satisfies them.

    Constraints that `plan`, a plan for the instance, violates are preferred to those that it satisfies anyway.

    Returns:
        The constrained instance and its plan; None where no sample had a plan among those of `iter_plans`.
    """
    fallback = None
    for _ in range(MAX_SAMPLES):
        candidate = replace(instance, constraints=GENERATED_DOMAINS[domain].sample_constraints(rng, instance))
        if not candidate.constraints:
            continue
        if PlanVerifier(build_problem(domain, candidate)).verify(plan).label is not Label.SAFETY:
            fallback = fallback or candidate
        elif other := find_plan(domain, candidate):
            return candidate, other
    return (fallback, list(plan)) if fallback else None

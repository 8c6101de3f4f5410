"""Add safety constraints to generated problems, and keep the problems solvable."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from planward.core.verdicts import Label
from planward.pddl.grounding import ground_problem
from planward.pddl.search import SearchLimitError, UnsolvableError, find_shortest_plan
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem
from planward.tasks.planning.domains.instances import Instance

MAX_SAMPLES = 10  # sets of constraints to try before a problem stays without


def constrain_instance(
    rng: Random, domain: str, instance: Instance, plan: list[str], max_states: int
) -> tuple[Instance, list[str]] | None:
    """Add constraints to a problem, and find a shortest plan that satisfies them.

    Constraints that `plan`, a plan for the instance, violates are preferred to those that it satisfies anyway.

    Returns:
        The constrained instance and its plan; None where no sample was solvable within `max_states` states.
    """
    satisfied = None
    for _ in range(MAX_SAMPLES):
        candidate = replace(instance, constraints=GENERATED_DOMAINS[domain].sample_constraints(rng, instance))
        if not candidate.constraints:
            continue
        problem = build_problem(domain, candidate)
        if PlanVerifier(problem).verify(plan).label is not Label.SAFETY:
            satisfied = satisfied or candidate
            continue
        try:
            return candidate, find_shortest_plan(ground_problem(problem), max_states)
        except (UnsolvableError, SearchLimitError):
            continue
    return (satisfied, plan) if satisfied else None

"""How well the base model solves problems that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import Any

from planward.core.hashing import hash_fraction
from planward.core.verdicts import Label
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem
from planward.pddl.search import find_shortest_plan
from planward.pddl.simulation import verify_plan
from planward.pretraining.base_model import sample_sizes
from planward.pretraining.config import BaseModelConfig
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.dialects import Dialect, sample_dialect
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.prompt import render_compact_prompt

SHOT_NUMS = (0, 1, 4)
MAX_NEW_TOKENS = 48
BATCH_SIZE = 60
MAX_STATES = 10**6  # of a search


def compute_held_out_metrics(params: BaseModelConfig, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Success of greedy plans on held-out problems, plain and in dialects, by number of worked examples."""
    from planward.inference.decoding import generate_greedy

    solved = draw_held_out_problems(params)
    metrics: dict[str, Any] = {"held_out_problems": len(solved)}
    for name, in_dialects in ("plain", False), ("dialects", True):
        rng = Random(params.seed + 2)
        dialects = [sample_dialect(domain, rng) if in_dialects else None for domain, _, _ in solved]
        for shot_num in SHOT_NUMS:
            queries = list[tuple[Problem, str]]()
            for (domain, problem, _), dialect in zip(solved, dialects, strict=True):
                others = [(p, plan) for d, p, plan in solved if d == domain and p is not problem]
                examples = [translate(p, plan, dialect) for p, plan in rng.sample(others, shot_num)]
                query, _ = translate(problem, [], dialect)
                queries.append((query, render_compact_prompt(query, [(p, "\n".join(plan)) for p, plan in examples])))
            prompts = [tokenizer(prompt).input_ids for _, prompt in queries]
            completions = generate_greedy(
                model, tokenizer, prompts, max_new_tokens=MAX_NEW_TOKENS, batch_size=BATCH_SIZE
            )
            success = [
                (plan := extract_plan(completion)) is not None and verify_plan(query, plan).label == Label.SUCCESS
                for (query, _), completion in zip(queries, completions, strict=True)
            ]
            constraints = ["with" if problem.constraints else "without" for _, problem, _ in solved]
            metrics[f"{name}_{shot_num}_shots"] = {
                "success_rate": fmean(success),
                "by_domain": compute_rates(success, [domain for domain, _, _ in solved]),
                "by_constraints": compute_rates(success, constraints),
            }
    return metrics


def translate(problem: Problem, plan: list[str], dialect: Dialect | None) -> tuple[Problem, list[str]]:
    """A problem and its plan in a dialect; unchanged without one."""
    return (dialect.translate_problem(problem), dialect.translate_plan(plan)) if dialect else (problem, plan)


def compute_rates(success: Sequence[bool], groups: Sequence[str]) -> dict[str, float]:
    """The success rate in each group."""
    return {
        group: fmean(solved for solved, of in zip(success, groups, strict=True) if of == group)
        for group in dict.fromkeys(groups)
    }


def draw_held_out_problems(params: BaseModelConfig) -> list[tuple[str, Problem, list[str]]]:
    """Problems outside the base's share of the problem space with shortest plans, `validation` per domain."""
    rng, problems = Random(params.seed + 1), list[tuple[str, Problem, list[str]]]()
    for domain, ranges in params.problems.items():
        by_core: dict[str, tuple[str, Problem, list[str]]] = {}
        while len(by_core) < params.validation:
            instance = GENERATED_DOMAINS[domain].generate(rng, sample_sizes(rng, ranges))
            problem = build_problem(domain, instance)
            core = hash_without_constraints(problem)
            if problem.init >= set(instance.goal) or hash_fraction(core, "base") < params.base_share:
                continue
            plan = find_shortest_plan(ground_problem(problem), max_states=MAX_STATES)
            if rng.random() < params.constrained_share and (
                constrained := constrain_instance(rng, domain, instance, plan, max_states=MAX_STATES)
            ):
                problem, plan = build_problem(domain, constrained[0]), constrained[1]
            by_core[core] = (domain, problem, plan)
        problems += by_core.values()
    return problems

"""base: train the shipped tiny model from nothing. Its own pipeline: models/base/dvc.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from planward.params import Base, load_base_params
from planward.pddl import safety
from planward.pddl.canonical import core_hash, fraction
from planward.pddl.dialects import Dialect, random_dialect
from planward.pddl.generators import GENERATORS, generated_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem
from planward.pddl.search import shortest_plan
from planward.pddl.simulation import check_plan
from planward.records import Label, write_json
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.prompt import compact_prompt

FOLDER = Path("models/base")
CHECKPOINTS = Path(".checkpoints/base")
SHOTS = (0, 1, 4)  # worked examples, in metrics.json


def run() -> None:
    from planward.training.pretraining import pretrain

    params = load_base_params(FOLDER / "params.yaml")
    model, tokenizer = pretrain(params, CHECKPOINTS)
    model.save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    metrics = {
        "parameters": model.num_parameters(),
        "training_tokens": params.steps * params.batch_tokens,
        **held_out_metrics(params, model, tokenizer),
    }
    write_json(FOLDER / "metrics.json", metrics)
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)


def held_out_metrics(params: Base, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Success on problems that the model was not trained on, greedy, plain and in dialects, by worked examples."""
    from planward.evaluation.generation import greedy_completions

    solved = held_out_problems(params)
    metrics: dict[str, Any] = {"held_out_problems": len(solved)}
    for name, dialects in ("plain", False), ("dialects", True):
        rng = Random(params.seed + 2)
        tongues = [random_dialect(domain, rng) if dialects else None for domain, _, _ in solved]
        for count in SHOTS:
            asked = list[tuple[Problem, str]]()
            for (domain, problem, _), tongue in zip(solved, tongues, strict=True):
                others = [(p, plan) for d, p, plan in solved if d == domain and p is not problem]
                shots = [spoken(p, plan, tongue) for p, plan in rng.sample(others, count)]
                query, _ = spoken(problem, [], tongue)
                asked.append((query, compact_prompt(query, [(p, "\n".join(plan)) for p, plan in shots])))
            prompts = [tokenizer(prompt).input_ids for _, prompt in asked]
            completions = greedy_completions(model, tokenizer, prompts, max_new_tokens=48, batch_size=60)
            hits = [
                (plan := extract_plan(completion)) is not None and check_plan(query, plan).label == Label.SUCCESS
                for (query, _), completion in zip(asked, completions, strict=True)
            ]
            found: dict[str, Any] = {"success_rate": fmean(hits)}
            found["by_domain"] = rates(hits, [domain for domain, _, _ in solved])
            found["by_constraints"] = rates(hits, ["with" if p.constraints else "without" for _, p, _ in solved])
            metrics[f"{name}_{count}_shots"] = found
    return metrics


def spoken(problem: Problem, plan: list[str], dialect: Dialect | None) -> tuple[Problem, list[str]]:
    """A problem and its plan in a dialect."""
    return (dialect.problem(problem), dialect.translated(plan)) if dialect else (problem, plan)


def rates(solved: Sequence[bool], groups: Sequence[str]) -> dict[str, float]:
    """The share of solved problems in each group."""
    return {
        group: fmean(hit for hit, of in zip(solved, groups, strict=True) if of == group)
        for group in dict.fromkeys(groups)
    }


def held_out_problems(params: Base) -> list[tuple[str, Problem, list[str]]]:
    """Problems from outside the base's share of the problem space with shortest plans, `validation` a domain."""
    from planward.training.pretraining import drawn_sizes

    rng, problems = Random(params.seed + 1), list[tuple[str, Problem, list[str]]]()
    for domain, ranges in params.problems.items():
        found: dict[str, tuple[str, Problem, list[str]]] = {}
        while len(found) < params.validation:
            instance = GENERATORS[domain](rng, drawn_sizes(rng, ranges))
            problem = generated_problem(domain, instance)
            digest = core_hash(problem)
            if problem.init >= set(instance.goal) or fraction(digest, "base") < params.base_share:
                continue
            plan = shortest_plan(ground_problem(problem), max_states=10**6)
            if rng.random() < params.constrained_share and (
                drawn := safety.constrained(rng, domain, instance, plan, max_states=10**6)
            ):
                problem, plan = generated_problem(domain, drawn[0]), drawn[1]
            found[digest] = (domain, problem, plan)
        problems += found.values()
    return problems

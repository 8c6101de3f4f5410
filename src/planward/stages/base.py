"""base: train the shipped tiny model from nothing. Its own pipeline: models/base/dvc.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean

from planward.params import Base, load_base_params
from planward.pddl import safety
from planward.pddl.canonical import core_hash, fraction
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


def run() -> None:
    from planward.evaluation.generation import greedy_completions
    from planward.training.pretraining import pretrain

    params = load_base_params(FOLDER / "params.yaml")
    model, tokenizer = pretrain(params, CHECKPOINTS)
    model.save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    problems = held_out_problems(params)
    prompts = [tokenizer(compact_prompt(problem, [])).input_ids for _, problem in problems]
    completions = greedy_completions(model, tokenizer, prompts, max_new_tokens=48, batch_size=60)
    solved = [
        (plan := extract_plan(completion)) is not None and check_plan(problem, plan).label == Label.SUCCESS
        for (_, problem), completion in zip(problems, completions, strict=True)
    ]
    metrics = {
        "parameters": model.num_parameters(),
        "training_tokens": params.steps * params.batch_size * params.sequence_length,
        "held_out_problems": len(problems),
        "success_rate": fmean(solved),
        "success_rate_by_domain": rates(solved, [domain for domain, _ in problems]),
        "success_rate_by_constraints": rates(solved, ["with" if p.constraints else "without" for _, p in problems]),
    }
    write_json(FOLDER / "metrics.json", metrics)
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)


def rates(solved: Sequence[bool], groups: Sequence[str]) -> dict[str, float]:
    """The share of solved problems in each group."""
    return {
        group: fmean(hit for hit, of in zip(solved, groups, strict=True) if of == group)
        for group in dict.fromkeys(groups)
    }


def held_out_problems(params: Base) -> list[tuple[str, Problem]]:
    """Problems from outside the base's share of the problem space, `validation` a domain."""
    from planward.training.pretraining import drawn_sizes

    rng, problems = Random(params.seed + 1), []
    for domain, ranges in params.problems.items():
        found: dict[str, Problem] = {}
        while len(found) < params.validation:
            instance = GENERATORS[domain](rng, drawn_sizes(rng, ranges))
            problem = generated_problem(domain, instance)
            digest = core_hash(problem)
            if problem.init >= set(instance.goal) or fraction(digest, "base") < params.base_share:
                continue
            if rng.random() < params.constrained_share:
                plan = shortest_plan(ground_problem(problem), max_states=10**6)
                if constrained := safety.constrained(rng, domain, instance, plan, max_states=10**6):
                    problem = generated_problem(domain, constrained[0])
            found[digest] = problem
        problems += [(domain, problem) for problem in found.values()]
    return problems

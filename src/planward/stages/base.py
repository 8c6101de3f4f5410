"""base: train the shipped tiny model from nothing. Its own pipeline: models/base/dvc.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from planward.params import Base, load_base_params
from planward.pddl.canonical import canonical_hash, fraction
from planward.pddl.generators import GENERATORS, generated_problem
from planward.pddl.language import Problem
from planward.pddl.simulation import check_plan
from planward.records import write_json
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
    solved = dict.fromkeys(params.problems, 0)
    for (domain, problem), completion in zip(problems, completions, strict=True):
        plan = extract_plan(completion)
        solved[domain] += plan is not None and check_plan(problem, plan).label == "success_plans"
    metrics = {
        "parameters": model.num_parameters(),
        "training_tokens": params.steps * params.batch_size * params.sequence_length,
        "held_out_problems": len(problems),
        "success_rate": sum(solved.values()) / len(problems),
        "success_rate_by_domain": {domain: count / params.validation for domain, count in solved.items()},
    }
    write_json(FOLDER / "metrics.json", metrics)
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)


def held_out_problems(params: Base) -> list[tuple[str, Problem]]:
    """Problems from outside the base's share of the problem space, `validation` a domain."""
    from planward.training.pretraining import drawn_sizes

    rng, problems = Random(params.seed + 1), []
    for domain, ranges in params.problems.items():
        found: dict[str, Problem] = {}
        while len(found) < params.validation:
            problem = generated_problem(domain, GENERATORS[domain](rng, drawn_sizes(rng, ranges)))
            digest = canonical_hash(problem)
            unsolved = problem.satisfied_goals(problem.init) < len(problem.goal)
            if unsolved and fraction(digest, "base") >= params.base_share:
                found[digest] = problem
        problems += [(domain, problem) for problem in found.values()]
    return problems

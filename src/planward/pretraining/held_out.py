"""How well the base model solves problems that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import Any

from planward.core.hashing import hash_fraction
from planward.core.verdicts import Label
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.language import Problem
from planward.pddl.simulation import verify_plan
from planward.pretraining.base_model import SolvedProblem, sample_sizes
from planward.pretraining.config import BaseModelConfig
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.dialects import Dialect, sample_dialect
from planward.tasks.planning.domains import KNOWN_DOMAINS, build_problem, find_plan
from planward.tasks.planning.lexicon import build_lexicon, render_prompt
from planward.tasks.planning.prompt import render_compact_prompt

SHOT_NUMS = (0, 1, 4)
MAX_NEW_TOKENS = 192  # of neutral symbols, four or so for each action
BATCH_SIZE = 60


def compute_held_out_metrics(params: BaseModelConfig, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Success of greedy plans on held-out problems by number of worked examples, under three vocabularies.

    `plain` has the domains' tokens, `dialects` hide a dialect in them, `neutral` describes the domain's actions.
    """
    from planward.inference.decoding import generate_greedy

    problems = draw_held_out_problems(params)
    metrics: dict[str, Any] = {"held_out_problems": len(problems)}
    for vocabulary in ("plain", "dialects", "neutral"):
        rng = Random(params.seed + 2)
        dialects = [sample_dialect(domain, rng) if vocabulary == "dialects" else None for domain, _ in problems]
        for shot_num in SHOT_NUMS:
            queries, prompts = list[Problem](), list[str]()
            for (domain, pair), dialect in zip(problems, dialects, strict=True):
                others = [other for name, other in problems if name == domain and other is not pair]
                examples = [translate(other, dialect) for other in rng.sample(others, shot_num)]
                query, _ = translate(pair, dialect)
                queries.append(query)
                texts = [(example, "\n".join(plan)) for example, plan in examples]
                if vocabulary == "neutral":
                    lexicons = [(build_lexicon(example, neutral=True), plan) for example, plan in texts]
                    prompts.append(render_prompt(build_lexicon(query, neutral=True), lexicons))
                else:
                    prompts.append(render_compact_prompt(query, texts))
            completions = generate_greedy(
                model, tokenizer, [tokenizer(prompt).input_ids for prompt in prompts], MAX_NEW_TOKENS, BATCH_SIZE
            )
            if vocabulary == "neutral":
                pairs = zip(queries, completions, strict=True)
                completions = [build_lexicon(query, neutral=True).decode_plan(text) for query, text in pairs]
            success = list(map(is_solved, queries, completions))
            metrics[f"{vocabulary}_{shot_num}_shots"] = {
                "success_rate": fmean(success),
                "by_domain": compute_rates(success, [domain for domain, _ in problems]),
            }
    return metrics


def translate(solved: SolvedProblem, dialect: Dialect | None) -> SolvedProblem:
    """Translate a problem and its plan to a dialect; unchanged without one."""
    problem, plan = solved
    return (dialect.translate_problem(problem), dialect.translate_plan(plan)) if dialect else solved


def is_solved(problem: Problem, completion: str) -> bool:
    """Return whether the completion holds a plan that solves the problem."""
    plan = extract_plan(completion)
    return plan is not None and verify_plan(problem, plan).label == Label.SUCCESS


def compute_rates(success: Sequence[bool], groups: Sequence[str]) -> dict[str, float]:
    """The success rate in each group."""
    return {
        group: fmean(is_success for is_success, of in zip(success, groups, strict=True) if of == group)
        for group in dict.fromkeys(groups)
    }


def draw_held_out_problems(params: BaseModelConfig) -> list[tuple[str, SolvedProblem]]:
    """Draw `validation` solved problems per domain outside the base's share, of the last phase's sizes."""
    rng, problems = Random(params.seed + 1), list[tuple[str, SolvedProblem]]()
    for domain, ranges in params.phases[-1].problems.items():
        by_core: dict[str, SolvedProblem] = {}
        while len(by_core) < params.validation:
            instance = KNOWN_DOMAINS[domain].generate(rng, sample_sizes(rng, ranges))
            problem = build_problem(domain, instance)
            core = hash_without_constraints(problem)
            is_in_share = hash_fraction(core, "base") < params.base_share
            if not is_in_share and not problem.init >= set(instance.goal) and (plan := find_plan(domain, instance)):
                by_core[core] = problem, plan
        problems += ((domain, pair) for pair in by_core.values())
    return problems

"""Renamed problems have the same plans, verdicts and digests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candidate_plans import iter_distinct_plans
from planward.core import paths
from planward.core.records import Meta, Record, read_records
from planward.core.registry import load_task
from planward.core.verdicts import Label
from planward.params import Params
from planward.pddl.canonical import hash_problem, hash_without_constraints
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.renaming import (
    invert_names,
    rename_atom,
    rename_plan,
    rename_problem,
    rename_problem_text,
    sample_object_names,
)
from planward.pddl.simulation import PlanVerifier
from planward.stages import problems as problems_stage
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_generated_domain
from verifier_agreement import sample_instance, select_compared_fields

SIZES = {
    "blocksworld": {"blocks": (3, 5)},
    "ferry": {"locations": (2, 4), "cars": (2, 4)},
    "grippers": {"robots": (1, 2), "rooms": (2, 3), "objects": (2, 3)},
    "spanner": {"spanners": (2, 4), "nuts": (2, 3), "locations": (1, 3)},
    "delivery": {"width": (2, 3), "height": (1, 2), "packages": (2, 3)},
    "elevator": {"floors": (2, 2), "passengers": (1, 3)},  # floors of no passenger could be exchanged
}
# Stems of the names that are exchanged; the others describe positions, or whose gripper it is.
EXCHANGED_STEMS = {
    "blocksworld": {"b"},
    "ferry": {"l", "c"},
    "grippers": {"room", "ball"},
    "spanner": {"spanner", "nut"},
    "delivery": {"p"},
}


def sample_problem(rng: Random, domain: str) -> Problem:
    instance = sample_instance(rng, domain, SIZES[domain], safety=rng.random() < 0.5)
    return build_problem(domain, instance)


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_renaming_keeps_verdicts(domain: str, seed: int) -> None:
    rng = Random(seed)
    problem = sample_problem(rng, domain)
    names = sample_object_names(problem, rng)
    other = rename_problem(problem, names)
    assert hash_problem(other) == hash_problem(problem)
    assert hash_without_constraints(other) == hash_without_constraints(problem)
    verifier, renamed_verifier = PlanVerifier(problem), PlanVerifier(other)
    for candidate, _ in zip(iter_distinct_plans(other, rng, 2000), range(100), strict=False):
        text = "\n".join(candidate.plan)
        back = rename_plan(text, invert_names(names))
        assert rename_plan(back, names).lower() == text.lower()
        outcome, renamed_outcome = (
            verifier.verify(back.split("\n") if text else []),
            renamed_verifier.verify(candidate.plan),
        )
        assert select_compared_fields(outcome) == select_compared_fields(renamed_outcome)


@pytest.mark.parametrize("domain", EXCHANGED_STEMS)  # in elevator it depends on which floors are in use
@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_structural_names_stay(domain: str, seed: int) -> None:
    rng = Random(seed)
    problem = sample_problem(rng, domain)
    exchanged_names, static_atoms = set(), {atom for atom in problem.init if atom[0] not in problem.domain.fluents}
    for _ in range(20):
        names = sample_object_names(problem, rng)
        other = rename_problem(problem, names)
        exchanged_names |= set(names)
        assert list(other.objects.items()) == list(problem.objects.items())
        assert {atom for atom in other.init if atom[0] not in problem.domain.fluents} == static_atoms
        assert rename_problem(other, invert_names(names)) == problem
    assert {name.rstrip("0123456789") for name in exchanged_names} == EXCHANGED_STEMS[domain]


def test_constants_and_types_are_not_renamed() -> None:
    domain = parse_domain(
        "(define (domain yard) (:requirements :typing) (:types crate hook) (:constants c9 - crate)"
        " (:predicates (big ?c - crate) (on ?c - crate ?h - hook) (free ?h - hook))"
        " (:action lift :parameters (?c - crate ?h - hook) :precondition (free ?h)"
        " :effect (and (on ?c ?h) (not (free ?h)))))"
    )
    text = (
        "(define (problem c1) (:domain yard) (:objects c1 c2 c3 c4 - crate hook - hook)"
        " (:init (free hook) (big c1) (big c2)) (:goal (and (on c3 hook) (on c9 hook)))"
        " (:constraints (forall (?h - hook) (at-most-once (on c4 ?h)))))"
    )
    problem = parse_problem(text, domain)
    renamings = [sample_object_names(problem, Random(seed)) for seed in range(30)]
    assert set().union(*renamings) == {"c1", "c2", "c3", "c4"}
    # Big crates exchange names only with each other: otherwise other crates would be the big ones.
    assert all({names.get(name, name) for name in ("c1", "c2")} == {"c1", "c2"} for names in renamings)
    names = {"c1": "c2", "c2": "c1", "c3": "c4", "c4": "c3"}
    other = rename_problem(problem, names)
    assert parse_problem(rename_problem_text(text, names), domain).constraints == other.constraints
    assert "(on c3 ?h)" in rename_problem_text(text, names)
    assert "- hook)" in rename_problem_text(text, {"hook": "c1", "c1": "hook"})
    with pytest.raises(ValueError, match="does not permute"):
        rename_problem(problem, {"c1": "hook", "hook": "c1"})


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            (
                *("(stack b1 b2)", "( STACK B1\tb2 )", "(b1)", "(stack b1\nb2)", "(stack k1 b2)", "(stack \u212a1 b2)"),
                *("((stack b1 b2)", "(stack b3 b4)", "; (stack b1 b2)", "- b1", "0: ", "```", "<think>", "</think>"),
                *("\n", " ", "b1", ";", "\\", "1. ", "[PLAN END]", "(", ")"),
                *("(\nstack b1 b2\n)", "(\\\nstack\\\nb1 b2\\\n)"),
            )
        )
    ).map("".join)
)
def test_renaming_commutes_with_plan_extraction(completion: str) -> None:
    names = {"b1": "b2", "b2": "k1", "k1": "b1"}
    plan, other = extract_plan(completion), extract_plan(rename_plan(completion, names))
    assert other == (plan and rename_plan("\n".join(plan), names).split("\n"))


@pytest.mark.parametrize("style", ["compact", "full"])
def test_task_prompts_and_verifies_with_renamed_objects(
    project: Path, small: Callable[..., Params], style: str
) -> None:
    params = small(prompt={"style": style})
    problems_stage.run(params)
    task = load_task(params, project / paths.results().problems)
    records = list(read_records(paths.results().problems / "problems.jsonl"))
    records = [record.model_copy(update={"id": str(number)}) for number, record in enumerate(records)]
    renamings = [task.draw_renaming(record, "seed") for record in records]
    assert renamings == [task.draw_renaming(record, "seed") for record in records]
    assert sum(map(bool, renamings)) > len(records) / 2
    for record, example, renaming in zip(records, records[1:], renamings, strict=False):
        completion = task.reference_completion(record, renaming)
        verdict = task.verify(record, completion, renaming)
        assert verdict.success
        assert verdict.plan == record.response == task.undo_renaming(record, completion, renaming)
        assert task.rename_completion(record, verdict.plan, renaming) == completion
        plain, prompt = task.prompt(record, [example]), task.prompt(record, [example], renaming)
        assert task.prompt(record, [example], {}) == plain
        if renaming:
            goal = task.load_problem(record.meta.domain_file, record.meta.problem_file).goal
            atoms = [rename_atom(literal.atom, renaming) for literal in goal]
            assert all(f"({' '.join(atom)})" in str(prompt) for atom in atoms)
        if style == "compact":
            plain_query, renamed_query = task.prompt(record, []), task.prompt(record, [], renaming)
            assert isinstance(plain, str)
            assert isinstance(prompt, str)
            assert prompt == plain.removesuffix(str(plain_query)) + str(renamed_query)
        else:
            assert prompt[:-1] == plain[:-1]
            text = str(prompt[-1]["content"]).removeprefix("Problem:\n").removesuffix("\n\nPlan:")
            other = parse_problem(text, load_generated_domain(record.domain))
            assert PlanVerifier(other).verify(completion.split("\n")).label is Label.SUCCESS
    completions = [task.reference_completion(r, renaming) for r, renaming in zip(records, renamings, strict=True)]
    prompt_rows = zip(records, completions, renamings, strict=True)
    original = [task.undo_renaming(record, text, renaming) for record, text, renaming in prompt_rows]
    verdicts = task.judge(list(zip(records, original, strict=True)))
    assert all(verdict.success for verdict in verdicts)


def test_no_renaming_for_problems_that_only_val_reads(project: Path, small: Callable[..., Params]) -> None:
    domain = "(define (domain d) (:requirements :fluents) (:predicates (p)) (:functions (f)) (:action a :parameters ()"
    domain += " :precondition (> (f) 1) :effect (p)))"
    (project / "domain.pddl").write_text(domain)
    (project / "p.pddl").write_text("(define (problem p) (:domain d) (:init (= (f) 2)) (:goal (p)))")
    meta = Meta(scenario="d", domain_file="domain.pddl", problem_file="p.pddl")
    task = load_task(small(), project)
    assert task.draw_renaming(Record(prompt="", response="(a)", meta=meta, id="p"), "seed") == {}

"""A renamed problem is the same problem: same plans, same verdicts, same place in the split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.agreement import distinct_plans, drawn_instance, essence
from planward.params import Params
from planward.pddl.canonical import canonical_hash, core_hash
from planward.pddl.generators import GENERATORS, generated_domain, generated_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.renaming import random_names, renamed_plan, renamed_problem, renamed_problem_text, undone
from planward.pddl.simulation import PlanChecker
from planward.records import Label, Meta, Record, read_records
from planward.stages import problems as problems_stage
from planward.tasks import PROBLEMS, load_task
from planward.tasks.planning.completion import extract_plan

SIZES = {
    "blocksworld": {"blocks": (3, 5)},
    "ferry": {"locations": (2, 4), "cars": (2, 4)},
    "grippers": {"robots": (1, 2), "rooms": (2, 3), "objects": (2, 3)},
    "spanner": {"spanners": (2, 4), "nuts": (2, 3), "locations": (1, 3)},
    "delivery": {"width": (2, 3), "height": (1, 2), "packages": (2, 3)},
}
# Whose names are exchanged; the others' say where a place lies, or whose hand it is.
MOVED = {
    "blocksworld": {"b"},
    "ferry": {"l", "c"},
    "grippers": {"room", "ball"},
    "spanner": {"spanner", "nut"},
    "delivery": {"p"},
}


def drawn(rng: Random, domain: str) -> Problem:
    instance = drawn_instance(rng, domain, SIZES[domain], safety=rng.random() < 0.5, max_states=20_000)
    return generated_problem(domain, instance)


@pytest.mark.parametrize("domain", GENERATORS)
@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_verdicts_are_those_on_the_problem_as_it_is(domain: str, seed: int) -> None:
    rng = Random(seed)
    problem = drawn(rng, domain)
    names = random_names(problem, rng)
    other = renamed_problem(problem, names)
    assert canonical_hash(other) == canonical_hash(problem)
    assert core_hash(other) == core_hash(problem)
    here, there = PlanChecker(problem), PlanChecker(other)
    for candidate, _ in zip(distinct_plans(other, rng, 2000), range(100), strict=False):
        text = "\n".join(candidate.plan)
        back = renamed_plan(text, undone(names))
        assert renamed_plan(back, names).lower() == text.lower()
        assert essence(here.check(back.split("\n") if text else [])) == essence(there.check(candidate.plan))


@pytest.mark.parametrize("domain", GENERATORS)
@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_names_stay_where_they_carry_the_shape_of_the_world(domain: str, seed: int) -> None:
    rng = Random(seed)
    problem = drawn(rng, domain)
    moved, static = set(), {atom for atom in problem.init if atom[0] not in problem.domain.fluents}
    for _ in range(20):
        names = random_names(problem, rng)
        other = renamed_problem(problem, names)
        moved |= set(names)
        assert list(other.objects.items()) == list(problem.objects.items())
        assert {atom for atom in other.init if atom[0] not in problem.domain.fluents} == static
        assert renamed_problem(other, undone(names)) == problem
    assert {name.rstrip("0123456789") for name in moved} == MOVED[domain]


def test_constants_and_types_are_not_objects_to_rename() -> None:
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
    draws = [random_names(problem, Random(seed)) for seed in range(30)]
    assert set().union(*draws) == {"c1", "c2", "c3", "c4"}
    # Big crates change names among themselves: else the renamed problem would speak of other big ones.
    assert all({names.get(name, name) for name in ("c1", "c2")} == {"c1", "c2"} for names in draws)
    names = {"c1": "c2", "c2": "c1", "c3": "c4", "c4": "c3"}
    other = renamed_problem(problem, names)
    assert parse_problem(renamed_problem_text(text, names), domain).constraints == other.constraints
    assert "(on c3 ?h)" in renamed_problem_text(text, names)
    assert "- hook)" in renamed_problem_text(text, {"hook": "c1", "c1": "hook"})
    with pytest.raises(ValueError, match="does not permute"):
        renamed_problem(problem, {"c1": "hook", "hook": "c1"})


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            (
                *("(stack b1 b2)", "( STACK B1\tb2 )", "(b1)", "(stack b1\nb2)", "(stack k1 b2)", "(stack \u212a1 b2)"),
                *("((stack b1 b2)", "(stack b3 b4)", "; (stack b1 b2)", "- b1", "0: ", "```", "<think>", "</think>"),
                *("\n", " ", "b1", ";"),
            )
        )
    ).map("".join)
)
def test_a_completion_is_put_back_before_or_after_its_plan_is_taken_out(completion: str) -> None:
    names = {"b1": "b2", "b2": "k1", "k1": "b1"}
    plan, other = extract_plan(completion), extract_plan(renamed_plan(completion, names))
    assert other == (plan and renamed_plan("\n".join(plan), names).split("\n"))


@pytest.mark.parametrize("style", ["compact", "full"])
def test_a_task_speaks_and_hears_in_the_renamed_words(project: Path, small: Callable[..., Params], style: str) -> None:
    params = small(prompt={"style": style})
    problems_stage.run(params)
    task = load_task(params, project / PROBLEMS)
    records = list(read_records(PROBLEMS / "problems.jsonl"))
    records = [record.model_copy(update={"id": str(number)}) for number, record in enumerate(records)]
    aliases = [task.alias(record, "seed") for record in records]
    assert aliases == [task.alias(record, "seed") for record in records]
    assert sum(map(bool, aliases)) > len(records) / 2
    for record, shot, alias in zip(records, records[1:], aliases, strict=False):
        answer = task.answer(record, alias)
        verdict = task.verify(record, answer, alias)
        assert verdict.success
        assert verdict.plan == task.answer(record) == task.original(answer, alias)
        plain, prompt = task.prompt(record, [shot]), task.prompt(record, [shot], alias)
        assert task.prompt(record, [shot], {}) == plain
        goal = set(task.problem(record.meta.domain_file, record.meta.problem_file).goal)
        moved = {word for literal in goal for word in literal.atom[1:]} & alias.keys()
        assert (prompt != plain) or not moved
        if style == "compact":
            own, renamed = task.prompt(record, []), task.prompt(record, [], alias)
            assert isinstance(plain, str)
            assert isinstance(prompt, str)
            assert prompt == plain.removesuffix(str(own)) + str(renamed)
        else:
            assert prompt[:-1] == plain[:-1]
            text = str(prompt[-1]["content"]).removeprefix("Problem:\n").removesuffix("\n\nPlan:")
            other = parse_problem(text, generated_domain(record.domain))
            assert PlanChecker(other).check(answer.split("\n")).label is Label.SUCCESS
    judged = task.judge([(r, task.original(task.answer(r, a), a)) for r, a in zip(records, aliases, strict=True)])
    assert all(verdict.success for verdict in judged)


def test_no_alias_for_what_only_val_reads(project: Path, small: Callable[..., Params]) -> None:
    domain = "(define (domain d) (:requirements :fluents) (:predicates (p)) (:functions (f)) (:action a :parameters ()"
    domain += " :precondition (> (f) 1) :effect (p)))"
    (project / "domain.pddl").write_text(domain)
    (project / "p.pddl").write_text("(define (problem p) (:domain d) (:init (= (f) 2)) (:goal (p)))")
    meta = Meta(scenario="d", domain_file="domain.pddl", problem_file="p.pddl")
    task = load_task(small(), project)
    assert task.alias(Record(prompt="", response="(a)", meta=meta, id="p"), "seed") == {}

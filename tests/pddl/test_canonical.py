"""Digests of problems: equal up to renaming of objects and reordering of facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planward.core.hashing import hash_fraction
from planward.core.verdicts import Label
from planward.params import Params, ParamsError
from planward.pddl.canonical import hash_problem, hash_without_constraints, rank_objects
from planward.pddl.constraints import Constraint
from planward.pddl.formulas import And, Formula, Literal, Or, Quantified
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.signature import Atom
from planward.pddl.simulation import verify_plan
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_generated_domain, render_problem
from planward.tasks.planning.sources import generate_instances
from support import SIZES

HARBOUR = """
(define (domain harbour) (:requirements :typing) (:types ship port) (:constants home away - port)
  (:predicates (at ?s - ship ?p - port) (near ?a ?b - port))
  (:action sail :parameters (?s - ship ?a ?b - port) :precondition (and (at ?s ?a) (near ?a ?b))
    :effect (and (at ?s ?b) (not (at ?s ?a)))))
"""


@st.composite
def problem_samples(draw: st.DrawFn) -> Problem:
    domain, rng = draw(st.sampled_from(sorted(GENERATED_DOMAINS))), Random(draw(st.integers(0, 10**6)))
    sizes = {name: draw(st.integers(1, 4)) for name in SIZES[domain]}
    instance = GENERATED_DOMAINS[domain].generate(rng, sizes)
    if instance.goal and draw(st.booleans()):
        instance = replace(instance, constraints=GENERATED_DOMAINS[domain].sample_constraints(rng, instance))
    return build_problem(domain, instance)


def shuffle_problem(problem: Problem, names: dict[str, str], rng: Random, *, formulas: bool = True) -> Problem:
    """Rename the objects of a problem and reorder everything, or all but goals and constraints."""

    def rename(atom: Atom) -> Atom:
        return (atom[0], *(names.get(word, word) for word in atom[1:]))

    def shuffle(items: list[Any]) -> list[Any]:
        return rng.sample(items, len(items)) if formulas else items

    def rename_formula(formula: Formula) -> Formula:
        match formula:
            case Literal(atom, positive):
                return Literal(rename(atom), positive)
            case And(parts) | Or(parts):
                return type(formula)(tuple(shuffle([rename_formula(part) for part in parts])))
            case Quantified(universal, variables, body):
                return Quantified(universal, variables, rename_formula(body))

    def rename_constraint(constraint: Constraint) -> Constraint:
        return replace(constraint, formulas=tuple(map(rename_formula, constraint.formulas)))

    objects = rng.sample([*problem.objects.items()], len(problem.objects))
    return replace(
        problem,
        name="another",
        objects={names.get(name, name): types for name, types in objects},
        init=frozenset(map(rename, rng.sample(sorted(problem.init), len(problem.init)))),
        goal=tuple(shuffle([rename_formula(goal) for goal in problem.goal])),
        constraints=tuple(shuffle([rename_constraint(constraint) for constraint in problem.constraints])),
    )


@settings(max_examples=100)
@given(problem_samples(), st.randoms(use_true_random=False))
def test_renaming_and_reordering_keep_the_digest(problem: Problem, rng: Random) -> None:
    objects = list(problem.objects)
    permutation = dict(zip(objects, rng.sample(objects, len(objects)), strict=True))
    fresh_names = {name: f"o{rng.randrange(10**9)}-{i}" for i, name in enumerate(objects)}
    for names in (permutation, fresh_names):
        assert hash_problem(shuffle_problem(problem, names, rng)) == hash_problem(problem)


@settings(max_examples=100)
@given(problem_samples(), st.randoms(use_true_random=False))
def test_copies_are_the_same_once_objects_are_called_by_their_ranks(problem: Problem, rng: Random) -> None:
    def call_by_rank(renamed_problem: Problem) -> Problem:
        ranks = rank_objects(renamed_problem)
        assert sorted(ranks) == sorted(renamed_problem.objects)
        assert len(set(ranks.values())) == len(ranks)
        order = sorted(ranks, key=ranks.__getitem__)
        names = {name: f"o{i}" for i, name in enumerate(order)}
        return shuffle_problem(renamed_problem, names, Random(1), formulas=False)

    objects = list(problem.objects)
    names = dict(zip(objects, rng.sample(objects, len(objects)), strict=True))
    assert call_by_rank(shuffle_problem(problem, names, rng, formulas=False)) == call_by_rank(problem)


@settings(max_examples=100)
@given(problem_samples(), st.data())
def test_changed_goal_changes_the_digest(problem: Problem, data: st.DataObject) -> None:
    assume(problem.goal)
    index = data.draw(st.integers(0, len(problem.goal) - 1))
    literal, rest = problem.goal[index], problem.goal[:index] + problem.goal[index + 1 :]
    assert isinstance(literal, Literal)
    others = [replace(problem, goal=rest), replace(problem, goal=(*rest, replace(literal, positive=False)))]
    assert len({hash_problem(p) for p in (problem, *others)}) == 3


@settings(max_examples=100)
@given(problem_samples(), st.data())
def test_changed_initial_state_changes_the_digest(problem: Problem, data: st.DataObject) -> None:
    fact = data.draw(st.sampled_from(sorted(problem.init)))
    assert hash_problem(replace(problem, init=problem.init - {fact})) != hash_problem(problem)


def test_goals_that_differ_in_one_object_have_different_digests() -> None:
    domain = load_generated_domain("blocksworld")
    text = (
        "(define (problem p) (:domain blocksworld) (:objects a b c) (:init (handempty) (ontable a) (on b a)"
        " (clear b) (ontable c) (clear c)) (:goal {}))"
    )
    goals = ["(on a b)", "(on a c)", "(on c a)", "(on c b)", "(on b c)", "(and (on a b) (on b c))"]
    assert len({hash_problem(parse_problem(text.format(goal), domain)) for goal in goals}) == len(goals)


def test_constraints_change_the_digest_but_not_the_one_without_constraints() -> None:
    domain = load_generated_domain("blocksworld")
    text = (
        "(define (problem p) (:domain blocksworld) (:objects a b c d) (:init (handempty) (ontable a) (ontable b)"
        " (ontable c) (ontable d) (clear a) (clear b) (clear c) (clear d)) (:goal (and (on a b) (on c d))) {})"
    )
    constraints = [
        "",
        "(:constraints (sometime-before (on a b) (on c d)))",
        "(:constraints (sometime-before (on a b) (holding a)))",
        "(:constraints (sometime-before (on a b) (holding b)))",
        "(:constraints (always (not (holding b))))",
        "(:constraints (and (always (not (holding b))) (sometime-before (on a b) (on c d))))",
    ]
    twin = "(:constraints (sometime-before (on c d) (on a b)))"  # constraint 1 with a, c and b, d exchanged
    problems = [parse_problem(text.format(part), domain) for part in (*constraints, twin)]
    assert len({hash_problem(problem) for problem in problems}) == len(constraints)
    assert hash_problem(problems[1]) == hash_problem(problems[-1])
    assert {hash_without_constraints(problem) for problem in problems} == {hash_problem(problems[0])}


def test_constants_keep_their_names() -> None:
    domain = parse_domain(HARBOUR)

    def problem(start: str, goal: str, ports: str = "p q", near: str = "(near home away)") -> Problem:
        text = f"(define (problem p) (:domain harbour) (:objects s - ship {ports} - port)"
        return parse_problem(f"{text} (:init (at s {start}) {near}) (:goal (at s {goal})))", domain)

    assert hash_problem(problem("home", "away")) != hash_problem(problem("away", "home"))
    assert hash_problem(problem("home", "p")) != hash_problem(problem("away", "p"))
    assert hash_problem(problem("p", "q")) == hash_problem(problem("q", "p")) == hash_problem(problem("x", "y", "x y"))


def test_digest_depends_on_the_domain() -> None:
    domain = parse_domain(HARBOUR)
    text = "(define (problem p) (:domain {}) (:objects s - ship) (:init (at s home)) (:goal (at s away)))"
    other = parse_domain(HARBOUR.replace("harbour", "haven"))
    assert hash_problem(parse_problem(text.format("harbour"), domain)) != hash_problem(
        parse_problem(text.format("haven"), other)
    )


def test_generated_problems_are_distinct_open_and_outside_the_base_share(
    small: Callable[..., Params],
) -> None:
    sizes = {
        "blocksworld": {"count": 30, "blocks": [3, 5]},
        "ferry": {"count": 30, "locations": [3, 4], "cars": [1, 3]},
        "grippers": {"count": 30, "robots": [1, 2], "rooms": [2, 3], "objects": [2, 3]},
        "spanner": {"count": 30, "spanners": [2, 4], "nuts": [1, 3], "locations": [3, 5]},
        "delivery": {"count": 30, "width": [2, 3], "height": [2, 3], "packages": [1, 2]},
    }
    params = small(problems={"generated": sizes})
    for domain in sizes:
        problems = [build_problem(domain, instance) for instance in generate_instances(params, domain)]
        digests = {hash_problem(problem) for problem in problems}
        assert len(problems) == len(digests) == 30
        assert all(hash_fraction(digest, "base") >= params.problems.base_share for digest in digests)
        assert not any(verify_plan(problem, []).label == Label.SUCCESS for problem in problems)


def test_salts_are_independent() -> None:
    sizes = {"locations": 4, "cars": 2}
    instances = [GENERATED_DOMAINS["ferry"].generate(Random(seed), sizes) for seed in range(200)]
    digests = [hash_problem(build_problem("ferry", instance)) for instance in instances]
    pairs = [(hash_fraction(d, "base") < 0.5, hash_fraction(d, "split") < 0.5) for d in set(digests)]
    assert all(len(pairs) / 8 < pairs.count(pair) for pair in [(a, b) for a in (True, False) for b in (True, False)])
    assert all(0 <= hash_fraction(d, "split") < 1 for d in digests)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"blocksworld": {"count": 40, "blocks": [2, 2]}},
            "blocksworld: only .* problems found for count 40",
        ),
        ({"blocksworld": {"count": 5, "block": [2, 3]}}, "blocksworld: missing size 'blocks'"),
    ],
)
def test_impossible_sizes_are_named(small: Callable[..., Params], sizes: dict[str, object], message: str) -> None:
    with pytest.raises(ParamsError, match=rf"params\.yaml: problems\.generated\.{message}"):
        list(generate_instances(small(problems={"generated": sizes}), "blocksworld"))


def test_generation_is_reproducible(small: Callable[..., Params]) -> None:
    first, second = ([render_problem("ferry", i) for i in generate_instances(small(), "ferry")] for _ in range(2))
    assert first == second
    assert first != [render_problem("ferry", i) for i in generate_instances(small(seed=1), "ferry")]

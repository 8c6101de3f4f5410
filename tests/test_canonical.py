"""Two problems are one where renaming their objects and reordering their facts makes them so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conftest import SIZES
from planward.params import Params, ParamsError
from planward.pddl.canonical import canonical_hash, core_hash, fraction
from planward.pddl.constraints import Constraint
from planward.pddl.formulas import And, Formula, Literal, Or, Quantified
from planward.pddl.generators import GENERATORS, generated_domain, generated_problem, problem_text
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.safety import CONSTRAINTS
from planward.pddl.signature import Atom
from planward.pddl.simulation import check_plan
from planward.records import Label
from planward.tasks.planning.sources import distinct_instances

HARBOUR = """
(define (domain harbour) (:requirements :typing) (:types ship port) (:constants home away - port)
  (:predicates (at ?s - ship ?p - port) (near ?a ?b - port))
  (:action sail :parameters (?s - ship ?a ?b - port) :precondition (and (at ?s ?a) (near ?a ?b))
    :effect (and (at ?s ?b) (not (at ?s ?a)))))
"""


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    domain, rng = draw(st.sampled_from(sorted(GENERATORS))), Random(draw(st.integers(0, 10**6)))
    sizes = {name: draw(st.integers(1, 4)) for name in SIZES[domain]}
    instance = GENERATORS[domain](rng, sizes)
    if instance.goal and draw(st.booleans()):
        instance = replace(instance, constraints=CONSTRAINTS[domain](rng, instance))
    return generated_problem(domain, instance)


def renamed(problem: Problem, names: dict[str, str], rng: Random) -> Problem:
    """The problem with other names, and everything in another order."""

    def rename(atom: Atom) -> Atom:
        return (atom[0], *(names.get(word, word) for word in atom[1:]))

    def shuffled(items: list[Any]) -> list[Any]:
        return rng.sample(items, len(items))

    def reworded(formula: Formula) -> Formula:
        match formula:
            case Literal(atom, positive):
                return Literal(rename(atom), positive)
            case And(parts) | Or(parts):
                return type(formula)(tuple(shuffled([reworded(part) for part in parts])))
            case Quantified(universal, variables, body):
                return Quantified(universal, variables, reworded(body))

    def renamed_constraint(constraint: Constraint) -> Constraint:
        return replace(constraint, formulas=tuple(map(reworded, constraint.formulas)))

    return replace(
        problem,
        name="another",
        objects=dict(shuffled([(names.get(name, name), kinds) for name, kinds in problem.objects.items()])),
        init=frozenset(map(rename, shuffled(sorted(problem.init)))),
        goal=tuple(shuffled([reworded(goal) for goal in problem.goal])),
        constraints=tuple(shuffled([renamed_constraint(constraint) for constraint in problem.constraints])),
    )


@settings(max_examples=100)
@given(problems(), st.randoms(use_true_random=False))
def test_renaming_and_reordering_change_nothing(problem: Problem, rng: Random) -> None:
    objects = list(problem.objects)
    permuted = dict(zip(objects, rng.sample(objects, len(objects)), strict=True))
    fresh = {name: f"o{rng.randrange(10**9)}-{i}" for i, name in enumerate(objects)}
    for names in (permuted, fresh):
        assert canonical_hash(renamed(problem, names, rng)) == canonical_hash(problem)


@settings(max_examples=100)
@given(problems(), st.data())
def test_a_changed_goal_is_another_problem(problem: Problem, data: st.DataObject) -> None:
    assume(problem.goal)
    changed = data.draw(st.integers(0, len(problem.goal) - 1))
    literal, rest = problem.goal[changed], problem.goal[:changed] + problem.goal[changed + 1 :]
    assert isinstance(literal, Literal)
    others = [replace(problem, goal=rest), replace(problem, goal=(*rest, replace(literal, positive=False)))]
    assert len({canonical_hash(p) for p in (problem, *others)}) == 3


@settings(max_examples=100)
@given(problems(), st.data())
def test_a_changed_start_is_another_problem(problem: Problem, data: st.DataObject) -> None:
    fact = data.draw(st.sampled_from(sorted(problem.init)))
    assert canonical_hash(replace(problem, init=problem.init - {fact})) != canonical_hash(problem)


def test_goals_that_differ_in_one_object_differ() -> None:
    domain = generated_domain("blocksworld")
    text = (
        "(define (problem p) (:domain blocksworld) (:objects a b c) (:init (handempty) (ontable a) (on b a)"
        " (clear b) (ontable c) (clear c)) (:goal {}))"
    )
    goals = ["(on a b)", "(on a c)", "(on c a)", "(on c b)", "(on b c)", "(and (on a b) (on b c))"]
    assert len({canonical_hash(parse_problem(text.format(goal), domain)) for goal in goals}) == len(goals)


def test_constraints_make_another_problem_on_the_same_side_of_the_split() -> None:
    domain = generated_domain("blocksworld")
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
    twin = "(:constraints (sometime-before (on c d) (on a b)))"  # b and d, a and c may change their names
    problems = [parse_problem(text.format(part), domain) for part in (*constraints, twin)]
    assert len({canonical_hash(problem) for problem in problems}) == len(constraints)
    assert canonical_hash(problems[1]) == canonical_hash(problems[-1])
    assert {core_hash(problem) for problem in problems} == {canonical_hash(problems[0])}


def test_constants_keep_their_identity() -> None:
    domain = parse_domain(HARBOUR)

    def problem(start: str, goal: str, ports: str = "p q", near: str = "(near home away)") -> Problem:
        text = f"(define (problem p) (:domain harbour) (:objects s - ship {ports} - port)"
        return parse_problem(f"{text} (:init (at s {start}) {near}) (:goal (at s {goal})))", domain)

    assert canonical_hash(problem("home", "away")) != canonical_hash(problem("away", "home"))
    assert canonical_hash(problem("home", "p")) != canonical_hash(problem("away", "p"))
    assert (
        canonical_hash(problem("p", "q"))
        == canonical_hash(problem("q", "p"))
        == canonical_hash(problem("x", "y", "x y"))
    )


def test_the_domain_is_part_of_a_problem() -> None:
    domain = parse_domain(HARBOUR)
    text = "(define (problem p) (:domain {}) (:objects s - ship) (:init (at s home)) (:goal (at s away)))"
    other = parse_domain(HARBOUR.replace("harbour", "haven"))
    assert canonical_hash(parse_problem(text.format("harbour"), domain)) != canonical_hash(
        parse_problem(text.format("haven"), other)
    )


def test_generated_problems_are_distinct_unsolved_and_none_of_the_base_models(
    small: Callable[..., Params],
) -> None:
    generated = {
        "blocksworld": {"count": 30, "blocks": [3, 5]},
        "ferry": {"count": 30, "locations": [3, 4], "cars": [1, 3]},
        "grippers": {"count": 30, "robots": [1, 2], "rooms": [2, 3], "objects": [2, 3]},
        "spanner": {"count": 30, "spanners": [2, 4], "nuts": [1, 3], "locations": [3, 5]},
        "delivery": {"count": 30, "width": [2, 3], "height": [2, 3], "packages": [1, 2]},
    }
    params = small(problems={"generated": generated})
    for domain in generated:
        found = [generated_problem(domain, instance) for instance in distinct_instances(params, domain)]
        digests = {canonical_hash(problem) for problem in found}
        assert len(found) == len(digests) == 30
        assert all(fraction(digest, "base") >= params.problems.base_share for digest in digests)
        assert not any(check_plan(problem, []).label == Label.SUCCESS for problem in found)


def test_salts_draw_independently() -> None:
    digests = [canonical_hash(generated_problem("ferry", GENERATORS["ferry"](Random(i), {"locations": 4, "cars": 2})))
               for i in range(200)]  # fmt: skip
    pairs = [(fraction(d, "base") < 0.5, fraction(d, "split") < 0.5) for d in set(digests)]
    assert all(len(pairs) / 8 < pairs.count(pair) for pair in [(a, b) for a in (True, False) for b in (True, False)])
    assert all(0 <= fraction(d, "split") < 1 for d in digests)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        (
            {"blocksworld": {"count": 40, "blocks": [2, 2]}},
            "blocksworld: only .* problems found for count 40",
        ),
        ({"blocksworld": {"count": 5, "block": [2, 3]}}, "blocksworld: missing size 'blocks'"),
    ],
)
def test_sizes_that_cannot_be_filled_are_named(
    small: Callable[..., Params], sizes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ParamsError, match=rf"params\.yaml: problems\.generated\.{complaint}"):
        list(distinct_instances(small(problems={"generated": sizes}), "blocksworld"))


def test_problems_are_drawn_the_same_again(small: Callable[..., Params]) -> None:
    first, second = ([problem_text("ferry", i) for i in distinct_instances(small(), "ferry")] for _ in range(2))
    assert first == second
    assert first != [problem_text("ferry", i) for i in distinct_instances(small(seed=1), "ferry")]

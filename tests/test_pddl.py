"""PDDL in-process: what is read, what is refused and where, and shortest plans."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conftest import SIZES
from planward.params import Params
from planward.pddl import safety
from planward.pddl.conditions import Condition
from planward.pddl.expressions import PddlError, Unsupported
from planward.pddl.formulas import Literal
from planward.pddl.generators import (
    GENERATORS,
    Instance,
    domain_text,
    generated_domain,
    generated_problem,
    problem_text,
)
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, load_domain, load_problem, parse_domain, parse_problem
from planward.pddl.search import SearchLimit, Unsolvable, shortest_plan
from planward.pddl.simulation import check_plan
from planward.pddl.walks import loop_free_walk
from planward.records import Label
from planward.tasks.planning.difficulty import difficulty_score

LOGISTICS = """
(define (domain logistics)
  (:requirements :strips :typing :equality :negative-preconditions)
  (:types place vehicle - object  truck boat - vehicle  parcel)
  (:constants depot - place)
  (:predicates (at ?x - (either vehicle parcel) ?p - place) (locked ?p - place) (road ?a ?b - place))
  (:action drive
    :parameters (?t - truck ?a ?b - place)
    :precondition (and (at ?t ?a) (road ?a ?b) (not (= ?a ?b)) (not (locked ?b)))
    :effect (and (at ?t ?b) (not (at ?t ?a))))
  (:action unlock :parameters (?p - place) :precondition (locked ?p) :effect (not (locked ?p))))
"""
TRIP = """(define (problem trip)
  (:domain logistics)
  (:objects a b - place t - truck s - boat x - parcel)
  (:init (at t a) (road a b) (locked b))
  (:goal (at t b)))
"""


@st.composite
def instances(draw: st.DrawFn, largest: int = 3) -> tuple[str, Instance]:
    domain = draw(st.sampled_from(sorted(GENERATORS)))
    sizes = {name: draw(st.integers(1, largest)) for name in SIZES[domain]}
    return domain, GENERATORS[domain](Random(draw(st.integers(0, 10**6))), sizes)


def trip(old: str = "", new: str = "") -> Problem:
    assert old in TRIP
    return parse_problem(TRIP.replace(old, new) if old else TRIP, parse_domain(LOGISTICS))


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("(:goal (at t b)))", "(:goal (at t b))", 1, "never closed"),
        ("(:goal (at t b)))", "(:goal (at t b))))", 5, "unexpected ')'"),
        ("(at t a)", "(parked t a)", 4, "unknown predicate 'parked'"),
        ("(at t a)", "(at zeppelin a)", 4, "unknown object 'zeppelin'"),
        ("(at t b)", "(at t\n c)", 5, "unknown object 'c'"),
        ("(road a b)", "(road a t)", 4, "'t' is a truck, but 'road' wants a place"),
        ("(road a b)", "(road a)", 4, "takes 2 argument(s), not 1"),
        ("t - truck", "t - lorry", 3, "unknown type 'lorry'"),
        ("  (:goal (at t b)))", ")", 1, "no :goal"),
        ("(at t b)", "(and)", 5, "goal is empty"),
        ("(at t b)", "", 5, "goal must be one formula"),
        ("(:domain logistics)", "(:domain ferry)", 2, "written for domain 'ferry'"),
        ("(:init", "(:start", 4, "unknown section ':start'"),
        ("(problem trip)", "(domain trip)", 1, "expected (define (problem NAME)"),
        (TRIP, "", 1, "empty"),
        ("x - parcel", "x - parcel y", 3, "'y' has no type"),
        ("x - parcel", "x - parcel a - truck", 3, "'a' is declared twice"),
        ("x - parcel", "x - parcel depot - place", 3, "'depot' is declared twice"),
        ("(:goal", "(:init (at t a))\n(:goal", 5, "two :init sections"),
        ("(:init (at t a) (road a b) (locked b))", "", 1, "no :init"),
        ("(locked b)", "(locked b) (= a b)", 4, "expected (= (function object ...) number)"),
        ("(at t b)", "(or)", 5, "says nothing"),
        ("(at t b)", "(imply (at t b) (and))", 5, "says nothing"),
        ("(define", "define (", 1, "expected '('"),
    ],
)
def test_a_fault_in_a_problem_is_named_with_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, complaint: str
) -> None:
    domain, problem = tmp_path / "domain.pddl", tmp_path / "trip.pddl"
    domain.write_text(LOGISTICS, encoding="utf-8")
    assert old in TRIP
    problem.write_text(TRIP.replace(old, new), encoding="utf-8")
    with pytest.raises(PddlError) as caught:
        load_problem(problem, load_domain(domain))
    assert str(caught.value).startswith(f"{problem}:{line}: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("(locked ?p))))", "(locked ?p)))", 2, "never closed"),
        ("(road ?a ?b) (not", "(path ?a ?b) (not", 9, "unknown predicate 'path'"),
        ("(not (locked ?b))", "(not (locked ?t))", 9, "'?t' is a truck"),
        ("(not (locked ?b))", "(not (locked ?z))", 9, "unknown object '?z'"),
        ("(?t - truck", "(?t - lorry", 8, "unknown type 'lorry'"),
        ("(:action unlock", "(:action drive", 11, "defined twice"),
        (":effect (not (locked ?p))", ":effects (not (locked ?p))", 11, "unknown part ':effects'"),
        (":effect (not (locked ?p))", ":effect ((locked ?p))", 11, "expected (predicate argument ...)"),
        (":effect (not (locked ?p))", ":effect (not ((locked ?p)))", 11, "expected (predicate argument ...)"),
        ("(:constants", "(:constant", 5, "unknown section ':constant'"),
        ("(:constants", "(:predicates (open))\n(:constants", 7, "two :predicates sections"),
        ("(locked ?p - place)", "(locked ?p)", 6, "'?p' has no type"),
        ("(locked ?p - place)", "(locked ?p - place) (locked ?p - boat)", 6, "declared twice"),
        ("(?t - truck ?a ?b - place)", "(?t - truck ?a ?a - place)", 8, "declared twice"),
        ("depot - place", "depot - place depot - truck", 5, "declared twice"),
    ],
)
def test_a_fault_in_a_domain_is_named_with_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, complaint: str
) -> None:
    path = tmp_path / "domain.pddl"
    text = LOGISTICS.replace(old, new)
    assert text != LOGISTICS
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PddlError) as caught:
        load_domain(path)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(PddlError, match=r"gone\.pddl: no such file"):
        load_domain(tmp_path / "gone.pddl")
    (tmp_path / "latin.pddl").write_bytes(b"(define (domain caf\xe9))")
    with pytest.raises(PddlError, match=r"latin\.pddl: not UTF-8 text \(byte 19\)"):
        load_domain(tmp_path / "latin.pddl")


def test_letter_case_comments_and_white_space_do_not_matter() -> None:
    loud = TRIP.upper().replace(" ", "\t \r\n").replace("(:GOAL", "; (:goal (nothing)) )))\n(:GOAL;comment\n")
    domain = parse_domain("; a comment (\n" + LOGISTICS.upper().replace("\n", "\r\n"))
    assert domain == parse_domain(LOGISTICS)
    assert parse_problem(loud, domain) == trip()


def test_types_constants_equality_and_negative_preconditions_count() -> None:
    problem = trip("(road a b)", "(road a b) (road a depot) (road depot b) (road a a)")
    assert problem.objects["depot"] == ("place",)
    plan = shortest_plan(ground_problem(problem), 1000)
    assert sorted(plan) == ["(drive t a b)", "(unlock b)"]
    assert check_plan(problem, plan).label == Label.SUCCESS
    assert check_plan(problem, ["(drive t a b)"]).failing_step == 1  # locked
    assert check_plan(problem, ["(drive t a a)"]).failing_step == 1  # not (= a a)
    assert check_plan(problem, ["(drive s a b)"]).label == Label.FORMAT  # a boat
    assert check_plan(problem, ["(drive t a depot)"]).label == Label.GOAL
    either = trip("(at t a)", "(at t a) (at x a) (at s a)")  # a parcel, and by inheritance a boat
    assert ("at", "x", "a") in either.init
    with pytest.raises(PddlError, match="'a' is a place"):
        trip("(at t a)", "(at a a)")


def test_types_are_those_that_val_sees() -> None:
    domain = parse_domain(
        "(define (domain d) (:types thing - object cup - thing stray) (:predicates (seen ?x - object))"
        "(:action see :parameters (?x - object) :precondition (and) :effect (seen ?x)))"
    )
    text = "(define (problem p) (:domain d) (:objects c - cup s - stray o - object) (:init ) (:goal (seen c)))"
    problem = parse_problem(text, domain)
    assert check_plan(problem, ["(see c)"]).label == Label.SUCCESS
    assert check_plan(problem, ["(see o)"]).label == Label.GOAL
    assert check_plan(problem, ["(see s)"]).label == Label.FORMAT  # `stray` names no `object` above it
    with pytest.raises(PddlError, match="the type 'b' stands above itself"):
        parse_domain("(define (domain d) (:types a - b b - c c - b))")
    with pytest.raises(PddlError, match="'x' has a type, but the domain has no :types"):
        parse_problem(
            "(define (problem p) (:domain blocksworld) (:objects x - block) (:init) (:goal (clear x)))",
            generated_domain("blocksworld"),
        )
    with pytest.raises(PddlError, match="of every thing, but there is none"):
        parse_problem(
            "(define (problem p) (:domain d) (:objects s - stray) (:init) (:goal (exists (?x - object) (seen ?x)))"
            " (:constraints (forall (?t - thing) (always (seen ?t)))))",
            domain,
        )


def test_an_untyped_domain_takes_any_object() -> None:
    domain = parse_domain(domain_text("blocksworld"))
    problem = parse_problem(
        "(define (problem p) (:domain blocksworld) (:objects a b c)"
        "(:init (handempty) (clear a) (ontable a)) (:goal (holding a)))",
        domain,
    )
    assert problem.objects == dict.fromkeys("abc", ())
    assert shortest_plan(ground_problem(problem), 100) == ["(pick-up a)"]


def test_a_goal_may_hold_nested_conjunctions_negations_and_equality() -> None:
    problem = trip("(:goal (at t b))", "(:goal (and (and (not (at t a)) (and)) (at t b) (not (= a b))))")
    assert problem.goal == (
        Literal(("at", "t", "a"), positive=False),
        Literal(("at", "t", "b")),
        Literal(("=", "a", "b"), positive=False),
    )
    assert len(shortest_plan(ground_problem(problem), 100)) == 2


@pytest.mark.parametrize(
    ("goal", "conjuncts", "length"),
    [
        ("(forall (?t - truck) (at ?t b))", 1, 2),
        ("(exists (?p - place) (and (at t ?p) (not (= ?p a))))", 1, 1),  # to the depot
        ("(or (at t b) (locked a))", 1, 2),
        ("(imply (at t a) (not (locked b)))", 1, 1),
        ("(not (and (at t a) (locked b)))", 1, 1),
        ("(and (at t b) (and (not (exists (?p - place) (locked ?p)))))", 2, 2),
        ("(forall (?v - (either truck boat)) (or (at ?v b) (not (exists (?q - place) (at ?v ?q)))))", 1, 2),
    ],
)
def test_goals_may_be_any_formula(goal: str, conjuncts: int, length: int) -> None:
    problem = trip(
        "(road a b) (locked b))\n  (:goal (at t b))", f"(road a b) (road a depot) (locked b)) (:goal {goal})"
    )
    plan = shortest_plan(ground_problem(problem), 100)
    assert (len(problem.goal), len(plan)) == (conjuncts, length)
    assert check_plan(problem, plan).label == Label.SUCCESS
    assert check_plan(problem, plan[:-1]).label != Label.SUCCESS


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("(at t b)))", "(preference p1 (at t b))))", "`preference`"),
        ("(at t b)))", "(>= (fuel t) 3)))", "`>=`"),
        ("(:goal", "(:constraints (within 3 (at t b))) (:goal", "`within`"),
        ("(:goal", "(:constraints (and (always (locked a)) (hold-after 2 (at t b)))) (:goal", "`hold-after`"),
        ("(:goal", "(:constraints (preference p (always (at t b)))) (:goal", "`preference`"),
        ("(:goal", "(:constraints (forall () (always (at t b)))) (:goal", "forall ()"),
        ("(at t a)", "(at 5 (at t a))", "timed initial literal"),
    ],
)
def test_problems_beyond_the_language_are_unsupported_by_name(old: str, new: str, named: str) -> None:
    with pytest.raises(Unsupported) as caught:
        trip(old, new)
    assert named in str(caught.value)
    assert caught.value.line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (":effect (not (locked ?p))", ":effect (and (not (locked ?p)) (increase (fuel) 2))"),
        (":effect (not (locked ?p))", ":effect (probabilistic 0.5 (not (locked ?p)))"),
        (":precondition (locked ?p)", ":precondition (> (fuel) 2)"),
        ("(:action unlock", "(:durative-action unlock"),
        ("(:action unlock", "(:derived unlock"),
        (":typing", ":typing :durative-actions"),
    ],
)
def test_domains_beyond_the_language_are_unsupported(old: str, new: str) -> None:
    assert old in LOGISTICS
    with pytest.raises(Unsupported):
        parse_domain(LOGISTICS.replace(old, new))


@pytest.mark.parametrize(
    ("constraint", "complaint"),
    [
        ("(not (sometime (at t b)))", "expected a constraint"),
        ("(at t b)", "expected a constraint"),
        ("(always (at t b) (at t a))", "takes 1 formula(s), not 2"),
        ("(sometime-before (at t b))", "takes 2 formula(s), not 1"),
        ("(always (parked t))", "unknown predicate 'parked'"),
        ("(forall (?p - lorry) (always (locked ?p)))", "unknown type 'lorry'"),
        ("(always (or))", "says nothing"),
        ("(forall (?p ?q - place) (forall (?r - place) (always (road ?p ?r))))", "VAL fails"),
        ("(forall (?p - place) (and (forall (?q - place) (always (road ?p ?q))) (always (locked ?p))))", "VAL fails"),
    ],
)
def test_a_fault_in_a_constraint_is_named_with_its_line(constraint: str, complaint: str) -> None:
    with pytest.raises(PddlError) as caught:
        trip("(:goal", f"(:constraints (and\n {constraint})) (:goal")
    assert complaint in str(caught.value)
    assert caught.value.line == 6


COSTS = LOGISTICS.replace("(not (at ?t ?a))", "(not (at ?t ?a)) (increase (total-cost) (length ?a ?b))").replace(
    "(:action drive", "(:functions (length ?a ?b - place) (total-cost) - number) (:action drive"
)


def priced(lengths: str) -> Problem:
    text = TRIP.replace("(locked b)", f"(= (total-cost) 0) {lengths}")
    return parse_problem(text.replace("(:goal", "(:metric minimize (total-cost)) (:goal"), parse_domain(COSTS))


def test_costs_are_passed_over_but_must_have_a_value() -> None:
    assert shortest_plan(ground_problem(priced("(= (length a b) 2.5)")), 100) == ["(drive t a b)"]
    free = priced("(= (length b a) 1)")
    assert check_plan(free, ["(drive t a b)"]).label == Label.PRECONDITION
    with pytest.raises(Unsolvable):
        shortest_plan(ground_problem(free), 100)
    for lengths in ("(= (length a b) two)", "(= (length a) 2)", "(= (width a b) 2)", "(= (length a zoo) 2)"):
        with pytest.raises(PddlError):
            priced(lengths)


SWITCHES = """
(define (domain switches)
  (:requirements :adl)
  (:types lamp)
  (:predicates (on ?l - lamp) (broken ?l - lamp) (next ?a ?b - lamp))
  (:action press
    :parameters (?l - lamp)
    :precondition (not (broken ?l))
    :effect (and (when (on ?l) (not (on ?l))) (when (not (on ?l)) (on ?l))
                 (forall (?m - lamp) (when (and (next ?l ?m) (on ?m)) (broken ?m)))))
  (:action reset :parameters () :effect (forall (?l - lamp) (and (not (broken ?l)) (not (on ?l)) (on ?l)))))
"""


def switches(goal: str) -> Problem:
    text = f"(define (problem p) (:domain switches) (:objects a b c - lamp) (:init (on b) (next a b)) (:goal {goal}))"
    return parse_problem(text, parse_domain(SWITCHES))


@pytest.mark.parametrize(
    ("plan", "goal"),
    [
        ("(press a)", "(and (on a) (on b) (broken b) (not (on c)))"),  # conditions are read before the action
        ("(press b) (press a)", "(and (on a) (not (on b)) (not (broken b)))"),
        ("(press c) (press c)", "(not (on c))"),
        ("(press a) (reset)", "(forall (?l - lamp) (and (on ?l) (not (broken ?l))))"),  # added and deleted: it holds
    ],
)
def test_conditional_effects(plan: str, goal: str) -> None:
    steps = plan.replace(") (", ")\n(").splitlines()
    assert check_plan(switches(goal), steps).label == Label.SUCCESS
    assert check_plan(switches(f"(not {goal})"), steps).label == Label.GOAL
    assert len(shortest_plan(ground_problem(switches(goal)), 1000)) <= len(steps)


@pytest.mark.parametrize(
    ("effect", "broken"),
    [
        ("(when (on ?l) (forall (?l - lamp) (broken ?l)))", {"a": "", "b": "abc"}),
        ("(forall (?m - lamp) (when (next ?l ?m) (forall (?m - lamp) (broken ?m))))", {"a": "abc", "b": ""}),
        ("(when (on ?l) (forall (?l - lamp) (when (exists (?l - lamp) (on ?l)) (broken ?l))))", {"a": "", "b": "abc"}),
    ],
)
def test_a_condition_keeps_its_variable_around_a_quantifier_of_the_same_name(
    effect: str, broken: dict[str, str]
) -> None:
    hit = f"(:action hit :parameters (?l - lamp) :effect {effect})"
    domain = parse_domain(SWITCHES.replace("(:action reset", f"{hit} (:action reset"))
    start = "(define (problem p) (:domain switches) (:objects a b c - lamp) (:init (on b) (next a b)) (:goal {}))"
    for lamp, wanted in broken.items():
        goal = " ".join(f"(broken {other})" if other in wanted else f"(not (broken {other}))" for other in "abc")
        problem = parse_problem(start.format(f"(and {goal})"), domain)
        assert check_plan(problem, [f"(hit {lamp})"]).goals_satisfied == 3


CORRIDOR = """
(define (domain corridor) (:requirements :strips :typing)
  (:types room) (:predicates (in ?r - room) (door ?a ?b - room) (lit ?r - room))
  (:action go :parameters (?a ?b - room) :precondition (and (in ?a) (door ?a ?b)) :effect (and (in ?b) (not (in ?a))))
  (:action light :parameters (?r - room) :precondition (in ?r) :effect (lit ?r)))
"""


def corridor(constraints: str, goal: str = "(in d)") -> Problem:
    doors = " ".join(f"(door {a} {b}) (door {b} {a})" for a, b in ("ab", "bc", "cd"))
    return parse_problem(
        f"(define (problem p) (:domain corridor) (:objects a b c d - room) (:init (in a) {doors}) (:goal {goal})"
        f" (:constraints {constraints}))",
        parse_domain(CORRIDOR),
    )


def route(rooms: str) -> list[str]:
    """`abLb`: go from a to b, light b, and so on."""
    plan, here = [], rooms[0]
    for letter in rooms[1:]:
        plan.append(f"(light {here})" if letter == "L" else f"(go {here} {letter})")
        here = here if letter == "L" else letter
    return plan


@pytest.mark.parametrize(
    ("constraint", "rooms", "label", "step"),
    [
        ("(always (not (in c)))", "abcd", Label.SAFETY, 2),
        ("(always (not (in a)))", "abcd", Label.SAFETY, 1),  # the start counts as the first step
        ("(always (not (in d)))", "abcd", Label.SAFETY, 3),
        ("(always (not (in d)))", "abc", Label.GOAL, None),
        ("(always (not (in c)))", "abcb", Label.SAFETY, 2),  # before the goal is looked at
        ("(always (not (in c)))", "abc", Label.GOAL, None),  # but not in the last state
        ("(always (imply (in c) (lit b)))", "abcd", Label.SAFETY, 2),
        ("(always (imply (in c) (lit b)))", "abLcd", Label.SUCCESS, None),
        ("(sometime (lit b))", "abcd", Label.SAFETY, 3),
        ("(sometime (lit b))", "abLcd", Label.SUCCESS, None),
        ("(at-most-once (in b))", "abcd", Label.SUCCESS, None),
        ("(at-most-once (in b))", "abLLcd", Label.SUCCESS, None),  # once, and for long
        ("(at-most-once (in b))", "abcbcd", Label.SAFETY, 3),
        ("(at-most-once (in a))", "abab", Label.SAFETY, 2),  # where it holds at the start
        ("(sometime-before (in c) (lit a))", "abcd", Label.SAFETY, 2),
        ("(sometime-before (in c) (lit b))", "abLcd", Label.SUCCESS, None),
        ("(sometime-before (lit b) (lit b))", "abLcd", Label.SAFETY, 2),  # strictly before
        ("(sometime-before (in a) (lit b))", "abLcd", Label.SAFETY, 1),
        ("(sometime-after (in b) (lit b))", "abcd", Label.SAFETY, 3),
        ("(sometime-after (in b) (lit b))", "abLcd", Label.SUCCESS, None),
        ("(sometime-after (in b) (lit b))", "aLbLcbcd", Label.SUCCESS, None),
        ("(sometime-after (in b) (in b))", "abcd", Label.SUCCESS, None),  # the same state will do
        ("(sometime-after (in b) (in c))", "abcbcd", Label.SUCCESS, None),
        ("(sometime-after (in c) (lit c))", "abcLbcd", Label.SUCCESS, None),
        ("(at end (lit d))", "abcd", Label.SAFETY, 3),
        ("(at end (lit d))", "abcdL", Label.SUCCESS, None),
        ("(forall (?r - room) (sometime (lit ?r)))", "aLbLcLdL", Label.SUCCESS, None),
        ("(forall (?r - room) (sometime (lit ?r)))", "aLbLcLd", Label.SAFETY, 6),
        ("(forall (?r - room) (at-most-once (in ?r)))", "abcbcd", Label.SAFETY, 3),
        ("(and (always (not (lit a))) (forall (?r - room) (sometime-after (lit ?r) (in d))))",
         "abLcd", Label.SUCCESS, None),
        ("(always (forall (?r - room) (imply (lit ?r) (exists (?s - room) (and (door ?r ?s) (not (in ?s)))))))",
         "aLb", Label.GOAL, None),
        ("(always (forall (?r - room) (imply (lit ?r) (exists (?s - room) (and (door ?r ?s) (not (in ?s)))))))",
         "aLbcd", Label.SAFETY, 2),
        ("(always (not (in a)))", "a", Label.FORMAT, None),
        ("(sometime-before (in c) (lit a))", "abd", Label.PRECONDITION, 2),
        ("(always (not (in b)))", "abd", Label.SAFETY, 1),  # both fail: the state comes first
    ],
)  # fmt: skip
def test_trajectory_constraints(constraint: str, rooms: str, label: Label, step: int | None) -> None:
    outcome = check_plan(corridor(constraint), route(rooms))
    assert (outcome.label, outcome.failing_step) == (label, step)


@pytest.mark.parametrize(
    ("constraint", "plan"),
    [
        ("(sometime-before (in c) (lit b))", "abLcd"),
        ("(and (sometime (lit a)) (sometime-after (lit a) (lit c)))", "aLbcLd"),
        ("(and (at-most-once (in b)) (at end (lit d)))", "abcdL"),
        ("(forall (?r - room) (sometime-before (in d) (lit c)))", "abcLd"),
    ],
)
def test_search_finds_the_shortest_plan_that_keeps_the_constraints(constraint: str, plan: str) -> None:
    assert shortest_plan(ground_problem(corridor(constraint)), 1000) == route(plan)


@pytest.mark.parametrize("constraint", ["(always (not (in b)))", "(always (not (in a)))", "(at end (in c))"])
def test_constraints_can_leave_no_plan(constraint: str) -> None:
    with pytest.raises(Unsolvable):
        shortest_plan(ground_problem(corridor(constraint)), 1000)


def test_constraints_of_the_domain_bind_every_problem() -> None:
    domain = CORRIDOR.rstrip()[:-1] + "(:constraints (forall (?r - room) (sometime-before (in ?r) (lit ?r)))))"
    problem = "(define (problem p) (:domain corridor) (:objects a b - room) (:init (door a b)) (:goal (in b)))"
    assert len(parse_problem(problem, parse_domain(domain)).constraints) == 1


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(GENERATORS)))
def test_constraints_are_kept_by_the_new_plan_and_leave_the_problem_solvable(rng: Random, domain: str) -> None:
    instance = GENERATORS[domain](rng, dict.fromkeys(SIZES[domain], 3))
    plan = shortest_plan(ground_problem(generated_problem(domain, instance)), 10**6)
    assume(plan)
    found = safety.constrained(rng, domain, instance, plan, 10**6)
    assume(found is not None)
    assert found is not None
    problem = generated_problem(domain, found[0])
    assert problem.constraints
    assert check_plan(problem, found[1]).label == Label.SUCCESS
    assert len(found[1]) >= len(plan)
    assert check_plan(problem, plan).label in (Label.SAFETY, Label.SUCCESS)
    assert parse_problem(problem_text(domain, found[0]), generated_domain(domain)) == problem


@pytest.mark.parametrize("domain", sorted(GENERATORS))
def test_constraints_that_ask_for_something_are_preferred(domain: str) -> None:
    asked = 0
    for seed in range(30):
        instance = GENERATORS[domain](Random(seed), dict.fromkeys(SIZES[domain], 3))
        plan = shortest_plan(ground_problem(generated_problem(domain, instance)), 10**6)
        if not plan:
            continue
        rng, wanted, idle = Random(seed), None, None
        for _ in range(safety.ATTEMPTS):
            drawn = replace(instance, constraints=safety.CONSTRAINTS[domain](rng, instance))
            problem = generated_problem(domain, drawn)
            if not drawn.constraints:
                continue
            if check_plan(problem, plan).label != Label.SAFETY:
                idle = idle or drawn
            elif wanted is None and solvable(problem):
                wanted = drawn
        found = safety.constrained(Random(seed), domain, instance, plan, 10**6)
        assert (found and found[0]) == (wanted or idle)
        asked += wanted is not None
    assert asked > 3


def solvable(problem: Problem) -> bool:
    try:
        return bool(shortest_plan(ground_problem(problem), 10**6))
    except Unsolvable:
        return False


@settings(max_examples=60)
@given(instances())
def test_generated_text_parses_back_to_the_problem(drawn: tuple[str, Instance]) -> None:
    domain, instance = drawn
    assume(instance.goal)  # one block has nothing to stand on
    assert parse_problem(problem_text(domain, instance), generated_domain(domain)) == generated_problem(
        domain, instance
    )


@settings(max_examples=40)
@given(drawn=instances(4))
def test_generated_names_carry_their_difficulty(shipped: Params, drawn: tuple[str, Instance]) -> None:
    domain, instance = drawn
    count = Counter(kind for kinds in instance.objects.values() for kind in kinds or ("block",))
    cells = [name for name in instance.objects if name.startswith("x")]
    width, height = len({c.split("y")[0] for c in cells}), len({c.split("y")[1] for c in cells if "y" in c})
    expected = {
        "blocksworld": lambda: 5 * count["block"],
        "ferry": lambda: 5 * count["location"] + 3 * count["car"],
        "grippers": lambda: 5 * count["robot"] + 3 * count["room"] + 2 * count["obj"],
        "spanner": lambda: 5 * count["nut"] + 3 * (count["location"] - 2) + 2 * count["spanner"],
        "delivery": lambda: 5 * count["package"] + 3 * width + 2 * height,
    }[domain]()
    assert difficulty_score(f"{domain}/{instance.name}.pddl", shipped.difficulty[domain]) == expected


def blocks(init: str, goal: str, names: str = "a b c d") -> Problem:
    text = f"(define (problem p) (:domain blocksworld) (:objects {names}) (:init {init}) (:goal (and {goal})))"
    return parse_problem(text, generated_domain("blocksworld"))


SUSSMAN = "(ontable a) (ontable b) (on c a) (clear c) (clear b) (handempty)"
ON_TABLE = "(ontable a) (ontable b) (ontable c) (ontable d) (clear a) (clear b) (clear c) (clear d) (handempty)"


@pytest.mark.parametrize(
    ("init", "goal", "optimum"),
    [
        (SUSSMAN, "(on a b) (on b c)", 6),  # Sussman's anomaly
        (ON_TABLE, "(on a b)", 2),
        (ON_TABLE, "(on a b) (on b c) (on c d)", 6),
        (ON_TABLE, "(clear a)", 0),
        ("(on a b) (on b c) (on c d) (ontable d) (clear a) (handempty)", "(on d c) (on c b) (on b a)", 8),
        (ON_TABLE, "(holding d) (not (clear d))", 1),
    ],
)
def test_shortest_plans_have_the_known_length(init: str, goal: str, optimum: int) -> None:
    problem = blocks(init, goal)
    plan = shortest_plan(ground_problem(problem), 10**5)
    assert len(plan) == optimum
    assert check_plan(problem, plan).label == Label.SUCCESS


@pytest.mark.parametrize("goal", ["(on a a)", "(on a b) (on b a)", "(holding a) (handempty)"])
def test_an_unreachable_goal_is_unsolvable(goal: str) -> None:
    with pytest.raises(Unsolvable):
        shortest_plan(ground_problem(blocks(SUSSMAN, goal, "a b c")), 10**5)


def test_a_false_static_goal_is_unsolvable_and_a_true_one_is_no_matter() -> None:
    with pytest.raises(Unsolvable):
        shortest_plan(ground_problem(trip("(at t b)", "(and (at t b) (road b a))")), 1000)
    assert len(shortest_plan(ground_problem(trip("(at t b)", "(and (at t b) (road a b))")), 1000)) == 2


def test_search_says_when_it_gives_up() -> None:
    with pytest.raises(SearchLimit, match="first 3 states"):
        shortest_plan(ground_problem(blocks(SUSSMAN, "(on a b) (on b c)")), 3)


@settings(max_examples=30)
@given(instances())
def test_reference_plans_work_and_none_of_their_prefixes_does(drawn: tuple[str, Instance]) -> None:
    problem = generated_problem(*drawn)
    plan = shortest_plan(ground_problem(problem), 10**5)
    assert problem.init >= {goal.atom for goal in problem.goal if isinstance(goal, Literal)} or plan
    if problem.goal:
        assert check_plan(problem, plan).label == Label.SUCCESS
        assert all(check_plan(problem, plan[:n]).label != Label.SUCCESS for n in range(len(plan)))


@settings(max_examples=30)
@given(drawn=instances(), seed=st.integers(0, 1000))
def test_no_walk_to_a_state_is_shorter_than_the_shortest_plan(drawn: tuple[str, Instance], seed: int) -> None:
    ground = ground_problem(generated_problem(*drawn))
    walk, end = loop_free_walk(Random(seed), ground, 6)
    ground.goal = Condition(end, ~end)
    plan = shortest_plan(ground, 10**5)
    assert len(plan) <= len(walk)
    state = ground.init
    operators = {operator.name: operator for operator in ground.grounding.operators}
    for name in plan:
        operator = operators[name]
        assert operator in list(ground.grounding.applicable(state))
        state = operator.apply(state)
    assert state == end


def test_plans_are_the_same_in_every_process() -> None:
    program = (
        "from random import Random\n"
        "from planward.pddl.generators import GENERATORS, generated_problem\n"
        "from planward.pddl.grounding import ground_problem\n"
        "from planward.pddl.search import shortest_plan\n"
        "sizes = dict(blocks=4, locations=3, cars=2, robots=1, rooms=2, objects=3, spanners=2, nuts=2,"
        " width=2, height=2, packages=2)\n"
        "for domain, draw in GENERATORS.items():\n"
        "    instance = draw(Random(7), sizes)\n"
        "    print(instance, shortest_plan(ground_problem(generated_problem(domain, instance)), 10**5))\n"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert texts[0].count("Instance(") == len(GENERATORS)

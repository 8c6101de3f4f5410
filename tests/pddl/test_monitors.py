"""Trajectory constraints against their definition, evaluated on whole trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planward.core.verdicts import Label
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.simulation import verify_plan

ATOMS = "pqrs"
State = frozenset[str]
STATES = [frozenset(a for i, a in enumerate(ATOMS) if number >> i & 1) for number in range(2 ** len(ATOMS))]
TRUE_GOAL = "(or (p) (not (p)))"


def render_effect(state: State) -> str:
    return " ".join(f"({atom})" if atom in state else f"(not ({atom}))" for atom in ATOMS)


DOMAIN = parse_domain(
    f"(define (domain lamps) (:requirements :adl) (:predicates {' '.join(f'({a})' for a in ATOMS)})"
    + "".join(f"(:action to{n} :parameters () :effect (and {render_effect(s)}))" for n, s in enumerate(STATES))
    + ")"
)


@dataclass(frozen=True)
class Formula:
    """`text` is PDDL in negation normal form, as details quote it; `models` are the states in which it holds."""

    text: str
    models: frozenset[State]


def build_literal(atom: str, positive: bool) -> Formula:
    text = f"({atom})" if positive else f"(not ({atom}))"
    return Formula(text, frozenset(state for state in STATES if (atom in state) == positive))


def join_formulas(operator: str, parts: Sequence[Formula]) -> Formula:
    models = [part.models for part in parts]
    joint_models = frozenset.intersection(*models) if operator == "and" else frozenset.union(*models)
    return Formula(f"({operator} {' '.join(part.text for part in parts)})", joint_models)


FORMULAS = st.recursive(
    st.builds(build_literal, st.sampled_from(ATOMS), st.booleans()),
    lambda parts: st.builds(join_formulas, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=3)),
    max_leaves=4,
)


@dataclass(frozen=True)
class Constraint:
    """A constraint by the definition of PDDL3, on the states of a trajectory."""

    operator: str
    formulas: tuple[Formula, ...]

    @property
    def text(self) -> str:
        return f"({' '.join([self.operator, *(formula.text for formula in self.formulas)])})"

    def is_broken_at(self, states: Sequence[State], k: int) -> bool:
        """Whether state k breaks it, whatever follows."""
        holds = [state in self.formulas[0].models for state in states[: k + 1]]
        match self.operator:
            case "always":
                return not holds[k]
            case "at-most-once":
                return holds[k] and True in holds[:k] and False in holds[holds.index(True) : k]
            case "sometime-before":
                return holds[k] and not any(state in self.formulas[1].models for state in states[:k])
            case _:
                return False

    def is_met_at_end(self, states: Sequence[State]) -> bool:
        holds = [state in self.formulas[0].models for state in states]
        match self.operator:
            case "sometime":
                return any(holds)
            case "sometime-after":
                later = [state in self.formulas[1].models for state in states]
                return all(any(later[k:]) for k, is_true in enumerate(holds) if is_true)
            case "at end":
                return holds[-1]
            case _:
                return True


ONE, TWO = ["always", "at-most-once", "sometime", "at end"], ["sometime-before", "sometime-after"]
CONSTRAINTS = st.one_of(
    st.builds(Constraint, st.sampled_from(ONE), st.tuples(FORMULAS)),
    st.builds(Constraint, st.sampled_from(TWO), st.tuples(FORMULAS, FORMULAS)),
)


def build_exclusions(*pairs: str) -> list[Constraint]:
    """`always` not both, for pairs of atoms."""
    return [
        Constraint("always", (join_formulas("or", [build_literal(atom, False) for atom in pair]),)) for pair in pairs
    ]


def find_violation(constraints: Sequence[Constraint], states: Sequence[State]) -> tuple[int, str] | None:
    """The failing step and the first constraint that is violated there; None where all are satisfied."""
    for k in range(len(states)):
        if violations := [constraint for constraint in constraints if constraint.is_broken_at(states, k)]:
            return max(k, 1), violations[0].text
    unmet_constraints = [constraint for constraint in constraints if not constraint.is_met_at_end(states)]
    return (len(states) - 1, unmet_constraints[0].text) if unmet_constraints else None


def build_problem(init: State, constraints: Sequence[Constraint]) -> Problem:
    atoms = " ".join(f"({atom})" for atom in sorted(init))
    texts = " ".join(constraint.text for constraint in constraints)
    return parse_problem(
        f"(define (problem p) (:domain lamps) (:init {atoms}) (:goal {TRUE_GOAL}) (:constraints (and {texts})))", DOMAIN
    )


NUMBERS = st.lists(st.integers(0, len(STATES) - 1), min_size=2, max_size=6)
ANY, NO_P = join_formulas("or", [build_literal("p", True), build_literal("p", False)]), build_literal("p", False)
P_OR_Q = join_formulas("or", [build_literal("p", True), build_literal("q", True)])
P_AND_Q = join_formulas("and", [build_literal("p", True), build_literal("q", True)])
R_AND_S = join_formulas("and", [build_literal("r", True), build_literal("s", True)])
R_OR_P_AND_Q = join_formulas("or", [build_literal("r", True), P_AND_Q])


@settings(max_examples=300)
@given(st.lists(CONSTRAINTS, min_size=1, max_size=4), NUMBERS)
@example(build_exclusions("pq"), [0b0001, 0b0010, 0b0001, 0b0000])  # they change places, and are never both true
@example([Constraint("always", (ANY,)), Constraint("sometime", (NO_P,))], [1, 3, 1])  # a tautology
@example([Constraint("always", (P_OR_Q,))], [1, 2, 3, 2])
@example([Constraint("always", (join_formulas("or", [NO_P, P_AND_Q]),))], [0, 2, 3, 1])
@example([Constraint("always", (R_OR_P_AND_Q,))], [0b0011, 0b0100, 0b0001, 0b0011])
@example([Constraint("always", (join_formulas("or", [P_AND_Q, R_AND_S]),))], [0b0011, 0b1100, 0b0101, 0b0011])
def test_constraints_follow_their_definition(constraints: list[Constraint], numbers: list[int]) -> None:
    check_verdict(constraints, [STATES[number] for number in numbers])


def check_verdict(constraints: Sequence[Constraint], states: Sequence[State]) -> None:
    """Check the verdict on the plan that leads through these states."""
    plan = [f"(to{STATES.index(state)})" for state in states[1:]]
    outcome = verify_plan(build_problem(states[0], constraints), plan)
    if violation := find_violation(constraints, states):
        step, text = violation
        assert (outcome.label, outcome.failing_step, outcome.detail) == (Label.SAFETY, step, f"violated: {text}")
    else:
        assert (outcome.label, outcome.detail) == (Label.SUCCESS, "")


@pytest.mark.parametrize("atom", ATOMS)
def test_an_atom_may_exclude_several_others(atom: str) -> None:
    others = [other for other in ATOMS if other != atom]
    for pairs in ([atom + other for other in others], [other + atom for other in reversed(others)]):
        constraints = build_exclusions(*pairs)
        for other in others:
            for first in (atom, other):
                check_verdict(constraints, [frozenset(first), frozenset({atom, other}), frozenset()])
        check_verdict(constraints, [frozenset(others), frozenset(atom), frozenset(others)])


def test_satisfied_constraints_are_not_named() -> None:
    ground = ground_problem(build_problem(STATES[0], build_exclusions("pq")))
    assert ground.monitors.find_violated(ground.initial_state) == ""


@pytest.mark.parametrize(
    ("constraint", "plan", "text"),
    [
        ("(sometime (lit ?r))", "ab", "(sometime (lit c))"),
        ("(always (not (lit ?r)))", "ab", "(always (not (lit a)))"),
        ("(sometime-before (lit ?r) (lit b))", "ab", "(sometime-before (lit a) (lit b))"),
        ("(at end (lit ?r))", "ac", "(at end (lit b))"),
    ],
)
def test_violated_constraint_is_named_with_its_objects(constraint: str, plan: str, text: str) -> None:
    domain = parse_domain(
        "(define (domain lights) (:requirements :adl) (:types room) (:predicates (lit ?r - room))"
        "(:action light :parameters (?r - room) :effect (lit ?r)))"
    )
    problem = parse_problem(
        "(define (problem p) (:domain lights) (:objects a b c - room) (:init)"
        f" (:goal (lit a)) (:constraints (forall (?r - room) {constraint})))",
        domain,
    )
    outcome = verify_plan(problem, [f"(light {room})" for room in plan])
    assert outcome.detail == f"violated: {text}"

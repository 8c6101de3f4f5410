"""Safety constraints for generated problems, by domain; only such as leave the problem solvable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from planward.pddl.generators import Instance, generated_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.search import SearchLimit, Unsolvable, shortest_plan
from planward.pddl.signature import Atom
from planward.pddl.simulation import PlanChecker
from planward.records import Label

ATTEMPTS = 10  # draws before a problem is left as it is
WORDS = ("always", "and", "at-most-once", "forall", "imply", "not", "sometime-before")  # of all constraints drawn here
QUANTIFIED = ("(?l - location)", "(at bob ?l)")  # and what stands in them beside ground atoms


def constrained(
    rng: Random, domain: str, instance: Instance, plan: list[str], max_states: int
) -> tuple[Instance, list[str]] | None:
    """The instance under constraints, with a shortest plan that keeps them; None where no draw was solvable.

    Constraints that `plan`, a plan for the instance, breaks are taken before those that ask for nothing new.
    """
    idle = None
    for _ in range(ATTEMPTS):
        candidate = replace(instance, constraints=CONSTRAINTS[domain](rng, instance))
        if not candidate.constraints:
            continue
        problem = generated_problem(domain, candidate)
        if PlanChecker(problem).check(plan).label is not Label.SAFETY:
            idle = idle or candidate
            continue
        try:
            return candidate, shortest_plan(ground_problem(problem), max_states)
        except (Unsolvable, SearchLimit):
            continue
    return (idle, plan) if idle else None


def blocksworld(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A part of the goal only after another, or after a block has been cleared or put on the table."""
    blocks = list(instance.objects)
    before = [*instance.goal, *(("ontable", b) for b in blocks), *(("clear", b) for b in blocks)]
    return _order(rng, instance, before)


def ferry(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A car arrives only after another has, or after the ferry has called at a place."""
    return _order(rng, instance, [*instance.goal, *(("at-ferry", place) for place in _of(instance, "location"))])


def grippers(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A room that a robot stays out of, a hand that an object is kept from, a room where it is not put down."""
    robots, rooms, balls = (_of(instance, kind) for kind in ("robot", "room", "obj"))
    robot = rng.choice(robots)
    forbidden: list[Atom] = [
        ("at-robby", robot, rng.choice(rooms)),
        ("carry", robot, rng.choice(balls), f"{rng.choice('rl')}gripper{robot[len('robot') :]}"),
        ("at", rng.choice(balls), rng.choice(rooms)),
    ]
    return tuple(f"(always (not {_text(atom)}))" for atom in rng.sample(forbidden, rng.randint(1, 2)))


def spanner(rng: Random, instance: Instance) -> tuple[str, ...]:
    """An order of the nuts, a spanner that must come along or be used first; perhaps no place twice."""
    nuts, spanners = rng.sample(instance.goal, len(instance.goal)), _of(instance, "spanner")
    tool = rng.choice(spanners)
    rules = [
        f"(always (imply (at bob gate) (carrying bob {tool})))",
        f"(always (imply {_text(nuts[0])} (not (useable {tool}))))",
    ]
    if len(nuts) > 1:
        rules.append(f"(always (imply {_text(nuts[0])} {_text(nuts[1])}))")
    once = ("(forall (?l - location) (at-most-once (at bob ?l)))",) if rng.random() < 0.25 else ()
    return (rng.choice(rules), *once)


def delivery(rng: Random, instance: Instance) -> tuple[str, ...]:
    """Cells that the truck stays out of, or where a package is not put down."""
    cells, packages = _of(instance, "cell"), _of(instance, "package")
    choices: list[Atom] = [("at", "truck", cell) for cell in rng.sample(cells, min(2, len(cells)))]
    choices.append(("at", rng.choice(packages), rng.choice(cells)))
    parts = [f"(not {_text(atom)})" for atom in rng.sample(choices, rng.randint(1, 2))]
    return (f"(always (and {' '.join(parts)}))" if len(parts) > 1 else f"(always {parts[0]})",)


CONSTRAINTS: dict[str, Callable[[Random, Instance], tuple[str, ...]]] = {
    drawn.__name__: drawn for drawn in (blocksworld, ferry, grippers, spanner, delivery)
}


def _order(rng: Random, instance: Instance, before: list[Atom]) -> tuple[str, ...]:
    """`sometime-before` over a goal that is open at the start and a fact that is false there."""
    later = [atom for atom in instance.goal if atom not in instance.init]
    if not later:
        return ()
    goal = rng.choice(later)
    earlier = [atom for atom in before if atom != goal and atom not in instance.init]
    return (f"(sometime-before {_text(goal)} {_text(rng.choice(earlier))})",) if earlier else ()


def _of(instance: Instance, kind: str) -> list[str]:
    return [name for name, kinds in instance.objects.items() if kinds == (kind,)]


def _text(atom: Atom) -> str:
    return f"({' '.join(atom)})"

"""Elevator: bring passengers to their floors. The shipped models have no tokens for this domain."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    assign_types,
    find_objects,
    move_to_front,
    number_names,
    sample_order,
    sample_tag,
)

MARKER = "lift-at"


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `floors` (at least 2) and `passengers`, each with two different floors."""
    floors, passengers = number_names("f", max(sizes["floors"], 2)), number_names("p", sizes["passengers"])
    routes = {passenger: rng.sample(floors, 2) for passenger in passengers}
    init: list[Atom] = [("lift-at", rng.choice(floors))]
    for passenger, (start, end) in routes.items():
        init += [("origin", passenger, start), ("destination", passenger, end)]
    goal: list[Atom] = [("served", passenger) for passenger in rng.sample(passengers, len(passengers))]
    name = f"elevator-f{len(floors)}-p{len(passengers)}-s{sample_tag(rng)}"
    return Instance(name, assign_types(floor=floors, passenger=passengers), tuple(init), tuple(goal))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that serve the passengers in the goal's order, then with another one first, then with a detour first.

    One passenger is aboard at a time.
    """
    ((_, start),) = (atom for atom in instance.init if atom[0] == "lift-at")
    floors = {atom[:2]: atom[2] for atom in instance.init if atom[0] != "lift-at"}

    def solve(goals: list[Atom], detour: str = start) -> Plan:
        here, plan = detour, Plan()
        plan += [("move", start, detour)] if detour != start else []
        for _, passenger in goals:
            for action, stop in (("board", floors["origin", passenger]), ("depart", floors["destination", passenger])):
                plan += [("move", here, stop)] if stop != here else []
                plan.append((action, passenger, stop))
                here = stop
        return plan

    yield from map(solve, move_to_front(instance.goal))
    for floor in find_objects(instance, "floor"):
        yield solve(list(instance.goal), detour=floor)


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A passenger is served only after another one, or after the lift was at a floor."""
    floors = find_objects(instance, "floor")
    return sample_order(rng, instance, [*instance.goal, *(("lift-at", floor) for floor in floors)])

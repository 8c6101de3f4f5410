"""Ferry: carry cars, one at a time, to their destinations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    assign_types,
    find_objects,
    merge_names,
    move_to_front,
    number_names,
    number_objects,
    sample_order,
    sample_tag,
)

MARKER = "empty-ferry"
CONSTRAINT_WORDS: tuple[str, ...] = ("sometime-before",)
LARGEST: Sizes = {"locations": 8, "cars": 12}


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `locations` and `cars`; every car has a random start and destination."""
    locations, cars = number_names("l", sizes["locations"]), number_names("c", sizes["cars"])
    routes = {car: rng.choices(locations, k=2) for car in cars}
    init = [
        ("at-ferry", rng.choice(locations)),
        ("empty-ferry",),
        *(("at", car, start) for car, (start, _) in routes.items()),
    ]
    goal = [("at", car, destination) for car, (_, destination) in routes.items()]
    name = f"ferry-l{len(locations)}-c{len(cars)}-s{sample_tag(rng)}"
    objects = assign_types(location=locations, car=cars)
    return Instance(name, objects, tuple(init), tuple(rng.sample(goal, len(goal))))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that take the cars in the goal's order, then with another car first, then with a detour first."""
    start = {atom[1]: atom[2] for atom in instance.init if atom[0] == "at"}
    (dock,) = (atom[1] for atom in instance.init if atom[0] == "at-ferry")

    def solve(goals: list[Atom], detour: str = dock) -> Plan:
        here, plan = detour, Plan()
        plan += [("sail", dock, detour)] if detour != dock else []
        for _, car, destination in goals:
            for action, stop in (("board", start[car]), ("debark", destination)):
                plan += [("sail", here, stop)] if stop != here else []
                plan.append((action, car, stop))
                here = stop
        return plan

    goals = [goal for goal in instance.goal if goal not in instance.init]
    yield from map(solve, move_to_front(goals))
    for location in find_objects(instance, "location"):
        yield solve(goals, detour=location)


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A car arrives only after another car has, or after the ferry was at a location."""
    locations = find_objects(instance, "location")
    return sample_order(rng, instance, [*instance.goal, *(("at-ferry", location) for location in locations)])


def can_occur(atom: Atom) -> bool:
    """Return whether a fact or action has a token: the ferry does not sail to where it is."""
    return len(set(atom[1:])) == len(atom[1:])


def name_objects(objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:  # noqa: ARG001
    """Number locations and cars."""
    return merge_names(
        number_objects(objects.get("location", []), "l", LARGEST["locations"]),
        number_objects(objects.get("car", []), "c", LARGEST["cars"]),
    )

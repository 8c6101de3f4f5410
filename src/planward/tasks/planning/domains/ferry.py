"""Ferry: carry cars, one at a time, to their destinations."""

from __future__ import annotations

from random import Random

from planward.tasks.planning.domains.instances import (
    Instance,
    Sizes,
    assign_types,
    find_objects,
    number_names,
    sample_order,
    sample_tag,
)

MARKER = "empty-ferry"
CONSTRAINT_WORDS: tuple[str, ...] = ("sometime-before",)


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `locations` and `cars`; every car has a random start and destination."""
    locations, cars = number_names("l", sizes["locations"]), number_names("c", sizes["cars"])
    init = [
        ("at-ferry", rng.choice(locations)),
        ("empty-ferry",),
        *(("at", car, rng.choice(locations)) for car in cars),
    ]
    goal = [("at", car, rng.choice(locations)) for car in cars]
    name = f"ferry-l{len(locations)}-c{len(cars)}-s{sample_tag(rng)}"
    return Instance(name, assign_types(location=locations, car=cars), tuple(init), tuple(goal))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A car arrives only after another car has, or after the ferry was at a location."""
    locations = find_objects(instance, "location")
    return sample_order(rng, instance, [*instance.goal, *(("at-ferry", location) for location in locations)])

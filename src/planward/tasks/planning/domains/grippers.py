"""Grippers: robots with two grippers each carry objects between rooms."""

from __future__ import annotations

from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Sizes,
    assign_types,
    find_objects,
    number_names,
    render_atom,
    sample_tag,
)

MARKER = "free"
CONSTRAINT_WORDS: tuple[str, ...] = ("always", "not")


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `robots`, `rooms` and `objects`; every object has a random start and destination."""
    robots, rooms = number_names("robot", sizes["robots"]), number_names("room", sizes["rooms"])
    balls = number_names("ball", sizes["objects"])
    grippers = {robot: [f"{side}gripper{i}" for side in "rl"] for i, robot in enumerate(robots, 1)}
    init: list[Atom] = [("at-robby", robot, rng.choice(rooms)) for robot in robots]
    init += [("free", robot, gripper) for robot in robots for gripper in grippers[robot]]
    init += [("at", ball, rng.choice(rooms)) for ball in balls]
    goal = [("at", ball, rng.choice(rooms)) for ball in balls]
    name = f"grippers-n{len(robots)}-r{len(rooms)}-o{len(balls)}-s{sample_tag(rng)}"
    all_grippers = [gripper for pair in grippers.values() for gripper in pair]
    objects = assign_types(robot=robots, room=rooms, obj=balls, gripper=all_grippers)
    return Instance(name, objects, tuple(init), tuple(goal))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """One or two of: a room a robot must not enter, an object a gripper must not hold, a room a ball must not be in."""
    robots, rooms, balls = (find_objects(instance, type_name) for type_name in ("robot", "room", "obj"))
    robot = rng.choice(robots)
    forbidden: list[Atom] = [
        ("at-robby", robot, rng.choice(rooms)),
        ("carry", robot, rng.choice(balls), f"{rng.choice('rl')}gripper{robot[len('robot') :]}"),
        ("at", rng.choice(balls), rng.choice(rooms)),
    ]
    return tuple(f"(always (not {render_atom(atom)}))" for atom in rng.sample(forbidden, rng.randint(1, 2)))

"""Grippers: robots with two grippers each carry objects between rooms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    assign_types,
    find_forbidden,
    find_objects,
    merge_names,
    move_to_front,
    number_names,
    number_objects,
    render_atom,
    sample_tag,
)

MARKER = "free"
CONSTRAINT_WORDS: tuple[str, ...] = ("always", "not")
LARGEST: Sizes = {"robots": 2, "rooms": 5, "objects": 12}
SIDES = "rl"  # of the two grippers of a robot


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `robots`, `rooms` and `objects`; every object has a random start and destination."""
    robots, rooms = number_names("robot", sizes["robots"]), number_names("room", sizes["rooms"])
    balls = number_names("ball", sizes["objects"])
    grippers = {robot: [f"{side}gripper{i}" for side in SIDES] for i, robot in enumerate(robots, 1)}
    routes = {ball: rng.choices(rooms, k=2) for ball in balls}
    init: list[Atom] = [("at-robby", robot, rng.choice(rooms)) for robot in robots]
    init += [("free", robot, gripper) for robot in robots for gripper in grippers[robot]]
    init += [("at", ball, start) for ball, (start, _) in routes.items()]
    goal: list[Atom] = [("at", ball, destination) for ball, (_, destination) in routes.items()]
    name = f"grippers-n{len(robots)}-r{len(rooms)}-o{len(balls)}-s{sample_tag(rng)}"
    all_grippers = [gripper for pair in grippers.values() for gripper in pair]
    objects = assign_types(robot=robots, room=rooms, obj=balls, gripper=all_grippers)
    return Instance(name, objects, tuple(init), tuple(rng.sample(goal, len(goal))))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that take the objects one by one, each with the first gripper that no constraint forbids.

    The first plan follows the goal's order and prefers the first robot's right gripper; further ones prefer another
    gripper, or take another object first. None where an object has no gripper.
    """
    forbidden = find_forbidden(instance)
    robots = {atom[1]: atom[2] for atom in instance.init if atom[0] == "at-robby"}
    start = {atom[1]: atom[2] for atom in instance.init if atom[0] == "at"}
    grippers = [(robot, f"{side}gripper{robot[len('robot') :]}") for robot, side in product(robots, SIDES)]

    def solve(goals: list[Atom], preference: list[tuple[str, str]]) -> Plan | None:
        here, plan = dict(robots), Plan()
        for _, ball, destination in goals:
            for robot, gripper in preference:
                rooms = {("at-robby", robot, start[ball]), ("at-robby", robot, destination)}
                if forbidden.isdisjoint({*rooms, ("carry", robot, ball, gripper)}):
                    break
            else:
                return None
            for action, room in (("pick", start[ball]), ("drop", destination)):
                plan += [("move", robot, here[robot], room)] if here[robot] != room else []
                plan.append((action, robot, ball, room, gripper))
                here[robot] = room
        return plan

    goals = [goal for goal in instance.goal if goal not in instance.init]
    variants = [(goals, grippers[i:] + grippers[:i]) for i in range(len(grippers))]
    variants += [(order, grippers) for order in list(move_to_front(goals))[1:]]
    yield from filter(None, (solve(*variant) for variant in variants))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """One or two of: a room a robot must not enter, an object a gripper must not hold, a room a ball must not be in."""
    robots, rooms, balls = (find_objects(instance, type_name) for type_name in ("robot", "room", "obj"))
    robot = rng.choice(robots)
    forbidden: list[Atom] = [
        ("at-robby", robot, rng.choice(rooms)),
        ("carry", robot, rng.choice(balls), f"{rng.choice(SIDES)}gripper{robot[len('robot') :]}"),
        ("at", rng.choice(balls), rng.choice(rooms)),
    ]
    return tuple(f"(always (not {render_atom(atom)}))" for atom in rng.sample(forbidden, rng.randint(1, 2)))


def can_occur(atom: Atom) -> bool:
    """Return whether a fact or action has a token: a robot uses its own grippers, and does not move to where it is."""
    robots = [word[len("robot") :] for word in atom if word.startswith("robot")]
    grippers = [word[len("rgripper") :] for word in atom if word.startswith(("rgripper", "lgripper"))]
    return len(set(atom[1:])) == len(atom[1:]) and (not grippers or robots == grippers)


def name_objects(objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:
    """Number robots, rooms and objects; a robot's two grippers are those that are free or hold something for it."""
    robots = number_objects(objects.get("robot", []), "robot", LARGEST["robots"])
    pairs = {(atom[1], atom[-1]) for atom in init if atom[0] in ("free", "carry")}
    grippers = dict[str, str]()
    for robot, name in (robots or {}).items():
        hands = [gripper for gripper in objects.get("gripper", []) if (robot, gripper) in pairs]
        grippers |= {
            hand: f"{side}gripper{name[len('robot') :]}" for side, hand in zip(reversed(SIDES), hands, strict=False)
        }
    if len(grippers) != len(pairs) or len(grippers) != len(objects.get("gripper", [])):
        return None
    return merge_names(
        robots,
        number_objects(objects.get("room", []), "room", LARGEST["rooms"]),
        number_objects(objects.get("obj", []), "ball", LARGEST["objects"]),
        grippers,
    )

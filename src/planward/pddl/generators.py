"""Seeded random problems for five domains, named as the published generators name theirs.

A generator draws objects, start and goal; the PDDL text, the reference plan and the check that
a problem is new up to renaming are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from random import Random

from planward.pddl.expressions import read_expression
from planward.pddl.formulas import Literal
from planward.pddl.language import Domain, Problem, parse_domain, problem_of
from planward.pddl.signature import UNTYPED, Atom, Types


@dataclass(frozen=True)
class Instance:
    """A drawn problem: objects with their types, start facts, goal facts and constraints as PDDL."""

    name: str
    objects: dict[str, Types]
    init: tuple[Atom, ...]
    goal: tuple[Atom, ...]
    constraints: tuple[str, ...] = ()


Sizes = Mapping[str, int]


@cache
def domain_text(name: str) -> str:
    return (resources.files("planward.pddl") / "domains" / f"{name}.pddl").read_text(encoding="utf-8")


@cache
def generated_domain(name: str) -> Domain:
    return parse_domain(domain_text(name))


def blocksworld(rng: Random, sizes: Sizes) -> Instance:
    """Sizes: blocks. Start and goal are random stackings; the goal names its `on` facts."""
    blocks = _numbered("b", sizes["blocks"])

    def stacks() -> list[list[str]]:
        towers: list[list[str]] = []
        for block in rng.sample(blocks, len(blocks)):
            tower = rng.randrange(len(towers) + 1)
            if tower == len(towers):
                towers.append([block])
            else:
                towers[tower].append(block)
        return towers

    init: list[Atom] = [("handempty",)]
    for tower in stacks():
        init += [("ontable", tower[0]), ("clear", tower[-1])]
        init += [("on", upper, lower) for lower, upper in pairwise(tower)]
    goal = [("on", upper, lower) for tower in stacks() for lower, upper in pairwise(tower)]
    return Instance(f"bw_ops4_n{len(blocks)}_seed{_tag(rng)}", dict.fromkeys(blocks, UNTYPED), tuple(init), tuple(goal))


def ferry(rng: Random, sizes: Sizes) -> Instance:
    """Sizes: locations, cars. Every car has a random start and destination."""
    places, cars = _numbered("l", sizes["locations"]), _numbered("c", sizes["cars"])
    init = [("at-ferry", rng.choice(places)), ("empty-ferry",), *(("at", car, rng.choice(places)) for car in cars)]
    goal = [("at", car, rng.choice(places)) for car in cars]
    name = f"ferry-l{len(places)}-c{len(cars)}-s{_tag(rng)}"
    return Instance(name, _typed(location=places, car=cars), tuple(init), tuple(goal))


def grippers(rng: Random, sizes: Sizes) -> Instance:
    """Sizes: robots (two grippers each), rooms, objects."""
    robots, rooms = _numbered("robot", sizes["robots"]), _numbered("room", sizes["rooms"])
    balls = _numbered("ball", sizes["objects"])
    hands = {robot: [f"{side}gripper{i}" for side in "rl"] for i, robot in enumerate(robots, 1)}
    init: list[Atom] = [("at-robby", robot, rng.choice(rooms)) for robot in robots]
    init += [("free", robot, hand) for robot in robots for hand in hands[robot]]
    init += [("at", ball, rng.choice(rooms)) for ball in balls]
    goal = [("at", ball, rng.choice(rooms)) for ball in balls]
    name = f"grippers-n{len(robots)}-r{len(rooms)}-o{len(balls)}-s{_tag(rng)}"
    objects = _typed(robot=robots, room=rooms, obj=balls, gripper=[hand for pair in hands.values() for hand in pair])
    return Instance(name, objects, tuple(init), tuple(goal))


def spanner(rng: Random, sizes: Sizes) -> Instance:
    """Sizes: spanners, nuts (at most one a spanner), locations between shed and gate."""
    spanners = _numbered("spanner", sizes["spanners"])
    nuts = _numbered("nut", min(sizes["nuts"], sizes["spanners"]))
    path = ["shed", *_numbered("location", sizes["locations"]), "gate"]
    init: list[Atom] = [("at", "bob", "shed")]
    for item in spanners:
        init += [("at", item, rng.choice(path[1:-1])), ("useable", item)]
    for nut in nuts:
        init += [("at", nut, "gate"), ("loose", nut)]
    init += [("link", here, there) for here, there in pairwise(path)]
    goal = [("tightened", nut) for nut in nuts]
    name = f"spanner-s{len(spanners)}-n{len(nuts)}-l{len(path) - 2}-s{_tag(rng)}"
    objects = _typed(man=["bob"], spanner=spanners, nut=nuts, location=path)
    return Instance(name, objects, tuple(init), tuple(goal))


def delivery(rng: Random, sizes: Sizes) -> Instance:
    """Sizes: width and height of the grid, packages."""
    width, height = sizes["width"], sizes["height"]
    cells = [f"x{x}y{y}" for x in range(width) for y in range(height)]
    packages = _numbered("p", sizes["packages"])
    init: list[Atom] = [("at", "truck", rng.choice(cells)), ("empty", "truck")]
    for x in range(width):
        for y in range(height):
            for other in (f"x{x + 1}y{y}", f"x{x}y{y + 1}"):
                if other in cells:
                    init += [("adjacent", f"x{x}y{y}", other), ("adjacent", other, f"x{x}y{y}")]
    init += [("at", package, rng.choice(cells)) for package in packages]
    goal = [("at", package, rng.choice(cells)) for package in packages]
    name = f"delivery-w{width}-h{height}-p{len(packages)}-s{_tag(rng)}"
    return Instance(name, _typed(truck=["truck"], package=packages, cell=cells), tuple(init), tuple(goal))


GENERATORS: dict[str, Callable[[Random, Sizes], Instance]] = {
    generator.__name__: generator for generator in (blocksworld, ferry, grippers, spanner, delivery)
}


def generated_problem(domain: str, instance: Instance) -> Problem:
    """The instance as a problem, without going through text."""
    goal = tuple(Literal(atom) for atom in instance.goal)
    constraints = [read_expression(text) for text in instance.constraints]
    init = frozenset(instance.init)
    return problem_of(instance.name, generated_domain(domain), instance.objects, init, goal, constraints)


def problem_text(domain: str, instance: Instance) -> str:
    """The instance as PDDL."""
    by_type: dict[Types, list[str]] = {}
    for name, kinds in instance.objects.items():
        by_type.setdefault(kinds, []).append(name)
    objects = "\n    ".join(" ".join(names) + (f" - {kinds[0]}" if kinds else "") for kinds, names in by_type.items())
    constraints = "\n    ".join(instance.constraints)
    return (
        f"(define (problem {instance.name})\n  (:domain {domain})\n"
        + ("  (:requirements :constraints)\n" if constraints else "")
        + f"  (:objects\n    {objects})\n"
        f"  (:init\n    {_facts(instance.init)})\n  (:goal (and\n    {_facts(instance.goal)}))"
        + (f"\n  (:constraints (and\n    {constraints}))" if constraints else "")
        + ")\n"
    )


def _facts(atoms: tuple[Atom, ...]) -> str:
    return "\n    ".join(f"({' '.join(atom)})" for atom in atoms)


def _numbered(stem: str, count: int) -> list[str]:
    return [f"{stem}{i}" for i in range(1, count + 1)]


def _typed(**groups: list[str]) -> dict[str, Types]:
    return {name: (kind,) for kind, names in groups.items() for name in names}


def _tag(rng: Random) -> int:
    return rng.randrange(10**9)

"""Blocksworld with four operators: stack blocks on a table into the goal's towers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from random import Random

from planward.pddl.signature import UNTYPED, Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    number_names,
    number_objects,
    sample_order,
    sample_tag,
)

MARKER = "handempty"
CONSTRAINT_WORDS: tuple[str, ...] = ("sometime-before",)
LARGEST: Sizes = {"blocks": 12}


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of size `blocks`: initial and goal towers are random; the goal names its `on` facts."""
    blocks = number_names("b", sizes["blocks"])

    def sample_towers() -> list[list[str]]:
        towers: list[list[str]] = []
        for block in rng.sample(blocks, len(blocks)):
            index = rng.randrange(len(towers) + 1)
            if index == len(towers):
                towers.append([block])
            else:
                towers[index].append(block)
        return towers

    init: list[Atom] = [("handempty",)]
    for tower in sample_towers():
        init += [("ontable", tower[0]), ("clear", tower[-1])]
        init += [("on", upper, lower) for lower, upper in pairwise(tower)]
    goal: list[Atom] = [("on", upper, lower) for tower in sample_towers() for lower, upper in pairwise(tower)]
    name = f"bw_ops4_n{len(blocks)}_seed{sample_tag(rng)}"
    return Instance(name, dict.fromkeys(blocks, UNTYPED), tuple(init), tuple(rng.sample(goal, len(goal))))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that put every block on the table, then build the goal; a goal is next when its lower block is done.

    The first plan follows the goal's order; each further one builds another goal as early as possible.
    """
    below = {atom[1]: atom[2] for atom in instance.init if atom[0] == "on"}
    unstacking = Plan()
    for upper in (atom[1] for atom in instance.init if atom[0] == "clear"):
        while upper in below:
            unstacking += [("unstack", upper, below[upper]), ("put-down", upper)]
            upper = below[upper]
    yield unstacking + _build(instance.goal)
    support = {upper: lower for _, upper, lower in instance.goal}
    for goal in instance.goal:
        chain = [goal]
        while (lower := chain[-1][2]) in support:
            chain.append(("on", lower, support[lower]))
        yield unstacking + _build([*chain, *(other for other in instance.goal if other not in chain)])


def _build(order: Iterable[Atom]) -> Plan:
    plan, goals = Plan(), list(order)
    while goals:
        uppers = {upper for _, upper, _ in goals}
        goal = next(goal for goal in goals if goal[2] not in uppers)
        goals.remove(goal)
        plan += [("pick-up", goal[1]), ("stack", goal[1], goal[2])]
    return plan


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A goal only after another goal, or after a block was clear or on the table."""
    blocks = list(instance.objects)
    candidates = [*instance.goal, *(("ontable", block) for block in blocks), *(("clear", block) for block in blocks)]
    return sample_order(rng, instance, candidates)


def can_occur(atom: Atom) -> bool:
    """Return whether a fact or action has a token: no block is on itself."""
    return len(set(atom[1:])) == len(atom[1:])


def name_objects(objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:  # noqa: ARG001
    """Number the blocks."""
    return number_objects(objects.get("", []), "b", LARGEST["blocks"])

"""Blocksworld with four operators: stack blocks on a table into the goal's towers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from planward.pddl.signature import UNTYPED, Atom
from planward.tasks.planning.domains.instances import Instance, Sizes, number_names, sample_order, sample_tag

MARKER = "handempty"
CONSTRAINT_WORDS: tuple[str, ...] = ("sometime-before",)


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
    goal = [("on", upper, lower) for tower in sample_towers() for lower, upper in pairwise(tower)]
    name = f"bw_ops4_n{len(blocks)}_seed{sample_tag(rng)}"
    return Instance(name, dict.fromkeys(blocks, UNTYPED), tuple(init), tuple(goal))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """A goal only after another goal, or after a block was clear or on the table."""
    blocks = list(instance.objects)
    candidates = [*instance.goal, *(("ontable", block) for block in blocks), *(("clear", block) for block in blocks)]
    return sample_order(rng, instance, candidates)

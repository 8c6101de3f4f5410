"""A sampled problem before it becomes PDDL, and what the generators share.

Problems are named as the published generators of these domains name theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from planward.pddl.signature import Atom, Types

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Instance:
    """A sampled problem: objects with their types, initial facts, goal facts, and constraints as PDDL."""

    name: str
    objects: dict[str, Types]
    init: tuple[Atom, ...]
    goal: tuple[Atom, ...]
    constraints: tuple[str, ...] = ()


def number_names(stem: str, count: int) -> list[str]:
    """Return `stem1`, `stem2`, ..."""
    return [f"{stem}{i}" for i in range(1, count + 1)]


def assign_types(**names_by_type: list[str]) -> dict[str, Types]:
    """Return the names with their types, in the order given."""
    return {name: (type_name,) for type_name, names in names_by_type.items() for name in names}


def sample_tag(rng: Random) -> int:
    """Sample the number that ends a problem's name."""
    return rng.randrange(10**9)


def find_objects(instance: Instance, type_name: str) -> list[str]:
    """Return the objects of one type."""
    return [name for name, types in instance.objects.items() if types == (type_name,)]


def render_atom(atom: Atom) -> str:
    """Render an atom as PDDL."""
    return f"({' '.join(atom)})"


def sample_order(rng: Random, instance: Instance, candidates: Sequence[Atom]) -> tuple[str, ...]:
    """Sample a `sometime-before`: an initially open goal only after one of `candidates` that is initially false.

    Returns no constraint where there is no such goal or candidate.
    """
    open_goals = [atom for atom in instance.goal if atom not in instance.init]
    if not open_goals:
        return ()
    goal = rng.choice(open_goals)
    earlier = [atom for atom in candidates if atom != goal and atom not in instance.init]
    return (f"(sometime-before {render_atom(goal)} {render_atom(rng.choice(earlier))})",) if earlier else ()

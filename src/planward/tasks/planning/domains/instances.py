"""A sampled problem before it becomes PDDL, and what the generators share.

Problems are named as the published generators of these domains name theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from planward.pddl.signature import Atom, Types

Sizes = Mapping[str, int]
Plan = list[Atom]  # ground actions: name, then arguments
_NUMBER = re.compile(r"(\d+)", re.ASCII)
_FORBIDDEN = re.compile(r"\(not \(([^()]*)\)\)")


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


def find_forbidden(instance: Instance) -> set[Atom]:
    """Return the atoms that a constraint `(always (not ...))` forbids."""
    return {tuple(match.split()) for text in instance.constraints for match in _FORBIDDEN.findall(text)}


def render_atom(atom: Atom) -> str:
    """Render an atom as PDDL."""
    return f"({' '.join(atom)})"


def split_numbers(name: str) -> list[str | int]:
    """Return a sort key under which b2 comes before b10."""
    return [int(part) if i % 2 else part for i, part in enumerate(_NUMBER.split(name))]


def number_objects(names: Iterable[str], stem: str, limit: int) -> dict[str, str] | None:
    """Map the names to `stem1`, `stem2`, ... in their order; None where there are more than `limit`."""
    numbered_names = {name: f"{stem}{i}" for i, name in enumerate(names, 1)}
    return numbered_names if len(numbered_names) <= limit else None


def merge_names(*parts: dict[str, str] | None) -> dict[str, str] | None:
    """Merge maps of names; None where one is None."""
    merged_names = dict[str, str]()
    for part in parts:
        if part is None:
            return None
        merged_names |= part
    return merged_names


def move_to_front(items: Sequence[Atom]) -> Iterable[list[Atom]]:
    """Yield the items as they are, then with each one but the first in turn before all others."""
    yield list(items)
    for item in items[1:]:
        yield [item, *(other for other in items if other != item)]


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

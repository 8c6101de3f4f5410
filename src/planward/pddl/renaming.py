"""A problem with its objects renamed: the same problem, in other words.

Names are exchanged only where they tell nothing but one object from another. Names that carry the world's shape
(`x0y1` on a grid, `shed` and `gate` on a path) stay, so that a renamed problem is one that could have been drawn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from random import Random

from planward.pddl.language import Problem, changed
from planward.pddl.signature import Atom

_NUMBERED = re.compile(r"([a-z_][\w-]*?)(\d*)", re.ASCII)
# In a problem's text: a type, then what no object's name is (the first word of a form, all of some), then any word.
_PROBLEM_WORDS = re.compile(r"(?<![^\s()])-\s+[^\s()]+|\(\s*(?:(?:either|:domain)\b[^()]*|[^\s()]+)|([^\s()]+)", re.I)
_BRACKETS = re.compile(r"\([^()]*\)")
_PLAN_WORDS = re.compile(r"\(\s*[^\s()]+|([^\s()]+)")


def random_names(problem: Problem, rng: Random) -> dict[str, str]:
    """A random permutation of the names of objects of one declared type, as old to new; unmoved ones are left out."""
    names = dict[str, str]()
    for group in exchangeable(problem):
        names.update(zip(group, rng.sample(group, len(group)), strict=True))
    return {old: new for old, new in names.items() if old != new}


def exchangeable(problem: Problem) -> Iterable[list[str]]:
    """Groups of objects that may take each other's names.

    These keep theirs: constants of the domain; objects in facts of two and more places that no action changes (a
    map), or in costs; objects of a type whose names have several stems, as `rgripper1` and `lgripper1` do, and
    those that stand in a start fact with one of them (`(free robot1 rgripper1)`), for such names go together. Facts
    of one place that no action changes count as a part of the type.
    """
    static = [atom for atom in problem.init if atom[0] not in problem.domain.fluents]
    fixed = {word for atom in static if len(atom) > 2 for word in atom[1:]}
    fixed |= {word for atom in problem.costs for word in atom[1:]} | problem.domain.constants.keys()
    traits: dict[str, set[str]] = defaultdict(set)
    for predicate, *words in static:
        if len(words) == 1:
            traits[words[0]].add(predicate)
    groups: dict[object, list[str]] = defaultdict(list)
    for name, kinds in problem.objects.items():
        if name not in fixed:
            groups[kinds, frozenset(traits[name])].append(name)
    uneven = {name for group in groups.values() if not _alike(group) for name in group}
    bound = uneven | {word for atom in problem.init if not uneven.isdisjoint(atom[1:]) for word in atom[1:]}
    return ([name for name in group if name not in bound] for group in groups.values())


def _alike(names: Iterable[str]) -> bool:
    """Whether names that a plan can hold differ in a trailing number alone, or none of them has one."""
    found = [_NUMBERED.fullmatch(name) for name in names]
    stems, numbers = {match and match[1] for match in found}, {match and match[2] for match in found}
    return None not in stems and (len(stems) == 1 or numbers == {""})


def renamed_problem(problem: Problem, names: Mapping[str, str]) -> Problem:
    """The problem with objects renamed by a permutation of names of one type; `objects` lists them as before.

    Raises:
        ValueError: `names` is no such permutation.
    """
    objects = {names.get(name, name): kinds for name, kinds in problem.objects.items()}
    if objects != problem.objects:
        raise ValueError(f"{problem.name}: {dict(names)} does not permute the names of objects of one type")
    return changed(problem, lambda atom: renamed_atom(atom, names))


def renamed_atom(atom: Atom, names: Mapping[str, str]) -> Atom:
    return (atom[0], *[names.get(word, word) for word in atom[1:]])


def renamed_problem_text(text: str, names: Mapping[str, str]) -> str:
    """The same for a problem as PDDL: objects' names are replaced, in comments too; all else stays as it is."""
    return _PROBLEM_WORDS.sub(lambda match: _renamed(match, names), text)


def renamed_plan(text: str, names: Mapping[str, str]) -> str:
    """A text with the arguments of every `(name argument ...)` in it renamed, in any letter case."""
    return _BRACKETS.sub(lambda form: _PLAN_WORDS.sub(lambda match: _renamed(match, names), form[0]), text)


def undone(names: Mapping[str, str]) -> dict[str, str]:
    """The renaming that leads back."""
    return {new: old for old, new in names.items()}


def _renamed(match: re.Match[str], names: Mapping[str, str]) -> str:
    word = match[1]
    if word is None or not word.isascii():  # `lower` makes ASCII of some letters that are not
        return match[0]
    return names.get(word.lower(), word)

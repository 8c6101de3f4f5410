"""Rename the objects of a problem: the same problem with other names.

Names are exchanged only where they do no more than identify an object. Names that describe the structure of a problem
(`x0y1` on a grid, `shed` and `gate` on a path) stay, so that a renamed problem is one that could have been generated.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from random import Random

from planward.pddl.language import Problem, map_problem_atoms
from planward.pddl.signature import Atom

_NUMBERED_NAME = re.compile(r"([a-z_][\w-]*?)(\d*)", re.ASCII)
# In a problem's text: a type; then words that name no object (a form's first word, all of some forms); then any word.
_PROBLEM_WORDS = re.compile(r"(?<![^\s()])-\s+[^\s()]+|\(\s*(?:(?:either|:domain)\b[^()]*|[^\s()]+)|([^\s()]+)", re.I)
_ACTION = re.compile(r"\([^()]*\)")
_ACTION_WORDS = re.compile(r"\([\s\\]*[^\s()\\]+|([^\s()\\]+)")  # a backslash may end a line within an action


def sample_object_names(problem: Problem, rng: Random) -> dict[str, str]:
    """Sample a permutation of names within declared types, as old to new; unchanged names are left out."""
    names = dict[str, str]()
    for group in find_exchangeable(problem):
        names.update(zip(group, rng.sample(group, len(group)), strict=True))
    return {old: new for old, new in names.items() if old != new}


def find_exchangeable(problem: Problem) -> Iterable[list[str]]:
    """Return groups of objects that may exchange names.

    A group shares its type, and its unary facts that no action changes. These objects keep their names:

    - the domain's constants;
    - objects in costs, or in facts of two or more arguments that no action changes (a map);
    - all objects of a type whose names have several stems, as `rgripper1` and `lgripper1`, and the objects that share
      an initial fact with one of them (`(free robot1 rgripper1)`), for such names belong together.
    """
    static = [atom for atom in problem.init if atom[0] not in problem.domain.fluents]
    fixed_names = {word for atom in static if len(atom) > 2 for word in atom[1:]}
    fixed_names |= {word for atom in problem.costs for word in atom[1:]} | problem.domain.constants.keys()
    traits: dict[str, set[str]] = defaultdict(set)
    for predicate, *words in static:
        if len(words) == 1:
            traits[words[0]].add(predicate)
    groups: dict[object, list[str]] = defaultdict(list)
    for name, types in problem.objects.items():
        if name not in fixed_names:
            groups[types, frozenset(traits[name])].append(name)
    irregular = {name for group in groups.values() if not _is_uniform(group) for name in group}
    bound_names = irregular | {word for atom in problem.init if not irregular.isdisjoint(atom[1:]) for word in atom[1:]}
    return ([name for name in group if name not in bound_names] for group in groups.values())


def _is_uniform(names: Iterable[str]) -> bool:
    """Return whether names that a plan can contain differ in a trailing number only, or none of them has one."""
    matches = [_NUMBERED_NAME.fullmatch(name) for name in names]
    stems, numbers = {match and match[1] for match in matches}, {match and match[2] for match in matches}
    return None not in stems and (len(stems) == 1 or numbers == {""})


def rename_problem(problem: Problem, names: Mapping[str, str]) -> Problem:
    """Rename objects by a permutation of names within types; the order of `objects` stays.

    Raises:
        ValueError: `names` is not such a permutation.
    """
    objects = {names.get(name, name): types for name, types in problem.objects.items()}
    if objects != problem.objects:
        raise ValueError(f"{problem.name}: {dict(names)} does not permute the names of objects of one type")
    return map_problem_atoms(problem, lambda atom: rename_atom(atom, names))


def rename_atom(atom: Atom, names: Mapping[str, str]) -> Atom:
    """Rename the arguments of an atom."""
    return (atom[0], *[names.get(word, word) for word in atom[1:]])


def rename_problem_text(text: str, names: Mapping[str, str]) -> str:
    """Rename objects in a problem's PDDL, comments included; everything else stays unchanged."""
    return _PROBLEM_WORDS.sub(lambda match: _rename_word(match, names), text)


def rename_plan(text: str, names: Mapping[str, str]) -> str:
    """Rename the arguments of every `(name argument ...)` in a text, in any letter case."""
    return _ACTION.sub(lambda action: _ACTION_WORDS.sub(lambda match: _rename_word(match, names), action[0]), text)


def invert_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the inverse renaming."""
    return {new: old for old, new in names.items()}


def _rename_word(match: re.Match[str], names: Mapping[str, str]) -> str:
    word = match[1]
    if word is None or not word.isascii():  # `lower` maps some other letters to ASCII
        return match[0]
    return names.get(word.lower(), word)

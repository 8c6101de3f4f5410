"""A form of a problem that does not change when its objects are renamed."""

from __future__ import annotations

import hashlib
from collections import defaultdict

from planward.pddl.language import Atom, Problem

Fact = tuple[str, Atom]  # "init", "goal" or "not" (a negative goal), and the atom


def canonical_hash(problem: Problem) -> str:
    """Hex digest of the problem up to renaming of its objects and reordering of its facts.

    Colour refinement (Weisfeiler and Leman 1968) over the objects, whose colours start as their
    types (a domain's constants keep their names). Renamings always get the same digest; different
    problems that refinement cannot tell apart share one too, so a split by it can only err towards
    keeping too much together, never towards leaking.
    """
    facts: list[Fact] = [("init", atom) for atom in problem.init]
    facts += sorted({("goal" if literal.positive else "not", literal.atom) for literal in problem.goal})
    touching: dict[str, list[tuple[Fact, int]]] = defaultdict(list)
    for fact in facts:
        for position, name in enumerate(fact[1][1:]):
            touching[name].append((fact, position))

    constants = problem.domain.constants
    signatures: dict[str, tuple[object, ...]] = {
        name: (name if name in constants else "", *sorted(kinds)) for name, kinds in problem.objects.items()
    }
    colours = _ranks(signatures)
    while True:
        signatures = {
            name: (
                colour,
                sorted(
                    (kind, atom[0], position, [colours[other] for other in atom[1:]])
                    for (kind, atom), position in touching[name]
                ),
            )
            for name, colour in colours.items()
        }
        refined = _ranks(signatures)
        if len(set(refined.values())) == len(set(colours.values())):
            break
        colours = refined

    start = sorted((colours[name], name if name in constants else "", kinds) for name, kinds in problem.objects.items())
    form = sorted((kind, atom[0], [colours[name] for name in atom[1:]]) for kind, atom in facts)
    constraints = _coloured(problem.constraints, colours) if problem.constraints is not None else None
    return hashlib.sha256(repr((problem.domain.name, start, form, constraints)).encode()).hexdigest()


def fraction(digest: str, salt: str) -> float:
    """A number in [0, 1) drawn from a digest; different salts draw independently."""
    return int(hashlib.sha256(f"{salt}:{digest}".encode()).hexdigest()[:13], 16) / 16**13


def _ranks(signatures: dict[str, tuple[object, ...]]) -> dict[str, int]:
    order = {key: rank for rank, key in enumerate(sorted({repr(s) for s in signatures.values()}))}
    return {name: order[repr(signature)] for name, signature in signatures.items()}


def _coloured(expression: object, colours: dict[str, int]) -> object:
    if isinstance(expression, list):
        parts = [_coloured(part, colours) for part in expression]
        return [parts[0], *sorted(parts[1:], key=repr)] if parts and parts[0] in ("and", "or") else parts
    return colours.get(str(expression), str(expression))

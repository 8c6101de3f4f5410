"""A form of a problem that does not change when its objects are renamed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from planward.pddl.formulas import And, Formula, Literal, Or, Quantified
from planward.pddl.language import Problem
from planward.pddl.signature import Atom

Fact = tuple[str, Atom]  # where it stands ("init", "goal", "not goal", "always/Or", ...) and the atom
Colours = dict[str, int]


def core_hash(problem: Problem) -> str:
    """The digest of the problem without its constraints: what a problem and its constrained twins have in common."""
    return canonical_hash(replace(problem, constraints=()))


def canonical_hash(problem: Problem) -> str:
    """Hex digest of the problem up to renaming of its objects and reordering of its facts.

    Colour refinement (Weisfeiler and Leman 1968) over the objects, whose colours start as their
    types (a domain's constants keep their names). Renamings always get the same digest; different
    problems that refinement cannot tell apart share one too, so a split by it can only err towards
    keeping too much together, never towards leaking.
    """
    larger: list[tuple[str, tuple[Formula, ...]]]
    larger = [("goal", (goal,)) for goal in problem.goal if not isinstance(goal, Literal)]
    larger += [(constraint.operator, constraint.formulas) for constraint in problem.constraints]
    facts: list[Fact] = [("init", atom) for atom in problem.init]
    facts += sorted({fact for goal in problem.goal for fact in _leaves("goal", goal)})
    for constraint in problem.constraints:
        for number, formula in enumerate(constraint.formulas):
            facts += _leaves(f"{constraint.operator} {number}", formula)
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
                    (kind, atom[0], position, [colours.get(other, other) for other in atom[1:]])
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
    form = sorted(repr((kind, atom[0], [colours.get(name, name) for name in atom[1:]])) for kind, atom in facts)
    whole = sorted(f"{place} {' '.join(_coloured(f, colours) for f in formulas)}" for place, formulas in larger)
    return hashlib.sha256(repr((problem.domain.name, start, form, whole)).encode()).hexdigest()


def fraction(digest: str, salt: str) -> float:
    """A number in [0, 1) drawn from a digest; different salts draw independently."""
    return int(hashlib.sha256(f"{salt}:{digest}".encode()).hexdigest()[:13], 16) / 16**13


def _ranks(signatures: dict[str, tuple[object, ...]]) -> dict[str, int]:
    order = {key: rank for rank, key in enumerate(sorted({repr(s) for s in signatures.values()}))}
    return {name: order[repr(signature)] for name, signature in signatures.items()}


def _leaves(place: str, formula: Formula) -> Iterator[Fact]:
    match formula:
        case Literal(atom, positive):
            yield place if positive else f"not {place}", atom
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(f"{place}/{type(formula).__name__}", part)
        case Quantified(_, _, body):
            yield from _leaves(f"{place}/Quantified", body)


def _coloured(formula: Formula, colours: Colours) -> str:
    match formula:
        case Literal(atom, positive):
            return f"{'' if positive else '!'}({' '.join(str(colours.get(word, word)) for word in atom)})"
        case And(parts) | Or(parts):
            return f"({' '.join([type(formula).__name__, *sorted(_coloured(part, colours) for part in parts)])})"
        case Quantified(universal, variables, body):
            return f"(Quantified {universal} {variables} {_coloured(body, colours)})"

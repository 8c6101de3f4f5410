"""A digest of a problem, and an order of its objects, that do not depend on the names of its objects."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planward.pddl.constraints import Constraint
from planward.pddl.expressions import LimitError
from planward.pddl.formulas import And, Formula, Literal, Or, Quantified
from planward.pddl.language import Problem
from planward.pddl.limits import MAX_REFINEMENT
from planward.pddl.signature import Atom

Fact = tuple[str, Atom]  # its context ("init", "goal", "not goal", "always 0/Or", ...) and the atom
Colours = dict[str, int]


def hash_without_constraints(problem: Problem) -> str:
    """Hash the problem without its constraints, so that it gets the digest of its unconstrained twin."""
    return hash_problem(replace(problem, constraints=()))


def hash_problem(problem: Problem) -> str:
    """Hash a problem up to renaming of its objects and reordering of its facts; returns a hex digest.

    Uses colour refinement (Weisfeiler and Leman 1968) over the objects, whose initial colours are their types; the
    domain's constants keep their names. Renamed problems always get the same digest. Different problems that
    refinement cannot tell apart share one too: a split by digest can then only keep too much together, never leak.

    Raises:
        LimitError: refinement would compare more than MAX_REFINEMENT words.
    """
    compound: list[tuple[str, tuple[Formula, ...]]]
    compound = [("goal", (goal,)) for goal in problem.goal if not isinstance(goal, Literal)]
    compound += [(constraint.operator, constraint.formulas) for constraint in problem.constraints]
    goals = sorted({fact for goal in problem.goal for fact in _iter_facts("goal", goal)})
    facts = [("init", atom) for atom in problem.init] + goals
    facts += [fact for constraint in problem.constraints for fact in _iter_constraint_facts(constraint)]
    colours, constants = _refine(_colour_by_type(problem), facts), problem.domain.constants
    objects = sorted(
        (colours[name], name if name in constants else "", types) for name, types in problem.objects.items()
    )
    atoms = sorted(repr((context, atom[0], [colours.get(name, name) for name in atom[1:]])) for context, atom in facts)
    formulas = sorted(
        f"{context} {' '.join(_render_coloured(f, colours) for f in parts)}" for context, parts in compound
    )
    return hashlib.sha256(repr((problem.domain.name, objects, atoms, formulas)).encode()).hexdigest()


def rank_objects(problem: Problem) -> dict[str, int]:
    """Rank a problem's objects by what is true of them, not by their names.

    Copies of a problem with other names of objects and another order of facts, but the same order of goals and
    constraints, are the same once each object is called by its rank. Of objects that refinement cannot tell apart, one
    is ranked first and the others are refined again. Where such objects are not symmetric,
    copies may be ranked differently.
    """
    facts: list[Fact] = [("init", atom) for atom in problem.init]
    for number, goal in enumerate(problem.goal):
        facts += _iter_facts(f"goal {number}", goal)
    for number, constraint in enumerate(problem.constraints):
        facts += [(f"{number} {context}", atom) for context, atom in _iter_constraint_facts(constraint)]
    colours = _refine(_colour_by_type(problem), facts)
    while len(set(colours.values())) < len(colours):
        sizes = Counter(colours.values())
        tied_colour = min(colour for colour, size in sizes.items() if size > 1)
        first = next(name for name, colour in colours.items() if colour == tied_colour)
        apart = {name: 2 * colour + (colour == tied_colour and name != first) for name, colour in colours.items()}
        colours = _refine(apart, facts)
    return colours


def _iter_constraint_facts(constraint: Constraint) -> Iterator[Fact]:
    for number, formula in enumerate(constraint.formulas):
        yield from _iter_facts(f"{constraint.operator} {number}", formula)


def _colour_by_type(problem: Problem) -> Colours:
    constants = problem.domain.constants
    return _rank_signatures(
        {name: (name if name in constants else "", *sorted(types)) for name, types in problem.objects.items()}
    )


def _refine(colours: Colours, facts: Sequence[Fact]) -> Colours:
    """Refine the colours until no more objects can be told apart by the facts that they occur in."""
    facts_by_object: dict[str, list[tuple[Fact, int]]] = defaultdict(list)
    for fact in facts:
        for position, name in enumerate(fact[1][1:]):
            facts_by_object[name].append((fact, position))
    words = len(colours) + sum(len(atom) ** 2 for _, atom in facts)  # an argument's signature holds the whole atom
    budget = MAX_REFINEMENT
    while True:
        budget -= words
        if budget < 0:
            raise LimitError("too many objects and facts to tell apart, for a digest that does not depend on names")
        signatures: dict[str, tuple[object, ...]] = {
            name: (
                colour,
                sorted(
                    (context, atom[0], position, [colours.get(other, other) for other in atom[1:]])
                    for (context, atom), position in facts_by_object[name]
                ),
            )
            for name, colour in colours.items()
        }
        new_colours = _rank_signatures(signatures)
        if len(set(new_colours.values())) == len(set(colours.values())):
            return colours
        colours = new_colours


def _rank_signatures(signatures: dict[str, tuple[object, ...]]) -> Colours:
    keys = {name: repr(signature) for name, signature in signatures.items()}
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {name: ranks[key] for name, key in keys.items()}


def _iter_facts(context: str, formula: Formula) -> Iterator[Fact]:
    match formula:
        case Literal(atom, positive):
            yield context if positive else f"not {context}", atom
        case And(parts) | Or(parts):
            for part in parts:
                yield from _iter_facts(f"{context}/{type(formula).__name__}", part)
        case Quantified(_, _, body):
            yield from _iter_facts(f"{context}/Quantified", body)


def _render_coloured(formula: Formula, colours: Colours) -> str:
    match formula:
        case Literal(atom, positive):
            return f"{'' if positive else '!'}({' '.join(str(colours.get(word, word)) for word in atom)})"
        case And(parts) | Or(parts):
            return f"({' '.join([type(formula).__name__, *sorted(_render_coloured(part, colours) for part in parts)])})"
        case Quantified(universal, variables, body):
            return f"(Quantified {universal} {variables} {_render_coloured(body, colours)})"

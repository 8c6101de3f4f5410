"""Renders problems of any domain in neutral names, after the schemas of the domain's actions.

Predicates are p1, p2, ..., actions a1, ..., types t1, ..., objects o1, ..., and an action's variables v1, ...
Parentheses enclose atoms only; `end` closes everything else, so that a tokenizer needs no word but these and `WORDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from planward.core.prompts import PromptTooLong
from planward.pddl.caching import cache_by_domain
from planward.pddl.constraints import Constraint
from planward.pddl.formulas import TRUTH, And, Formula, Literal, Or, Quantified, iter_conjuncts
from planward.pddl.language import Action, Domain, Effect, Problem
from planward.pddl.signature import Atom, Types, Variables
from planward.tasks.planning.domains.instances import split_numbers

MAX_PREDICATES, MAX_ACTIONS, MAX_TYPES, MAX_OBJECTS, MAX_VARIABLES = 24, 12, 12, 40, 8
SECTIONS = ("actions", "objects", "init", "goal", "constraints", "plan")
OPERATORS = {
    "always": "always",
    "sometime": "sometime",
    "at-most-once": "at-most-once",
    "sometime-before": "sometime-before",
    "sometime-after": "sometime-after",
    "at end": "end-of-plan",
}  # of constraints, as `Constraint.operator` and in a prompt
WORDS = (
    *SECTIONS,
    *("needs", "effects", "in"),
    *("and", "or", "not", "forall", "exists", "=", "when", "then", "end"),
    *OPERATORS.values(),
)  # all words of a neutral prompt but atoms, names and numbers
TOP_TYPE = "object"  # every object is one, so it is not written


class TooManySymbols(PromptTooLong):
    """A problem has more symbols of a kind than there are neutral names."""


@dataclass(frozen=True)
class DomainNames:
    """Neutral names of a domain's symbols; constants are named like objects."""

    predicates: Mapping[str, str]
    actions: Mapping[str, str]
    types: Mapping[str, str]
    constants: Mapping[str, str]


class _Scope:
    """The neutral names of the objects and variables at a place in a formula."""

    def __init__(self, names: Mapping[str, str], depth: int = 0) -> None:
        self.names, self.depth = names, depth

    def bind(self, variables: Variables) -> _Scope:
        """Return the scope extended by variables, with the next numbers."""
        new = {name: f"v{number}" for number, (name, _) in enumerate(variables, self.depth + 1)}
        depth = self.depth + len(variables)
        if depth > MAX_VARIABLES:
            raise TooManySymbols(f"{depth} variables in one place; there are names for {MAX_VARIABLES}")
        return _Scope({**self.names, **new}, depth)


@cache_by_domain
def name_domain(domain: Domain) -> DomainNames:
    """Number a domain's symbols in the order of their declaration, its constants by type and then in natural order."""
    type_names = dict.fromkeys(name for pair in domain.signature.supertypes.items() for name in (pair[0], *pair[1]))
    types = number_names((name for name in type_names if name != TOP_TYPE), "t")
    return DomainNames(
        number_names(domain.signature.predicates, "p"),
        number_names(domain.actions, "a"),
        types,
        number_names(sort_objects(domain.constants, types), "o"),
    )


def name_objects(problem: Problem) -> dict[str, str]:
    """Number a problem's objects by type and then in natural order, after the domain's constants."""
    names = name_domain(problem.domain)
    objects = {name: types for name, types in problem.objects.items() if name not in names.constants}
    return number_names([*names.constants, *sort_objects(objects, names.types)], "o")


def number_names(names: Iterable[str], stem: str) -> dict[str, str]:
    """Map the names to `stem1`, `stem2`, ... in their order."""
    return {name: f"{stem}{number}" for number, name in enumerate(names, 1)}


def sort_objects(objects: Mapping[str, Types], type_names: Mapping[str, str]) -> list[str]:
    """Sort objects by their types' numbers, then in natural order."""
    return sorted(objects, key=lambda name: (_rank_types(objects[name], type_names), split_numbers(name)))


@cache_by_domain
def render_domain(domain: Domain) -> str:
    """Render the schemas of a domain's actions, one a line, as a prompt states them once.

    Raises:
        TooManySymbols: there are more symbols than neutral names; the message names kind and limit.
    """
    names = name_domain(domain)
    check_count(names.predicates, "predicates", MAX_PREDICATES)
    check_count(names.actions, "actions", MAX_ACTIONS)
    check_count(names.types, "types", MAX_TYPES)
    check_count(names.constants, "constants", MAX_OBJECTS)
    subtypes = [
        f"{names.types[name]} in {names.types[parent]}"
        for name, parents in domain.signature.supertypes.items()
        for parent in parents
        if name in names.types and parent in names.types
    ]
    actions = [render_action(action, names) for action in domain.actions.values()]
    return "\n".join(["actions", *subtypes, *actions, ""])


def render_action(action: Action, names: DomainNames) -> str:
    """Render an action's schema: its parameters and their types, what it needs, its effects."""
    scope = _Scope(names.constants).bind(action.parameters)
    head = (names.actions[action.name], *(scope.names[name] for name, _ in action.parameters))
    return " ".join(
        [
            _join_atom(head),
            *_iter_typed(action.parameters, scope, names),
            "needs",
            *_iter_conjunction(action.precondition, scope, names),
            "effects",
            *(word for effect in action.effects for word in _iter_effect(effect, scope, names)),
        ]
    )


def render_problem(problem: Problem, objects: Mapping[str, str]) -> str:
    """Render objects, initial state, goal and constraints, up to where the plan begins.

    Args:
        objects: the neutral names; see `name_objects`.

    Raises:
        TooManySymbols: as `render_domain`.
    """
    names, scope = name_domain(problem.domain), _Scope(objects)
    check_count(objects, "objects", MAX_OBJECTS)
    init = sorted(problem.init, key=lambda atom: split_numbers(_render_atom(atom, scope, names)))
    lines = [
        ["objects", *_iter_objects(problem, objects, names)],
        ["init", *(_render_atom(atom, scope, names) for atom in init)],
        ["goal", *(word for formula in problem.goal for word in _iter_formula(formula, scope, names))],
    ]
    if problem.constraints:
        constraints = (word for c in problem.constraints for word in _iter_constraint(c, scope, names))
        lines.append(["constraints", *constraints])
    return "\n".join([*map(" ".join, lines), "plan\n"])


def check_count(names: Collection[str], kind: str, limit: int) -> None:
    """Raise TooManySymbols where there are more names than `limit`."""
    if len(names) > limit:
        raise TooManySymbols(f"{len(names)} {kind}; there are names for {limit}")


def _iter_objects(problem: Problem, objects: Mapping[str, str], names: DomainNames) -> Iterator[str]:
    """Yield the objects in their order, each type before its first one; those without type come first."""
    last_types = list[str]()
    for name in sorted(objects, key=lambda name: _rank_types(problem.objects[name], names.types)):
        types = [names.types[t] for t in problem.objects[name] if t in names.types]
        if types != last_types:
            yield from types
            last_types = types
        yield objects[name]


def _iter_typed(variables: Variables, scope: _Scope, names: DomainNames) -> Iterator[str]:
    """Yield variables, each after its types, the alternatives of an `either`; nothing in an untyped domain."""
    for name, types in variables:
        type_names = [names.types[t] for t in types if t in names.types]
        yield from [*type_names, scope.names[name]] if type_names else []


def _iter_effect(effect: Effect, scope: _Scope, names: DomainNames) -> Iterator[str]:
    if not effect.adds and not effect.deletes:  # costs alone
        return
    inner = scope.bind(effect.variables)
    words = [_render_atom(atom, inner, names) for atom in effect.adds]
    words += [word for atom in effect.deletes for word in ("not", _render_atom(atom, inner, names))]
    if effect.condition != TRUTH:
        words = ["when", *_iter_conjunction(effect.condition, inner, names), "then", *words, "end"]
    yield from _quantify("forall", effect.variables, words, inner, names) if effect.variables else words


def _iter_constraint(constraint: Constraint, scope: _Scope, names: DomainNames) -> Iterator[str]:
    inner, (first, *others) = scope.bind(constraint.variables), constraint.formulas
    render = _iter_formula if others else _iter_conjunction
    words = [word for formula in (first, *others) for word in render(formula, inner, names)]
    words = [OPERATORS[constraint.operator], *words, "end"]
    yield from _quantify("forall", constraint.variables, words, inner, names) if constraint.variables else words


def _iter_conjunction(formula: Formula, scope: _Scope, names: DomainNames) -> Iterator[str]:
    """Yield the words of the parts of a conjunction, without `and` around them."""
    for part in iter_conjuncts(formula):
        yield from _iter_formula(part, scope, names)


def _iter_formula(formula: Formula, scope: _Scope, names: DomainNames) -> Iterator[str]:
    match formula:
        case Literal(atom, positive):
            yield from [] if positive else ["not"]
            yield from (
                ["=", *(scope.names[w] for w in atom[1:]), "end"]
                if atom[0] == "="
                else [_render_atom(atom, scope, names)]
            )
        case And(parts) | Or(parts):
            yield "and" if isinstance(formula, And) else "or"
            for part in parts:
                yield from _iter_formula(part, scope, names)
            yield "end"
        case Quantified(universal, variables, body):
            inner = scope.bind(variables)
            words = _iter_conjunction(body, inner, names)
            yield from _quantify("forall" if universal else "exists", variables, words, inner, names)


def _quantify(
    quantifier: str, variables: Variables, words: Iterable[str], inner: _Scope, names: DomainNames
) -> Iterator[str]:
    yield quantifier
    for name, types in variables:
        yield from [*(names.types[t] for t in types if t in names.types), inner.names[name]]
    yield from [*words, "end"]


def _rank_types(types: Types, type_names: Mapping[str, str]) -> list[int]:
    ranks = list(type_names)
    return [ranks.index(name) for name in types if name in type_names]


def _render_atom(atom: Atom, scope: _Scope, names: DomainNames) -> str:
    return _join_atom((names.predicates[atom[0]], *(scope.names[word] for word in atom[1:])))


def _join_atom(atom: Atom) -> str:
    return f"({' '.join(atom)})"

"""Translates problems of the domains that the shipped models know, under whatever names, into the models' words.

A domain matches if its actions are those of the known domain up to the names and the order of actions, parameters,
predicates and their arguments. These differences do not count: whether kinds of objects are declared by types or by
static unary predicates, whether two parameters must differ, action costs, and predicates that occur in no action.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple, cast

from planward.pddl.caching import cache_by_domain
from planward.pddl.canonical import rank_objects
from planward.pddl.expressions import Expression, Form, PddlError, Symbol, build_symbol, render_expression
from planward.pddl.formulas import TRUTH, Literal, iter_conjuncts, map_atoms
from planward.pddl.language import Action, Domain, Problem, build_problem_from_parts
from planward.pddl.renaming import rename_atom
from planward.pddl.signature import UNTYPED, Atom, Types, parse_typed_list
from planward.tasks.planning.domains import KNOWN_DOMAINS, load_generated_domain
from planward.tasks.planning.domains.instances import split_numbers

Slot = tuple[str, int]  # an action of a known domain, and the index of a parameter
_TOKEN = re.compile(r"\([^()]*\)|[^\s()]+")


class Rewrite(NamedTuple):
    """How a predicate or an action is written in other words: its name, and which argument comes at each position."""

    name: str
    order: tuple[int, ...]

    def apply(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the arguments in the other order."""
        return tuple(arguments[index] for index in self.order)


class Eligibility(NamedTuple):
    """Which objects a parameter accepts: those of `types` for which all `kinds`, static unary predicates, hold."""

    types: Types
    kinds: frozenset[str]


@dataclass(frozen=True)
class DomainMatch:
    """A domain's symbols in the words of a known domain.

    `inequalities` are static predicates that an action requires of two of its parameters, and that must therefore hold
    for all pairs of different objects.
    """

    known: str  # the known domain's name
    predicates: Mapping[str, Rewrite]
    actions: Mapping[str, Rewrite]
    eligibility: Mapping[Slot, Eligibility]
    inequalities: frozenset[tuple[str, Slot, Slot]]


@dataclass(frozen=True)
class Translation:
    """A problem in the words of a known domain, and the words of its actions and objects."""

    problem: Problem
    actions: Mapping[str, Rewrite]
    objects: Mapping[str, str]


class NoMatchError(Exception):
    """A part of a problem has no counterpart in the known domain."""


def translate_problem(problem: Problem, *, canonical: bool = True) -> Translation | None:
    """Translate a problem into the words of the known domain that its domain matches; None without one.

    None also where its objects, facts, goal or constraints are none that the known domain's problems could have.
    Objects are numbered in canonical order (`pddl.canonical.rank_objects`), so that a copy under other names gets the
    same translation; or else in the natural order of their names.
    """
    for match in match_domain(problem.domain):
        try:
            translation = _Translator(problem, match, split_numbers).translate()
            if not canonical:
                return translation
            ranks = rank_objects(translation.problem)
            return _Translator(problem, match, lambda name: ranks[translation.objects[name]]).translate()  # noqa: B023
        except (NoMatchError, PddlError):
            continue
    return None


@cache_by_domain
def match_domain(domain: Domain) -> tuple[DomainMatch, ...]:
    """Return all matches with known domains, the one with the same names first."""
    schemas = _flatten_domain(domain)
    return tuple(m for name in KNOWN_DOMAINS for m in _iter_matches(domain, schemas, name)) if schemas else ()


class _Schema(NamedTuple):
    """An action without negation, quantifiers, conditions and constants."""

    name: str
    parameters: tuple[str, ...]
    literals: frozenset[tuple[str, Atom]]  # "needs", "adds" or "deletes", and the atom


def _flatten_domain(domain: Domain) -> list[_Schema]:
    """Return the actions' schemas; none where one has more than literals."""
    schemas = [_flatten_action(action) for action in domain.actions.values()]
    return [schema for schema in schemas if schema] if all(schemas) else []


def _flatten_action(action: Action) -> _Schema | None:
    literals, parameters = set[tuple[str, Atom]](), tuple(name for name, _ in action.parameters)
    for part in iter_conjuncts(action.precondition):
        match part:
            case Literal(("=", first, second), False) if first != second and {first, second} <= {*parameters}:
                continue
            case Literal(atom, True) if atom[0] != "=":
                literals.add(("needs", atom))
            case _:
                return None
    for effect in action.effects:
        if effect.condition != TRUTH or effect.variables:
            return None
        literals |= {("adds", atom) for atom in effect.adds} | {("deletes", atom) for atom in effect.deletes}
    is_lifted = all(word in parameters for _, atom in literals for word in atom[1:])
    return _Schema(action.name, parameters, frozenset(literals)) if is_lifted else None


class _Pairing(NamedTuple):
    """A part of a match that is being searched."""

    predicates: dict[str, Rewrite]
    actions: dict[str, Rewrite]
    rest: frozenset[tuple[str, Atom, str]]  # preconditions without counterpart, and the known domain's action


def _iter_matches(domain: Domain, schemas: Sequence[_Schema], known_domain: str) -> Iterator[DomainMatch]:
    """Yield the matches with one known domain."""
    target = _flatten_domain(load_generated_domain(known_domain))
    if len(schemas) != len(target):
        return
    for pairing in _pair_actions(target, schemas, _Pairing({}, {}, frozenset())):
        if any(atom[0] in pairing.predicates for _, atom, _ in pairing.rest):  # all predicates in effects are there
            continue
        kinds, inequalities = defaultdict[Slot, set[str]](set), set[tuple[str, Slot, Slot]]()
        slots = {(s.name, name): (s.name, index) for s in target for index, name in enumerate(s.parameters)}
        for _, (predicate, *words), action in pairing.rest:
            first, *others = [slots[action, word] for word in words]
            if others:
                inequalities.add((predicate, first, others[0]))
            else:
                kinds[first].add(predicate)
        eligibility = {
            (rewrite.name, position): Eligibility(
                domain.actions[action].parameters[index][1], frozenset(kinds[rewrite.name, position])
            )
            for action, rewrite in pairing.actions.items()
            for position, index in enumerate(rewrite.order)
        }
        yield DomainMatch(known_domain, pairing.predicates, pairing.actions, eligibility, frozenset(inequalities))


def _pair_actions(target: Sequence[_Schema], schemas: Sequence[_Schema], pairing: _Pairing) -> Iterator[_Pairing]:
    """Extend the pairing to all actions of `target`, each with one of `schemas`."""
    if not target:
        yield pairing
        return
    goal, *others = target
    for schema in sorted(schemas, key=lambda schema: schema.name != goal.name):
        if len(schema.parameters) != len(goal.parameters) or len(schema.literals) < len(goal.literals):
            continue
        rest = [other for other in schemas if other is not schema]
        for order in permutations(range(len(schema.parameters))):
            words = {schema.parameters[index]: name for index, name in zip(order, goal.parameters, strict=True)}
            literals = [(role, (atom[0], *(words[word] for word in atom[1:]))) for role, atom in schema.literals]
            for predicates, extras in _pair_literals(sorted(goal.literals), sorted(literals), pairing.predicates):
                if all(_is_condition(role, atom) for role, atom in extras):
                    extended_pairing = _Pairing(
                        predicates,
                        {**pairing.actions, schema.name: Rewrite(goal.name, order)},
                        pairing.rest | {(role, atom, goal.name) for role, atom in extras},
                    )
                    yield from _pair_actions(others, rest, extended_pairing)


def _pair_literals(
    target: Sequence[tuple[str, Atom]], literals: Sequence[tuple[str, Atom]], predicates: dict[str, Rewrite]
) -> Iterator[tuple[dict[str, Rewrite], list[tuple[str, Atom]]]]:
    """Pair each literal of `target` with one of `literals`; yield the predicates' words and the unpaired literals."""
    if not target:
        yield predicates, list(literals)
        return
    (goal_role, goal), *others = target
    taken_names = {rewrite.name for rewrite in predicates.values()}
    for role, (predicate, *words) in sorted(literals, key=lambda literal: literal[1][0] != goal[0]):
        if role != goal_role or len(words) != len(goal) - 1:
            continue
        rewrite = predicates.get(predicate)
        if rewrite.name != goal[0] if rewrite else goal[0] in taken_names:
            continue
        rest = [literal for literal in literals if literal != (role, (predicate, *words))]
        for order in [rewrite.order] if rewrite else permutations(range(len(words))):
            if tuple(words[index] for index in order) == goal[1:]:
                yield from _pair_literals(others, rest, {**predicates, predicate: Rewrite(goal[0], order)})


def _is_condition(role: str, atom: Atom) -> bool:
    """Return whether the literal can declare a parameter's kind, or the inequality of two parameters."""
    return role == "needs" and len(atom) in (2, 3) and len(set(atom[1:])) == len(atom[1:])


class _Translator:
    """Translates one problem by one match; raises NoMatchError or PddlError where the problem does not fit."""

    def __init__(self, problem: Problem, match: DomainMatch, order: Callable[[str], Any]) -> None:
        """Number the objects of a type in the order of the key `order`."""
        self.problem, self.match = problem, match
        self.module, self.domain = KNOWN_DOMAINS[match.known], load_generated_domain(match.known)
        self.types = self._find_types()
        by_type = defaultdict[str, list[str]](list)
        for name in sorted(problem.objects, key=order):
            by_type[self.types[name]].append(name)
        init = frozenset(self._rewrite_atom(atom) for atom in problem.init if atom[0] in match.predicates)
        names = self.module.name_objects(dict(by_type), init)
        if names is None:
            raise NoMatchError
        self.init, self.names = init, names
        self.objects: dict[str, Types] = {
            names[name]: (type_name,) if type_name else UNTYPED for name, type_name in self.types.items()
        }

    def translate(self) -> Translation:
        """Translate the problem."""
        problem = build_problem_from_parts(
            self.problem.name,
            self.domain,
            self.objects,
            frozenset(self._check_atom(rename_atom(atom, self.names)) for atom in self.init),
            tuple(map_atoms(formula, self._translate_atom) for formula in self.problem.goal),
            [self._translate_constraint(form) for form in self.problem.constraint_forms],
        )
        return Translation(problem, self.match.actions, self.names)

    def _find_types(self) -> dict[str, str]:
        """Find each object's type in the known domain: the one that the same parameters accept."""
        is_a, init = self.problem.domain.signature.is_a, self.problem.init
        accepting = {
            name: frozenset(
                slot
                for slot, (expected, kinds) in self.match.eligibility.items()
                if is_a(types, expected) and all((kind, name) in init for kind in kinds)
            )
            for name, types in self.problem.objects.items()
        }
        for predicate, first, second in self.match.inequalities:
            for name, other in permutations(accepting, 2):
                if first in accepting[name] and second in accepting[other] and (predicate, name, other) not in init:
                    raise NoMatchError
        types = _list_types(self.match.known)
        if any(slots not in types for slots in accepting.values()):
            raise NoMatchError
        return {name: types[slots] for name, slots in accepting.items()}

    def _rewrite_atom(self, atom: Atom) -> Atom:
        """Rewrite the predicate and the order of its arguments."""
        rewrite = self.match.predicates.get(atom[0])
        if rewrite is None:
            raise NoMatchError
        return (rewrite.name, *rewrite.apply(atom[1:]))

    def _translate_atom(self, atom: Atom) -> Atom:
        return self._check_atom(rename_atom(self._rewrite_atom(atom), self.names))

    def _check_atom(self, atom: Atom) -> Atom:
        """Return the atom; raises NoMatchError unless it is ground and can occur in the known domain."""
        signature = self.domain.signature
        for word, expected in zip(atom[1:], signature.predicates[atom[0]], strict=True):
            if word not in self.objects or not signature.is_a(self.objects[word], expected):
                raise NoMatchError
        if not self.module.can_occur(atom):
            raise NoMatchError
        return atom

    def _translate_constraint(self, form: Form) -> Form:
        """Translate a constraint; one with variables must be one that the known domain's problems could have."""
        translation = self._translate_form(form, {})
        for token in _TOKEN.findall(render_expression(translation)):
            if "?" in token and token not in self.module.CONSTRAINT_WORDS:
                raise NoMatchError
        return translation

    def _translate_form(self, form: Form, variables: Mapping[str, str]) -> Form:
        if form.head in ("forall", "exists") and len(form) == 3:
            inner, declarations = dict(variables), list[Symbol]()
            for name, types in parse_typed_list(cast(Form, form[1])):
                type_name = self._translate_types(types)
                variable = f"?{type_name[:1] or 'x'}"
                if variable in inner.values():
                    raise NoMatchError
                inner[name] = variable
                words = [variable, "-", type_name] if type_name else [variable]
                declarations += [build_symbol(word, form.line) for word in words]
            return Form(form.line, [form[0], Form(form.line, declarations), *self._translate_parts(form[2:], inner)])
        if any(isinstance(part, Form) for part in form) or form.head in ("and", "or"):
            return Form(form.line, self._translate_parts(form, variables))
        atom = rename_atom(self._rewrite_atom(tuple(map(str, form))), {**self.names, **variables})
        if not set(variables.values()).intersection(atom):
            self._check_atom(atom)
        return Form(form.line, [build_symbol(word, form.line) for word in atom])

    def _translate_parts(self, parts: Sequence[Expression], variables: Mapping[str, str]) -> Iterator[Expression]:
        return (self._translate_form(part, variables) if isinstance(part, Form) else part for part in parts)

    def _translate_types(self, types: Types) -> str:
        """Find the known domain's type that has the same objects."""
        is_a = self.problem.domain.signature.is_a
        names = {self.names[name] for name, object_types in self.problem.objects.items() if is_a(object_types, types)}
        for type_name in _list_types(self.match.known).values():
            if names and names == {name for name, object_types in self.objects.items() if object_types == (type_name,)}:
                return type_name
        if names == self.objects.keys() and not self.domain.signature.typed:
            return ""
        raise NoMatchError


@cache
def _list_types(known_domain: str) -> dict[frozenset[Slot], str]:
    """Return the known domain's types of objects, by the parameters that accept them; "" in an untyped domain."""
    domain = load_generated_domain(known_domain)
    slots = {
        type_name: frozenset(
            (action.name, index)
            for action in domain.actions.values()
            for index, (_, expected) in enumerate(action.parameters)
            if domain.signature.is_a((type_name,), expected)
        )
        for type_name in list(domain.signature.supertypes) or [""]
    }
    return {accepting: type_name for type_name, accepting in slots.items() if accepting}

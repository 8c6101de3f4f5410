"""Domains and problems in the subset of PDDL that the in-process verifier supports.

That is STRIPS, typing, constants, equality, negative and disjunctive preconditions, quantifiers, conditional effects,
action costs and PDDL3 constraints. Anything else raises `UnsupportedError`, which names it: VAL must judge it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from planward.pddl.constraints import Constraint, parse_constraints
from planward.pddl.expansion import check_count, check_expansion, count_atoms, find_expandable
from planward.pddl.expressions import (
    Expression,
    Form,
    PddlError,
    Symbol,
    UnsupportedError,
    build_symbol,
    parse_expression,
    read_pddl_file,
    read_pddl_text,
)
from planward.pddl.formulas import TRUTH, And, Formula, iter_conjunct_forms, map_atoms, map_form_atoms, parse_formula
from planward.pddl.limits import MAX_EXPANSION, MAX_FACTS, MAX_OBJECTS
from planward.pddl.plain_problems import is_plain_problem
from planward.pddl.signature import (
    Atom,
    Scope,
    Signature,
    Types,
    Variables,
    check_argument_count,
    parse_atom,
    parse_declarations,
    parse_term,
    parse_typed_list,
    parse_variables,
)

T = TypeVar("T")

NUMBER = re.compile(r"-?\d+(\.\d+)?")
REPEATABLE_SECTIONS = {":action", ":durative-action", ":derived", ":process", ":event"}
VAL_ONLY_REQUIREMENTS = {":durative-actions", ":derived-predicates", ":preferences", ":timed-initial-literals"}


@dataclass(frozen=True)
class Effect:
    """What an action changes where `condition` holds, for every binding of `variables`.

    `costs` are the function terms added to the total cost; each must have a value.
    """

    adds: tuple[Atom, ...] = ()
    deletes: tuple[Atom, ...] = ()
    costs: tuple[Atom, ...] = ()
    condition: Formula = TRUTH
    variables: Variables = ()


@dataclass(frozen=True)
class Action:
    """An action schema."""

    name: str
    parameters: Variables
    precondition: Formula
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """A parsed domain."""

    name: str
    signature: Signature
    constants: dict[str, Types]
    actions: dict[str, Action]
    constraints: tuple[Form, ...] = ()  # `:constraints` of the domain file; they apply to every problem
    expandable: tuple[Form, ...] = ()  # quantified and conditional parts, larger the more objects a problem has
    action_size: int = 0  # atoms of the largest action, each quantified formula counted once

    @cached_property
    def fluents(self) -> frozenset[str]:
        """The predicates that some action changes."""
        effects = [effect for action in self.actions.values() for effect in action.effects]
        return frozenset(atom[0] for effect in effects for atom in (*effect.adds, *effect.deletes))


@dataclass(frozen=True)
class Problem:
    """A parsed problem.

    `constraint_forms` are the unparsed `constraints`, one for each part of the outermost `and`.
    """

    name: str
    domain: Domain
    objects: dict[str, Types]  # the domain's constants included
    init: frozenset[Atom]
    goal: tuple[Formula, ...]  # conjuncts in the order of the file
    constraints: tuple[Constraint, ...] = ()
    constraint_forms: tuple[Form, ...] = ()
    costs: frozenset[Atom] = frozenset()  # function terms that have a value
    expansion: int = field(default=0, compare=False)  # `check_expansion` of goal, constraints and domain
    is_plain: bool = field(default=True, compare=False)  # `is_plain_problem` of its file


def load_domain(path: Path) -> Domain:
    """Parse a domain file; equal contents are parsed once.

    Raises:
        PddlError: invalid PDDL; the message names file and line.
        LimitError: it is too large; see `planward.pddl.limits`.
        UnsupportedError: valid PDDL that only VAL can judge.
    """
    return _parse_with_source(path, lambda: _parse_domain_cached(read_pddl_text(path)))


def load_problem(path: Path, domain: Domain) -> Problem:
    """Parse a problem file against its domain; raises as `load_domain` does."""
    return _parse_with_source(path, lambda: parse_problem(read_pddl_text(path), domain))


def _parse_with_source(path: Path, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (OSError, UnicodeDecodeError):
        read_pddl_file(path)  # raises an error that names the fault
        raise
    except PddlError as error:
        raise type(error)(error.message, error.line, str(path)) from None


@lru_cache(maxsize=64)
def _parse_domain_cached(text: str) -> Domain:
    return parse_domain(text)


def parse_domain(text: str) -> Domain:
    """Parse a domain; raises PddlError or UnsupportedError with the line."""
    form = parse_expression(text)
    name = _parse_definition_name(form, "domain")
    sections = list(_iter_sections(form))
    is_typed = any(section.head == ":types" for section in sections)
    signature, constants = Signature(is_typed, {}, {}, {}), dict[str, Types]()
    actions: dict[str, Action] = {}
    constraints: list[Form] = []
    predicates, functions = list[Expression](), list[Expression]()
    for section in sections:
        match section.head:
            case ":requirements":
                for requirement in section[1:]:
                    if requirement in VAL_ONLY_REQUIREMENTS:
                        raise UnsupportedError(f"{requirement} is not supported in-process", section.line)
            case ":types":
                signature.declare_types(section[1:])
            case ":predicates":
                predicates = list(section[1:])
            case ":constraints":
                constraints += _iter_constraint_forms(section)
            case ":functions":
                functions = [part for part in section[1:] if part not in ("-", "number")]
            case ":constants" | ":action":
                pass
            case ":durative-action" | ":derived" | ":process" | ":event":
                raise UnsupportedError(f"{section.head} is not supported in-process", section.line)
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a domain", section.line)
    sizes = [count_atoms(section) for section in sections]
    check_count(1 + sum(sizes), MAX_EXPANSION, "atoms")  # (domain NAME) counts as one
    for type_name in signature.supertypes:
        signature.find_ancestors(type_name)
    signature.predicates.update(_parse_schemas(predicates, signature))
    signature.functions.update(_parse_schemas(functions, signature))
    for section in sections:
        if section.head == ":constants":
            constants = parse_declarations(section[1:], signature)
    for section in sections:
        if section.head == ":action":
            action = _parse_action(section, Scope(signature, constants))
            if action.name in actions:
                raise PddlError(f"action {action.name!r} is defined twice", section.line)
            actions[action.name] = action
    action_sizes = [size for section, size in zip(sections, sizes, strict=True) if section.head == ":action"]
    for constraint in constraints:
        list(parse_constraints(constraint, Scope(signature, constants)))
    expandable = tuple(find_expandable(form))
    return Domain(name, signature, constants, actions, tuple(constraints), expandable, max(action_sizes, default=0))


def parse_problem(text: str, domain: Domain) -> Problem:
    """Parse a problem; raises PddlError or UnsupportedError with the line."""
    form = parse_expression(text)
    name = _parse_definition_name(form, "problem")
    objects, signature = dict(domain.constants), domain.signature
    init: set[Atom] = set()
    costs: set[Atom] = set()
    goal: tuple[Formula, ...] = ()
    constraints = list(domain.constraints)
    sections = list(_iter_sections(form))
    for section in sections:
        if section.head == ":objects":
            objects |= parse_declarations(section[1:], signature, taken=domain.constants)
    check_count(len(objects), MAX_OBJECTS, "objects")
    scope = Scope(signature, objects)
    for section in sections:
        match section.head:
            case ":domain":
                if list(section[1:]) != [domain.name]:
                    domain_name = " ".join(map(str, section[1:]))
                    raise PddlError(f"the problem is for domain {domain_name!r}, not {domain.name!r}", section.line)
            case ":init":
                check_count(len(section) - 1, MAX_FACTS, "facts", section.line)
                for fact in section[1:]:
                    if not isinstance(fact, Form):
                        raise PddlError(f"expected a fact but found {fact!r}", section.line)
                    if fact.head == "=":
                        costs.add(_parse_cost(fact, scope))
                    elif fact.head == "at" and isinstance(fact[-1], Form):
                        raise UnsupportedError("a timed initial literal is not supported in-process", fact.line)
                    elif fact.head != "not":  # closed world: negative facts are redundant
                        init.add(parse_atom(fact, scope))
            case ":goal":
                if len(section) != 2:
                    raise PddlError("the goal must be one formula", section.line)
                goal = tuple(parse_formula(part, scope) for part in iter_conjunct_forms(section[1]))
                if not goal:
                    raise PddlError("the goal is empty", section.line)
            case ":constraints":
                constraints += _iter_constraint_forms(section)
            case ":objects" | ":requirements" | ":metric":
                pass
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a problem", section.line)
    for head in (":domain", ":init", ":goal"):
        if not any(section.head == head for section in sections):
            raise PddlError(f"the problem has no {head}", form.line)
    formulas = [section for section in sections if section.head in (":goal", ":constraints")]
    expansion = check_expansion([*formulas, *domain.expandable], objects, signature)
    problem = build_problem_from_parts(name, domain, objects, frozenset(init), goal, constraints, frozenset(costs))
    is_plain = text.isascii() and is_plain_problem(form, signature)  # Python may turn other letters into ASCII ones
    return replace(problem, expansion=expansion, is_plain=is_plain)


def build_problem_from_parts(
    name: str,
    domain: Domain,
    objects: dict[str, Types],
    init: frozenset[Atom],
    goal: tuple[Formula, ...],
    constraints: list[Form],
    costs: frozenset[Atom] = frozenset(),
) -> Problem:
    """Build a problem and parse its constraints; raises PddlError or UnsupportedError where that fails."""
    scope = Scope(domain.signature, objects)
    parsed_constraints = tuple(constraint for form in constraints for constraint in parse_constraints(form, scope))
    for constraint in parsed_constraints:
        for _, types in constraint.variables:
            if not any(domain.signature.is_a(object_types, types) for object_types in objects.values()):
                raise PddlError(f"a constraint is about every {'/'.join(types)}, but there is none (VAL fails on it)")
    return Problem(name, domain, objects, init, goal, parsed_constraints, tuple(constraints), costs)


def map_problem_atoms(problem: Problem, change: Callable[[Atom], Atom]) -> Problem:
    """Apply `change` to every atom of initial state, goal, constraints and costs; it must return declared atoms."""

    def map_constraint(constraint: Constraint) -> Constraint:
        return replace(constraint, formulas=tuple(map_atoms(formula, change) for formula in constraint.formulas))

    return replace(
        problem,
        init=frozenset(map(change, problem.init)),
        goal=tuple(map_atoms(goal, change) for goal in problem.goal),
        constraints=tuple(map(map_constraint, problem.constraints)),
        constraint_forms=tuple(map_form_atoms(form, change) for form in problem.constraint_forms),
        costs=frozenset(map(change, problem.costs)),
    )


def _parse_schemas(declarations: list[Expression], signature: Signature) -> Iterator[tuple[str, tuple[Types, ...]]]:
    """Yield declared predicates or functions with the types of their arguments."""
    heads = set[str]()
    for declaration in declarations:
        if not isinstance(declaration, Form) or not declaration.head:
            raise PddlError("expected (name ?argument ...)", declaration.line)
        if declaration.head in heads:
            raise PddlError(f"{declaration.head!r} is declared twice", declaration.line)
        heads.add(declaration.head)
        arguments = list(parse_typed_list(declaration[1:]))
        check_argument_count(len(arguments), declaration.line)
        signature.check_types(arguments)
        yield str(declaration.head), tuple(types for _, types in arguments)


def _parse_cost(fact: Form, scope: Scope) -> Atom:
    """Return the function term of `(= (function object ...) number)`."""
    match fact:
        case [_, Form() as term, Symbol() as value] if NUMBER.fullmatch(value):
            return parse_term(term, scope)
    raise PddlError("expected (= (function object ...) number)", fact.line)


def _parse_definition_name(form: Form, keyword: str) -> str:
    match form:
        case [Symbol("define"), Form([Symbol() as head, Symbol() as name]), *_] if head == keyword:
            return str(name)
    raise PddlError(f"expected (define ({keyword} NAME) ...)", form.line)


def _iter_sections(form: Form) -> Iterator[Form]:
    heads = set[str]()
    for section in form[2:]:
        if not isinstance(section, Form):
            raise PddlError(f"expected a section but found {section!r}", section.line)
        if section.head in heads and section.head not in REPEATABLE_SECTIONS:
            raise PddlError(f"there are two {section.head} sections", section.line)
        heads.add(section.head)
        yield section


def _iter_constraint_forms(section: Form) -> Iterator[Form]:
    if len(section) != 2:
        raise PddlError("the constraints must be one formula", section.line)
    for part in iter_conjunct_forms(section[1]):
        if not isinstance(part, Form):
            raise PddlError(f"expected a constraint but found {part!r}", section.line)
        yield part


def _parse_action(form: Form, scope: Scope) -> Action:
    if len(form) < 2 or not isinstance(form[1], Symbol) or len(form) % 2:
        raise PddlError("expected (:action NAME :parameters (...) :precondition ... :effect ...)", form.line)
    parts: dict[str, Expression] = {}
    for keyword, value in zip(form[2::2], form[3::2], strict=True):
        if keyword not in (":parameters", ":precondition", ":effect"):
            raise PddlError(f"unknown part {keyword!r} of action {form[1]!r}", form.line)
        parts[str(keyword)] = value
    parameters = parse_variables(parts.get(":parameters", Form(form.line)), scope.signature)
    scope = scope.with_variables(parameters)
    return Action(
        name=str(form[1]),
        parameters=parameters,
        precondition=parse_formula(parts[":precondition"], scope) if ":precondition" in parts else TRUTH,
        effects=_merge_effects(_iter_effects(parts[":effect"], scope)) if ":effect" in parts else (),
    )


def _iter_effects(
    form: Expression, scope: Scope, condition: Formula = TRUTH, variables: Variables = ()
) -> Iterator[Effect]:
    """Yield the literals of an effect, each with its conditions and quantified variables."""
    if not isinstance(form, Form):
        raise PddlError(f"expected an effect but found {form!r}", form.line)
    match form.head, len(form) - 1:
        case "and", _:
            for part in form[1:]:
                yield from _iter_effects(part, scope, condition, variables)
        case "forall", 2:
            inner, body = parse_variables(form[1], scope.signature), form[2]
            for name in [name for name, _ in inner if name in scope.names]:  # `condition` may refer to the outer one
                fresh = name
                while fresh in scope.names:
                    fresh += " "  # a parsed name contains no blank
                inner = tuple((fresh if other == name else other, types) for other, types in inner)
                body = _rename_variable(body, name, fresh)
            yield from _iter_effects(body, scope.with_variables(inner), condition, (*variables, *inner))
        case "when", 2:
            inner_condition = parse_formula(form[1], scope)
            both = inner_condition if condition == TRUTH else And((condition, inner_condition))
            yield from _iter_effects(form[2], scope, both, variables)
        case "not", 1 if isinstance(form[1], Form):
            yield Effect(deletes=(parse_atom(form[1], scope),), condition=condition, variables=variables)
        case "increase", 2 if isinstance(form[1], Form) and form[1] == ["total-cost"]:
            parse_term(form[1], scope)
            match form[2]:
                case Symbol() as number if NUMBER.fullmatch(number):
                    return
                case Form([Symbol() as name, *_]) as term if name not in ("+", "-", "*", "/", "total-cost"):
                    yield Effect(costs=(parse_term(term, scope),), condition=condition, variables=variables)
                case _:
                    raise UnsupportedError("arithmetic in an effect is not supported in-process", form.line)
        case "assign" | "increase" | "decrease" | "scale-up" | "scale-down", _:
            raise UnsupportedError(f"numeric effect `{form.head}` is not supported in-process", form.line)
        case "or" | "imply" | "exists" | "forall" | "when" | "not", _:
            raise PddlError(f"`{form.head}` with {len(form) - 1} part(s) is not an effect", form.line)
        case "probabilistic", _:
            raise UnsupportedError("`probabilistic` effects are not supported in-process", form.line)
        case "", -1:
            return
        case _:
            yield Effect(adds=(parse_atom(form, scope),), condition=condition, variables=variables)


def _rename_variable(expression: Expression, old: str, new: str) -> Expression:
    """Rename a free variable; quantifiers that bind the same name keep it."""
    if not isinstance(expression, Form):
        return build_symbol(new, expression.line) if expression == old else expression
    match expression:
        case [Symbol("forall" | "exists"), Form() as variables, _] if old in variables:
            return expression
    return Form(expression.line, [_rename_variable(part, old, new) for part in expression])


def _merge_effects(effects: Iterator[Effect]) -> tuple[Effect, ...]:
    """Merge the effects that have equal condition and variables."""
    groups: dict[tuple[Formula, Variables], list[Effect]] = defaultdict(list)
    for (condition, variables), group in groupby(effects, key=lambda effect: (effect.condition, effect.variables)):
        groups[condition, variables] += group
    return tuple(
        Effect(
            adds=tuple(atom for effect in group for atom in effect.adds),
            deletes=tuple(atom for effect in group for atom in effect.deletes),
            costs=tuple(term for effect in group for term in effect.costs),
            condition=condition,
            variables=variables,
        )
        for (condition, variables), group in groups.items()
    )

"""Domains and problems: the language that the in-process checker judges.

STRIPS, typing, constants, equality, negative and disjunctive preconditions, quantifiers, conditional effects, action
costs and PDDL3 constraints. Whatever else is met raises `Unsupported`, by name: VAL judges that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from planward.pddl.constraints import Constraint, read_constraints
from planward.pddl.expressions import (
    Expression,
    Form,
    PddlError,
    Symbol,
    Unsupported,
    read_expression,
    read_file,
    symbol,
)
from planward.pddl.formulas import TRUTH, And, Formula, conjuncts, mapped, mapped_form, read_formula
from planward.pddl.signature import (
    Atom,
    Scope,
    Signature,
    Types,
    Variables,
    read_atom,
    read_declarations,
    read_term,
    read_typed_list,
    read_variables,
)

T = TypeVar("T")

NUMBER = re.compile(r"-?\d+(\.\d+)?")
REPEATABLE = {":action", ":durative-action", ":derived", ":process", ":event"}
ONLY_VAL = {":durative-actions", ":derived-predicates", ":preferences", ":timed-initial-literals"}


@dataclass(frozen=True)
class Effect:
    """What an action changes where `condition` holds, for every binding of `variables`.

    `costs` are the function terms whose values are added to the total cost: they must have one.
    """

    adds: tuple[Atom, ...] = ()
    deletes: tuple[Atom, ...] = ()
    costs: tuple[Atom, ...] = ()
    condition: Formula = TRUTH
    variables: Variables = ()


@dataclass(frozen=True)
class Action:
    name: str
    parameters: Variables
    precondition: Formula
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    name: str
    signature: Signature
    constants: dict[str, Types]
    actions: dict[str, Action]
    constraints: tuple[Form, ...] = ()  # `:constraints` of the domain file, each binding every problem

    @cached_property
    def fluents(self) -> frozenset[str]:
        """Predicates that some action changes."""
        effects = [effect for action in self.actions.values() for effect in action.effects]
        return frozenset(atom[0] for effect in effects for atom in (*effect.adds, *effect.deletes))


@dataclass(frozen=True)
class Problem:
    """`constraints` are those of `constraint_forms`, which are as written, one a part of the outermost `and`."""

    name: str
    domain: Domain
    objects: dict[str, Types]  # the domain's constants included
    init: frozenset[Atom]
    goal: tuple[Formula, ...]  # conjuncts as written
    constraints: tuple[Constraint, ...] = ()
    constraint_forms: tuple[Form, ...] = ()
    costs: frozenset[Atom] = frozenset()  # function terms that have a value


def load_domain(path: Path) -> Domain:
    """Parse a domain file, once for each content.

    Raises:
        PddlError: unusable PDDL (file and line in the message).
        Unsupported: sound PDDL that only VAL can judge.
    """
    return _with_source(path, lambda: _parsed_domain(path.read_text(encoding="utf-8-sig")))


def load_problem(path: Path, domain: Domain) -> Problem:
    """Parse a problem file against its domain; raises as `load_domain` does."""
    return _with_source(path, lambda: parse_problem(path.read_text(encoding="utf-8-sig"), domain))


def _with_source(path: Path, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (OSError, UnicodeDecodeError):
        read_file(path)  # says it well
        raise
    except PddlError as error:
        raise type(error)(error.message, error.line, str(path)) from None


@lru_cache(maxsize=64)
def _parsed_domain(text: str) -> Domain:
    return parse_domain(text)


def parse_domain(text: str) -> Domain:
    """Parse the text of a domain; raises PddlError or Unsupported with the line."""
    form = read_expression(text)
    name = _definition_name(form, "domain")
    sections = list(_sections(form))
    typed = any(section.head == ":types" for section in sections)
    signature, constants = Signature(typed, {}, {}, {}), dict[str, Types]()
    actions: dict[str, Action] = {}
    constraints: list[Form] = []
    predicates, functions = list[Expression](), list[Expression]()
    for section in sections:
        match section.head:
            case ":requirements":
                for requirement in section[1:]:
                    if requirement in ONLY_VAL:
                        raise Unsupported(f"{requirement} is not supported in-process", section.line)
            case ":types":
                for subtype, parents in read_typed_list(section[1:]):
                    signature.supertypes[str(subtype)] = (*signature.supertypes.get(subtype, ()), *parents)
            case ":predicates":
                predicates = list(section[1:])
            case ":constraints":
                constraints += _constraint_forms(section)
            case ":functions":
                functions = [part for part in section[1:] if part not in ("-", "number")]
            case ":constants" | ":action":
                pass
            case ":durative-action" | ":derived" | ":process" | ":event":
                raise Unsupported(f"{section.head} is not supported in-process", section.line)
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a domain", section.line)
    for kind in signature.supertypes:
        signature.ancestors(kind)
    signature.predicates.update(_schemas(predicates, signature))
    signature.functions.update(_schemas(functions, signature))
    for section in sections:
        if section.head == ":constants":
            constants = read_declarations(section[1:], signature)
    for section in sections:
        if section.head == ":action":
            action = _action(section, Scope(signature, constants))
            if action.name in actions:
                raise PddlError(f"action {action.name!r} is defined twice", section.line)
            actions[action.name] = action
    for constraint in constraints:
        list(read_constraints(constraint, Scope(signature, constants)))
    return Domain(name, signature, constants, actions, tuple(constraints))


def parse_problem(text: str, domain: Domain) -> Problem:
    """Parse the text of a problem; raises PddlError or Unsupported with the line."""
    form = read_expression(text)
    name = _definition_name(form, "problem")
    objects, known = dict(domain.constants), domain.signature
    init: set[Atom] = set()
    costs: set[Atom] = set()
    goal: tuple[Formula, ...] = ()
    constraints = list(domain.constraints)
    sections = list(_sections(form))
    for section in sections:
        if section.head == ":objects":
            objects |= read_declarations(section[1:], known, taken=domain.constants)
    scope = Scope(known, objects)
    for section in sections:
        match section.head:
            case ":domain":
                if list(section[1:]) != [domain.name]:
                    named = " ".join(map(str, section[1:]))
                    raise PddlError(f"written for domain {named!r}, not {domain.name!r}", section.line)
            case ":init":
                for fact in section[1:]:
                    if not isinstance(fact, Form):
                        raise PddlError(f"expected a fact but found {fact!r}", section.line)
                    if fact.head == "=":
                        costs.add(_cost(fact, scope))
                    elif fact.head == "at" and isinstance(fact[-1], Form):
                        raise Unsupported("a timed initial literal is not supported in-process", fact.line)
                    elif fact.head != "not":  # what is not stated is false anyway
                        init.add(read_atom(fact, scope))
            case ":goal":
                if len(section) != 2:
                    raise PddlError("the goal must be one formula", section.line)
                goal = tuple(read_formula(part, scope) for part in conjuncts(section[1]))
                if not goal:
                    raise PddlError("the goal is empty: nothing to plan for", section.line)
            case ":constraints":
                constraints += _constraint_forms(section)
            case ":objects" | ":requirements" | ":metric":
                pass
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a problem", section.line)
    for head in (":domain", ":init", ":goal"):
        if not any(section.head == head for section in sections):
            raise PddlError(f"the problem has no {head}", form.line)
    return problem_of(name, domain, objects, frozenset(init), goal, constraints, frozenset(costs))


def problem_of(
    name: str,
    domain: Domain,
    objects: dict[str, Types],
    init: frozenset[Atom],
    goal: tuple[Formula, ...],
    constraints: list[Form],
    costs: frozenset[Atom] = frozenset(),
) -> Problem:
    """A problem from its parts; raises PddlError or Unsupported where a constraint cannot be read."""
    scope = Scope(domain.signature, objects)
    read = tuple(constraint for form in constraints for constraint in read_constraints(form, scope))
    for constraint in read:
        for _, kinds in constraint.variables:
            if not any(domain.signature.is_a(declared, kinds) for declared in objects.values()):
                raise PddlError(f"a constraint speaks of every {'/'.join(kinds)}, but there is none (VAL fails on it)")
    return Problem(name, domain, objects, init, goal, read, tuple(constraints), costs)


def changed(problem: Problem, change: Callable[[Atom], Atom]) -> Problem:
    """The problem with every atom of its start, goal and constraints changed, to others that are declared."""

    def constraint(old: Constraint) -> Constraint:
        return replace(old, formulas=tuple(mapped(formula, change) for formula in old.formulas))

    return replace(
        problem,
        init=frozenset(map(change, problem.init)),
        goal=tuple(mapped(goal, change) for goal in problem.goal),
        constraints=tuple(map(constraint, problem.constraints)),
        constraint_forms=tuple(mapped_form(form, change) for form in problem.constraint_forms),
        costs=frozenset(map(change, problem.costs)),
    )


def _schemas(declarations: list[Expression], signature: Signature) -> Iterator[tuple[str, tuple[Types, ...]]]:
    """Declared predicates or functions with the types of their arguments."""
    seen = set[str]()
    for declaration in declarations:
        if not isinstance(declaration, Form) or not declaration.head:
            raise PddlError("expected (name ?argument ...)", declaration.line)
        if declaration.head in seen:
            raise PddlError(f"{declaration.head!r} is declared twice", declaration.line)
        seen.add(declaration.head)
        arguments = list(read_typed_list(declaration[1:]))
        signature.check_types(arguments)
        yield str(declaration.head), tuple(kinds for _, kinds in arguments)


def _cost(fact: Form, scope: Scope) -> Atom:
    """`(= (function object ...) number)`: the function term."""
    match fact:
        case [_, Form() as term, Symbol() as value] if NUMBER.fullmatch(value):
            return read_term(term, scope)
    raise PddlError("expected (= (function object ...) number)", fact.line)


def _definition_name(form: Form, kind: str) -> str:
    match form:
        case [Symbol() as define, Form([Symbol() as head, Symbol() as name]), *_] if (define, head) == ("define", kind):
            return str(name)
    raise PddlError(f"expected (define ({kind} NAME) ...)", form.line)


def _sections(form: Form) -> Iterator[Form]:
    seen = set[str]()
    for section in form[2:]:
        if not isinstance(section, Form):
            raise PddlError(f"expected a section but found {section!r}", section.line)
        if section.head in seen and section.head not in REPEATABLE:
            raise PddlError(f"there are two {section.head} sections", section.line)
        seen.add(section.head)
        yield section


def _constraint_forms(section: Form) -> Iterator[Form]:
    if len(section) != 2:
        raise PddlError("the constraints must be one formula", section.line)
    for part in conjuncts(section[1]):
        if not isinstance(part, Form):
            raise PddlError(f"expected a constraint but found {part!r}", section.line)
        yield part


def _action(form: Form, scope: Scope) -> Action:
    if len(form) < 2 or not isinstance(form[1], Symbol) or len(form) % 2:
        raise PddlError("expected (:action NAME :parameters (...) :precondition ... :effect ...)", form.line)
    parts: dict[str, Expression] = {}
    for keyword, value in zip(form[2::2], form[3::2], strict=True):
        if keyword not in (":parameters", ":precondition", ":effect"):
            raise PddlError(f"unknown part {keyword!r} of action {form[1]!r}", form.line)
        parts[str(keyword)] = value
    parameters = read_variables(parts.get(":parameters", Form(form.line)), scope.signature)
    scope = scope.widened(parameters)
    return Action(
        name=str(form[1]),
        parameters=parameters,
        precondition=read_formula(parts[":precondition"], scope) if ":precondition" in parts else TRUTH,
        effects=_merged(_effects(parts[":effect"], scope)) if ":effect" in parts else (),
    )


def _effects(form: Expression, scope: Scope, condition: Formula = TRUTH, variables: Variables = ()) -> Iterator[Effect]:
    """The literals of an effect, one by one, under the conditions and quantifiers that stand before them."""
    if not isinstance(form, Form):
        raise PddlError(f"expected an effect but found {form!r}", form.line)
    match form.head, len(form) - 1:
        case "and", _:
            for part in form[1:]:
                yield from _effects(part, scope, condition, variables)
        case "forall", 2:
            more, body = read_variables(form[1], scope.signature), form[2]
            for name in [name for name, _ in more if name in scope.names]:  # `condition` may mean the outer one
                fresh = name
                while fresh in scope.names:
                    fresh += " "  # no name that is read has a blank
                more = tuple((fresh if known == name else known, kinds) for known, kinds in more)
                body = _with_variable(body, name, fresh)
            yield from _effects(body, scope.widened(more), condition, (*variables, *more))
        case "when", 2:
            also = read_formula(form[1], scope)
            both = also if condition == TRUTH else And((condition, also))
            yield from _effects(form[2], scope, both, variables)
        case "not", 1 if isinstance(form[1], Form):
            yield Effect(deletes=(read_atom(form[1], scope),), condition=condition, variables=variables)
        case "increase", 2 if isinstance(form[1], Form) and form[1] == ["total-cost"]:
            read_term(form[1], scope)
            match form[2]:
                case Symbol() as number if NUMBER.fullmatch(number):
                    return
                case Form([Symbol() as name, *_]) as term if name not in ("+", "-", "*", "/", "total-cost"):
                    yield Effect(costs=(read_term(term, scope),), condition=condition, variables=variables)
                case _:
                    raise Unsupported("arithmetic in an effect is not supported in-process", form.line)
        case "assign" | "increase" | "decrease" | "scale-up" | "scale-down", _:
            raise Unsupported(f"numeric effect `{form.head}` is not supported in-process", form.line)
        case "or" | "imply" | "exists" | "forall" | "when" | "not", _:
            raise PddlError(f"`{form.head}` with {len(form) - 1} part(s) is no effect", form.line)
        case "probabilistic", _:
            raise Unsupported("`probabilistic` effects are not supported in-process", form.line)
        case "", -1:
            return
        case _:
            yield Effect(adds=(read_atom(form, scope),), condition=condition, variables=variables)


def _with_variable(expression: Expression, old: str, new: str) -> Expression:
    """The expression with another name for a variable, but for where a quantifier takes the name for its own."""
    if not isinstance(expression, Form):
        return symbol(new, expression.line) if expression == old else expression
    match expression:
        case [Symbol("forall" | "exists"), Form() as variables, _] if old in variables:
            return expression
    return Form(expression.line, [_with_variable(part, old, new) for part in expression])


def _merged(effects: Iterator[Effect]) -> tuple[Effect, ...]:
    """Literals under one condition and quantifier together."""
    groups: dict[tuple[Formula, Variables], list[Effect]] = defaultdict(list)
    for effect in effects:
        groups[effect.condition, effect.variables].append(effect)
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

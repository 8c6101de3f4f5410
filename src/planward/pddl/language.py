"""Domains and problems: STRIPS with typing, constants, equality and negative preconditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from planward.pddl.expressions import Expression, Form, PddlError, Symbol, Unsupported, read_expression, read_file

Atom = tuple[str, ...]  # predicate, then arguments: objects, constants or ?variables
Types = tuple[str, ...]  # one type, or the alternatives of an `either`
T = TypeVar("T")

UNSUPPORTED_REQUIREMENTS = {":durative-actions", ":derived-predicates", ":preferences", ":timed-initial-literals"}


@dataclass(frozen=True)
class Literal:
    atom: Atom
    positive: bool = True


@dataclass(frozen=True)
class Action:
    name: str
    parameters: tuple[tuple[str, Types], ...]
    preconditions: tuple[Literal, ...]
    adds: tuple[Atom, ...]
    deletes: tuple[Atom, ...]


@dataclass(frozen=True)
class Domain:
    name: str
    supertypes: dict[str, Types]  # the direct parents of each type
    constants: dict[str, Types]
    predicates: dict[str, tuple[Types, ...]]
    actions: dict[str, Action]

    def is_a(self, types: Types, wanted: Types) -> bool:
        """Whether an object declared with `types` may stand where `wanted` is asked for."""
        return any(self._ancestors(kind) & set(wanted) for kind in types)

    def _ancestors(self, kind: str) -> set[str]:
        found, frontier = {kind, "object"}, [kind]
        while frontier:
            for parent in self.supertypes.get(frontier.pop(), ()):
                if parent not in found:
                    found.add(parent)
                    frontier.append(parent)
        return found

    @property
    def fluents(self) -> set[str]:
        """Predicates that some action changes."""
        return {atom[0] for action in self.actions.values() for atom in (*action.adds, *action.deletes)}


@dataclass(frozen=True)
class Problem:
    name: str
    domain: Domain
    objects: dict[str, Types]  # the domain's constants included
    init: frozenset[Atom]
    goal: tuple[Literal, ...]
    constraints: Form | None = field(default=None, compare=False)

    def satisfied_goals(self, state: frozenset[Atom] | set[Atom]) -> int:
        return sum(_holds(literal, state) for literal in self.goal)


def _holds(literal: Literal, state: frozenset[Atom] | set[Atom]) -> bool:
    predicate, *arguments = literal.atom
    holds = arguments[0] == arguments[1] if predicate == "=" else literal.atom in state
    return holds == literal.positive


def load_domain(path: Path) -> Domain:
    """Parse a domain file, once for each content.

    Raises:
        PddlError: unusable PDDL (file and line in the message).
        Unsupported: sound PDDL that only VAL can judge.
    """
    return _with_source(path, lambda: _parsed_domain(path.read_text(encoding="utf-8-sig")), read_file)


def load_problem(path: Path, domain: Domain) -> Problem:
    """Parse a problem file against its domain; raises as `load_domain` does."""
    return _with_source(path, lambda: parse_problem(path.read_text(encoding="utf-8-sig"), domain), read_file)


def _with_source(path: Path, parse: Callable[[], T], read: Callable[[Path], Form]) -> T:
    try:
        return parse()
    except (OSError, UnicodeDecodeError):
        read(path)  # says it well
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
    supertypes: dict[str, Types] = {}
    constants: dict[str, Types] = {}
    predicates: dict[str, tuple[Types, ...]] = {}
    actions: dict[str, Action] = {}
    sections = list(_sections(form))
    for section in sections:
        match section.head:
            case ":requirements":
                for requirement in section[1:]:
                    if requirement in UNSUPPORTED_REQUIREMENTS:
                        raise Unsupported(f"{requirement} is not supported in-process", section.line)
            case ":types":
                supertypes = dict(_typed_list(section[1:]))
            case ":constants":
                constants = dict(_typed_list(section[1:]))
            case ":predicates":
                for declaration in section[1:]:
                    if not isinstance(declaration, Form) or not declaration.head:
                        raise PddlError("expected (predicate ?argument ...)", section.line)
                    predicates[declaration.head] = tuple(t for _, t in _typed_list(declaration[1:]))
            case ":functions" | ":action":
                pass
            case ":durative-action" | ":derived" | ":constraints" | ":process" | ":event":
                raise Unsupported(f"{section.head} is not supported in-process", section.line)
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a domain", section.line)
    domain = Domain(name, supertypes, constants, predicates, actions)
    for kinds in (*constants.values(), *(k for p in predicates.values() for k in p)):
        _check_types(domain, kinds, form.line)
    for section in sections:
        if section.head == ":action":
            action = _action(section, domain)
            if action.name in actions:
                raise PddlError(f"action {action.name!r} is defined twice", section.line)
            actions[action.name] = action
    return domain


def parse_problem(text: str, domain: Domain) -> Problem:
    """Parse the text of a problem; raises PddlError or Unsupported with the line."""
    form = read_expression(text)
    name = _definition_name(form, "problem")
    objects = dict(domain.constants)
    init: set[Atom] = set()
    goal: tuple[Literal, ...] | None = None
    constraints: Form | None = None
    sections = list(_sections(form))
    heads = [section.head for section in sections]
    if ":domain" not in heads:
        raise PddlError("the problem names no :domain", form.line)
    for head in (":goal", ":init"):
        if heads.count(head) > 1:
            raise PddlError(f"the problem has two {head} sections", form.line)
    for section in sections:
        if section.head == ":objects":
            for symbol, kinds in _typed_list(section[1:]):
                _check_types(domain, kinds, symbol.line)
                if symbol in objects:
                    raise PddlError(f"object {symbol!r} is declared twice", symbol.line)
                objects[symbol] = kinds
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
                    if fact.head == "=":  # the start value of a cost
                        continue
                    if fact.head == "not":
                        continue  # what is not stated is false anyway
                    init.add(_atom(fact, domain, objects))
            case ":goal":
                if len(section) != 2:
                    raise PddlError("the goal must be one formula", section.line)
                goal = tuple(_conjunction(section[1], domain, objects))
                if not goal:
                    raise PddlError("the goal is empty: nothing to plan for", section.line)
            case ":constraints":
                constraints = section
            case ":objects" | ":requirements" | ":metric":
                pass
            case other:
                raise PddlError(f"unknown section {other or '(empty)'!r} in a problem", section.line)
    if goal is None:
        raise PddlError("the problem has no :goal", form.line)
    return Problem(name, domain, objects, frozenset(init), goal, constraints)


def _definition_name(form: Form, kind: str) -> str:
    match form:
        case [Symbol() as define, Form([Symbol() as head, Symbol() as name]), *_] if (define, head) == ("define", kind):
            return str(name)
    raise PddlError(f"expected (define ({kind} NAME) ...)", form.line)


def _sections(form: Form) -> Iterator[Form]:
    for section in form[2:]:
        if not isinstance(section, Form):
            raise PddlError(f"expected a section but found {section!r}", section.line)
        yield section


def _typed_list(items: list[Expression]) -> Iterator[tuple[Symbol, Types]]:
    """`a b - t c - (either u v) d`: names with their types; without a type, `object`."""
    pending: list[Symbol] = []
    rest = iter(items)
    for item in rest:
        if isinstance(item, Form):
            raise PddlError("expected a name in a typed list but found a list", item.line)
        if item != "-":
            pending.append(item)
            continue
        kind = next(rest, None)
        if kind is None or not pending:
            raise PddlError("a '-' in a typed list needs names before it and a type after it", item.line)
        if isinstance(kind, Form) and kind.head != "either":
            raise PddlError("a type is a name or (either ...)", kind.line)
        kinds = tuple(map(str, kind[1:])) if isinstance(kind, Form) else (str(kind),)
        yield from ((name, kinds) for name in pending)
        pending = []
    yield from ((name, ("object",)) for name in pending)


def _check_types(domain: Domain, kinds: Types, line: int) -> None:
    known = {"object", *domain.supertypes, *(parent for parents in domain.supertypes.values() for parent in parents)}
    for kind in kinds:
        if kind not in known:
            raise PddlError(f"unknown type {kind!r}", line)


def _action(form: Form, domain: Domain) -> Action:
    if len(form) < 2 or not isinstance(form[1], Symbol) or len(form) % 2:
        raise PddlError("expected (:action NAME :parameters (...) :precondition ... :effect ...)", form.line)
    parts: dict[str, Expression] = {}
    for keyword, value in zip(form[2::2], form[3::2], strict=True):
        if keyword not in (":parameters", ":precondition", ":effect"):
            raise PddlError(f"unknown part {keyword!r} of action {form[1]!r}", form.line)
        parts[str(keyword)] = value
    parameters = parts.get(":parameters", Form(form.line))
    if not isinstance(parameters, Form):
        raise PddlError(":parameters must be a list", parameters.line)
    scope = dict(_typed_list(parameters))
    for kinds in scope.values():
        _check_types(domain, kinds, form.line)
    names = domain.constants | scope
    effects = list(_conjunction(parts[":effect"], domain, names, effect=True)) if ":effect" in parts else []
    return Action(
        name=str(form[1]),
        parameters=tuple((str(name), kinds) for name, kinds in scope.items()),
        preconditions=tuple(_conjunction(parts[":precondition"], domain, names)) if ":precondition" in parts else (),
        adds=tuple(literal.atom for literal in effects if literal.positive),
        deletes=tuple(literal.atom for literal in effects if not literal.positive),
    )


def _conjunction(form: Expression, domain: Domain, names: dict[str, Types], effect: bool = False) -> Iterator[Literal]:
    """The literals of a conjunction, nested `and`s flattened; costs are passed over in effects."""
    if not isinstance(form, Form):
        raise PddlError(f"expected a formula but found {form!r}", form.line)
    match form.head:
        case "and":
            for part in form[1:]:
                yield from _conjunction(part, domain, names, effect)
        case "not":
            if len(form) != 2 or not isinstance(form[1], Form):
                raise PddlError("`not` takes one formula", form.line)
            if form[1].head in ("and", "or", "not", "imply", "forall", "exists"):
                raise Unsupported(f"`not` of `{form[1].head}` is not supported in-process", form.line)
            yield Literal(_atom(form[1], domain, names, equality=not effect), positive=False)
        case "or" | "imply" | "forall" | "exists" | "when" | "<" | ">" | "<=" | ">=" | "preference":
            raise Unsupported(f"`{form.head}` is not supported in-process", form.line)
        case "increase" if effect and len(form) == 3 and isinstance(form[1], Form) and form[1].head == "total-cost":
            return
        case "assign" | "increase" | "decrease" | "scale-up" | "scale-down" if effect:
            raise Unsupported(f"numeric effect `{form.head}` is not supported in-process", form.line)
        case "" if not form:
            return
        case _:
            yield Literal(_atom(form, domain, names, equality=not effect))


def _atom(form: Form, domain: Domain, names: dict[str, Types], equality: bool = False) -> Atom:
    if not all(isinstance(part, Symbol) for part in form) or not form:
        if form.head == "=":
            raise Unsupported("a numeric condition is not supported in-process", form.line)
        if form.head == "at" and len(form) == 3 and isinstance(form[2], Form):
            raise Unsupported("a timed initial literal is not supported in-process", form.line)
        raise PddlError("expected (predicate argument ...)", form.line)
    predicate, *arguments = map(str, form)
    if predicate == "=" and equality:
        wanted: tuple[Types, ...] = (("object",), ("object",))
    elif predicate in domain.predicates:
        wanted = domain.predicates[predicate]
    else:
        raise PddlError(f"unknown predicate {predicate!r}", form.line)
    if len(arguments) != len(wanted):
        raise PddlError(f"{predicate!r} takes {len(wanted)} argument(s), not {len(arguments)}", form.line)
    for argument, kinds in zip(arguments, wanted, strict=True):
        if argument not in names:
            raise PddlError(f"unknown object {argument!r} in ({' '.join(map(str, form))})", form.line)
        if not domain.is_a(names[argument], kinds):
            raise PddlError(
                f"{argument!r} is a {'/'.join(names[argument])}, but {predicate!r} wants a {'/'.join(kinds)}", form.line
            )
    return (predicate, *arguments)

"""Declarations that formulas refer to: types, predicates and functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from planward.pddl.expressions import Expression, Form, LimitError, PddlError, Symbol, UnsupportedError
from planward.pddl.limits import MAX_ARGUMENTS, MAX_SUPERTYPES

Atom = tuple[str, ...]  # predicate, then arguments: objects, constants or ?variables
Types = tuple[str, ...]  # one type, the alternatives of an `either`, or none where the domain is untyped
Variables = tuple[tuple[str, Types], ...]

UNTYPED: Types = ()


@dataclass(frozen=True)
class Signature:
    """Declared types, predicates and functions of a domain.

    As in VAL, `object` is a type like any other: types that do not declare it as an ancestor do not belong to it.
    """

    typed: bool  # the domain has a section :types
    supertypes: dict[str, Types]  # the direct parents of each type
    predicates: dict[str, tuple[Types, ...]]
    functions: dict[str, tuple[Types, ...]]

    def is_a(self, types: Types, expected: Types) -> bool:
        """Return whether an object declared with `types` may be used where `expected` is required."""
        if not expected or types == expected:
            return True
        is_subtype = self._is_a_cache.get((types, expected))
        if is_subtype is None:
            ancestors = [self.find_ancestors(type_name) for type_name in types]
            is_subtype = self._is_a_cache[types, expected] = any(names & set(expected) for names in ancestors)
        return is_subtype

    def check_types(self, names: Iterable[tuple[Symbol, Types]]) -> None:
        """Raise PddlError for a name without type in a typed domain, with one in an untyped one, or an unknown type."""
        for name, types in names:
            if types and not self.typed:
                raise PddlError(f"{name!r} has a type, but the domain has no :types", name.line)
            if self.typed and not types:
                raise PddlError(f"{name!r} has no type, and the domain has :types", name.line)
            for type_name in types:
                if type_name not in self._known_types:
                    raise PddlError(f"unknown type {type_name!r}", name.line)

    def declare_types(self, items: Sequence[Expression]) -> None:
        """Add the types of a section; a type that is declared twice has both parents."""
        for name, parents in parse_typed_list(items):
            self.supertypes[str(name)] = (*self.supertypes.get(name, ()), *parents)

    def find_ancestors(self, type_name: str) -> set[str]:
        """Return the type and all its supertypes.

        Raises:
            PddlError: the type is its own supertype.
            LimitError: it has more than MAX_SUPERTYPES.
        """
        ancestors, frontier = {type_name}, [type_name]
        while frontier:
            for parent in self.supertypes.get(frontier.pop(), ()):
                if parent == type_name:
                    raise PddlError(f"the type {type_name!r} is its own supertype")
                if parent not in ancestors:
                    if len(ancestors) == MAX_SUPERTYPES:
                        raise LimitError(f"the type {type_name!r} has more than {MAX_SUPERTYPES - 1} supertypes")
                    ancestors.add(parent)
                    frontier.append(parent)
        return ancestors

    @cached_property
    def _known_types(self) -> frozenset[str]:
        parents = (parent for parents in self.supertypes.values() for parent in parents)
        return frozenset({"object", *self.supertypes, *parents})

    @cached_property
    def _is_a_cache(self) -> dict[tuple[Types, Types], bool]:
        return {}


@dataclass(frozen=True)
class Scope:
    """The names that may be used at a place in a file, with their types."""

    signature: Signature
    names: dict[str, Types]

    def with_variables(self, variables: Variables) -> Scope:
        """Return the scope extended by variables."""
        return Scope(self.signature, self.names | dict(variables))


def parse_typed_list(items: Sequence[Expression]) -> Iterator[tuple[Symbol, Types]]:
    """Parse `a b - t c - (either u v) d`: yield names with their types, none for a name without."""
    pending: list[Symbol] = []
    rest = iter(items)
    for item in rest:
        if isinstance(item, Form):
            raise PddlError("expected a name in a typed list but found a list", item.line)
        if item != "-":
            pending.append(item)
            continue
        type_form = next(rest, None)
        if type_form is None or not pending:
            raise PddlError("a '-' in a typed list needs names before it and a type after it", item.line)
        if isinstance(type_form, Form) and type_form.head != "either":
            raise PddlError("a type is a name or (either ...)", type_form.line)
        types = tuple(map(str, type_form[1:])) if isinstance(type_form, Form) else (str(type_form),)
        yield from ((name, types) for name in pending)
        pending = []
    yield from ((name, UNTYPED) for name in pending)


def parse_declarations(
    items: Sequence[Expression], signature: Signature, taken: Container[str] = ()
) -> dict[str, Types]:
    """Parse objects, constants or variables with their types.

    Raises:
        PddlError: a name is declared twice or is in `taken`, or a type is missing or unknown.
    """
    types_by_name: dict[str, Types] = {}
    for name, types in parse_typed_list(items):
        if name in types_by_name or name in taken:
            raise PddlError(f"{name!r} is declared twice", name.line)
        signature.check_types([(name, types)])
        types_by_name[str(name)] = types
    return types_by_name


def parse_variables(form: Expression, signature: Signature) -> Variables:
    """Parse the variables of a `:parameters` list or a quantifier."""
    if not isinstance(form, Form):
        raise PddlError(f"expected a list of variables but found {form!r}", form.line)
    variables = tuple(parse_declarations(form, signature).items())
    check_argument_count(len(variables), form.line)
    return variables


def check_argument_count(count: int, line: int) -> None:
    """Raise LimitError where there are more than MAX_ARGUMENTS."""
    if count > MAX_ARGUMENTS:
        raise LimitError(f"{count:,} arguments or variables; at most {MAX_ARGUMENTS} are allowed", line)


def parse_atom(form: Form, scope: Scope, equality: bool = False) -> Atom:
    """Parse an atom; raises PddlError where predicate, arity, names or types differ from the declarations."""
    predicate = form.head
    expected = scope.signature.predicates.get(predicate)
    if expected is None:
        _check_not_numeric(form)
        if predicate != "=" or not equality:
            raise PddlError(f"unknown predicate {predicate!r}" if form else "expected (predicate ...)", form.line)
        expected = (UNTYPED, UNTYPED)
    return _parse_arguments(form, expected, scope)


def _check_not_numeric(form: Form) -> None:
    if any(isinstance(part, Form) for part in form):
        if form.head == "=":
            raise UnsupportedError("a numeric condition is not supported in-process", form.line)
        raise PddlError("expected (predicate argument ...)", form.line)


def parse_term(form: Form, scope: Scope) -> Atom:
    """Parse a function term; raises PddlError where it differs from the declarations."""
    if form.head not in scope.signature.functions:
        raise PddlError(f"unknown function {form.head or '(none)'!r}", form.line)
    return _parse_arguments(form, scope.signature.functions[form.head], scope)


def _parse_arguments(form: Form, expected: tuple[Types, ...], scope: Scope) -> Atom:
    """Return the form's words after checking their number, names and types."""
    words = tuple(form)
    if len(words) != len(expected) + 1:
        raise PddlError(f"{words[0]!r} takes {len(expected)} argument(s), not {len(words) - 1}", form.line)
    names, is_a = scope.names, scope.signature.is_a
    for argument, types in zip(words[1:], expected, strict=True):
        if isinstance(argument, Form):
            raise PddlError("expected (predicate argument ...)", form.line)
        argument_types = names.get(argument)
        if argument_types is None:
            raise PddlError(f"unknown object {argument!r} in ({' '.join(map(str, form))})", form.line)
        if argument_types != types and not _is_compatible(argument, argument_types, types, is_a):
            raise PddlError(
                f"{argument!r} is a {'/'.join(argument_types)}, but {words[0]!r} expects a {'/'.join(types)}", form.line
            )
    return cast(Atom, words)


def _is_compatible(argument: str, argument_types: Types, expected: Types, is_a: Callable[[Types, Types], bool]) -> bool:
    """Return whether all alternatives of a variable's type fit, or any of an object's, which belongs to all of them."""
    fits = [is_a((type_name,), expected) for type_name in argument_types] or [True]
    return all(fits) if argument.startswith("?") else any(fits)

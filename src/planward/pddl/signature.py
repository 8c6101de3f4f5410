"""What a domain's formulas may speak of: types, predicates and functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from planward.pddl.expressions import Expression, Form, PddlError, Symbol, Unsupported

Atom = tuple[str, ...]  # predicate, then arguments: objects, constants or ?variables
Types = tuple[str, ...]  # one type, the alternatives of an `either`, or none where a domain has no types
Variables = tuple[tuple[str, Types], ...]

UNTYPED: Types = ()


@dataclass(frozen=True)
class Signature:
    """As in VAL, `object` is a type like any other: those that do not name it above them do not belong to it."""

    typed: bool  # the domain has a section :types
    supertypes: dict[str, Types]  # the direct parents of each type
    predicates: dict[str, tuple[Types, ...]]
    functions: dict[str, tuple[Types, ...]]

    def is_a(self, types: Types, wanted: Types) -> bool:
        """Whether an object declared with `types` may stand where `wanted` is asked for."""
        if not wanted or types == wanted:
            return True
        known = self._memory.get((types, wanted))
        if known is None:
            ancestors = [self.ancestors(kind) for kind in types]
            known = self._memory[types, wanted] = any(found & set(wanted) for found in ancestors)
        return known

    def check_types(self, names: Iterable[tuple[Symbol, Types]]) -> None:
        """Raises PddlError where a name has no type in a typed domain, one in an untyped one, or an unknown one."""
        for name, kinds in names:
            if kinds and not self.typed:
                raise PddlError(f"{name!r} has a type, but the domain has no :types", name.line)
            if self.typed and not kinds:
                raise PddlError(f"{name!r} has no type, and the domain has :types", name.line)
            for kind in kinds:
                if kind not in self._known:
                    raise PddlError(f"unknown type {kind!r}", name.line)

    def ancestors(self, kind: str) -> set[str]:
        """The type and all types above it; raises PddlError where it stands above itself."""
        found, frontier = {kind}, [kind]
        while frontier:
            for parent in self.supertypes.get(frontier.pop(), ()):
                if parent == kind:
                    raise PddlError(f"the type {kind!r} stands above itself")
                if parent not in found:
                    found.add(parent)
                    frontier.append(parent)
        return found

    @cached_property
    def _known(self) -> frozenset[str]:
        parents = (parent for parents in self.supertypes.values() for parent in parents)
        return frozenset({"object", *self.supertypes, *parents})

    @cached_property
    def _memory(self) -> dict[tuple[Types, Types], bool]:
        return {}


@dataclass(frozen=True)
class Scope:
    """A place in a file: what is declared, and the names that may be used there with their types."""

    signature: Signature
    names: dict[str, Types]

    def widened(self, variables: Variables) -> Scope:
        return Scope(self.signature, self.names | dict(variables))


def read_typed_list(items: Sequence[Expression]) -> Iterator[tuple[Symbol, Types]]:
    """`a b - t c - (either u v) d`: names with their types; none for the last."""
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
    yield from ((name, UNTYPED) for name in pending)


def read_declarations(
    items: Sequence[Expression], signature: Signature, taken: Container[str] = ()
) -> dict[str, Types]:
    """Objects, constants or variables with their types, each declared once and rightly."""
    declared: dict[str, Types] = {}
    for name, kinds in read_typed_list(items):
        if name in declared or name in taken:
            raise PddlError(f"{name!r} is declared twice", name.line)
        signature.check_types([(name, kinds)])
        declared[str(name)] = kinds
    return declared


def read_variables(form: Expression, signature: Signature) -> Variables:
    """The variables of a `:parameters` list or a quantifier."""
    if not isinstance(form, Form):
        raise PddlError(f"expected a list of variables but found {form!r}", form.line)
    return tuple(read_declarations(form, signature).items())


def read_atom(form: Form, scope: Scope, equality: bool = False) -> Atom:
    """An atom whose predicate, arity, names and types are as declared."""
    predicate = form.head
    wanted = scope.signature.predicates.get(predicate)
    if wanted is None:
        _complain_of_numbers(form)
        if predicate != "=" or not equality:
            raise PddlError(f"unknown predicate {predicate!r}" if form else "expected (predicate ...)", form.line)
        wanted = (UNTYPED, UNTYPED)
    return _checked(form, wanted, scope)


def _complain_of_numbers(form: Form) -> None:
    if any(isinstance(part, Form) for part in form):
        if form.head == "=":
            raise Unsupported("a numeric condition is not supported in-process", form.line)
        raise PddlError("expected (predicate argument ...)", form.line)


def read_term(form: Form, scope: Scope) -> Atom:
    """A function with its arguments, as declared."""
    if form.head not in scope.signature.functions:
        raise PddlError(f"unknown function {form.head or '(none)'!r}", form.line)
    return _checked(form, scope.signature.functions[form.head], scope)


def _checked(form: Form, wanted: tuple[Types, ...], scope: Scope) -> Atom:
    """The form's words, where their number, names and types are as wanted."""
    words = tuple(form)
    if len(words) != len(wanted) + 1:
        raise PddlError(f"{words[0]!r} takes {len(wanted)} argument(s), not {len(words) - 1}", form.line)
    names, is_a = scope.names, scope.signature.is_a
    for argument, kinds in zip(words[1:], wanted, strict=True):
        if isinstance(argument, Form):
            raise PddlError("expected (predicate argument ...)", form.line)
        declared = names.get(argument)
        if declared is None:
            raise PddlError(f"unknown object {argument!r} in ({' '.join(map(str, form))})", form.line)
        if declared != kinds and not _fits(argument, declared, kinds, is_a):
            raise PddlError(
                f"{argument!r} is a {'/'.join(declared)}, but {words[0]!r} wants a {'/'.join(kinds)}", form.line
            )
    return cast(Atom, words)


def _fits(argument: str, declared: Types, kinds: Types, is_a: Callable[[Types, Types], bool]) -> bool:
    """Whether each alternative of a variable's type fits, or one of an object's, which is of them all."""
    fits = [is_a((kind,), kinds) for kind in declared] or [True]
    return all(fits) if argument.startswith("?") else any(fits)

"""Formulas over atoms in negation normal form: `not` only at literals, no `imply`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planward.pddl.expressions import Expression, Form, PddlError, UnsupportedError, build_symbol
from planward.pddl.signature import Atom, Scope, Variables, parse_atom, parse_variables


@dataclass(frozen=True)
class Literal:
    """An atom or its negation."""

    atom: Atom
    positive: bool = True


@dataclass(frozen=True)
class And:
    """A conjunction."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Or:
    """A disjunction."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Quantified:
    """`forall` where `universal`, `exists` otherwise; ranges over the objects and constants of the types."""

    universal: bool
    variables: Variables
    body: Formula


Formula = Literal | And | Or | Quantified
TRUTH = And(())


def parse_formula(form: Expression, scope: Scope, positive: bool = True, empty: bool = True) -> Formula:
    """Parse a formula, or its negation where not `positive`.

    Args:
        empty: accept `()` and `(and)`. VAL accepts them as a whole formula, in an `and` and under `forall`.

    Raises:
        PddlError: not a formula, or undeclared names or types.
        UnsupportedError: comparisons of numbers, and preferences.
    """
    if not isinstance(form, Form):
        raise PddlError(f"expected a formula but found {form!r}", form.line)
    if (not form or (len(form) == 1 and form.head in ("and", "or"))) and not (empty and form.head != "or"):
        raise PddlError(f"`({form.head})` is empty: expected a formula", form.line)
    match form.head:
        case "and" | "or" as head:
            parts = tuple(parse_formula(part, scope, positive, empty=head == "and") for part in form[1:])
            return And(parts) if (head == "and") == positive else Or(parts)
        case "not":
            _check_part_count(form, 1)
            return parse_formula(form[1], scope, not positive, empty=False)
        case "imply":
            _check_part_count(form, 2)
            condition = parse_formula(form[1], scope, not positive, empty=False)
            parts = (condition, parse_formula(form[2], scope, positive, empty=False))
            return Or(parts) if positive else And(parts)
        case "forall" | "exists" as head:
            _check_part_count(form, 2)
            variables = parse_variables(form[1], scope.signature)
            body = parse_formula(form[2], scope.with_variables(variables), positive, empty=head == "forall")
            return Quantified((head == "forall") == positive, variables, body)
        case "<" | ">" | "<=" | ">=" | "preference" as head:
            raise UnsupportedError(f"`{head}` is not supported in-process", form.line)
        case "" if not form:
            return And(()) if positive else Or(())
        case _:
            return Literal(parse_atom(form, scope, equality=True), positive)


def iter_conjunct_forms(form: Expression) -> Iterator[Expression]:
    """Yield the parts of an unparsed conjunction, nested `and`s flattened; none for an empty one."""
    if isinstance(form, Form) and (form.head == "and" or not form):
        for part in form[1:]:
            yield from iter_conjunct_forms(part)
    else:
        yield form


def iter_conjuncts(formula: Formula) -> Iterator[Formula]:
    """Yield the parts of the outermost conjunction, nested ones flattened."""
    if isinstance(formula, And):
        for part in formula.parts:
            yield from iter_conjuncts(part)
    else:
        yield formula


def render_formula(formula: Formula, binding: dict[str, str] | None = None) -> str:
    """Render the formula as PDDL, with variables replaced by their values in `binding`."""
    match formula:
        case Literal(atom, positive):
            ground = f"({' '.join((binding or {}).get(part, part) for part in atom)})"
            return ground if positive else f"(not {ground})"
        case And(parts) | Or(parts):
            return f"({' '.join([type(formula).__name__.lower(), *(render_formula(part, binding) for part in parts)])})"
        case Quantified(universal, variables, body):
            outer = {name: value for name, value in (binding or {}).items() if name not in dict(variables)}
            declarations = " ".join(f"{name} - {'/'.join(types)}" for name, types in variables)
            return f"({'forall' if universal else 'exists'} ({declarations}) {render_formula(body, outer)})"


def map_atoms(formula: Formula, change: Callable[[Atom], Atom]) -> Formula:
    """Apply `change` to every atom of a formula."""
    match formula:
        case Literal(atom, positive):
            return Literal(change(atom), positive)
        case And(parts) | Or(parts):
            return type(formula)(tuple(map_atoms(part, change) for part in parts))
        case Quantified(universal, variables, body):
            return Quantified(universal, variables, map_atoms(body, change))


def map_form_atoms(form: Form, change: Callable[[Atom], Atom]) -> Form:
    """Apply `change` to every atom of an unparsed formula or constraint."""
    if form.head in ("forall", "exists") and len(form) == 3:
        return Form(form.line, [form[0], form[1], *_map_parts(form[2:], change)])
    if form and not any(isinstance(part, Form) for part in form):
        return Form(form.line, [build_symbol(word, form.line) for word in change(tuple(map(str, form)))])
    return Form(form.line, _map_parts(form, change))


def _map_parts(parts: Sequence[Expression], change: Callable[[Atom], Atom]) -> Iterator[Expression]:
    return (map_form_atoms(part, change) if isinstance(part, Form) else part for part in parts)


def _check_part_count(form: Form, count: int) -> None:
    if len(form) != count + 1:
        raise PddlError(f"`{form.head}` takes {count} part(s), not {len(form) - 1}", form.line)

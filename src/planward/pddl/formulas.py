"""Formulas over atoms, read into negation normal form: `not` stands at literals only, `imply` nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planward.pddl.expressions import Expression, Form, PddlError, Unsupported, symbol
from planward.pddl.signature import Atom, Scope, Variables, read_atom, read_variables


@dataclass(frozen=True)
class Literal:
    atom: Atom
    positive: bool = True


@dataclass(frozen=True)
class And:
    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Quantified:
    """`forall` where `universal`, `exists` otherwise; it ranges over the objects and constants of the types."""

    universal: bool
    variables: Variables
    body: Formula


Formula = Literal | And | Or | Quantified
TRUTH = And(())


def read_formula(form: Expression, scope: Scope, positive: bool = True, empty: bool = True) -> Formula:
    """The formula that a form states, or its negation.

    `empty`: whether `()` and `(and)` may stand here. VAL takes them as a whole formula, in an `and` and under `forall`.

    Raises:
        PddlError: no formula, or names and types that are not declared.
        Unsupported: comparisons of numbers, and preferences.
    """
    if not isinstance(form, Form):
        raise PddlError(f"expected a formula but found {form!r}", form.line)
    if (not form or (len(form) == 1 and form.head in ("and", "or"))) and not (empty and form.head != "or"):
        raise PddlError(f"`({form.head})` says nothing here", form.line)
    match form.head:
        case "and" | "or" as head:
            parts = tuple(read_formula(part, scope, positive, empty=head == "and") for part in form[1:])
            return And(parts) if (head == "and") == positive else Or(parts)
        case "not":
            _expect(form, 1)
            return read_formula(form[1], scope, not positive, empty=False)
        case "imply":
            _expect(form, 2)
            condition = read_formula(form[1], scope, not positive, empty=False)
            parts = (condition, read_formula(form[2], scope, positive, empty=False))
            return Or(parts) if positive else And(parts)
        case "forall" | "exists" as head:
            _expect(form, 2)
            variables = read_variables(form[1], scope.signature)
            body = read_formula(form[2], scope.widened(variables), positive, empty=head == "forall")
            return Quantified((head == "forall") == positive, variables, body)
        case "<" | ">" | "<=" | ">=" | "preference" as head:
            raise Unsupported(f"`{head}` is not supported in-process", form.line)
        case "" if not form:
            return And(()) if positive else Or(())
        case _:
            return Literal(read_atom(form, scope, equality=True), positive)


def conjuncts(form: Expression) -> Iterator[Expression]:
    """The parts of a conjunction as written, nested `and`s flattened; an empty one has none."""
    if isinstance(form, Form) and (form.head == "and" or not form):
        for part in form[1:]:
            yield from conjuncts(part)
    else:
        yield form


def parts_of(formula: Formula) -> Iterator[Formula]:
    """The parts of the formula's outermost conjunction, nested ones flattened."""
    if isinstance(formula, And):
        for part in formula.parts:
            yield from parts_of(part)
    else:
        yield formula


def text(formula: Formula, binding: dict[str, str] | None = None) -> str:
    """The formula as PDDL, variables replaced where `binding` names them."""
    match formula:
        case Literal(atom, positive):
            ground = f"({' '.join((binding or {}).get(part, part) for part in atom)})"
            return ground if positive else f"(not {ground})"
        case And(parts) | Or(parts):
            return f"({' '.join([type(formula).__name__.lower(), *(text(part, binding) for part in parts)])})"
        case Quantified(universal, variables, body):
            hidden = {name: value for name, value in (binding or {}).items() if name not in dict(variables)}
            listed = " ".join(f"{name} - {'/'.join(kinds)}" for name, kinds in variables)
            return f"({'forall' if universal else 'exists'} ({listed}) {text(body, hidden)})"


def mapped(formula: Formula, change: Callable[[Atom], Atom]) -> Formula:
    """The formula with every atom changed."""
    match formula:
        case Literal(atom, positive):
            return Literal(change(atom), positive)
        case And(parts) | Or(parts):
            return type(formula)(tuple(mapped(part, change) for part in parts))
        case Quantified(universal, variables, body):
            return Quantified(universal, variables, mapped(body, change))


def mapped_form(form: Form, change: Callable[[Atom], Atom]) -> Form:
    """The same for a formula, or a constraint, as written."""
    if form.head in ("forall", "exists") and len(form) == 3:
        return Form(form.line, [form[0], form[1], *_mapped_parts(form[2:], change)])
    if form and not any(isinstance(part, Form) for part in form):
        return Form(form.line, [symbol(word, form.line) for word in change(tuple(map(str, form)))])
    return Form(form.line, _mapped_parts(form, change))


def _mapped_parts(parts: Sequence[Expression], change: Callable[[Atom], Atom]) -> Iterator[Expression]:
    return (mapped_form(part, change) if isinstance(part, Form) else part for part in parts)


def _expect(form: Form, count: int) -> None:
    if len(form) != count + 1:
        raise PddlError(f"`{form.head}` takes {count} part(s), not {len(form) - 1}", form.line)

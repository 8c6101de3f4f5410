"""Trajectory constraints of PDDL3 (Gerevini and Long 2006), parsed; `monitors` evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planward.pddl.expressions import Expression, Form, PddlError, UnsupportedError
from planward.pddl.formulas import Formula, parse_formula
from planward.pddl.signature import Scope, Variables, parse_variables

ARITY = {"always": 1, "sometime": 1, "at-most-once": 1, "sometime-before": 2, "sometime-after": 2, "at end": 1}
MAX_FORALL_DEPTH = 3  # VAL fails on deeper nesting of `forall`s with one variable each
VAL_ONLY_OPERATORS = ("within", "always-within", "hold-during", "hold-after", "preference")


@dataclass(frozen=True)
class Constraint:
    """One modal operator over state formulas, for every binding of `variables`.

    Formulas are in PDDL's order: `sometime-before a b` requires b in a state before the first in which a holds.
    """

    operator: str
    formulas: tuple[Formula, ...]
    variables: Variables = ()


def parse_constraints(
    form: Expression, scope: Scope, variables: Variables = (), depth: int = 0
) -> Iterator[Constraint]:
    """Yield the constraints of a form, with `and` and `forall` flattened.

    Raises:
        PddlError: not a constraint, or a nesting of `forall` that VAL fails on.
        UnsupportedError: a constraint with time bounds, or a preference.
    """
    if not isinstance(form, Form):
        raise PddlError(f"expected a constraint but found {form!r}", form.line)
    head, parts = form.head, form[1:]
    if head == "at" and parts and parts[0] == "end":
        head, parts = "at end", parts[1:]
    if head == "and" and parts:
        for number, part in enumerate(parts, 1):
            if depth and number < len(parts) and isinstance(part, Form) and part.head == "forall":
                raise PddlError("VAL fails on a `forall` before another part of an `and` in a `forall`", part.line)
            yield from parse_constraints(part, scope, variables, depth)
    elif head == "forall" and len(parts) == 2:
        inner = parse_variables(parts[0], scope.signature)
        if not inner:
            raise UnsupportedError("a constraint under `forall ()` is not supported in-process", form.line)
        if depth and (len(variables) > depth or depth == MAX_FORALL_DEPTH):
            raise PddlError(
                "VAL fails on a `forall` nested this deep; fix: declare all variables in one `forall`", form.line
            )
        outer = tuple(variable for variable in variables if variable[0] not in dict(inner))
        yield from parse_constraints(parts[1], scope.with_variables(inner), (*outer, *inner), depth + 1)
    elif head in ARITY:
        if len(parts) != ARITY[head]:
            raise PddlError(f"`{head}` takes {ARITY[head]} formula(s), not {len(parts)}", form.line)
        yield Constraint(head, tuple(parse_formula(part, scope, empty=False) for part in parts), variables)
    elif head in VAL_ONLY_OPERATORS:
        raise UnsupportedError(f"`{head}` is not supported in-process", form.line)
    else:
        raise PddlError(f"expected a constraint (always, sometime, ...) but found {head or 'none'!r}", form.line)

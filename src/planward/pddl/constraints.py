"""Trajectory constraints of PDDL3 (Gerevini and Long 2006), as written; `monitors` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planward.pddl.expressions import Expression, Form, PddlError, Unsupported
from planward.pddl.formulas import Formula, read_formula
from planward.pddl.signature import Scope, Variables, read_variables

ARITY = {"always": 1, "sometime": 1, "at-most-once": 1, "sometime-before": 2, "sometime-after": 2, "at end": 1}
MOST_NESTED = 3  # `forall`s in each other that VAL survives, one variable each
ONLY_VAL = ("within", "always-within", "hold-during", "hold-after", "preference")


@dataclass(frozen=True)
class Constraint:
    """One modal operator over state formulas, for every binding of `variables`.

    In the order of PDDL: `sometime-before a b` says that b holds in a state before any in which a does.
    """

    operator: str
    formulas: tuple[Formula, ...]
    variables: Variables = ()


def read_constraints(form: Expression, scope: Scope, variables: Variables = (), depth: int = 0) -> Iterator[Constraint]:
    """The constraints that a form states, `and` and `forall` taken apart.

    Raises:
        PddlError: no constraint, or a nesting of `forall` that VAL does not survive.
        Unsupported: one that needs a clock, or a preference.
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
            yield from read_constraints(part, scope, variables, depth)
    elif head == "forall" and len(parts) == 2:
        more = read_variables(parts[0], scope.signature)
        if not more:
            raise Unsupported("a constraint under `forall ()` is not supported in-process", form.line)
        if depth and (len(variables) > depth or depth == MOST_NESTED):
            raise PddlError("VAL fails on a `forall` so deep in others; name all variables in one", form.line)
        kept = tuple(variable for variable in variables if variable[0] not in dict(more))
        yield from read_constraints(parts[1], scope.widened(more), (*kept, *more), depth + 1)
    elif head in ARITY:
        if len(parts) != ARITY[head]:
            raise PddlError(f"`{head}` takes {ARITY[head]} formula(s), not {len(parts)}", form.line)
        yield Constraint(head, tuple(read_formula(part, scope, empty=False) for part in parts), variables)
    elif head in ONLY_VAL:
        raise Unsupported(f"`{head}` is not supported in-process", form.line)
    else:
        raise PddlError(f"expected a constraint (always, sometime, ...) but found {head or 'none'!r}", form.line)

"""Judge a plan by running it: what VAL would say, in-process."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planward.pddl.expressions import Unsupported
from planward.pddl.grounding import substitute
from planward.pddl.language import Action, Literal, Problem
from planward.records import Label, Outcome

STEP = re.compile(r"\(([A-Za-z_][\w-]*(?: [A-Za-z_][\w-]*)*)\)", re.ASCII)


def check_plan(problem: Problem, plan: Sequence[str]) -> Outcome:
    """The verdict on a plan of actions `(name object ...)`, as docs/reference/verdicts.md describes VAL's.

    Raises:
        Unsupported: the problem has trajectory constraints, which only VAL can judge.
    """
    if problem.constraints is not None:
        raise Unsupported("`:constraints` are not supported in-process", problem.constraints.line)
    total, size = len(problem.goal), len(plan)
    steps = []
    for number, line in enumerate(plan, 1):
        match = STEP.fullmatch(line)
        name, *arguments = match[1].lower().split() if match else [""]
        action = problem.domain.actions.get(name)
        fault = _misfit(problem, action, arguments) if action else f"unknown action {name or line!r}"
        if action is None or fault:
            return Outcome(Label.FORMAT, size, None, None, total, f"{fault} on line {number}")
        steps.append((action, arguments))

    state = set(problem.init)
    for number, (action, arguments) in enumerate(steps, 1):
        binding = dict(zip((name for name, _ in action.parameters), arguments, strict=True))
        unknown = next((argument for argument in arguments if argument not in problem.objects), None)
        broken = next((p for p in action.preconditions if not _holds(p, binding, state)), None)
        if unknown or broken:
            fault = f"unknown object {unknown!r}" if unknown else _text(broken, binding) if broken else ""
            return Outcome(Label.PRECONDITION, size, number, None, total, fault)
        state.difference_update(substitute(atom, binding) for atom in action.deletes)
        state.update(substitute(atom, binding) for atom in action.adds)

    satisfied = problem.satisfied_goals(state)
    if satisfied == total:
        return Outcome(Label.SUCCESS, size, None, satisfied, total)
    if size == 0:
        return Outcome(Label.FORMAT, 0, None, None, total, "empty plan")
    missing = [_text(goal, {}) for goal in problem.goal if not _holds(goal, {}, state)]
    return Outcome(Label.GOAL, size, None, satisfied, total, f"not reached: {' '.join(missing)}")


def _misfit(problem: Problem, action: Action, arguments: list[str]) -> str:
    """What makes the step unreadable to VAL: its arity always, its objects where the domain is typed."""
    if len(arguments) != len(action.parameters):
        return f"{action.name!r} takes {len(action.parameters)} argument(s), not {len(arguments)}"
    if not problem.domain.supertypes:
        return ""
    for argument, (_, wanted) in zip(arguments, action.parameters, strict=True):
        kinds = problem.objects.get(argument)
        if kinds is None:
            return f"unknown object {argument!r}"
        if not problem.domain.is_a(kinds, wanted):
            return f"{argument!r} is a {'/'.join(kinds)}, but {action.name!r} wants a {'/'.join(wanted)}"
    return ""


def _holds(literal: Literal, binding: dict[str, str], state: set[tuple[str, ...]]) -> bool:
    atom = substitute(literal.atom, binding)
    return (atom[1] == atom[2] if atom[0] == "=" else atom in state) == literal.positive


def _text(literal: Literal, binding: dict[str, str]) -> str:
    atom = f"({' '.join(substitute(literal.atom, binding))})"
    return atom if literal.positive else f"(not {atom})"

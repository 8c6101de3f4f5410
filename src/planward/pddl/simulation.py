"""Judge plans by running them: what VAL would say, in-process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from planward.pddl.conditions import NEVER
from planward.pddl.formulas import parts_of, text
from planward.pddl.grounding import Grounding, Operator, ground_problem
from planward.pddl.language import Action, Problem
from planward.pddl.monitors import VIOLATED
from planward.records import Label, Outcome

STEP = re.compile(r"\(([A-Za-z_][\w-]*(?: [A-Za-z_][\w-]*)*)\)", re.ASCII)


class Step(NamedTuple):
    """A line of a plan, ground once for all plans over the same objects."""

    operator: Operator
    action: Action
    arguments: tuple[str, ...]
    undeclared: str = ""


@dataclass(frozen=True)
class Misfit:
    """A line that makes its whole plan a format error."""

    reason: str


SHOWN = 80  # characters of a plan that a message may quote


_KNOWN: WeakKeyDictionary[Grounding, dict[str, Step]] = WeakKeyDictionary()


class PlanChecker:
    """Judges plans for one problem; what plans have in common is worked out once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ground = ground_problem(problem)
        self._known = _KNOWN.setdefault(self.ground.grounding, {})

    def check(self, plan: Sequence[str]) -> Outcome:
        """The verdict on a plan of actions `(name object ...)`, as docs/reference/verdicts.md describes VAL's."""
        total, size = len(self.ground.goals), len(plan)
        steps = []
        for number, line in enumerate(plan, 1):
            step = self._step(line)
            if isinstance(step, Misfit):
                return Outcome(Label.FORMAT, size, None, None, total, f"{step.reason} on line {number}")
            steps.append(step)
        monitors = self.ground.monitors
        after = self.ground.start
        state = self.ground.init
        for number, step in enumerate(steps, 1):
            if state == VIOLATED:
                break
            if not step.operator.condition.holds(state):
                return Outcome(Label.PRECONDITION, size, number, None, total, self._broken(step, state))
            after = step.operator.apply(state)
            state = monitors.observe(state, after)
        else:
            number = size + 1
        if state == VIOLATED and number <= size:
            step_at_fault = max(number - 1, 1)
            return Outcome(Label.SAFETY, size, step_at_fault, None, total, f"violated: {monitors.blamed(after)}")
        return self._ending(size, after, state)

    def _ending(self, size: int, after: int, state: int) -> Outcome:
        """The verdict on a plan that ran to its end: the goal first, then the constraints."""
        goals = self.ground.goals
        satisfied = sum(goal.holds(after) for goal in goals)
        if satisfied == len(goals) and state != VIOLATED and self.ground.monitors.final.holds(state):
            return Outcome(Label.SUCCESS, size, None, satisfied, len(goals))
        if size == 0:
            return Outcome(Label.FORMAT, 0, None, None, len(goals), "empty plan")
        if satisfied == len(goals):
            said = self.ground.monitors.blamed(after if state == VIOLATED else state)
            return Outcome(Label.SAFETY, size, size, satisfied, len(goals), f"violated: {said}")
        missing = [text(goal) for goal, ground in zip(self.problem.goal, goals, strict=True) if not ground.holds(after)]
        return Outcome(Label.GOAL, size, None, satisfied, len(goals), f"not reached: {' '.join(missing)}")

    def _step(self, line: str) -> Step | Misfit:
        step = self._known.get(line)
        if step is None:
            read = read_step(line, self.ground.grounding)
            if isinstance(read, Misfit) or read.undeclared:  # endless in number, and quickly read again
                return read
            step = self._known[line] = read
        return step

    def _broken(self, step: Step, state: int) -> str:
        """The first part of the precondition that does not hold."""
        if step.undeclared:
            return f"unknown object {step.undeclared[:SHOWN]!r}"
        binding = dict(zip((name for name, _ in step.action.parameters), step.arguments, strict=True))
        for part in parts_of(step.action.precondition):
            if not self.ground.grounding.condition(part, binding).holds(state):
                return text(part, binding)
        return "a cost without a value"


def check_plan(problem: Problem, plan: Sequence[str]) -> Outcome:
    """The verdict on one plan; for several plans of a problem, keep a PlanChecker."""
    return PlanChecker(problem).check(plan)


def read_step(line: str, grounding: Grounding) -> Step | Misfit:
    """What VAL reads in a line: its arity is checked always, its objects where the domain is typed."""
    match = STEP.fullmatch(line)
    name, *arguments = match[1].lower().split() if match else [""]
    action = grounding.domain.actions.get(name)
    if action is None:
        return Misfit(f"unknown action {(name or line)[:SHOWN]!r}")
    if len(arguments) != len(action.parameters):
        return Misfit(f"{name!r} takes {len(action.parameters)} argument(s), not {len(arguments)}")
    signature, objects = grounding.domain.signature, grounding.objects
    for argument, (_, wanted) in zip(arguments, action.parameters, strict=True):
        kinds = objects.get(argument)
        if kinds is None:
            if signature.typed:
                return Misfit(f"unknown object {argument[:SHOWN]!r}")
            return Step(Operator(line, NEVER, 0, -1), action, tuple(arguments), undeclared=argument)
        if kinds != wanted and not signature.is_a(kinds, wanted):
            return Misfit(f"{argument!r} is a {'/'.join(kinds)}, but {name!r} wants a {'/'.join(wanted)}")
    return Step(grounding.operator(action, tuple(arguments)), action, tuple(arguments))

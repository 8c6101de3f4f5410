"""Verify plans in-process by simulation, with VAL's verdicts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from planward.core.verdicts import Label, Outcome
from planward.pddl.conditions import NEVER
from planward.pddl.expressions import UnsupportedError
from planward.pddl.formulas import iter_conjuncts, render_formula
from planward.pddl.grounding import Grounding, Operator, count_fluents, ground_problem
from planward.pddl.language import Action, Problem
from planward.pddl.limits import MAX_ATOMS, MAX_CACHED_BITS, MAX_PLAN_BITS
from planward.pddl.monitors import VIOLATED

ACTION_PATTERN = re.compile(r"\(([A-Za-z_][\w-]*(?: [A-Za-z_][\w-]*)*)\)", re.ASCII)
MAX_QUOTED_CHARS = 80  # of a plan, in a message


class GroundStep(NamedTuple):
    """A parsed line of a plan."""

    operator: Operator
    action: Action
    arguments: tuple[str, ...]
    undeclared: str = ""  # an argument that is no object of the problem


@dataclass(frozen=True)
class InvalidStep:
    """A line that makes its whole plan a format error."""

    reason: str


_STEP_CACHES: WeakKeyDictionary[Grounding, dict[str, GroundStep]] = WeakKeyDictionary()


class PlanVerifier:
    """Verifies plans for one problem. Parsed lines are cached for all problems that share its grounding."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ground = ground_problem(problem)
        self._step_cache = _STEP_CACHES.setdefault(self.ground.grounding, {})
        step_atoms = problem.domain.action_size + problem.expansion
        self._step_bits = max(step_atoms * min(count_fluents(problem), MAX_ATOMS), 1)  # upper bound

    def verify(self, plan: Sequence[str]) -> Outcome:
        """Return VAL's verdict (docs/reference/verdicts.md) on a plan, whose lines are `(name object ...)`.

        Raises:
            UnsupportedError: the plan's ground actions may take more than MAX_PLAN_BITS.
        """
        total, size = len(self.ground.goals), len(plan)
        if size * self._step_bits > MAX_PLAN_BITS:
            raise UnsupportedError(f"a plan of {size:,} actions on a problem of this size")
        steps = []
        for number, line in enumerate(plan, 1):
            step = self._parse_line(line)
            if isinstance(step, InvalidStep):
                return Outcome(Label.FORMAT, size, None, None, total, f"{step.reason} on line {number}")
            steps.append(step)
        monitors = self.ground.monitors
        facts = self.ground.initial_facts
        state = self.ground.initial_state
        for number, step in enumerate(steps, 1):
            if state == VIOLATED:
                break
            if not step.operator.condition.holds(state):
                return Outcome(Label.PRECONDITION, size, number, None, total, self._find_unmet(step, state))
            facts = step.operator.apply(state)
            state = monitors.observe(state, facts)
        else:
            number = size + 1
        if state == VIOLATED and number <= size:
            failing_step = max(number - 1, 1)
            return Outcome(Label.SAFETY, size, failing_step, None, total, f"violated: {monitors.find_violated(facts)}")
        return self._judge_end(size, facts, state)

    def _judge_end(self, size: int, facts: int, state: int) -> Outcome:
        """Return the verdict on a plan that ran to its end: the goal decides first, then the constraints."""
        goals = self.ground.goals
        num_satisfied = sum(goal.holds(facts) for goal in goals)
        if num_satisfied == len(goals) and state != VIOLATED and self.ground.monitors.final.holds(state):
            return Outcome(Label.SUCCESS, size, None, num_satisfied, len(goals))
        if size == 0:
            return Outcome(Label.FORMAT, 0, None, None, len(goals), "empty plan")
        if num_satisfied == len(goals):
            constraint = self.ground.monitors.find_violated(facts if state == VIOLATED else state)
            return Outcome(Label.SAFETY, size, size, num_satisfied, len(goals), f"violated: {constraint}")
        conditions = zip(self.problem.goal, goals, strict=True)
        missing = [render_formula(goal) for goal, condition in conditions if not condition.holds(facts)]
        return Outcome(Label.GOAL, size, None, num_satisfied, len(goals), f"not reached: {' '.join(missing)}")

    def _parse_line(self, line: str) -> GroundStep | InvalidStep:
        step = self._step_cache.get(line)
        if step is None:
            result = parse_step(line, self.ground.grounding)
            if isinstance(result, InvalidStep) or result.undeclared:  # unbounded in number, and cheap to parse
                return result
            if len(self._step_cache) * self._step_bits > MAX_CACHED_BITS:
                self._step_cache.clear()
            step = self._step_cache[line] = result
        return step

    def _find_unmet(self, step: GroundStep, state: int) -> str:
        """Return the first part of the precondition that does not hold."""
        if step.undeclared:
            return f"unknown object {step.undeclared[:MAX_QUOTED_CHARS]!r}"
        binding = dict(zip((name for name, _ in step.action.parameters), step.arguments, strict=True))
        for part in iter_conjuncts(step.action.precondition):
            if not self.ground.grounding.ground_formula(part, binding).holds(state):
                return render_formula(part, binding)
        return "a cost without a value"


def verify_plan(problem: Problem, plan: Sequence[str]) -> Outcome:
    """Verify one plan; for several plans of a problem, reuse a PlanVerifier."""
    return PlanVerifier(problem).verify(plan)


def parse_step(line: str, grounding: Grounding) -> GroundStep | InvalidStep:
    """Parse a line as VAL does: arity is always checked, objects where the domain is typed."""
    match = ACTION_PATTERN.fullmatch(line)
    name, *arguments = match[1].lower().split() if match else [""]
    action = grounding.domain.actions.get(name)
    if action is None:
        return InvalidStep(f"unknown action {(name or line)[:MAX_QUOTED_CHARS]!r}")
    if len(arguments) != len(action.parameters):
        return InvalidStep(f"{name!r} takes {len(action.parameters)} argument(s), not {len(arguments)}")
    signature, objects = grounding.domain.signature, grounding.objects
    for argument, (_, types) in zip(arguments, action.parameters, strict=True):
        argument_types = objects.get(argument)
        if argument_types is None:
            if signature.typed:
                return InvalidStep(f"unknown object {argument[:MAX_QUOTED_CHARS]!r}")
            return GroundStep(Operator(line, NEVER, 0, -1), action, tuple(arguments), undeclared=argument)
        if argument_types != types and not signature.is_a(argument_types, types):
            return InvalidStep(f"{argument!r} is a {'/'.join(argument_types)}, but {name!r} wants a {'/'.join(types)}")
    return GroundStep(grounding.ground_action(action, tuple(arguments)), action, tuple(arguments))

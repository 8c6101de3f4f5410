"""VAL's report turned into an outcome. Forms are those measured in docs/reference/verdicts.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planward.records import Label, Outcome
from planward.val.inputs import Goal, InputError, Inputs
from planward.val.plans import Plan, shown

# A formula with a quantifier ends with a line break, wherever it stands in the line.
VIOLATION = re.compile(
    r"Failure to satisfy: .*|.*satisfied without .*"
    r"|Constraint violated by satisfaction of .*|Final requirement .*|Condition failed"
    r"|Outstanding requirements unsatisfied during plan:|Outstanding deadlines to be met:|Failed to meet deadline on .*"
)
HAPPENING = re.compile(r"Checking next happening \(time (-?[0-9.]+(?:e[+-]?[0-9]+)?)\)")
PLAN_SIZE = re.compile(r"Plan size: (\d+)", re.MULTILINE)
SET = re.compile(r"\(Set (\([^()]*\)) to (true|false)\)")
ERRORS = re.compile(r"^Errors: [1-9]", re.MULTILINE)
UNREADABLE_INPUT = (
    "Bad domain file!",
    "Bad problem file!",
    "Problem in domain definition!",
    "Error in type-checking!",
    "Type problem in domain description!",
    "Type problem in problem specification!",
)
EXECUTED = "Plan executed successfully - checking goal"
FAILED_ACTION = "Plan failed because of unsatisfied precondition in:"
TRAJECTORY = "Checking trajectory constraints at"
UNDEFINED = "Attempt to access undefined numeric expression!"
ACCESS = re.compile(r"^Attempt to access undefined expression: (.*)$", re.MULTILINE)


class UnreadableReportError(Exception):
    """VAL printed something that matches no known form; the message quotes it."""


def read_report(report: str, plan: Plan, inputs: Inputs) -> Outcome:
    """Turn VAL's output (standard output, then standard error) into an outcome.

    Where the goal is missed its literals are counted, by VAL's repair advice, and its larger formulas (`or`,
    `forall`, ...) are taken as missed too: the advice does not tell them apart. `goals_satisfied` is None
    where VAL gave no advice, for it came upon a number without a value.

    Raises:
        InputError: VAL rejects the domain or the problem; the caller names the files.
        UnreadableReportError: the output matches no known form.
    """
    size, total = len(plan.steps), len(inputs.goals)
    if "Checking plan: " not in report:
        for complaint in UNREADABLE_INPUT:
            if complaint in report:
                raise InputError(f"VAL says: {' '.join(report.split())[-200:]}")
        raise UnreadableReportError(shown(report.strip()[-80:]))
    if "Plan size:" not in report:
        return Outcome(Label.FORMAT, size, goals_total=total, detail=_rejection(report, plan))
    if not inputs.temporal and PLAN_SIZE.findall(report) != [str(plan.given)]:
        raise UnreadableReportError(f"it read {PLAN_SIZE.findall(report)} actions of {plan.given}")
    lines = [line.strip() for line in report.splitlines()]
    stopped = EXECUTED not in lines
    if not stopped:
        outcome = _executed(report, plan, inputs.goals)
    elif "Plan failed to execute" in lines or UNDEFINED in lines:
        outcome = _stopped(lines, report, plan, inputs)
    else:
        raise UnreadableReportError(shown(report.strip()[-80:]))
    step = plan.undeclared_at()
    if step is None or (stopped and _precedes(outcome, step, inputs)):
        return outcome
    detail = plan.as_written(f"{plan.steps[step - 1].action}: undeclared object")
    return Outcome(Label.PRECONDITION, size, step, None, total, detail)


def breaks_off(report: str) -> bool:
    """Whether VAL ran the plan to its end and then came upon a number without a value, in the goal or the metric."""
    return UNDEFINED in _ending(report)


def holds(report: str) -> bool:
    """Whether the goal holds at the end of a plan that runs to its end, whatever the constraints say.

    Raises:
        UnreadableReportError: the plan did not run to its end, or the output matches no known form.
    """
    ending = _ending(report)
    # VAL looks at the goal first, and at the trajectory only where the goal holds.
    if "Plan valid" in ending or any(line.startswith(TRAJECTORY) for line in ending):
        return True
    if "Goal not satisfied" in ending or UNDEFINED in ending:
        return False
    raise UnreadableReportError(shown(report.strip()[-80:]))


def _ending(report: str) -> list[str]:
    """The lines from the check of the goal on; none where the plan did not run to its end."""
    lines = [line.strip() for line in report.splitlines()]
    return lines[lines.index(EXECUTED) :] if EXECUTED in lines else []


def _precedes(outcome: Outcome, step: int, inputs: Inputs) -> bool:
    """Whether what VAL stopped for comes before an undeclared object at `step`.

    A violation does, even one by the initial state at step 1: VAL is given no step after that one.
    """
    if outcome.label is Label.SAFETY and not inputs.temporal:
        return True
    return outcome.failing_step is not None and outcome.failing_step < step


def _rejection(report: str, plan: Plan) -> str:
    """Why VAL did not start to execute the plan."""
    if "Type problem in action" in report:
        action = re.search(r"op_sym:\s+\(symbol\)\s+name: ([\w-]+)", report)
        return f"an argument has the wrong type: {action[1] if action else ''}".rstrip(": ")
    known = ("Bad plan description!", "Bad operator in plan!", "Error in type-checking!")
    if not any(form in report for form in known):
        raise UnreadableReportError(shown(report.strip()[-80:]))
    if plan.undeclared:
        return f"undeclared object: {shown(next(iter(plan.undeclared.values())))}"
    # Every name in the plan is declared, so VAL has not read the declarations.
    raise InputError("VAL cannot read all of it: a plan of declared actions and objects is rejected")


def _executed(report: str, plan: Plan, goals: Sequence[Goal]) -> Outcome:
    """The verdict on a plan that ran to its end."""
    size, total, ending = len(plan.steps), len(goals), _ending(report)
    if "Plan valid" in ending:
        return Outcome(Label.SUCCESS, size, goals_satisfied=total, goals_total=total)
    goal_holds = holds(report)
    if not plan.steps:
        return Outcome(Label.FORMAT, 0, goals_total=total, detail="empty plan")
    if goal_holds:
        return Outcome(Label.SAFETY, size, size, total, total, detail=_violation(ending) or "trajectory constraint")
    if UNDEFINED in ending:
        return Outcome(Label.GOAL, size, goals_total=total, detail=f"undefined: {_accessed(report)}")
    wanted = {(atom, value == "true") for atom, value in SET.findall(report)}
    unmet = [atom if positive else f"(not {atom})" for atom, positive in sorted(wanted)]
    return Outcome(
        Label.GOAL,
        size,
        goals_satisfied=sum(goal.atom is not None and (goal.atom, goal.positive) not in wanted for goal in goals),
        goals_total=total,
        detail=f"missing: {' '.join(unmet) or 'part of the goal'}",
    )


def _stopped(lines: Sequence[str], report: str, plan: Plan, inputs: Inputs) -> Outcome:
    """The verdict on a plan that VAL stopped at its last happening.

    Before each happening VAL checks the constraints of the state it starts from; where that state and
    the action's precondition both fail it prints both, and the constraint came first. It also stops at an
    action that reads a number without a value, be it for its cost.
    """
    size, total = len(plan.steps), len(inputs.goals)
    happenings = [(n, float(match[1])) for n, line in enumerate(lines) if (match := HAPPENING.fullmatch(line))]
    if not happenings:
        raise UnreadableReportError("it stopped before the first action")
    last, time = happenings[-1]
    previous, time_before = happenings[-2] if len(happenings) > 1 else (0, 0.0)
    before, after = lines[previous:last], lines[last:]
    violation = _violation(before)
    failed = next((after[n + 1] for n, line in enumerate(after[:-1]) if line == FAILED_ACTION), None)
    mutex = next((line for line in after if line.startswith("Mutex violation: ")), None)
    undefined = UNDEFINED in after
    if undefined and any(line.startswith(TRAJECTORY) for line in after):
        raise UnreadableReportError(f"a constraint reads {_accessed(report)}, which has no value")
    if violation is None and failed is None and mutex is None and not undefined:
        if not any(line.startswith(TRAJECTORY) for line in before):
            raise UnreadableReportError("it stopped the plan without a reason")
        violation = "trajectory constraint"
    if violation is not None:
        return Outcome(Label.SAFETY, size, _started(plan, time_before), None, total, plan.as_written(violation))
    named = failed or mutex
    step = _position(plan, named, time) if named and inputs.temporal else _started(plan, time)
    reason = mutex or (f"unsatisfied precondition: {_advice(after)}" if failed else f"undefined: {_accessed(report)}")
    detail = plan.as_written(f"{plan.steps[step - 1].action}: {reason}")
    return Outcome(Label.PRECONDITION, size, step, None, total, detail)


def _advice(lines: Sequence[str]) -> str:
    """VAL's repair advice on one line, without the action that it repeats."""
    text = " ".join(lines).partition("Plan Repair Advice:")[2].partition("Failed plans:")[0]
    return " ".join(text.split()).partition(" at time ")[2].partition(" ")[2] or "no advice"


def _violation(lines: Sequence[str]) -> str | None:
    return next((line for line in lines if VIOLATION.fullmatch(line)), None)


def _started(plan: Plan, time: float) -> int:
    """Position of the last step that had started at `time`; 1 where the initial state is at fault."""
    started = [(step.start, position) for position, step in enumerate(plan.steps, 1) if step.start <= time]
    return max(started)[1] if started else 1


def _position(plan: Plan, named: str, time: float) -> int:
    """Position of the action that VAL names as it stops at `time`, by its start or its end."""
    action = re.search(r"\([^()]*\)", named)
    same = [(step, position) for position, step in enumerate(plan.steps, 1) if action and step.action == action[0]]
    if not same:
        raise UnreadableReportError(f"it stopped at an action that the plan does not hold: {shown(named)}")
    return min(same, key=lambda s: min(abs(s[0].start - time), abs(s[0].start + s[0].duration - time)))[1]


def _accessed(report: str) -> str:
    """The function term without a value that VAL came upon."""
    found = ACCESS.search(report)
    return found[1] if found else "a number"

"""Parse VAL's report into an outcome. docs/reference/verdicts.md lists the forms of reports, found by measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planward.core.verdicts import Label, Outcome
from planward.val.inputs import Goal, InputError, Inputs
from planward.val.plans import Plan, quote_text

# VAL prints a line break after a quantified formula, even in the middle of a line.
VIOLATION_PATTERN = re.compile(
    r"Failure to satisfy: .*|.*satisfied without .*"
    r"|Constraint violated by satisfaction of .*|Final requirement .*|Condition failed"
    r"|Outstanding requirements unsatisfied during plan:|Outstanding deadlines to be met:|Failed to meet deadline on .*"
)
HAPPENING_PATTERN = re.compile(r"Checking next happening \(time (-?[0-9.]+(?:e[+-]?[0-9]+)?)\)")
PLAN_SIZE_PATTERN = re.compile(r"Plan size: (\d+)", re.MULTILINE)
ADVICE_PATTERN = re.compile(r"\(Set (\([^()]*\)) to (true|false)\)")
INPUT_COMPLAINTS = (
    "Bad domain file!",
    "Bad problem file!",
    "Problem in domain definition!",
    "Error in type-checking!",
    "Type problem in domain description!",
    "Type problem in problem specification!",
)
EXECUTED_LINE = "Plan executed successfully - checking goal"
FAILED_ACTION_LINE = "Plan failed because of unsatisfied precondition in:"
TRAJECTORY_PREFIX = "Checking trajectory constraints at"
UNDEFINED_LINE = "Attempt to access undefined numeric expression!"
ACCESS_PATTERN = re.compile(r"^Attempt to access undefined expression: (.*)$", re.MULTILINE)


class UnreadableReportError(Exception):
    """VAL's report matches no known form; the message quotes it."""


def parse_report(report: str, plan: Plan, inputs: Inputs) -> Outcome:
    """Parse VAL's output (standard output, then standard error) into an outcome.

    Where the goal is missed, satisfied literals are counted from VAL's repair advice, and compound formulas (`or`,
    `forall`, ...) count as missed: the advice does not distinguish them. `goals_satisfied` is None where VAL gave no
    advice because a number has no value.

    Raises:
        InputError: VAL rejects the domain or the problem; the caller must name the files.
        UnreadableReportError: the output matches no known form.
    """
    size, total = len(plan.steps), len(inputs.goals)
    if "Checking plan: " not in report:
        for complaint in INPUT_COMPLAINTS:
            if complaint in report:
                raise InputError(f"VAL says: {' '.join(report.split())[-200:]}")
        raise UnreadableReportError(quote_text(report.strip()[-80:]))
    if "Plan size:" not in report:
        return Outcome(Label.FORMAT, size, goals_total=total, detail=_explain_rejection(report, plan))
    if not inputs.temporal and PLAN_SIZE_PATTERN.findall(report) != [str(plan.line_num)]:
        raise UnreadableReportError(f"it read {PLAN_SIZE_PATTERN.findall(report)} actions of {plan.line_num}")
    lines = [line.strip() for line in report.splitlines()]
    has_stopped = EXECUTED_LINE not in lines
    if not has_stopped:
        outcome = _judge_executed(report, plan, inputs.goals)
    elif "Plan failed to execute" in lines or UNDEFINED_LINE in lines:
        outcome = _judge_stopped(lines, report, plan, inputs)
    else:
        raise UnreadableReportError(quote_text(report.strip()[-80:]))
    step = plan.find_undeclared_step()
    if step is None or (has_stopped and _is_before(outcome, step, inputs)):
        return outcome
    detail = plan.restore_names(f"{plan.steps[step - 1].action}: undeclared object")
    return Outcome(Label.PRECONDITION, size, step, None, total, detail)


def ends_undefined(report: str) -> bool:
    """Return whether the plan ran to its end and then goal or metric read a number without a value."""
    return UNDEFINED_LINE in _extract_ending(report)


def is_goal_met(report: str) -> bool:
    """Return whether the goal holds at the end of a plan that runs to its end, regardless of the constraints.

    Raises:
        UnreadableReportError: the plan did not run to its end, or the output matches no known form.
    """
    ending = _extract_ending(report)
    # VAL checks the goal first, and the trajectory only where the goal holds.
    if "Plan valid" in ending or any(line.startswith(TRAJECTORY_PREFIX) for line in ending):
        return True
    if "Goal not satisfied" in ending or UNDEFINED_LINE in ending:
        return False
    raise UnreadableReportError(quote_text(report.strip()[-80:]))


def _extract_ending(report: str) -> list[str]:
    """Return the lines from the check of the goal on; none where the plan did not run to its end."""
    lines = [line.strip() for line in report.splitlines()]
    return lines[lines.index(EXECUTED_LINE) :] if EXECUTED_LINE in lines else []


def _is_before(outcome: Outcome, step: int, inputs: Inputs) -> bool:
    """Return whether VAL stopped before `step`, which names an undeclared object.

    A violation is always before it, even one by the initial state at step 1: VAL gets no later step.
    """
    if outcome.label is Label.SAFETY and not inputs.temporal:
        return True
    return outcome.failing_step is not None and outcome.failing_step < step


def _explain_rejection(report: str, plan: Plan) -> str:
    """Return why VAL did not start to execute the plan."""
    if "Type problem in action" in report:
        action = re.search(r"op_sym:\s+\(symbol\)\s+name: ([\w-]+)", report)
        return f"an argument has the wrong type: {action[1] if action else ''}".rstrip(": ")
    known_forms = ("Bad plan description!", "Bad operator in plan!", "Error in type-checking!")
    if not any(form in report for form in known_forms):
        raise UnreadableReportError(quote_text(report.strip()[-80:]))
    if plan.undeclared:
        return f"undeclared object: {quote_text(next(iter(plan.undeclared.values())))}"
    # All names in the plan are declared, so VAL did not read the declarations.
    raise InputError("VAL cannot read all of it: a plan of declared actions and objects is rejected")


def _judge_executed(report: str, plan: Plan, goals: Sequence[Goal]) -> Outcome:
    """Return the verdict on a plan that ran to its end."""
    size, total, ending = len(plan.steps), len(goals), _extract_ending(report)
    if "Plan valid" in ending:
        return Outcome(Label.SUCCESS, size, goals_satisfied=total, goals_total=total)
    goal_met = is_goal_met(report)
    if not plan.steps:
        return Outcome(Label.FORMAT, 0, goals_total=total, detail="empty plan")
    if goal_met:
        return Outcome(
            Label.SAFETY, size, size, total, total, detail=_find_violation(ending) or "trajectory constraint"
        )
    if UNDEFINED_LINE in ending:
        return Outcome(Label.GOAL, size, goals_total=total, detail=f"undefined: {_find_undefined_term(report)}")
    missing = {(atom, value == "true") for atom, value in ADVICE_PATTERN.findall(report)}
    unmet_literals = [atom if positive else f"(not {atom})" for atom, positive in sorted(missing)]
    return Outcome(
        Label.GOAL,
        size,
        goals_satisfied=sum(goal.atom is not None and (goal.atom, goal.positive) not in missing for goal in goals),
        goals_total=total,
        detail=f"missing: {' '.join(unmet_literals) or 'part of the goal'}",
    )


def _judge_stopped(lines: Sequence[str], report: str, plan: Plan, inputs: Inputs) -> Outcome:
    """Return the verdict on a plan that VAL stopped at its last happening.

    Before each happening VAL checks the constraints in its start state; where both the constraints and the action's
    precondition fail it prints both, and the constraint comes first. It also stops at an action that reads a number
    without a value, even for its cost only.
    """
    size, total = len(plan.steps), len(inputs.goals)
    happenings = [(n, float(match[1])) for n, line in enumerate(lines) if (match := HAPPENING_PATTERN.fullmatch(line))]
    if not happenings:
        raise UnreadableReportError("it stopped before the first action")
    last, time = happenings[-1]
    previous, time_before = happenings[-2] if len(happenings) > 1 else (0, 0.0)
    before, after = lines[previous:last], lines[last:]
    violation = _find_violation(before)
    failed_action = next((after[n + 1] for n, line in enumerate(after[:-1]) if line == FAILED_ACTION_LINE), None)
    mutex = next((line for line in after if line.startswith("Mutex violation: ")), None)
    has_undefined_term = UNDEFINED_LINE in after
    if has_undefined_term and any(line.startswith(TRAJECTORY_PREFIX) for line in after):
        raise UnreadableReportError(f"a constraint reads {_find_undefined_term(report)}, which has no value")
    if violation is None and failed_action is None and mutex is None and not has_undefined_term:
        if not any(line.startswith(TRAJECTORY_PREFIX) for line in before):
            raise UnreadableReportError("it stopped the plan without a reason")
        violation = "trajectory constraint"
    if violation is not None:
        return Outcome(
            Label.SAFETY, size, _find_last_started(plan, time_before), None, total, plan.restore_names(violation)
        )
    culprit = failed_action or mutex
    step = _find_position(plan, culprit, time) if culprit and inputs.temporal else _find_last_started(plan, time)
    if failed_action:
        reason = f"unsatisfied precondition: {_extract_advice(after)}"
    else:
        reason = f"undefined: {_find_undefined_term(report)}"
    detail = plan.restore_names(f"{plan.steps[step - 1].action}: {mutex or reason}")
    return Outcome(Label.PRECONDITION, size, step, None, total, detail)


def _extract_advice(lines: Sequence[str]) -> str:
    """Return VAL's repair advice on one line, without the action that it repeats."""
    text = " ".join(lines).partition("Plan Repair Advice:")[2].partition("Failed plans:")[0]
    return " ".join(text.split()).partition(" at time ")[2].partition(" ")[2] or "no advice"


def _find_violation(lines: Sequence[str]) -> str | None:
    return next((line for line in lines if VIOLATION_PATTERN.fullmatch(line)), None)


def _find_last_started(plan: Plan, time: float) -> int:
    """Return the position of the last step started at or before `time`; 1 where the initial state is at fault."""
    started_steps = [(step.start, position) for position, step in enumerate(plan.steps, 1) if step.start <= time]
    return max(started_steps)[1] if started_steps else 1


def _find_position(plan: Plan, culprit: str, time: float) -> int:
    """Return the position of the action that VAL names when it stops at `time`, the action's start or end."""
    action = re.search(r"\([^()]*\)", culprit)
    candidates = [
        (step, position) for position, step in enumerate(plan.steps, 1) if action and step.action == action[0]
    ]
    if not candidates:
        raise UnreadableReportError(f"it stopped at an action that the plan does not hold: {quote_text(culprit)}")
    return min(candidates, key=lambda s: min(abs(s[0].start - time), abs(s[0].start + s[0].duration - time)))[1]


def _find_undefined_term(report: str) -> str:
    """Return the function term without a value that VAL read."""
    match = ACCESS_PATTERN.search(report)
    return match[1] if match else "a number"

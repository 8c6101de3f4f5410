"""VAL's report turned into an outcome. Forms are those measured in docs/reference/verdicts.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planward.records import Label, Outcome
from planward.val.inputs import Goal, InputError, Inputs
from planward.val.plans import Plan, shown

VIOLATION = re.compile(
    r"Failure to satisfy: .*|\(.* satisfied without .* sometime before"
    r"|Constraint violated by satisfaction of .*|Final requirement .* violated"
    r"|Outstanding requirements unsatisfied during plan:|Failed to meet deadline on .*"
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
)
EXECUTED = "Plan executed successfully - checking goal"
FAILED_ACTION = "Plan failed because of unsatisfied precondition in:"
TRAJECTORY = "Checking trajectory constraints at"


class UnreadableReportError(Exception):
    """VAL printed something that matches no known form; the message quotes it."""


def read_report(report: str, plan: Plan, inputs: Inputs) -> Outcome:
    """Turn VAL's output (standard output, then standard error) into an outcome.

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
    if not inputs.temporal and PLAN_SIZE.findall(report) != [str(size)]:
        raise UnreadableReportError(f"it read {PLAN_SIZE.findall(report)} actions of {size}")
    lines = [line.strip() for line in report.splitlines()]
    if EXECUTED in lines:
        return _declared(_executed(lines, report, plan, inputs.goals), plan)
    if "Plan failed to execute" in lines:
        return _declared(_stopped(lines, plan, total), plan)
    raise UnreadableReportError(shown(report.strip()[-80:]))


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


def _declared(outcome: Outcome, plan: Plan) -> Outcome:
    """The outcome, unless VAL let an undeclared object pass: then the precondition of that step failed.

    Without types VAL refuses such an object only where a precondition asks something of it, so that a
    plan could travel by way of a place that does not exist.
    """
    step = plan.undeclared_at()
    if step is None or (outcome.failing_step is not None and outcome.failing_step <= step):
        return outcome
    detail = plan.as_written(f"{plan.steps[step - 1].action}: undeclared object")
    return Outcome(Label.PRECONDITION, outcome.plan_size, step, None, outcome.goals_total, detail)


def _executed(lines: Sequence[str], report: str, plan: Plan, goals: Sequence[Goal]) -> Outcome:
    """The verdict on a plan that ran to its end."""
    size, total = len(plan.steps), len(goals)
    ending = lines[lines.index(EXECUTED) :]
    if "Plan valid" in ending:
        return Outcome(Label.SUCCESS, size, goals_satisfied=total, goals_total=total)
    if "Goal not satisfied" not in ending:
        raise UnreadableReportError(shown(report.strip()[-80:]))
    if not plan.steps:
        return Outcome(Label.FORMAT, 0, goals_total=total, detail="empty plan")
    # VAL looks at the goal first, and at the trajectory only where the goal holds.
    if any(line.startswith(TRAJECTORY) for line in ending):
        return Outcome(Label.SAFETY, size, size, total, total, detail=_violation(ending) or "trajectory constraint")
    missing = _missing_goals(report, goals)
    unmet = [f"{atom}" if value == "true" else f"(not {atom})" for atom, value in SET.findall(report)]
    return Outcome(
        Label.GOAL,
        size,
        goals_satisfied=total - missing,
        goals_total=total,
        detail=f"missing: {' '.join(dict.fromkeys(unmet)) or 'part of the goal'}",
    )


def _stopped(lines: Sequence[str], plan: Plan, total: int) -> Outcome:
    """The verdict on a plan that VAL stopped at its last happening.

    Before each happening VAL checks the constraints of the state it starts from; where that state and
    the action's precondition both fail it prints both, and the constraint came first.
    """
    size = len(plan.steps)
    happenings = [(n, float(match[1])) for n, line in enumerate(lines) if (match := HAPPENING.fullmatch(line))]
    if not happenings:
        raise UnreadableReportError("it stopped before the first action")
    last, time = happenings[-1]
    previous, time_before = happenings[-2] if len(happenings) > 1 else (0, 0.0)
    before, after = lines[previous:last], lines[last:]
    violation = _violation(before)
    failed = next((after[n + 1] for n, line in enumerate(after[:-1]) if line == FAILED_ACTION), None)
    mutex = next((line for line in after if line.startswith("Mutex violation: ")), None)
    if violation is None and failed is None and mutex is None:
        if not any(line.startswith(TRAJECTORY) for line in before):
            raise UnreadableReportError("it stopped the plan without a reason")
        violation = "trajectory constraint"
    if violation is not None:
        return Outcome(Label.SAFETY, size, _started(plan, time_before), None, total, plan.as_written(violation))
    step = _position(plan, failed or mutex or "", time)
    reason = mutex or f"unsatisfied precondition: {_advice(after)}"
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


def _missing_goals(report: str, goals: Sequence[Goal]) -> int:
    """How many conjuncts of the goal do not hold, by VAL's repair advice.

    A literal is missing where the advice is to set it. The advice on larger formulas (`or`, `forall`,
    ...) names no conjunct: they are counted as the advice's outermost items beyond the literals.
    """
    advice = report.partition("The goal is not satisfied")[2].partition("Failed plans:")[0]
    wanted = {(atom, value == "true") for atom, value in SET.findall(advice)}
    literals = sum((goal.atom, goal.positive) in wanted for goal in goals if goal.atom)
    formulas = sum(goal.atom is None for goal in goals)
    others = min(max(_outermost(advice) - literals, 0), formulas)
    return max(literals + others, 1)


def _outermost(advice: str) -> int:
    """Items at the top of a tree of `(Follow each of:` and leaves, one leaf a line."""
    text = advice.strip()
    if not text.startswith("(Follow each of:"):
        return 1
    depth = items = 0
    for bracket in re.findall(r"[()]", text):
        items += bracket == "(" and depth == 1
        depth += 1 if bracket == "(" else -1
    return items

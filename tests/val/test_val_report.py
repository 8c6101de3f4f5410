"""VAL's reports, in the forms of docs/reference/verdicts.md, and what is read from them."""

from __future__ import annotations

import re

import pytest

from planward.core.verdicts import Label, Outcome
from planward.val.inputs import Goal, InputError, Inputs
from planward.val.plans import Plan, TimedStep
from planward.val.report import UnreadableReportError, ends_undefined, is_goal_met, parse_report

GOALS = (Goal("(at b)", "(at b)"), Goal("(not (lit))", "(lit)", positive=False), Goal("(or (at a) (at b))"))
FAILED = "Plan failed to execute"
EXECUTED = "Plan executed successfully - checking goal"
UNDEFINED = "Attempt to access undefined numeric expression!"
ACCESSED = "Attempt to access undefined expression:"
TRAJECTORY = "Checking trajectory constraints at"
END = "\nFailed plans:\n /tmp/plan \n"


def build_plan(*actions: str, undeclared_names: dict[str, str] | None = None) -> Plan:
    """A plan of bare actions, or of actions as `1: (go a b) [5]` gives them."""
    steps = []
    for position, action in enumerate(actions, 1):
        time, name, duration = re.fullmatch(r"(?:(\d+): )?(\([^()]*\))(?: \[(\d+)\])?", action).groups()  # type: ignore[union-attr]
        steps.append(TimedStep(name, float(time or position), float(duration or 0)))
    return Plan(tuple(steps), "".join(f"{action}\n" for action in actions), len(actions), undeclared_names or {})


def build_inputs(temporal: bool = False) -> Inputs:
    return Inputs({"go": 2, "light": 0}, frozenset("ab"), GOALS, False, temporal, False)


def build_report(plan: Plan, *lines: str) -> str:
    """A report that VAL begins as it begins all on a plan of well-formed actions."""
    return "\n".join(["Checking plan: /tmp/plan", f"Plan size: {plan.line_num}", *lines, END])


def parse(plan: Plan, *lines: str, temporal: bool = False) -> Outcome:
    return parse_report(build_report(plan, *lines), plan, build_inputs(temporal))


def start(time: float) -> str:
    """The line before what happens at a time."""
    return f"Checking next happening (time {time})"


def explain(action: str, time: float, *advice: str) -> list[str]:
    """How VAL stops at an unsatisfied precondition."""
    heading = ["Plan failed because of unsatisfied precondition in:", action, "", FAILED, "", "Plan Repair Advice:", ""]
    return [*heading, f"{action} has an unsatisfied precondition at time {time}", *advice]


TWO = build_plan("(go a b)", "(go b a)")


def test_success() -> None:
    outcome = parse(TWO, start(1), start(2), EXECUTED, "Plan valid")
    assert outcome == Outcome(Label.SUCCESS, 2, None, 3, 3)
    assert parse(build_plan(), EXECUTED, "Plan valid") == Outcome(Label.SUCCESS, 0, None, 3, 3)


@pytest.mark.parametrize(
    ("advice", "goals_satisfied", "detail"),
    [
        (["(Set (at b) to true)"], 1, "missing: (at b)"),
        (["(Set (lit) to false)"], 1, "missing: (not (lit))"),
        (["(Set (lit) to true)"], 2, "missing: (lit)"),  # of the compound formula: the literal wants it false
        (["(Set (lit) to false)", "(Set (at b) to true)"], 0, "missing: (at b) (not (lit))"),
        (["(No advice for literal!)"], 2, "missing: part of the goal"),
    ],
)
def test_missed_goal(advice: list[str], goals_satisfied: int, detail: str) -> None:
    outcome = parse(TWO, start(1), start(2), EXECUTED, "Goal not satisfied", "Plan invalid", *advice)
    assert outcome == Outcome(Label.GOAL, 2, None, goals_satisfied, 3, detail)


def test_empty_plan_that_misses_the_goal_is_no_plan() -> None:
    assert parse(build_plan(), EXECUTED, "Goal not satisfied") == Outcome(Label.FORMAT, 0, None, None, 3, "empty plan")


def test_goal_that_reads_a_number_without_a_value() -> None:
    lines = [start(1), start(2), EXECUTED, UNDEFINED]
    expected = Outcome(Label.GOAL, 2, None, None, 3, "undefined: (far a b)")
    assert parse(TWO, *lines, f"{ACCESSED} (far a b)") == expected
    assert parse(TWO, *lines).detail == "undefined: a number"
    assert ends_undefined(build_report(TWO, *lines))
    assert not ends_undefined(build_report(TWO, start(1), UNDEFINED))
    assert not is_goal_met(build_report(TWO, *lines))


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("Failure to satisfy: (NOT (lit))", None),
        ("(at b) satisfied without (lit) sometime before.", None),
        ("Constraint violated by satisfaction of (at b) at 2", None),
        ("Final requirement (lit) violated", None),
        ("Condition failed", None),
        ("Outstanding requirements unsatisfied during plan:", None),
        ("Outstanding deadlines to be met:", None),
        ("Failed to meet deadline on (lit)", None),
        ("Some constraint that no version of VAL has printed so far", "trajectory constraint"),
    ],
)
def test_violated_constraint(line: str, detail: str | None) -> None:
    outcome = parse(TWO, start(1), start(2), EXECUTED, f"{TRAJECTORY} 2", line, "Goal not satisfied")
    assert outcome == Outcome(Label.SAFETY, 2, 2, 3, 3, detail or line)  # in the last state, where the goal holds
    outcome = parse(TWO, start(1), f"{TRAJECTORY} 1", line, start(2), FAILED)
    assert outcome == Outcome(Label.SAFETY, 2, 1, None, 3, detail or line)


def test_violated_constraint_comes_before_the_precondition_of_the_next_step() -> None:
    lines = [start(1), f"{TRAJECTORY} 1", "Condition failed", start(2), *explain("(go b a)", 2)]
    assert parse(TWO, *lines) == Outcome(Label.SAFETY, 2, 1, None, 3, "Condition failed")


def test_violation_counts_at_the_last_step_before_its_state() -> None:
    together = build_plan("1: (light)", "1: (go a b) [5]", "9: (go b a) [5]")
    violation_lines = [f"{TRAJECTORY} 1", "Condition failed"]
    assert parse(together, start(1), *violation_lines, start(6), FAILED, temporal=True).failing_step == 2
    assert parse(together, start(1), start(6), *violation_lines, start(9), FAILED, temporal=True).failing_step == 2
    assert parse(TWO, *violation_lines, start(1), FAILED).failing_step == 1  # in the initial state
    at_once = build_plan("0: (light)", "1: (go a b) [5]")
    assert parse(at_once, f"{TRAJECTORY} 0", "Condition failed", start(0), FAILED, temporal=True).failing_step == 1


@pytest.mark.parametrize(
    ("advice", "reason"),
    [
        (["(Set (at b) to true)"], "unsatisfied precondition: (Set (at b) to true)"),
        (["Failed duration constraint: Set the duration to 5", "(Satisfy (gas)[=0] >= 1)", END, "(Set (x) to true)"],
         "unsatisfied precondition: Failed duration constraint: Set the duration to 5 (Satisfy (gas)[=0] >= 1)"),
        ([], "unsatisfied precondition: no advice"),
    ],
)  # fmt: skip
def test_unsatisfied_precondition(advice: list[str], reason: str) -> None:
    outcome = parse(TWO, start(1), start(2), *explain("(go b a)", 2, *advice, END))
    assert outcome == Outcome(Label.PRECONDITION, 2, 2, None, 3, f"(go b a): {reason}")


def test_cost_without_a_value() -> None:
    outcome = parse(TWO, start(1), UNDEFINED, f"{ACCESSED} (far a b)")
    assert outcome == Outcome(Label.PRECONDITION, 2, 1, None, 3, "(go a b): undefined: (far a b)")


def test_actions_of_a_temporal_plan_are_found_by_name_and_time() -> None:
    plan = build_plan("6: (light)", "1: (go a b) [5]", "7: (go a b) [5]", "6: (go b a) [1]")
    for action, time, step in [
        ("Invariant for (go a b)", 6, 2),
        ("(go a b) - start", 7, 3),
        ("(go a b) - end", 12, 3),
        ("(go b a) - start", 6, 4),
    ]:
        outcome = parse(plan, start(1), start(time), *explain(action, time), temporal=True)
        assert (outcome.label, outcome.failing_step) == (Label.PRECONDITION, step)
    outcome = parse(plan, start(6), "Mutex violation: (go b a) (adds (at a))", FAILED, temporal=True)
    detail = "(go b a): Mutex violation: (go b a) (adds (at a))"
    assert outcome == Outcome(Label.PRECONDITION, 4, 4, None, 3, detail)
    with pytest.raises(
        UnreadableReportError, match=r"^it stopped at an action that the plan does not hold: '\(stay\)'$"
    ):
        parse(plan, start(1), *explain("(stay)", 1), temporal=True)


def test_undeclared_object_counts_where_nothing_failed_before_it() -> None:
    plan = build_plan("(go a b)", "(go b undeclared-1)", undeclared_names={"undeclared-1": "Nowhere"})
    undeclared_outcome = Outcome(Label.PRECONDITION, 2, 2, None, 3, "(go b Nowhere): undeclared object")
    advice = "(Set (at undeclared-1) to true)"
    assert parse(plan, start(1), start(2), EXECUTED, "Plan valid") == undeclared_outcome
    assert parse(plan, start(1), start(2), *explain("(go b a)", 2, advice)) == undeclared_outcome
    first = parse(plan, start(1), *explain("(go a b)", 1, advice))
    reason = "(go a b): unsatisfied precondition: (Set (at Nowhere) to true)"
    assert first == Outcome(Label.PRECONDITION, 2, 1, None, 3, reason)
    violated_outcome = parse(
        plan, start(1), f"{TRAJECTORY} 1", "Failure to satisfy: (at undeclared-1)", start(2), FAILED
    )
    assert violated_outcome == Outcome(Label.SAFETY, 2, 1, None, 3, "Failure to satisfy: (at Nowhere)")
    single = build_plan("(go b undeclared-1)", undeclared_names={"undeclared-1": "Nowhere"})
    assert parse(single, f"{TRAJECTORY} 0", "Condition failed", start(1), FAILED).label is Label.SAFETY  # initial state
    assert parse(single, f"{TRAJECTORY} 0", "Condition failed", start(1), FAILED, temporal=True).label is (
        Label.PRECONDITION
    )


REJECTED = "Checking plan: /tmp/plan\n"


@pytest.mark.parametrize("form", ["Bad plan description!", "Bad operator in plan!", "Error in type-checking!"])
def test_rejected_plan(form: str) -> None:
    undeclared_plan = build_plan("(go a undeclared-1)", undeclared_names={"undeclared-1": "zz\x1b"})
    outcome = parse_report(REJECTED + form, undeclared_plan, build_inputs())
    assert outcome == Outcome(Label.FORMAT, 1, None, None, 3, r"undeclared object: 'zz\x1b'")
    with pytest.raises(InputError) as error:
        parse_report(REJECTED + form, TWO, build_inputs())
    assert str(error.value) == "VAL cannot read all of it: a plan of declared actions and objects is rejected"


def test_argument_of_the_wrong_type_is_named_with_its_action() -> None:
    report = f"{REJECTED}Type problem in action \nop_sym: \n   (symbol)\n   name: go\nparams: \nBad plan description!"
    assert parse_report(report, TWO, build_inputs()).detail == "an argument has the wrong type: go"
    report = f"{REJECTED}Type problem in action"
    assert parse_report(report, TWO, build_inputs()).detail == "an argument has the wrong type"


@pytest.mark.parametrize(
    "complaint",
    [
        "Bad domain file!",
        "Bad problem file!",
        "Problem in domain definition!",
        "Error in type-checking!",
        "Type problem in domain description!",
        "Type problem in problem specification!",
    ],
)
def test_rejected_files_are_an_input_error(complaint: str) -> None:
    with pytest.raises(InputError) as error:
        parse_report(f"{'x' * 300}\n {complaint}\n\n", TWO, build_inputs())
    assert str(error.value) == f"VAL says: {'x' * (199 - len(complaint))} {complaint}"


LONG = "".join(f"{number:>4}" for number in range(60))


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (LONG + "\n", repr(LONG[-80:])),
        ("", "''"),
        (f"{REJECTED}{LONG}\n", repr(LONG[-80:])),
        (f"{REJECTED}Plan size: 2\n{LONG} \n", repr(LONG[-80:])),
        (f"{REJECTED}Plan size: 3\n{FAILED}", "it read ['3'] actions of 2"),
        (f"{REJECTED}Plan size: 2\nPlan size: 2\n{FAILED}", "it read ['2', '2'] actions of 2"),
        (f"{REJECTED}Plan size: 2\n{EXECUTED}\n{LONG}\n", repr(LONG[-80:])),
        (f"{REJECTED}Plan size: 2\n{FAILED}", "it stopped before the first action"),
        (f"{REJECTED}Plan size: 2\n{start(1)}\n{FAILED}", "it stopped the plan without a reason"),
        (f"{REJECTED}Plan size: 2\n{start(1)}\n{TRAJECTORY} 1\n{UNDEFINED}\n{ACCESSED} (x)",
         "a constraint reads (x), which has no value"),
        (f"{REJECTED}Plan size: 2\n{start(1)}\n{TRAJECTORY} 1\n{UNDEFINED}\n",
         "a constraint reads a number, which has no value"),
    ],
)  # fmt: skip
def test_unknown_form_is_no_verdict(report: str, message: str) -> None:
    with pytest.raises(UnreadableReportError) as error:
        parse_report(report, TWO, build_inputs())
    assert str(error.value) == message


def test_goal_of_a_plan_that_stopped_is_not_known() -> None:
    assert is_goal_met(build_report(TWO, EXECUTED, "Plan valid"))
    assert is_goal_met(build_report(TWO, EXECUTED, f"{TRAJECTORY} 2", "Condition failed", "Goal not satisfied"))
    assert not is_goal_met(build_report(TWO, f"{TRAJECTORY} 1", EXECUTED, "Goal not satisfied"))
    with pytest.raises(UnreadableReportError) as error:
        is_goal_met(f"{LONG}\n")
    assert str(error.value) == repr(LONG[-80:])

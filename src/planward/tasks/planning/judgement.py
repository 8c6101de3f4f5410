"""The verdict on a single plan, for `planward validate`."""

from __future__ import annotations

from pathlib import Path

from planward import val
from planward.core.verdicts import Label, Outcome, Verdict
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.reward import build_verdict


def judge_text(domain: Path, problem: Path, text: str, timeout: float) -> Verdict:
    """Judge the plan in `text` with VAL; raises as `planward.val.validate`."""
    plan = extract_plan(text)
    actions = plan or []  # without a plan, too, VAL checks the files
    outcome = val.validate(domain, problem, "\n".join(actions), timeout=timeout)
    if plan is None:
        outcome = Outcome(Label.FORMAT, 0, goals_total=outcome.goals_total, detail="no plan in the text")
    return build_verdict(outcome, actions)

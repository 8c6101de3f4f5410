"""One plan, one verdict: what `planward validate` prints."""

from __future__ import annotations

from pathlib import Path

from planward import val
from planward.records import Label, Outcome, Verdict
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.reward import verdict


def judged_text(domain: Path, problem: Path, text: str, timeout: float) -> Verdict:
    """VAL's verdict on the plan in `text`; raises as `planward.val.validate` does."""
    plan = extract_plan(text)
    outcome = val.validate(domain, problem, "\n".join(plan or []), timeout=timeout)  # checks the files in any case
    if plan is None:
        outcome = Outcome(Label.FORMAT, 0, goals_total=outcome.goals_total, detail="no plan in the text")
    return verdict(outcome, plan or [])

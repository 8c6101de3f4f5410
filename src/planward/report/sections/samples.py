"""Section "Sample plans": problems on which methods differ, with every completion, drawn for domains with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planward.analysis.names import format_run
from planward.core.records import Prediction
from planward.core.verdicts import Label
from planward.report.data import SampleProblem
from planward.report.markup import TEXT_LIMIT
from planward.report.pictures import Strip, draw_plans
from planward.report.sections.breakdown import parse_constraints


@dataclass(frozen=True)
class SampleCompletion:
    """A method's completion: its plan with a remark at the failing step, and its pictures."""

    method: str
    success: bool
    label: str
    note: str
    steps: list[tuple[str, str]]  # action and remark
    text: str  # empty where it is the plan and nothing else
    strip: Strip | None


@dataclass(frozen=True)
class SamplePlans:
    """A problem with a completion of each method; `symbols` are what the pictures refer to."""

    problem: str
    summary: str
    constraints: str  # as PDDL; a sentence where they could not be parsed; empty where there are none
    prompt: str
    completions: list[SampleCompletion]
    symbols: Markup | None
    open: bool


def build_sample_plans(samples: Mapping[str, Sequence[SampleProblem]]) -> dict[str, list[SamplePlans]]:
    """The content of the section by domain. The first problem with pictures is shown open."""
    by_domain: dict[str, list[SamplePlans]] = {}
    none_open = True
    for domain, problems in samples.items():
        for problem in problems:
            plans = _build_plans(problem, none_open)
            none_open = none_open and plans.symbols is None
            by_domain.setdefault(domain, []).append(plans)
    return by_domain


def _build_plans(sample: SampleProblem, open_with_pictures: bool) -> SamplePlans:
    first = sample.predictions[0]
    plans = [(prediction.plan.splitlines(), prediction.failing_step) for prediction in sample.predictions]
    pictures = draw_plans(sample.pddl, plans, sample.id) if sample.pddl else None
    strips = pictures.strips if pictures else [None] * len(plans)
    outcomes = "; ".join(
        f"{format_run(p.method, 0)} {'solves it' if p.success else 'fails'}" for p in sample.predictions
    )
    constraints = parse_constraints(first.prompt)[:TEXT_LIMIT] or "see the problem's file" if first.constrained else ""
    return SamplePlans(
        problem=sample.id,
        summary=f"{sample.id}{', with safety constraints' if first.constrained else ''}: {outcomes}",
        constraints=constraints,
        prompt=first.prompt[-TEXT_LIMIT:],
        completions=[
            _build_completion(prediction, strip) for prediction, strip in zip(sample.predictions, strips, strict=True)
        ],
        symbols=pictures.symbols if pictures else None,
        open=bool(pictures) and open_with_pictures,
    )


def _build_completion(prediction: Prediction, strip: Strip | None) -> SampleCompletion:
    remark = "violates a constraint" if prediction.label == Label.SAFETY else "fails here"
    steps = [
        (step, remark if number == prediction.failing_step else "")
        for number, step in enumerate(prediction.plan.splitlines(), 1)
    ]
    note = f"Reward {prediction.reward:.3f}"
    if prediction.goals_total is not None:
        num_satisfied = "?" if prediction.goals_satisfied is None else prediction.goals_satisfied
        note += f", {num_satisfied} of {prediction.goals_total} goals"
    is_plan = prediction.plan and prediction.completion.strip() == prediction.plan.strip()
    return SampleCompletion(
        method=format_run(prediction.method, prediction.dataset_size),
        success=prediction.success,
        label=prediction.label,
        note=f"{note}. {prediction.detail}" if prediction.detail else note,
        steps=steps,
        text="" if is_plan else prediction.completion[:TEXT_LIMIT] or "(empty completion)",
        strip=strip,
    )

"""Sample plans: problems on which methods differ, with every answer, drawn where there are pictures of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planward.records import Label, Prediction
from planward.reporting.names import title
from planward.reporting.pictures import Strip, pictures
from planward.reporting.results import Sample
from planward.reporting.sections.breakdown import constraints_in

TEXT = 6000  # characters of a problem or completion that the page prints


@dataclass(frozen=True)
class Answer:
    """A method's answer: its plan with what is said at the failing step, and its pictures."""

    method: str
    success: bool
    label: str
    note: str
    steps: list[tuple[str, str]]
    completion: str  # empty where it is the plan and nothing else
    strip: Strip | None


@dataclass(frozen=True)
class Shown:
    """A problem with its answers; `symbols` are what the pictures of the answers refer to."""

    problem: str
    summary: str
    constraints: str  # as PDDL; a sentence where they could not be read; empty where there are none
    prompt: str
    answers: list[Answer]
    symbols: Markup | None
    open: bool


def sample_plans(samples: Mapping[str, Sequence[Sample]]) -> dict[str, list[Shown]]:
    """What the section shows, by domain. The first problem that has pictures stands open."""
    shown: dict[str, list[Shown]] = {}
    still_closed = True
    for domain, found in samples.items():
        for sample in found:
            each = _shown(sample, still_closed)
            still_closed = still_closed and each.symbols is None
            shown.setdefault(domain, []).append(each)
    return shown


def _shown(sample: Sample, open_with_pictures: bool) -> Shown:
    first = sample.answers[0]
    plans = [(answer.plan.splitlines(), answer.failing_step) for answer in sample.answers]
    album = pictures(sample.pddl, plans, sample.problem) if sample.pddl else None
    strips = album.strips if album else [None] * len(plans)
    said = "; ".join(f"{title(a.method, 0)} {'solves it' if a.success else 'fails'}" for a in sample.answers)
    constraints = constraints_in(first.prompt)[:TEXT] or "see the problem's file" if first.constrained else ""
    return Shown(
        problem=sample.problem,
        summary=f"{sample.problem}{', with safety constraints' if first.constrained else ''}: {said}",
        constraints=constraints,
        prompt=first.prompt[-TEXT:],
        answers=[_answer(answer, strip) for answer, strip in zip(sample.answers, strips, strict=True)],
        symbols=album.symbols if album else None,
        open=bool(album) and open_with_pictures,
    )


def _answer(answer: Prediction, strip: Strip | None) -> Answer:
    fault = "breaks a constraint" if answer.label == Label.SAFETY else "fails here"
    steps = [
        (step, fault if number == answer.failing_step else "")
        for number, step in enumerate(answer.plan.splitlines(), 1)
    ]
    note = f"Reward {answer.reward:.3f}"
    if answer.goals_total is not None:
        met = "?" if answer.goals_satisfied is None else answer.goals_satisfied
        note += f", {met} of {answer.goals_total} goals"
    return Answer(
        method=title(answer.method, answer.dataset_size),
        success=answer.success,
        label=answer.label,
        note=f"{note}. {answer.detail}" if answer.detail else note,
        steps=steps,
        completion="" if answer.plan and answer.completion.strip() == answer.plan.strip() else _text(answer),
        strip=strip,
    )


def _text(answer: Prediction) -> str:
    return answer.completion[:TEXT] or "(empty completion)"

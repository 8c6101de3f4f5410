"""The verdict on a single text, by the real VAL."""

from __future__ import annotations

from pathlib import Path

import pytest

from planward.core.verdicts import Label, Outcome, VerifierError
from planward.tasks.planning.judgement import judge_text
from planward.val import InputError

DOMAIN = """(define (domain d) (:predicates (on) (dim))
 (:action light :parameters () :precondition () :effect (on))
 (:action fade :parameters () :precondition (on) :effect (dim)))"""
PROBLEM = "(define (problem p) (:domain d) (:init) (:goal (and (on) (dim))))"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    domain, problem = tmp_path / "domain.pddl", tmp_path / "problem.pddl"
    domain.write_text(DOMAIN, encoding="utf-8")
    problem.write_text(PROBLEM, encoding="utf-8")
    return domain, problem


def test_plan_is_taken_from_the_text_and_judged(files: tuple[Path, Path]) -> None:
    verdict = judge_text(*files, "First the light:\n(Light)\n(fade)\n", 10)
    assert (verdict.label, verdict.reward, verdict.success) == ("success_plans", 1.0, True)
    assert verdict.plan == "(light)\n(fade)"
    assert verdict.outcome == Outcome(Label.SUCCESS, 2, None, 2, 2)
    failed_verdict = judge_text(*files, "(fade)\n(light)", 10)
    assert (failed_verdict.label, failed_verdict.plan) == ("precondition_violation", "(fade)\n(light)")
    assert failed_verdict.reward == pytest.approx(-0.45)
    assert failed_verdict.detail == "(fade): unsatisfied precondition: (Set (on) to true)"


def test_text_without_a_plan_is_a_format_error(files: tuple[Path, Path]) -> None:
    verdict = judge_text(*files, "I cannot do that.", 10)
    assert (verdict.label, verdict.reward, verdict.plan) == ("plan_format_error", -1.0, "")
    assert verdict.outcome == Outcome(Label.FORMAT, 0, goals_total=2, detail="no plan in the text")


def test_files_are_checked_without_a_plan(files: tuple[Path, Path]) -> None:
    files[1].write_text(PROBLEM[:-1], encoding="utf-8")
    with pytest.raises(InputError, match=r"problem\.pddl"):
        judge_text(*files, "I cannot do that.", 10)


def test_time_limit_is_that_of_the_call(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    slow = files[0].with_name("Validate")
    slow.write_text("#!/bin/sh\nsleep 30\n", encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(slow))
    with pytest.raises(VerifierError, match=r"no answer in 0\.1 s"):
        judge_text(*files, "(light)", 0.1)

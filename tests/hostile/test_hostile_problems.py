"""Problems that would take hours or all memory: each line is accepted or quarantined, and the others go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from hostile_problems import SHAPES
from planward.core.verdicts import Label
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import parse_domain, parse_problem
from planward.pddl.simulation import PlanVerifier
from support import ROOT, read_rows

MAX_SECONDS = 300  # many times what all lines take
SIDES = ("train", "validation", "test", "held_out")
TOO_LARGE = "more than 2 MiB"
EXPLODES = "more than 20,000 atoms when quantifiers are expanded"
DEEP = "nested too deeply"
REASONS = {  # of the shapes that are not accepted
    "1,000,000 objects": TOO_LARGE,
    "50,000 facts": "50,001 facts; at most 50,000 are allowed",
    "300,000 facts": TOO_LARGE,
    "path of 9,000 objects": "too many objects and facts to tell apart",
    "fact with 9,000 arguments": "9,000 arguments or variables; at most 100",
    "type chain of 2,000": "more than 99 supertypes",
    "type chain of 20,000": "more than 99 supertypes",
    "diamonds of 40 types": "verifier",
    "type is its own supertype": "is its own supertype",
    "goal over 6 variables": EXPLODES,
    "goal nested 12 deep": EXPLODES,
    "precondition over 6 variables": EXPLODES,
    "precondition nested 12 deep": EXPLODES,
    "effect over 6 variables": EXPLODES,
    "effect under condition over 6 variables": EXPLODES,
    "effect nested 12 deep": EXPLODES,
    "constraint over 6 variables": EXPLODES,
    "constraint nested 12 deep": EXPLODES,
    "action with 12 parameters, no plan": "no reference plan: its actions have up to",
    "effect over 2 variables, no plan": "no reference plan: its 135 actions are too large to search",
    "400 objects, no plan": "no reference plan: its 160400 actions are too large to search",
    "plan of 5,000 large actions": "bad reference plan: its actions have too many atoms",
    "quantifier over 1,000 variables": "1,000 arguments or variables; at most 100",
    "derived, 20 objects all related": "verifier: VAL reaches no verdict on this line, and does on a known problem",
    "derived over 6 variables": EXPLODES,
    "and nested 1,000 deep": DEEP,
    "not nested 100,000 deep": DEEP,
    "100,000 parentheses": DEEP,
    "comment of 50 MB": TOO_LARGE,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The split of all shapes, one line each, by a process with little memory."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = [ROOT / "src", ROOT / "benchmarks"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, str(ROOT / "benchmarks/hostile.py"), "--timeout", "4", "--split"]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=MAX_SECONDS)
    assert process.returncode == 0, process.stderr[-3000:]
    return folder / "results/split"


def test_no_line_is_lost(results: Path) -> None:
    metrics = json.loads((results / "metrics.json").read_text())
    row_num = sum(len(read_rows(results / f"{side}.jsonl")) for side in SIDES)
    assert metrics["lines"] == len(SHAPES) == row_num + len(read_rows(results / "quarantine.jsonl"))
    assert row_num == sum(metrics["kept"].values())


@pytest.mark.parametrize(("number", "name"), enumerate(SHAPES, 1))
def test_each_line_is_accepted_or_has_its_reason(results: Path, number: int, name: str) -> None:
    reasons = {row["line"]: row["reason"] for row in read_rows(results / "quarantine.jsonl")}
    assert (number in reasons) == (name in REASONS), reasons.get(number)
    assert REASONS.get(name, "") in reasons.get(number, "")
    assert len(reasons.get(number, "")) < 3000


def test_large_ground_actions_of_plans_do_not_add_up() -> None:
    """Each takes tens of megabytes: those of a long plan are left to VAL, those of earlier plans are forgotten."""
    domain = parse_domain(
        "(define (domain wide) (:requirements :conditional-effects) (:predicates (p ?a ?b) (q ?a ?b))"
        " (:action mark :parameters (?a ?b) :effect (p ?a ?b))"
        " (:action copy :parameters (?a ?b) :effect (and (q ?a ?b) (forall (?x ?y) (when (p ?x ?y) (q ?x ?y))))))"
    )
    names = [f"n{index}" for index in range(95)]
    text = f"(define (problem w) (:domain wide) (:objects {' '.join(names)}) (:init) (:goal (q n1 n2)))"
    verifier = PlanVerifier(parse_problem(text, domain))
    steps = [f"(copy n1 {name})" for name in names]
    with pytest.raises(UnsupportedError, match="a plan of 95 actions"):
        verifier.verify(steps)
    tracemalloc.start()
    try:
        verifier.verify(steps[:1])
        first = tracemalloc.get_traced_memory()[0]
        labels = [verifier.verify([step]).label for step in steps[1:5]]
        last = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert labels == [Label.GOAL if name != "n2" else Label.SUCCESS for name in names[1:5]]
    assert first > 10_000_000
    assert last < 1.5 * first

"""The in-process verifier and VAL agree in the hand-written domains of tests/domains."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

from candidate_plans import iter_distinct_plans
from planward.core.verdicts import Label
from planward.pddl.language import load_domain, load_problem
from support import ROOT
from verifier_agreement import Agreement, compare_verifiers

FOLDERS = sorted(file.parent for file in (ROOT / "tests").glob("domains/*/domain.pddl"))
PLAN_NUM = 180  # for each domain


def test_domains_are_found() -> None:
    assert len(FOLDERS) >= 6


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_candidates_in_a_domain(folder: Path) -> None:
    domain_file = folder / "domain.pddl"
    files = sorted(set(folder.glob("*.pddl")) - {domain_file})
    agreement = Agreement()
    for file in files:
        problem = load_problem(file, load_domain(domain_file))
        plans = islice(iter_distinct_plans(problem, Random(f"{folder.name}:{file.name}")), PLAN_NUM // len(files))
        agreement += compare_verifiers(problem, domain_file, file, plans)
    assert not agreement.disagreements, "\n".join(map(str, agreement.disagreements))
    assert {Label.SUCCESS, Label.GOAL, Label.PRECONDITION, Label.FORMAT} <= set(agreement.labels)
    assert agreement.plans > 0.9 * PLAN_NUM

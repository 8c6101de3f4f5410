"""The in-process checker and VAL say the same of plans in domains that nobody generated; see tests/domains."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

from planward.agreement import Agreement, compare, distinct_plans
from planward.pddl.language import load_domain, load_problem
from planward.records import Label

FOLDERS = sorted(file.parent for file in Path(__file__).parent.glob("domains/*/domain.pddl"))
PLANS = 180  # a domain


def test_there_are_domains_of_many_kinds() -> None:
    assert len(FOLDERS) >= 6


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_on_plans_made_for_a_domain(folder: Path) -> None:
    domain_file = folder / "domain.pddl"
    files = sorted(set(folder.glob("*.pddl")) - {domain_file})
    found = Agreement()
    for file in files:
        problem = load_problem(file, load_domain(domain_file))
        plans = islice(distinct_plans(problem, Random(f"{folder.name}:{file.name}")), PLANS // len(files))
        found += compare(problem, domain_file, file, plans)
    assert not found.disagreements, "\n".join(map(str, found.disagreements))
    assert {Label.SUCCESS, Label.GOAL, Label.PRECONDITION, Label.FORMAT} <= set(found.labels)
    assert found.plans > 0.9 * PLANS

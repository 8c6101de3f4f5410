"""A dialect is the same world in other words: every plan in it fares as its translation does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward import val
from planward.agreement import distinct_plans, drawn_instance, essence
from planward.params import Params, ParamsError
from planward.pddl.canonical import canonical_hash
from planward.pddl.dialects import (
    MARKERS,
    NUMBERS,
    Dialect,
    action_signatures,
    dialect,
    marker_names,
    random_dialect,
)
from planward.pddl.generators import (
    GENERATORS,
    Instance,
    domain_text,
    generated_domain,
    generated_problem,
    problem_text,
)
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.search import shortest_plan
from planward.pddl.simulation import PlanChecker, check_plan
from planward.records import Label, read_records
from planward.stages import problems as problems_stage
from planward.stages import split as split_stage
from planward.tasks import PROBLEMS, load_task
from planward.tasks.planning.examples import drawn_shots
from planward.tasks.planning.prompt import compact_prompt

SIZES = {
    "blocksworld": {"blocks": (3, 4)},
    "ferry": {"locations": (2, 3), "cars": (1, 3)},
    "grippers": {"robots": (1, 2), "rooms": (2, 2), "objects": (2, 2)},
    "spanner": {"spanners": (1, 3), "nuts": (1, 2), "locations": (1, 2)},
    "delivery": {"width": (2, 2), "height": (1, 2), "packages": (1, 2)},
}
COUNTS = {"blocksworld": 16, "ferry": 16, "grippers": 16, "spanner": 8, "delivery": 16}


def drawn(rng: Random, domain: str, safety: bool = True) -> tuple[Instance, Problem, list[str]]:
    """A problem and a shortest plan for it."""
    instance = drawn_instance(rng, domain, SIZES[domain], safety, max_states=20_000)
    problem = generated_problem(domain, instance)
    return instance, problem, shortest_plan(ground_problem(problem), 20_000)


@pytest.mark.parametrize("domain", GENERATORS)
@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_translating_a_plan_keeps_its_verdict(domain: str, seed: int) -> None:
    rng = Random(seed)
    spoken, (instance, problem, _) = random_dialect(domain, rng), drawn(rng, domain, safety=rng.random() < 0.5)
    other = spoken.problem(problem)
    assert parse_problem(problem_text(domain, spoken.instance(instance)), spoken.domain) == other
    here, there = PlanChecker(problem), PlanChecker(other)
    for candidate, _ in zip(distinct_plans(problem, rng, 2000), range(80), strict=False):
        plan = list(candidate.plan)
        assert essence(there.check(spoken.translated(plan))) == essence(here.check(plan)), plan


@pytest.mark.parametrize("domain", GENERATORS)
def test_both_verifiers_read_every_dialect(domain: str, tmp_path: Path) -> None:
    rng, jobs = Random(7), []
    for number in range(COUNTS[domain]):
        spoken, (instance, problem, plan) = dialect(domain, number, seed=1), drawn(rng, domain)
        domain_file, problem_file = tmp_path / f"{number}-domain.pddl", tmp_path / f"{number}.pddl"
        domain_file.write_text(spoken.domain_text())
        problem_file.write_text(problem_text(domain, spoken.instance(instance)))
        assert check_plan(spoken.problem(problem), spoken.translated(plan)).label is Label.SUCCESS
        jobs.append((domain_file, problem_file, "\n".join(spoken.translated(plan))))
    assert {outcome.label for outcome in val.validate_many(jobs)} == {Label.SUCCESS}


@pytest.mark.parametrize("domain", GENERATORS)
def test_a_plan_in_other_words_fails(domain: str) -> None:
    rng = Random(3)
    told_apart = 0
    for number in range(1, COUNTS[domain]):
        spoken, (_, problem, plan) = dialect(domain, number, seed=1), drawn(rng, domain)
        if spoken.translated(plan) != plan:
            told_apart += 1
            assert check_plan(spoken.problem(problem), plan).label is not Label.SUCCESS
            assert check_plan(problem, spoken.translated(plan)).label is not Label.SUCCESS
    assert told_apart > COUNTS[domain] / 2


@pytest.mark.parametrize("domain", GENERATORS)
def test_the_dialects_of_a_seed_differ_and_show_themselves(domain: str) -> None:
    spoken = [dialect(domain, number, seed=5) for number in range(COUNTS[domain])]
    assert len({each.language for each in spoken}) == COUNTS[domain]
    assert spoken == [dialect(domain, number, seed=5) for number in range(COUNTS[domain])]
    assert spoken != [dialect(domain, number, seed=6) for number in range(COUNTS[domain])]
    _, problem, _ = drawn(Random(1), domain)
    assert len({compact_prompt(each.problem(problem), []) for each in spoken}) == COUNTS[domain]
    for number in (-1, COUNTS[domain]):
        with pytest.raises(ValueError, match=f"{domain} has {COUNTS[domain]} dialects"):
            dialect(domain, number, seed=5)


@pytest.mark.parametrize("domain", GENERATORS)
def test_dialect_0_is_the_plain_domain(domain: str) -> None:
    plain, (instance, problem, plan) = dialect(domain, 0, seed=9), drawn(Random(2), domain)
    assert plain.domain_text() == domain_text(domain)
    assert plain.domain is generated_domain(domain)
    assert plain.problem(problem) is problem
    assert problem_text(domain, plain.instance(instance)) == problem_text(domain, instance)
    assert plain.translated(plan) == plan


@pytest.mark.parametrize("domain", GENERATORS)
def test_a_random_dialects_number_does_not_tell_its_language(domain: str) -> None:
    rng = Random(4)
    spoken = [random_dialect(domain, rng) for _ in range(3000)]
    plain = dialect(domain, 0, seed=1).language
    assert {each.number for each in spoken} == set(NUMBERS)
    pairs = Counter((each.number, each.language) for each in spoken)
    assert len(pairs) == len(NUMBERS) * (COUNTS[domain] - 1)
    assert plain not in {each.language for each in spoken}


@pytest.mark.parametrize("domain", GENERATORS)
def test_the_words_that_dialects_may_need_are_known(domain: str) -> None:
    rng = Random(8)
    signatures, markers = set(action_signatures(domain)), set(marker_names(domain))
    spoken = [random_dialect(domain, rng) for _ in range(200)] + [dialect(domain, 0, seed=1)]
    assert signatures == {
        (action.name, tuple(kinds for _, kinds in action.parameters))
        for each in spoken
        for action in each.domain.actions.values()
    }
    assert markers == {each.marker for each in spoken}
    assert all(each.marker in each.domain.signature.predicates for each in spoken)


def test_a_dialect_changes_nothing_but_actions_and_marker() -> None:
    words = dialect("ferry", 0, seed=1).language
    sail, board, debark = words
    swapped = (sail._replace(reversed=True), board._replace(name="debark"), debark._replace(name="board"))
    spoken = Dialect("ferry", 3, swapped)
    assert spoken.translated(["(sail l1 l2)", "(BOARD c1 l2)", "(debark c1 l2)", "(fly c1)", "((sail l1 l2)", ""]) == [
        *("(sail l2 l1)", "(debark c1 l2)", "(board c1 l2)", "(fly c1)", "((sail l1 l2)", "")
    ]
    text = (
        domain_text("ferry")
        .replace("empty-ferry", "empty-ferry-3")
        .replace("(?from ?to - location)", "(?to ?from - location)")
    )
    text = (
        text.replace(":action board", ":action x")
        .replace(":action debark", ":action board")
        .replace(":action x", ":action debark")
    )
    expected = parse_domain(text)
    assert spoken.domain == replace(expected, actions=spoken.domain.actions)
    assert spoken.domain.actions == expected.actions


def test_problems_are_dealt_evenly_to_dialects(project: Path, small: Callable[..., Params]) -> None:
    params, plain = small(problems={"dialects": 3}), small()
    problems_stage.run(plain)
    before = list(read_records(PROBLEMS / "problems.jsonl"))
    assert {record.meta.model_extra["dialect"] for record in before} == {0}
    problems_stage.run(params)
    records = list(read_records(PROBLEMS / "problems.jsonl"))
    numbers = Counter((record.domain, record.meta.model_extra["dialect"]) for record in records)
    assert set(numbers.values()) == {4}
    assert [record.meta.problem_file for record in records] == [record.meta.problem_file for record in before]
    task = load_task(params, project / PROBLEMS)
    hashes = Counter[str]()
    for record, plainly in zip(records, before, strict=True):
        number = record.meta.model_extra["dialect"]
        assert record.meta.domain_file == f"{record.domain}/{f'dialect-{number}' if number else 'domain'}.pddl"
        assert (record.response == plainly.response) or number
        assert task.verify(record, record.response).success
        hashes[canonical_hash(task.problem(record.meta.domain_file, record.meta.problem_file))] += 1
    assert all(verdict.success for verdict in task.judge([(record, record.response) for record in records]))
    split_stage.run(params)
    kept = [record for side in split_stage.SIDES for record in read_records(split_stage.OUT / f"{side}.jsonl")]
    assert len(kept) == len(records) == len(hashes)
    for record in kept:
        shots = drawn_shots(record, kept, 20, "seed")
        assert len(shots) == 3
        assert {shot.meta.domain_file for shot in shots} == {record.meta.domain_file}


@pytest.mark.usefixtures("project")
def test_a_domain_with_too_few_dialects_is_named(small: Callable[..., Params]) -> None:
    sizes = {"spanner": {"count": 5, "spanners": [1, 2], "nuts": [1, 2], "locations": [1, 2]}}
    params = small(problems={"dialects": 9, "generated": sizes})
    with pytest.raises(ParamsError, match=r"problems\.dialects: spanner has 8 dialects"):
        problems_stage.run(params)


def test_every_generated_domain_has_a_marker_that_its_problems_show() -> None:
    for domain, marker in MARKERS.items():
        instance, _, _ = drawn(Random(1), domain, safety=False)
        assert marker in {atom[0] for atom in instance.init}
    assert MARKERS.keys() == GENERATORS.keys()

"""Dialects: translated plans keep their verdicts, and problems show their dialect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candidate_plans import iter_distinct_plans
from planward import val
from planward.core import paths
from planward.core.records import read_records
from planward.core.registry import load_task
from planward.core.verdicts import Label
from planward.params import Params, ParamsError
from planward.pddl.canonical import hash_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.search import find_shortest_plan
from planward.pddl.simulation import PlanVerifier, verify_plan
from planward.stages import problems as problems_stage
from planward.stages import split as split_stage
from planward.tasks.planning.dialects import (
    SAMPLED_NUMBERS,
    Dialect,
    build_dialect,
    list_action_signatures,
    list_marker_names,
    sample_dialect,
)
from planward.tasks.planning.domains import (
    GENERATED_DOMAINS,
    build_problem,
    load_domain_text,
    load_generated_domain,
    render_problem,
)
from planward.tasks.planning.domains.instances import Instance
from planward.tasks.planning.examples import sample_examples
from planward.tasks.planning.prompt import render_compact_prompt
from verifier_agreement import sample_instance, select_compared_fields

SIZES = {
    "blocksworld": {"blocks": (3, 4)},
    "ferry": {"locations": (2, 3), "cars": (1, 3)},
    "grippers": {"robots": (1, 2), "rooms": (2, 2), "objects": (2, 2)},
    "spanner": {"spanners": (1, 3), "nuts": (1, 2), "locations": (1, 2)},
    "delivery": {"width": (2, 2), "height": (1, 2), "packages": (1, 2)},
    "elevator": {"floors": (2, 3), "passengers": (1, 2)},
}
DIALECT_NUMS = {"blocksworld": 16, "ferry": 16, "grippers": 16, "spanner": 8, "delivery": 16, "elevator": 16}


def sample_solved(rng: Random, domain: str, safety: bool = True) -> tuple[Instance, Problem, list[str]]:
    """Sample a problem; returns it with a shortest plan."""
    instance = sample_instance(rng, domain, SIZES[domain], safety)
    problem = build_problem(domain, instance)
    return instance, problem, find_shortest_plan(ground_problem(problem), 20_000)


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_translating_a_plan_keeps_its_verdict(domain: str, seed: int) -> None:
    rng = Random(seed)
    dialect, (instance, problem, _) = sample_dialect(domain, rng), sample_solved(rng, domain, safety=rng.random() < 0.5)
    other = dialect.translate_problem(problem)
    assert parse_problem(render_problem(domain, dialect.translate_instance(instance)), dialect.domain) == other
    plain_verifier, dialect_verifier = PlanVerifier(problem), PlanVerifier(other)
    for candidate, _ in zip(iter_distinct_plans(problem, rng, 2000), range(80), strict=False):
        plan = list(candidate.plan)
        plain_verdict, dialect_verdict = (
            plain_verifier.verify(plan),
            dialect_verifier.verify(dialect.translate_plan(plan)),
        )
        assert select_compared_fields(dialect_verdict) == select_compared_fields(plain_verdict), plan


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_both_verifiers_read_every_dialect(domain: str, tmp_path: Path) -> None:
    rng, jobs = Random(7), []
    for number in range(DIALECT_NUMS[domain]):
        dialect, (instance, problem, plan) = build_dialect(domain, number, seed=1), sample_solved(rng, domain)
        domain_file, problem_file = tmp_path / f"{number}-domain.pddl", tmp_path / f"{number}.pddl"
        domain_file.write_text(dialect.render_domain())
        problem_file.write_text(render_problem(domain, dialect.translate_instance(instance)))
        assert verify_plan(dialect.translate_problem(problem), dialect.translate_plan(plan)).label is Label.SUCCESS
        jobs.append((domain_file, problem_file, "\n".join(dialect.translate_plan(plan))))
    assert {outcome.label for outcome in val.validate_many(jobs)} == {Label.SUCCESS}


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_untranslated_plan_fails(domain: str) -> None:
    rng = Random(3)
    difference_num = 0
    for number in range(1, DIALECT_NUMS[domain]):
        dialect, (_, problem, plan) = build_dialect(domain, number, seed=1), sample_solved(rng, domain)
        if dialect.translate_plan(plan) != plan:
            difference_num += 1
            assert verify_plan(dialect.translate_problem(problem), plan).label is not Label.SUCCESS
            assert verify_plan(problem, dialect.translate_plan(plan)).label is not Label.SUCCESS
    assert difference_num > DIALECT_NUMS[domain] / 2


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_dialects_of_a_seed_differ_and_problems_show_them(domain: str) -> None:
    dialects = [build_dialect(domain, number, seed=5) for number in range(DIALECT_NUMS[domain])]
    assert len({dialect.rewrites for dialect in dialects}) == DIALECT_NUMS[domain]
    assert dialects == [build_dialect(domain, number, seed=5) for number in range(DIALECT_NUMS[domain])]
    assert dialects != [build_dialect(domain, number, seed=6) for number in range(DIALECT_NUMS[domain])]
    _, problem, _ = sample_solved(Random(1), domain)
    prompts = {render_compact_prompt(dialect.translate_problem(problem), []) for dialect in dialects}
    assert len(prompts) == DIALECT_NUMS[domain]
    for number in (-1, DIALECT_NUMS[domain]):
        with pytest.raises(ValueError, match=f"{domain} has {DIALECT_NUMS[domain]} dialects"):
            build_dialect(domain, number, seed=5)


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_dialect_0_is_the_plain_domain(domain: str) -> None:
    plain, (instance, problem, plan) = build_dialect(domain, 0, seed=9), sample_solved(Random(2), domain)
    assert plain.render_domain() == load_domain_text(domain)
    assert plain.domain is load_generated_domain(domain)
    assert plain.translate_problem(problem) is problem
    assert render_problem(domain, plain.translate_instance(instance)) == render_problem(domain, instance)
    assert plain.translate_plan(plan) == plan


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_sampled_number_is_independent_of_the_rewrites(domain: str) -> None:
    rng = Random(4)
    dialects = [sample_dialect(domain, rng) for _ in range(3000)]
    plain = build_dialect(domain, 0, seed=1).rewrites
    assert {dialect.number for dialect in dialects} == set(SAMPLED_NUMBERS)
    pairs = Counter((dialect.number, dialect.rewrites) for dialect in dialects)
    assert len(pairs) == len(SAMPLED_NUMBERS) * (DIALECT_NUMS[domain] - 1)
    assert plain not in {dialect.rewrites for dialect in dialects}


@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_listed_names_cover_all_dialects(domain: str) -> None:
    rng = Random(8)
    signatures, markers = set(list_action_signatures(domain)), set(list_marker_names(domain))
    dialects = [sample_dialect(domain, rng) for _ in range(200)] + [build_dialect(domain, 0, seed=1)]
    assert signatures == {
        (action.name, tuple(types for _, types in action.parameters))
        for dialect in dialects
        for action in dialect.domain.actions.values()
    }
    assert markers == {dialect.marker for dialect in dialects}
    assert all(dialect.marker in dialect.domain.signature.predicates for dialect in dialects)


def test_dialect_changes_only_actions_and_marker() -> None:
    sail, board, debark = build_dialect("ferry", 0, seed=1).rewrites
    rewrites = (sail._replace(reversed=True), board._replace(name="debark"), debark._replace(name="board"))
    dialect = Dialect("ferry", 3, rewrites)
    assert dialect.translate_plan(
        ["(sail l1 l2)", "(BOARD c1 l2)", "(debark c1 l2)", "(fly c1)", "((sail l1 l2)", ""]
    ) == [*("(sail l2 l1)", "(debark c1 l2)", "(board c1 l2)", "(fly c1)", "((sail l1 l2)", "")]
    text = (
        load_domain_text("ferry")
        .replace("empty-ferry", "empty-ferry-3")
        .replace("(?from ?to - location)", "(?to ?from - location)")
    )
    text = (
        text.replace(":action board", ":action x")
        .replace(":action debark", ":action board")
        .replace(":action x", ":action debark")
    )
    expected = parse_domain(text)
    assert dialect.domain == replace(expected, actions=dialect.domain.actions)
    assert dialect.domain.actions == expected.actions


def test_problems_are_distributed_evenly_over_dialects(project: Path, small: Callable[..., Params]) -> None:
    params, plain = small(problems={"dialects": 3}, prompt={"names": "literal"}), small()
    problems_stage.run(plain)
    before = list(read_records(paths.results().problems / "problems.jsonl"))
    assert {record.meta.model_extra["dialect"] for record in before} == {0}
    problems_stage.run(params)
    records = list(read_records(paths.results().problems / "problems.jsonl"))
    numbers = Counter((record.domain, record.meta.model_extra["dialect"]) for record in records)
    assert set(numbers.values()) == {4}
    assert [record.meta.problem_file for record in records] == [record.meta.problem_file for record in before]
    task = load_task(params, project / paths.results().problems)
    hashes = Counter[str]()
    for record, plain_record in zip(records, before, strict=True):
        number = record.meta.model_extra["dialect"]
        assert record.meta.domain_file == f"{record.domain}/{f'dialect-{number}' if number else 'domain'}.pddl"
        assert (record.response == plain_record.response) or number
        assert task.verify(record, record.response).success
        hashes[hash_problem(task.load_problem(record.meta.domain_file, record.meta.problem_file))] += 1
    assert all(verdict.success for verdict in task.judge([(record, record.response) for record in records]))
    split_stage.run(params)
    folder = paths.results().split
    split_records = [record for split in paths.SPLITS for record in read_records(folder / f"{split}.jsonl")]
    assert len(split_records) == len(records) == len(hashes)
    for record in split_records:
        examples = sample_examples(record, split_records, 20, "seed")
        assert len(examples) == 3
        assert {example.meta.domain_file for example in examples} == {record.meta.domain_file}


@pytest.mark.usefixtures("project")
def test_too_few_dialects_are_named(small: Callable[..., Params]) -> None:
    sizes = {"spanner": {"count": 5, "spanners": [1, 2], "nuts": [1, 2], "locations": [1, 2]}}
    params = small(problems={"dialects": 9, "generated": sizes}, prompt={"names": "literal"})
    with pytest.raises(ParamsError, match=r"problems\.dialects: spanner has 8 dialects"):
        problems_stage.run(params)


def test_every_generated_problem_shows_the_marker() -> None:
    for domain, module in GENERATED_DOMAINS.items():
        instance, _, _ = sample_solved(Random(1), domain, safety=False)
        assert module.MARKER in {atom[0] for atom in instance.init}

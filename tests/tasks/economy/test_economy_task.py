"""The economy task, as stages and trainers use it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.records import Record
from planward.core.tasks import InvalidLine
from planward.core.verdicts import VerifierError
from planward.params import ParamsError
from planward.tasks.economy.adapter import build_adapter_sources, compute_distances, simulate_households
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.economy.environment.decisions import Decision, InvalidDecision, format_decision, parse_decision
from planward.tasks.economy.environment.neighbours import compute_standards
from planward.tasks.economy.environment.prompt import render_compact_prompt, render_full_state
from planward.tasks.economy.environment.simulator import MACRO, Panel, simulate_economy
from planward.tasks.economy.environment.states import stack_states
from planward.tasks.economy.environment.utility import compute_rewards
from planward.tasks.economy.task import EconomyTask, read_household, read_state, read_threshold
from support import merge_values, read_rows

SMALL: dict[str, Any] = {
    "problems": 120,
    "neighbours": 20,
    "simulator": {"households": 120, "months": 40, "burn_in": 12},
}


def build_params(shipped_params: EconomyParams, **economy: Any) -> EconomyParams:
    """The shipped parameters with a small economy and these values of its section."""
    raw = merge_values(shipped_params.model_dump(mode="json"), {"economy": SMALL | economy})
    return EconomyParams.model_validate(raw)


@pytest.fixture(scope="module")
def params(shipped_economy: EconomyParams) -> EconomyParams:
    return build_params(shipped_economy)


@pytest.fixture(scope="module")
def task(params: EconomyParams, tmp_path_factory: pytest.TempPathFactory) -> EconomyTask:
    task = EconomyTask(params, tmp_path_factory.mktemp("economy"))
    task.prepare_problems(task.root)
    return task


@pytest.fixture(scope="module")
def lines(task: EconomyTask) -> list[dict[str, Any]]:
    return read_rows(task.root / "economy.jsonl")


@pytest.fixture(scope="module")
def problems(task: EconomyTask, lines: list[dict[str, Any]]) -> list[Record]:
    return [task.validate_line(line, line["meta"]["scenario"])[0] for line in lines]


def test_problems_are_reproducible(params: EconomyParams, task: EconomyTask, tmp_path: Path) -> None:
    EconomyTask(params, tmp_path).prepare_problems(tmp_path)
    for name in ("economy.jsonl", "macro.csv"):
        assert (tmp_path / name).read_bytes() == (task.root / name).read_bytes()
    other = EconomyTask(params.model_copy(update={"seed": 1}), tmp_path / "other")
    other.prepare_problems(other.root)
    assert (other.root / "economy.jsonl").read_bytes() != (task.root / "economy.jsonl").read_bytes()


def test_macro_series_have_one_row_per_month(task: EconomyTask) -> None:
    with (task.root / "macro.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["month"]) for row in table] == list(range(40))
    assert set(table[0]) == {"month", *MACRO}
    assert all(0 <= float(row["unemployment"]) <= 0.25 for row in table)


def test_domains_are_the_scenarios_and_balanced(task: EconomyTask, problems: list[Record]) -> None:
    assert Counter(record.domain for record in problems) == {"employed": 60, "unemployed": 60}
    assert set(task.domains) == {"employed", "unemployed"}
    assert len({record.id for record in problems}) == len(problems)


def test_records_hold_household_month_and_state(problems: list[Record]) -> None:
    for record in problems:
        meta: Any = record.meta
        assert meta.domain_file == "economy"
        assert meta.problem_file == f"h{meta.household:04d}-m{meta.month:03d}"
        assert meta.state["employed"] == (record.domain == "employed")
        assert record.prompt == render_full_state(read_state(record))


def test_reference_households_are_never_problems(problems: list[Record]) -> None:
    assert min(map(read_household, problems)) >= 60  # the first half set the standards


def test_all_months_of_a_household_are_on_one_side_of_the_split(task: EconomyTask, problems: list[Record]) -> None:
    cores = {(read_household(record), task.core_digest(record)) for record in problems}
    assert len({core for _, core in cores}) == len({household for household, _ in cores}) == len(cores)
    assert len(cores) < len(problems)


def test_reference_decisions_are_good_but_not_always_best(task: EconomyTask, problems: list[Record]) -> None:
    verdicts = [task.verify(record, task.reference_completion(record)) for record in problems]
    assert all(verdict.success and verdict.label == "good_decision" for verdict in verdicts)
    assert min(verdict.reward for verdict in verdicts) < 0.98


def test_standards_come_from_the_reference_households_only(params: EconomyParams) -> None:
    """The decisions of the problems' households, and other problems, have no influence."""
    economy = params.economy
    panel = simulate_economy(economy, 3)
    reference = Panel(panel.states[:, :60], panel.work[:, :60], panel.consumption[:, :60], {})
    states = panel.states[20, 60:]
    standards = compute_standards(states, reference, economy, 1)
    first = compute_standards(states[:5], reference, economy, 1)
    assert [standard.threshold for standard in first] == [standard.threshold for standard in standards[:5]]
    decisions = {(w, c) for w, c in zip(reference.work.ravel(), reference.consumption.ravel(), strict=True)}
    for state, standard in zip(states.to_list(), standards, strict=True):
        decision = standard.reference
        assert (decision.work, decision.consumption) in decisions
        shares = np.array([decision.work]), np.array([decision.consumption])
        assert compute_rewards(stack_states([state]), *shares, economy)[0, 0] >= standard.threshold


def test_the_threshold_is_the_quantile_of_the_neighbours_rewards(params: EconomyParams) -> None:
    """With as many neighbours as months, all reference decisions of the scenario count."""
    panel = simulate_economy(params.economy, 3)
    reference = Panel(panel.states[:4, :30], panel.work[:4, :30], panel.consumption[:4, :30], {})
    is_employed = reference.states.employed == 1
    economy = params.economy.model_copy(update={"neighbours": int(is_employed.sum())})
    state = panel.states[10, 60:][panel.states.employed[10, 60:] == 1][:1]
    rewards = compute_rewards(state, reference.work[is_employed], reference.consumption[is_employed], economy)[0]
    (standard,) = compute_standards(state, reference, economy, 1)
    assert standard.threshold == pytest.approx(np.quantile(rewards, 0.75), abs=2e-6)
    assert np.mean(rewards >= standard.threshold) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        ("I work half the time.", "format_error"),
        ('```{"work": 0.5, "consumption": 0.3}```', "format_error"),
        ('{"work": 0.00, "consumption": 1.00}', "poor_decision"),
        ('{"work": 1.00, "consumption": 0.00}', "poor_decision"),
    ],
)
def test_labels_and_rewards_of_completions(
    task: EconomyTask, problems: list[Record], completion: str, label: str
) -> None:
    for record in problems[:20]:
        verdict = task.verify(record, completion)
        assert verdict.label == label
        assert not verdict.success
        assert (verdict.reward == -1) == (label == "format_error")
        assert verdict.plan == ("" if label == "format_error" else completion)


@settings(max_examples=60)
@given(text=st.text() | st.builds(format_decision, st.builds(Decision, st.floats(0, 1), st.floats(0, 1))))
def test_every_completion_has_a_verdict(task: EconomyTask, problems: list[Record], text: str) -> None:
    record = problems[0]
    verdict = task.verify(record, text)
    assert task.judge([(record, text)]) == [verdict]
    assert verdict.label in task.labels
    assert verdict.success == (verdict.label == task.labels[0])
    try:
        decision = parse_decision(text)
    except InvalidDecision:
        assert (verdict.label, verdict.reward, verdict.plan) == ("format_error", -1.0, "")
    else:
        assert verdict.reward > -1
        assert verdict.success == (verdict.reward >= read_threshold(record))
        assert parse_decision(verdict.plan) == decision


def test_an_unreadable_record_is_a_verifier_error(task: EconomyTask, problems: list[Record]) -> None:
    record = problems[0].model_copy(update={"meta": problems[0].meta.model_copy(update={"state": {"age": 3}})})
    with pytest.raises(VerifierError, match=r"state has missing .* keys"):
        task.verify(record, '{"work": 0.5, "consumption": 0.5}')


def change_meta(line: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**line, "meta": {**line["meta"], **meta}}


def change_state(line: dict[str, Any], **features: Any) -> dict[str, Any]:
    return change_meta(line, state={**line["meta"]["state"], **features})


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda line: {**line, "meta": None}, "bad record: meta"),
        (lambda line: change_meta(line, state=None), "bad state: state is not an object"),
        (lambda line: change_state(line, age="40"), "bad state: state.age is not a number"),
        (lambda line: change_state(line, age=True), "bad state: state.age is not a number"),
        (lambda line: change_state(line, wealth=-1.0), "bad state: state.wealth = -1.0"),
        (lambda line: change_state(line, price=float("nan")), "bad state: state.price"),
        (lambda line: change_state(line, bracket=1.5), "bad state: state.bracket"),
        (lambda line: change_state(line, luck=1), "bad state: .* luck"),
        (lambda line: change_meta(line, household="h1"), "bad record: meta.household"),
        (lambda line: change_meta(line, month=-1), "bad record: meta.month"),
        (lambda line: change_meta(line, threshold=None), "bad record: meta.threshold"),
        (lambda line: change_meta(line, threshold=1.5), "bad record: meta.threshold"),
        (lambda line: {**line, "response": None}, "bad reference decision: format_error"),
        (lambda line: {**line, "response": "work hard"}, "bad reference decision: format_error"),
        (lambda line: {**line, "response": format_decision(Decision(0, 1))}, "bad reference decision: poor_decision"),
    ],
)
def test_invalid_lines_are_refused_with_a_reason(
    task: EconomyTask, lines: list[dict[str, Any]], fault: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InvalidLine, match=f"^{reason}"):
        task.validate_line(fault(lines[0]), "employed")


def test_domain_and_state_of_a_line_must_agree(task: EconomyTask, lines: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidLine, match="bad state: it is employed"):
        task.validate_line(lines[0], "unemployed")
    with pytest.raises(InvalidLine, match="unknown domain: 'retired'"):
        task.validate_line(lines[0], "retired")


def test_ids_do_not_depend_on_the_order_of_keys(
    task: EconomyTask, lines: list[dict[str, Any]], problems: list[Record]
) -> None:
    line = change_meta(lines[0], state=dict(reversed(lines[0]["meta"]["state"].items())))
    assert task.validate_line(line, "employed")[0].id == problems[0].id
    assert len(problems[0].id) == 16


def test_difficulty_is_the_share_of_decisions_that_are_not_good(task: EconomyTask, problems: list[Record]) -> None:
    scores = [task.score_difficulty(record) for record in problems]
    assert all(score is not None and 0 <= score < 100 for score in scores)
    assert len(set(scores)) > 50
    easier = problems[0].model_copy(update={"meta": problems[0].meta.model_copy(update={"threshold": -1.0})})
    assert task.score_difficulty(easier) == 0


def test_worked_examples_are_the_nearest_of_other_households(task: EconomyTask, problems: list[Record]) -> None:
    pool = problems[::2]
    for record in problems[:40]:
        examples = task.select_examples(record, pool, 4, "seed")
        assert len(examples) == 4
        assert all(example in pool and example.domain == record.domain for example in examples)
        assert read_household(record) not in {read_household(example) for example in examples}
        assert task.select_examples(record, pool, 2, "other") == examples[2:]  # a smaller count gives the nearest
        assert task.select_examples(record, pool, 0, "seed") == []


def test_the_nearest_example_is_the_last(task: EconomyTask, problems: list[Record]) -> None:
    """A state that differs by one coin of wealth is nearer than any other."""
    record = problems[0]
    state = replace(read_state(record), wealth=read_state(record).wealth + 1)
    meta = record.meta.model_copy(update={"state": asdict(state), "household": 9999})
    twin = record.model_copy(update={"meta": meta, "id": "twin"})
    examples = task.select_examples(record, [twin, *problems[1:]], 3, "")
    assert examples[-1] is twin


def test_worked_examples_do_not_leak(task: EconomyTask, problems: list[Record]) -> None:
    """They come from the pool only, whatever was selected before, and never from the problem's household."""
    record, pool = problems[0], problems[40:80]
    before = task.select_examples(record, pool, 4, "")
    task.select_examples(record, problems, 4, "")
    assert task.select_examples(record, pool, 4, "") == before
    assert {example.id for example in before} <= {example.id for example in pool}
    household_records = [r for r in problems if read_household(r) == read_household(record)]
    assert record in household_records
    assert task.select_examples(record, household_records, 4, "") == []
    all_examples = task.select_examples(record, problems, len(problems), "")
    assert not {r.id for r in household_records} & {example.id for example in all_examples}
    assert len(all_examples) == sum(r.domain == record.domain and r not in household_records for r in problems)


def test_worked_examples_come_from_the_given_pool(task: EconomyTask, problems: list[Record]) -> None:
    """Not from a cached pool of the same states with other completions."""
    others = [r.model_copy(update={"response": '{"work": 0.01, "consumption": 0.01}'}) for r in problems]
    task.select_examples(problems[0], problems, 2, "")
    assert {example.response for example in task.select_examples(problems[0], others, 2, "")} == {others[0].response}


def test_prompts_have_the_style_of_the_parameters(
    task: EconomyTask, params: EconomyParams, problems: list[Record]
) -> None:
    compact = task.prompt(problems[0], problems[1:3])
    assert isinstance(compact, str)
    assert compact.count("decide\n") == 3
    assert task.reference_completion(problems[1]) in compact
    assert task.reference_completion(problems[0]) not in compact.rpartition("<end>")[2]
    style = params.prompt.model_copy(update={"style": "full"})
    full = EconomyTask(params.model_copy(update={"prompt": style}), task.root).prompt(problems[0], problems[1:3])
    assert isinstance(full, list)
    assert [m["role"] for m in full] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert full[-1]["content"] == problems[0].prompt


def test_a_record_without_a_reference_is_refused(task: EconomyTask, problems: list[Record]) -> None:
    with pytest.raises(ValueError, match=f"{problems[0].id}: the record holds no reference decision"):
        task.reference_completion(problems[0].model_copy(update={"response": None}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"problems": 100_000}, "economy.problems: needs 50000 employed states"),
        ({"neighbours": 100_000}, "economy.neighbours: reference households have"),
    ],
)
def test_an_economy_that_is_too_small_names_the_key(
    shipped_economy: EconomyParams, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ParamsError, match=key):
        EconomyTask(build_params(shipped_economy, **changes), tmp_path).prepare_problems(tmp_path)
    assert not list(tmp_path.iterdir())


def test_adapter_sources_are_good_and_poor_decisions_of_two_economies(params: EconomyParams, task: EconomyTask) -> None:
    sources = build_adapter_sources(params, 77, {"households": 120, "months": 40})
    households = simulate_households(params.economy, 77)
    assert len(sources.training) == len(households) == 120
    assert {len(months) for months in [*sources.training, *households]} == {40}
    assert sources.training != sources.held_out
    (prompt, completion), (state, decision) = sources.training[0][0], households[0][0]
    assert completion == format_decision(decision)
    assert prompt == render_compact_prompt(state, [])
    assert set(completion.split()) <= set(sources.words)
    first = [state.age for state, _ in households[0]]
    assert all(0 < later - earlier < 0.1 or later < 23 for earlier, later in pairwise(first))
    rewards = [task.compute_reward(state, decision) for months in households[:30] for state, decision in months[::8]]
    assert min(rewards) < 0.4
    assert max(rewards) > 0.95


def test_adapter_sources_refuse_unknown_keys(params: EconomyParams) -> None:
    with pytest.raises(ParamsError, match="weeks: unknown key"):
        build_adapter_sources(params, 77, {"households": 120, "months": 40, "weeks": 1})


def test_distances_are_of_decisions_only() -> None:
    reference = format_decision(Decision(0.5, 0.25))
    assert compute_distances(format_decision(Decision(0.25, 0.5)), reference) == {
        "work_distance": 0.25,
        "consumption_distance": 0.25,
    }
    assert compute_distances("all of it", reference) is None

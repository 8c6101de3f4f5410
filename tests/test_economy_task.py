"""The economy task as stages and trainers use it."""

from __future__ import annotations

import csv
import json
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

from conftest import rows
from planward.params import Params, ParamsError
from planward.records import Record, VerifierError
from planward.tasks.base import BadLine
from planward.tasks.economy.decisions import Decision, NotADecision, canonical, strict
from planward.tasks.economy.neighbours import standards
from planward.tasks.economy.prompt import full_state
from planward.tasks.economy.simulator import MACRO, Panel, simulated
from planward.tasks.economy.states import stacked
from planward.tasks.economy.task import EconomyTask, behaviours, household_of, state_of, threshold_of
from planward.tasks.economy.utility import rewards

FEW: dict[str, Any] = {
    "problems": 120,
    "neighbours": 20,
    "simulator": {"households": 120, "months": 40, "burn_in": 12},
    "own": {},
}


@pytest.fixture(scope="module")
def params(small: Callable[..., Params]) -> Params:
    return small(economy=FEW)


@pytest.fixture(scope="module")
def task(params: Params, tmp_path_factory: pytest.TempPathFactory) -> EconomyTask:
    task = EconomyTask(params, tmp_path_factory.mktemp("economy"))
    task.bring(task.root)
    return task


@pytest.fixture(scope="module")
def lines(task: EconomyTask) -> list[dict[str, Any]]:
    return rows(task.root / "economy.jsonl")


@pytest.fixture(scope="module")
def problems(task: EconomyTask, lines: list[dict[str, Any]]) -> list[Record]:
    return [task.admitted(line, line["meta"]["scenario"])[0] for line in lines]


def test_problems_are_the_same_again(params: Params, task: EconomyTask, tmp_path: Path) -> None:
    EconomyTask(params, tmp_path).bring(tmp_path)
    for name in ("economy.jsonl", "macro.csv"):
        assert (tmp_path / name).read_bytes() == (task.root / name).read_bytes()
    other = EconomyTask(params.model_copy(update={"seed": 1}), tmp_path / "other")
    other.bring(other.root)
    assert (other.root / "economy.jsonl").read_bytes() != (task.root / "economy.jsonl").read_bytes()


def test_macro_series_are_written_month_by_month(task: EconomyTask) -> None:
    with (task.root / "macro.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["month"]) for row in table] == list(range(40))
    assert set(table[0]) == {"month", *MACRO}
    assert all(0 <= float(row["unemployment"]) <= 0.25 for row in table)


def test_scenarios_are_balanced_domains(task: EconomyTask, problems: list[Record]) -> None:
    assert Counter(record.domain for record in problems) == {"employed": 60, "unemployed": 60}
    assert set(task.domains) == {"employed", "unemployed"}
    assert len({record.id for record in problems}) == len(problems)


def test_a_record_says_what_it_is_about(problems: list[Record]) -> None:
    for record in problems:
        meta: Any = record.meta
        assert meta.domain_file == "economy"
        assert meta.problem_file == f"h{meta.household:04d}-m{meta.month:03d}"
        assert meta.state["employed"] == (record.domain == "employed")
        assert record.prompt == full_state(state_of(record))


def test_households_that_tell_what_is_good_are_never_problems(problems: list[Record]) -> None:
    assert min(map(household_of, problems)) >= 60  # the first half are the reference


def test_all_months_of_a_household_go_to_one_side(task: EconomyTask, problems: list[Record]) -> None:
    cores = {(household_of(record), task.core(record)) for record in problems}
    assert len({core for _, core in cores}) == len({household for household, _ in cores}) == len(cores)
    assert len(cores) < len(problems)


def test_references_are_good_but_not_always_best(task: EconomyTask, problems: list[Record]) -> None:
    found = [task.verify(record, task.answer(record)) for record in problems]
    assert all(verdict.success and verdict.label == "good_decision" for verdict in found)
    assert min(verdict.reward for verdict in found) < 0.98


def test_what_is_good_comes_from_the_reference_households_only(params: Params) -> None:
    """Problems' own decisions, and other problems, decide nothing."""
    economy = params.economy
    panel = simulated(economy, 3)
    reference = Panel(panel.states[:, :60], panel.work[:, :60], panel.consumption[:, :60], {})
    asked = panel.states[20, 60:]
    together = standards(asked, reference, economy, 1)
    assert [s.threshold for s in standards(asked[:5], reference, economy, 1)] == [s.threshold for s in together[:5]]
    decided = {(w, c) for w, c in zip(reference.work.ravel(), reference.consumption.ravel(), strict=True)}
    for state, standard in zip(asked.listed(), together, strict=True):
        decision = standard.reference
        assert (decision.work, decision.consumption) in decided
        shares = np.array([decision.work]), np.array([decision.consumption])
        assert rewards(stacked([state]), *shares, economy)[0, 0] >= standard.threshold


def test_a_threshold_is_the_quantile_of_its_neighbours(params: Params) -> None:
    """With as many neighbours as there are, all reference decisions of the scenario are valued in the state."""
    panel = simulated(params.economy, 3)
    reference = Panel(panel.states[:4, :30], panel.work[:4, :30], panel.consumption[:4, :30], {})
    employed = reference.states.employed == 1
    economy = params.economy.model_copy(update={"neighbours": int(employed.sum())})
    state = panel.states[10, 60:][panel.states.employed[10, 60:] == 1][:1]
    valued = rewards(state, reference.work[employed], reference.consumption[employed], economy)[0]
    (standard,) = standards(state, reference, economy, 1)
    assert standard.threshold == pytest.approx(np.quantile(valued, 0.75), abs=2e-6)
    assert np.mean(valued >= standard.threshold) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("completion", "label"),
    [
        ("I work half the time.", "format_error"),
        ('```{"work": 0.5, "consumption": 0.3}```', "format_error"),
        ('{"work": 0.00, "consumption": 1.00}', "poor_decision"),
        ('{"work": 1.00, "consumption": 0.00}', "poor_decision"),
    ],
)
def test_the_label_and_the_reward_say_what_a_completion_is(
    task: EconomyTask, problems: list[Record], completion: str, label: str
) -> None:
    for record in problems[:20]:
        verdict = task.verify(record, completion)
        assert verdict.label == label
        assert not verdict.success
        assert (verdict.reward == -1) == (label == "format_error")
        assert verdict.plan == ("" if label == "format_error" else completion)


@settings(max_examples=60)
@given(text=st.text() | st.builds(canonical, st.builds(Decision, st.floats(0, 1), st.floats(0, 1))))
def test_every_completion_has_a_verdict(task: EconomyTask, problems: list[Record], text: str) -> None:
    record = problems[0]
    verdict = task.verify(record, text)
    assert task.judge([(record, text)]) == [verdict]
    assert verdict.label in task.labels
    assert verdict.success == (verdict.label == task.labels[0])
    try:
        decision = strict(text)
    except NotADecision:
        assert (verdict.label, verdict.reward, verdict.plan) == ("format_error", -1.0, "")
    else:
        assert verdict.reward > -1
        assert verdict.success == (verdict.reward >= threshold_of(record))
        assert strict(verdict.plan) == decision


def test_a_record_that_cannot_be_judged_is_no_bad_answer(task: EconomyTask, problems: list[Record]) -> None:
    broken = problems[0].model_copy(update={"meta": problems[0].meta.model_copy(update={"state": {"age": 3}})})
    with pytest.raises(VerifierError, match=r"state has missing .* keys"):
        task.verify(broken, '{"work": 0.5, "consumption": 0.5}')


def altered(line: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**line, "meta": {**line["meta"], **meta}}


def of_state(line: dict[str, Any], **features: Any) -> dict[str, Any]:
    return altered(line, state={**line["meta"]["state"], **features})


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda line: {**line, "meta": None}, "bad record: meta"),
        (lambda line: altered(line, state=None), "bad state: state is not an object"),
        (lambda line: of_state(line, age="40"), "bad state: state.age is not a number"),
        (lambda line: of_state(line, age=True), "bad state: state.age is not a number"),
        (lambda line: of_state(line, wealth=-1.0), "bad state: state.wealth = -1.0"),
        (lambda line: of_state(line, price=float("nan")), "bad state: state.price"),
        (lambda line: of_state(line, bracket=1.5), "bad state: state.bracket"),
        (lambda line: of_state(line, luck=1), "bad state: .* luck"),
        (lambda line: altered(line, household="h1"), "bad record: meta.household"),
        (lambda line: altered(line, month=-1), "bad record: meta.month"),
        (lambda line: altered(line, threshold=None), "bad record: meta.threshold"),
        (lambda line: altered(line, threshold=1.5), "bad record: meta.threshold"),
        (lambda line: {**line, "response": None}, "bad reference decision: format_error"),
        (lambda line: {**line, "response": "work hard"}, "bad reference decision: format_error"),
        (lambda line: {**line, "response": canonical(Decision(0, 1))}, "bad reference decision: poor_decision"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_a_reason(
    task: EconomyTask, lines: list[dict[str, Any]], fault: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    with pytest.raises(BadLine, match=f"^{reason}"):
        task.admitted(fault(lines[0]), "employed")


def test_a_line_is_of_the_domain_that_its_state_is_of(task: EconomyTask, lines: list[dict[str, Any]]) -> None:
    with pytest.raises(BadLine, match="bad state: it is employed"):
        task.admitted(lines[0], "unemployed")
    with pytest.raises(BadLine, match="unknown domain: 'retired'"):
        task.admitted(lines[0], "retired")


def test_a_states_digest_does_not_depend_on_the_order_of_its_keys(
    task: EconomyTask, lines: list[dict[str, Any]], problems: list[Record]
) -> None:
    turned = altered(lines[0], state=dict(reversed(lines[0]["meta"]["state"].items())))
    assert task.admitted(turned, "employed")[0].id == problems[0].id
    assert len(problems[0].id) == 16


def test_difficulty_is_the_share_of_decisions_that_are_not_good(task: EconomyTask, problems: list[Record]) -> None:
    found = [task.difficulty(record) for record in problems]
    assert all(score is not None and 0 <= score < 100 for score in found)
    assert len(set(found)) > 50
    easier = problems[0].model_copy(update={"meta": problems[0].meta.model_copy(update={"threshold": -1.0})})
    assert task.difficulty(easier) == 0


def test_worked_examples_are_the_nearest_of_other_households(task: EconomyTask, problems: list[Record]) -> None:
    pool = problems[::2]
    for record in problems[:40]:
        shots = task.shots(record, pool, 4, "seed")
        assert len(shots) == 4
        assert all(shot in pool and shot.domain == record.domain for shot in shots)
        assert household_of(record) not in {household_of(shot) for shot in shots}
        assert task.shots(record, pool, 2, "other") == shots[2:]  # fewer are those next to the query
        assert task.shots(record, pool, 0, "seed") == []


def test_the_nearest_example_stands_next_to_the_query(task: EconomyTask, problems: list[Record]) -> None:
    """A state that differs by a coin of wealth is nearer than any other."""
    record = problems[0]
    state = replace(state_of(record), wealth=state_of(record).wealth + 1)
    meta = record.meta.model_copy(update={"state": asdict(state), "household": 9999})
    twin = record.model_copy(update={"meta": meta, "id": "twin"})
    shots = task.shots(record, [twin, *problems[1:]], 3, "")
    assert shots[-1] is twin


def test_worked_examples_leak_nothing(task: EconomyTask, problems: list[Record]) -> None:
    """They come from the pool alone, whatever was asked before, and never from the problem's own household."""
    record, pool = problems[0], problems[40:80]
    before = task.shots(record, pool, 4, "")
    task.shots(record, problems, 4, "")
    assert task.shots(record, pool, 4, "") == before
    assert {shot.id for shot in before} <= {shot.id for shot in pool}
    own = [r for r in problems if household_of(r) == household_of(record)]
    assert record in own
    assert task.shots(record, own, 4, "") == []
    everything = task.shots(record, problems, len(problems), "")
    assert not {r.id for r in own} & {shot.id for shot in everything}
    assert len(everything) == sum(r.domain == record.domain and r not in own for r in problems)


def test_shots_are_of_the_pool_given_and_not_of_one_like_it(task: EconomyTask, problems: list[Record]) -> None:
    """A pool of the same states with other answers gives its own answers."""
    others = [r.model_copy(update={"response": '{"work": 0.01, "consumption": 0.01}'}) for r in problems]
    task.shots(problems[0], problems, 2, "")
    assert {shot.response for shot in task.shots(problems[0], others, 2, "")} == {others[0].response}


def test_prompts_follow_the_style(task: EconomyTask, params: Params, problems: list[Record]) -> None:
    compact = task.prompt(problems[0], problems[1:3])
    assert isinstance(compact, str)
    assert compact.count("decide\n") == 3
    assert task.answer(problems[1]) in compact
    assert task.answer(problems[0]) not in compact.rpartition("<end>")[2]
    style = params.prompt.model_copy(update={"style": "full"})
    full = EconomyTask(params.model_copy(update={"prompt": style}), task.root).prompt(problems[0], problems[1:3])
    assert isinstance(full, list)
    assert [m["role"] for m in full] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert full[-1]["content"] == problems[0].prompt


def test_an_answer_is_not_invented(task: EconomyTask, problems: list[Record]) -> None:
    with pytest.raises(ValueError, match=f"{problems[0].id}: the record holds no reference decision"):
        task.answer(problems[0].model_copy(update={"response": None}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"problems": 100_000}, "economy.problems: 50000 employed states"),
        ({"neighbours": 100_000}, "economy.neighbours: reference households have"),
    ],
)
def test_too_small_an_economy_names_the_key(
    small: Callable[..., Params], tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ParamsError, match=key):
        EconomyTask(small(economy={**FEW, **changes}), tmp_path).bring(tmp_path)
    assert not list(tmp_path.iterdir())


def test_behaviours_are_of_another_economy_and_good_or_poor(params: Params, task: EconomyTask) -> None:
    streams = behaviours(params.economy, 77)
    assert len(streams) == 120
    assert {len(stream) for stream in streams} == {40}
    first = streams[0]
    assert all(0 < later.age - earlier.age < 0.1 or later.age < 23 for (earlier, _), (later, _) in pairwise(first))
    valued = [task.reward(state, decision) for stream in streams[:30] for state, decision in stream[::8]]
    assert min(valued) < 0.4
    assert max(valued) > 0.95
    assert json.loads(canonical(first[0][1])).keys() == {"work", "consumption"}

"""Baselines of the economy: what is decided without a language model, against the task's own judgement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from planward.params import Params
from planward.records import Record
from planward.reporting.baselines import DRAWS, baseline_rows, constant
from planward.tasks.economy.decisions import Decision
from planward.tasks.economy.states import State
from planward.tasks.economy.task import EconomyTask, state_of
from planward.tasks.economy.utility import GRID

SOMEONE = State(
    employed=True,
    age=40.0,
    wage=3000.0,
    income=1500.0,
    wealth=5000.0,
    disposable=1800.0,
    bracket=1,
    price=1.0,
    inflation=0.02,
    interest=0.03,
    unemployment=0.08,
    transfer=600.0,
    consumption=1500.0,
)


def record(
    name: str, household: int, decision: tuple[float, float], threshold: float = 0.9, **changes: object
) -> Record:
    """A problem of someone whose state differs by `changes`."""
    state = replace(SOMEONE, **changes)  # type: ignore[arg-type]
    meta = {"scenario": state.scenario, "domain_file": "economy", "problem_file": name}
    meta |= {"household": household, "month": 0, "threshold": threshold, "state": asdict(state)}
    response = json.dumps(dict(zip(("work", "consumption"), decision, strict=True)))
    return Record.model_validate({"id": name, "prompt": "", "response": response, "meta": meta})


TRAIN = [
    record("a1", 1, (0.1, 0.2), wealth=5000.0),
    record("a2", 2, (0.2, 0.4), wealth=5100.0),
    record("a3", 3, (0.4, 0.6), wealth=6000.0),
    record("a4", 4, (0.5, 0.7), wealth=9000.0),
    record("a5", 5, (0.8, 0.8), wealth=20000.0),
    record("a6", 6, (0.9, 0.9), wealth=50000.0),
    record("b1", 7, (0.6, 0.1), employed=False),
    record("b2", 8, (0.7, 0.1), employed=False, wealth=20000.0),
    *(record(f"b{k}", k, (0.3, 0.1), employed=False, wealth=90000.0) for k in (3, 4, 5, 6)),
]
TEST = [
    record("t1", 1, (0.33, 0.44), wealth=5000.0),  # of a1's household, in its very state
    record("t2", 20, (0.48, 0.26), threshold=-0.5, wealth=49000.0),
    record("t3", 21, (0.5, 0.5), threshold=0.999, employed=False),
]


@pytest.fixture(scope="module")
def task(shipped: Params) -> EconomyTask:
    """The economy, with a smallest training set of the first four records of either kind."""
    params = shipped.of("economy")
    return EconomyTask(params.model_copy(update={"dataset_sizes": [8, 12]}), Path())


@pytest.fixture(scope="module")
def rows(task: EconomyTask) -> pd.DataFrame:
    return baseline_rows(TEST, TRAIN, task, task.params)


def decided(rows: pd.DataFrame, baseline: str) -> dict[str, tuple[float, float]]:
    """What a baseline decides once a problem, by problem."""
    own = rows[rows["baseline"] == baseline]
    return dict(zip(own["id"], own[["work", "consumption"]].itertuples(index=False, name=None), strict=True))


def mean_reward(task: EconomyTask, problems: Sequence[Record], decision: Decision) -> float:
    return float(np.mean([task.reward(state_of(problem), decision) for problem in problems]))


def test_rewards_and_good_are_those_that_the_task_gives(rows: pd.DataFrame, task: EconomyTask) -> None:
    problems = {problem.id: problem for problem in TEST}
    for row in rows.itertuples():
        verdict = task.verify(problems[row.id], json.dumps({"work": row.work, "consumption": row.consumption}))
        assert row.reward == pytest.approx(verdict.reward, abs=1e-12)
        assert row.good == verdict.success
    assert {row.household for row in rows.itertuples()} == {"1", "20", "21"}


def test_constant_is_the_best_of_all_on_the_training_states(rows: pd.DataFrame, task: EconomyTask) -> None:
    axis = [round(k / (GRID - 1), 2) for k in range(GRID)]
    every = {(w, c): mean_reward(task, TRAIN, Decision(w, c)) for w in axis for c in axis[::5]}
    found = tuple(constant(TRAIN, task.params.economy))
    assert mean_reward(task, TRAIN, Decision(*found)) >= max(every.values()) - 1e-9
    beside = [(found[0] + dw, found[1] + dc) for dw in (-0.02, 0, 0.02) for dc in (-0.02, 0, 0.02)]
    inside = [Decision(w, c) for w, c in beside if min(w, c) >= 0 and max(w, c) <= 1]
    assert mean_reward(task, TRAIN, Decision(*found)) >= max(mean_reward(task, TRAIN, near) for near in inside) - 1e-9
    assert set(decided(rows, "constant").values()) == {found}
    other = tuple(constant([problem for problem in TRAIN if problem.id[0] == "b"], task.params.economy))
    assert other != found


def test_nearest_is_a_training_state_of_another_household_and_the_same_kind(rows: pd.DataFrame) -> None:
    # not a1's, t1's own household's, nor any of the test split's
    assert decided(rows, "nearest") == {"t1": (0.2, 0.4), "t2": (0.9, 0.9), "t3": (0.6, 0.1)}
    # the smallest set has a1 to a4 and b1 to b4
    assert decided(rows, "nearest-8") == {"t1": (0.2, 0.4), "t2": (0.5, 0.7), "t3": (0.6, 0.1)}


def test_mean_of_the_four_nearest(rows: pd.DataFrame) -> None:
    found = decided(rows, "four-nearest-mean")
    assert found["t1"] == pytest.approx((1.1 / 3, 1.7 / 3))  # a2, a3, a4: there are no more
    assert found["t2"] == pytest.approx((0.3, 1.9 / 4))
    assert found["t3"] == pytest.approx((1.9 / 4, 0.1))


def test_marks_are_the_own_reference_and_the_best_decision(rows: pd.DataFrame) -> None:
    assert decided(rows, "reference") == {"t1": (0.33, 0.44), "t2": (0.48, 0.26), "t3": (0.5, 0.5)}
    best = rows[rows["baseline"] == "best"]
    assert list(best["reward"]) == pytest.approx([1.0] * 3, abs=1e-12)
    assert best["good"].all()
    assert (best["reward"].to_numpy()[:, None] + 1e-12 >= rows["reward"].to_numpy().reshape(-1, 3).T).all()


def test_random_is_even_and_decided_by_the_seed(rows: pd.DataFrame, task: EconomyTask) -> None:
    again = baseline_rows(TEST, TRAIN, task, task.params)
    pd.testing.assert_frame_equal(again, rows)
    seeded = baseline_rows(TEST, TRAIN, task, task.params.model_copy(update={"seed": 1}))
    same = (seeded == rows).all(axis=1)
    assert set(rows["baseline"][~same]) == {"random"}
    many = [problem.model_copy(update={"id": f"{problem.id}-{k}"}) for k in range(50) for problem in TEST]
    drawn = baseline_rows(many, TRAIN, task, task.params).query("baseline == 'random'")
    assert len(drawn) == DRAWS * len(many)
    assert drawn.groupby("id")["work"].nunique().eq(DRAWS).all()
    for name in ("work", "consumption"):
        assert drawn[name].mean() == pytest.approx(0.5, abs=0.03)
        assert drawn[name].std() == pytest.approx(12**-0.5, abs=0.02)
    assert abs(drawn["work"].corr(drawn["consumption"])) < 0.1


def test_a_kind_without_training_states_is_refused(task: EconomyTask) -> None:
    employed = [problem for problem in TRAIN if problem.id[0] == "a"]
    params = task.params.model_copy(update={"dataset_sizes": [4]})
    with pytest.raises(ValueError, match="no unemployed training state of another household than 21's"):
        baseline_rows(TEST, employed, task, params)

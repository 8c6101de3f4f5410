"""Baselines of the economy, checked against the task's own rewards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from planward.core.records import Record
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.economy.environment.decisions import Decision
from planward.tasks.economy.environment.states import State
from planward.tasks.economy.environment.utility import GRID_SIZE
from planward.tasks.economy.reporting.baselines import NUM_DRAWS, build_baselines, find_best_constant
from planward.tasks.economy.task import EconomyTask, read_state

STATE = State(
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


def build_problem(
    name: str, household: int, decision: tuple[float, float], threshold: float = 0.9, **changes: object
) -> Record:
    """A problem whose state differs from `STATE` by `changes`."""
    state = replace(STATE, **changes)  # type: ignore[arg-type]
    meta = {"scenario": state.scenario, "domain_file": "economy", "problem_file": name}
    meta |= {"household": household, "month": 0, "threshold": threshold, "state": asdict(state)}
    response = json.dumps(dict(zip(("work", "consumption"), decision, strict=True)))
    return Record.model_validate({"id": name, "prompt": "", "response": response, "meta": meta})


TRAIN = [
    build_problem("a1", 1, (0.1, 0.2), wealth=5000.0),
    build_problem("a2", 2, (0.2, 0.4), wealth=5100.0),
    build_problem("a3", 3, (0.4, 0.6), wealth=6000.0),
    build_problem("a4", 4, (0.5, 0.7), wealth=9000.0),
    build_problem("a5", 5, (0.8, 0.8), wealth=20000.0),
    build_problem("a6", 6, (0.9, 0.9), wealth=50000.0),
    build_problem("b1", 7, (0.6, 0.1), employed=False),
    build_problem("b2", 8, (0.7, 0.1), employed=False, wealth=20000.0),
    *(build_problem(f"b{k}", k, (0.3, 0.1), employed=False, wealth=90000.0) for k in (3, 4, 5, 6)),
]
TEST = [
    build_problem("t1", 1, (0.33, 0.44), wealth=5000.0),  # a1's household and state
    build_problem("t2", 20, (0.48, 0.26), threshold=-0.5, wealth=49000.0),
    build_problem("t3", 21, (0.5, 0.5), threshold=0.999, employed=False),
]


@pytest.fixture(scope="module")
def task(shipped_economy: EconomyParams) -> EconomyTask:
    """The economy, whose smallest training set has the first four records of each scenario."""
    return EconomyTask(shipped_economy.model_copy(update={"dataset_sizes": [8, 12]}), Path())


@pytest.fixture(scope="module")
def rows(task: EconomyTask) -> pd.DataFrame:
    return build_baselines(TEST, TRAIN, task, task.params)


def list_decisions(rows: pd.DataFrame, baseline: str) -> dict[str, tuple[float, float]]:
    """Decisions of a baseline with one decision per problem, by problem."""
    part = rows[rows["baseline"] == baseline]
    return dict(zip(part["id"], part[["work", "consumption"]].itertuples(index=False, name=None), strict=True))


def compute_mean_reward(task: EconomyTask, problems: Sequence[Record], decision: Decision) -> float:
    return float(np.mean([task.compute_reward(read_state(problem), decision) for problem in problems]))


def test_rewards_and_good_are_those_of_the_task(rows: pd.DataFrame, task: EconomyTask) -> None:
    problems = {problem.id: problem for problem in TEST}
    for row in rows.itertuples():
        verdict = task.verify(problems[row.id], json.dumps({"work": row.work, "consumption": row.consumption}))
        assert row.reward == pytest.approx(verdict.reward, abs=1e-12)
        assert row.good == verdict.success
    assert {row.household for row in rows.itertuples()} == {"1", "20", "21"}


def test_constant_is_the_best_decision_on_the_training_states(rows: pd.DataFrame, task: EconomyTask) -> None:
    axis = [round(k / (GRID_SIZE - 1), 2) for k in range(GRID_SIZE)]
    rewards = {(w, c): compute_mean_reward(task, TRAIN, Decision(w, c)) for w in axis for c in axis[::5]}
    constant = tuple(find_best_constant(TRAIN, task.params.economy))
    assert compute_mean_reward(task, TRAIN, Decision(*constant)) >= max(rewards.values()) - 1e-9
    neighbours = [(constant[0] + dw, constant[1] + dc) for dw in (-0.02, 0, 0.02) for dc in (-0.02, 0, 0.02)]
    valid = [Decision(w, c) for w, c in neighbours if min(w, c) >= 0 and max(w, c) <= 1]
    assert (
        compute_mean_reward(task, TRAIN, Decision(*constant))
        >= max(compute_mean_reward(task, TRAIN, near) for near in valid) - 1e-9
    )
    assert set(list_decisions(rows, "constant").values()) == {constant}
    other = tuple(find_best_constant([problem for problem in TRAIN if problem.id[0] == "b"], task.params.economy))
    assert other != constant


def test_nearest_is_a_training_state_of_the_same_scenario_and_another_household(rows: pd.DataFrame) -> None:
    # neither a1, of t1's household, nor a state of the test split
    assert list_decisions(rows, "nearest") == {"t1": (0.2, 0.4), "t2": (0.9, 0.9), "t3": (0.6, 0.1)}
    # the smallest set has a1 to a4 and b1 to b4
    assert list_decisions(rows, "nearest-8") == {"t1": (0.2, 0.4), "t2": (0.5, 0.7), "t3": (0.6, 0.1)}


def test_mean_of_the_four_nearest(rows: pd.DataFrame) -> None:
    decisions = list_decisions(rows, "four-nearest-mean")
    assert decisions["t1"] == pytest.approx((1.1 / 3, 1.7 / 3))  # a2, a3, a4: there are only three
    assert decisions["t2"] == pytest.approx((0.3, 1.9 / 4))
    assert decisions["t3"] == pytest.approx((1.9 / 4, 0.1))


def test_marks_are_the_reference_and_the_best_decision(rows: pd.DataFrame) -> None:
    assert list_decisions(rows, "reference") == {"t1": (0.33, 0.44), "t2": (0.48, 0.26), "t3": (0.5, 0.5)}
    best = rows[rows["baseline"] == "best"]
    assert list(best["reward"]) == pytest.approx([1.0] * 3, abs=1e-12)
    assert best["good"].all()
    assert (best["reward"].to_numpy()[:, None] + 1e-12 >= rows["reward"].to_numpy().reshape(-1, 3).T).all()


def test_random_is_uniform_and_seeded(rows: pd.DataFrame, task: EconomyTask) -> None:
    same_rows = build_baselines(TEST, TRAIN, task, task.params)
    pd.testing.assert_frame_equal(same_rows, rows)
    other_rows = build_baselines(TEST, TRAIN, task, task.params.model_copy(update={"seed": 1}))
    same = (other_rows == rows).all(axis=1)
    assert set(rows["baseline"][~same]) == {"random"}
    copies = [problem.model_copy(update={"id": f"{problem.id}-{k}"}) for k in range(50) for problem in TEST]
    random = build_baselines(copies, TRAIN, task, task.params).query("baseline == 'random'")
    assert len(random) == NUM_DRAWS * len(copies)
    assert random.groupby("id")["work"].nunique().eq(NUM_DRAWS).all()
    for name in ("work", "consumption"):
        assert random[name].mean() == pytest.approx(0.5, abs=0.03)
        assert random[name].std() == pytest.approx(12**-0.5, abs=0.02)
    assert abs(random["work"].corr(random["consumption"])) < 0.1


def test_a_scenario_without_training_states_is_refused(task: EconomyTask) -> None:
    employed_problems = [problem for problem in TRAIN if problem.id[0] == "a"]
    params = task.params.model_copy(update={"dataset_sizes": [4]})
    with pytest.raises(ValueError, match="no unemployed training state of another household than 21's"):
        build_baselines(TEST, employed_problems, task, params)

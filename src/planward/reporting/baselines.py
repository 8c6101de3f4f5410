"""Baselines of the economy: what a chooser without a language model decides in the test problems' states.

- `random`: a decision drawn evenly from all, `DRAWS` times a state.
- `constant`: for every state the one decision, of the grid that scales rewards, whose mean reward over all training
  states is highest.
- `nearest`: the reference decision of the nearest training state, out of all; `nearest-N`: out of the smallest
  training set, of N, which is the worked example that a model is shown next to the query.
- `four-nearest-mean`: the mean of the reference decisions of the four nearest states of that set.
- `reference`: the state's own reference decision.
- `best`: the state's best decision of the grid, with a reward of 1.

The last two are marks rather than choosers: they need what the test problem does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from planward.curriculum.sets import training_set
from planward.params import Economy, Params
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.economy.decisions import strict
from planward.tasks.economy.states import States, stacked
from planward.tasks.economy.task import household_of, state_of, threshold_of
from planward.tasks.economy.utility import decision_grid, rewards, scaled, utility

if TYPE_CHECKING:
    from planward.tasks.economy.states import Numbers

BEST = "best"
DRAWS = 16
NEAREST = 4
CHUNK = 64  # states valued at once


def baseline_rows(test: Sequence[Record], train: Sequence[Record], task: Task, params: Params) -> pd.DataFrame:
    """What each baseline decides, one row a decision: baseline, id, household, work, consumption, reward, good.

    Args:
        train: the whole training split.
        task: gives the nearest states, by the rule of worked examples.

    Raises:
        ValueError: the training split has no state to compare a test problem's with, or too few for its smallest set.
    """
    size = params.dataset_sizes[0]
    smallest = training_set(train, size)
    states = stacked([state_of(problem) for problem in test])
    best = np.concatenate([valued.argmax(axis=-1) for valued in _grid_rewards(states, params.economy)])
    decisions = {
        "random": np.random.default_rng([params.seed, 5]).random((2, len(test), DRAWS)),
        "constant": np.broadcast_to(constant(train, params.economy)[:, None, None], (2, len(test), 1)),
        "nearest": nearest_mean(test, train, 1, task),
        f"nearest-{size}": nearest_mean(test, smallest, 1, task),
        "four-nearest-mean": nearest_mean(test, smallest, NEAREST, task),
        "reference": references(test)[..., None],
        BEST: np.stack(decision_grid())[:, best, None],
    }  # of shape [2, problems, decisions a problem]: work and consumption
    work, consumption = np.concatenate(list(decisions.values()), axis=-1)
    places = np.array_split(np.arange(len(test)), -(-len(test) // CHUNK))
    valued = np.concatenate([rewards(states[at], work[at], consumption[at], params.economy) for at in places])
    names = np.repeat(list(decisions), [chosen.shape[-1] for chosen in decisions.values()])
    wide = dict(zip(("work", "consumption", "reward"), (work, consumption, valued), strict=True))
    rows = pd.DataFrame(
        {"baseline": np.repeat(names, len(test)), "id": np.tile([problem.id for problem in test], len(names))}
        | {"household": np.tile([str(household_of(problem)) for problem in test], len(names))}
        | {name: values.T.ravel() for name, values in wide.items()}
    )
    return rows.assign(good=rows["reward"] >= np.tile([threshold_of(problem) for problem in test], len(names)))


def constant(train: Sequence[Record], economy: Economy) -> Numbers:
    """Work and consumption, of shape [2], of the grid's decision with the highest mean reward over these states."""
    states = stacked([state_of(problem) for problem in train])
    total = np.sum([valued.sum(axis=0) for valued in _grid_rewards(states, economy)], axis=0)
    return np.stack(decision_grid())[:, int(total.argmax())]


def nearest_mean(test: Sequence[Record], pool: Sequence[Record], count: int, task: Task) -> Numbers:
    """The mean of the reference decisions of the `count` states in the pool nearest to each problem's: [2, n, 1].

    Raises:
        ValueError: the pool has none of a problem's scenario and of another household.
    """
    means = []
    for problem in test:
        near = task.shots(problem, pool, count, "")
        if not near:
            raise ValueError(f"no {problem.domain} training state of another household than {household_of(problem)}'s")
        means.append(references(near).mean(axis=-1))
    return np.stack(means, axis=-1)[..., None]


def references(problems: Sequence[Record]) -> Numbers:
    """Work and consumption of the problems' reference decisions, of shape [2, n]."""
    found = [strict(problem.response or "") for problem in problems]
    return np.array([[decision.work for decision in found], [decision.consumption for decision in found]])


def _grid_rewards(states: States, economy: Economy) -> list[Numbers]:
    """Rewards of every decision on the grid in each state, `CHUNK` states an array of shape [states, decisions]."""
    work, consumption = decision_grid()
    places, found = np.array_split(np.arange(len(states.age)), -(-len(states.age) // CHUNK)), []
    for at in places:
        values = utility(states[at][:, None], work, consumption, economy)
        found.append(scaled(values, values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)))
    return found

"""Baselines of the economy: decisions without a language model on the test problems.

- `random`: uniform over all decisions, `NUM_DRAWS` times per state.
- `constant`: for every state the same decision, the one of the grid with the highest mean reward over all training
  states.
- `nearest`: the reference decision of the nearest of all training states; `nearest-N`: of the nearest state of the
  smallest training set, of N, which is the worked example next to the problem in a prompt.
- `four-nearest-mean`: the mean of the reference decisions of the four nearest states of that set.
- `reference`: the reference decision of the state itself.
- `best`: the best decision of the grid, with a reward of 1.

The last two are marks rather than baselines: they need what the test problem does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from planward.core.records import Record
from planward.core.tasks import Task
from planward.curriculum.training_sets import select_training_set
from planward.tasks.economy.environment.config import EconomyConfig, EconomyParams
from planward.tasks.economy.environment.decisions import parse_decision
from planward.tasks.economy.environment.states import States, stack_states
from planward.tasks.economy.environment.utility import (
    build_decision_grid,
    compute_rewards,
    compute_utility,
    scale_utilities,
)
from planward.tasks.economy.task import read_household, read_state, read_threshold

if TYPE_CHECKING:
    from planward.tasks.economy.environment.states import FloatArray

BEST = "best"
NUM_DRAWS = 16
NUM_NEAREST = 4
CHUNK_SIZE = 64  # states whose rewards are computed at once


def build_baselines(test: Sequence[Record], train: Sequence[Record], task: Task, params: EconomyParams) -> pd.DataFrame:
    """Build one row per decision of a baseline: baseline, id, household, work, consumption, reward, good.

    Args:
        train: the whole training split.
        task: selects the nearest states, as it selects worked examples.

    Raises:
        ValueError: the training split has no state comparable to a test problem, or too few for its smallest set.
    """
    size = params.dataset_sizes[0]
    smallest_set = select_training_set(train, size)
    states = stack_states([read_state(problem) for problem in test])
    best = np.concatenate([rewards.argmax(axis=-1) for rewards in _compute_grid_rewards(states, params.economy)])
    decisions = {
        "random": np.random.default_rng([params.seed, 5]).random((2, len(test), NUM_DRAWS)),
        "constant": np.broadcast_to(find_best_constant(train, params.economy)[:, None, None], (2, len(test), 1)),
        "nearest": compute_nearest_mean(test, train, 1, task),
        f"nearest-{size}": compute_nearest_mean(test, smallest_set, 1, task),
        "four-nearest-mean": compute_nearest_mean(test, smallest_set, NUM_NEAREST, task),
        "reference": parse_references(test)[..., None],
        BEST: np.stack(build_decision_grid())[:, best, None],
    }  # work and consumption, of shape [2, problems, decisions per problem]
    work, consumption = np.concatenate(list(decisions.values()), axis=-1)
    chunks = np.array_split(np.arange(len(test)), -(-len(test) // CHUNK_SIZE))
    rewards = np.concatenate([compute_rewards(states[c], work[c], consumption[c], params.economy) for c in chunks])
    names = np.repeat(list(decisions), [values.shape[-1] for values in decisions.values()])
    arrays = dict(zip(("work", "consumption", "reward"), (work, consumption, rewards), strict=True))
    rows = pd.DataFrame(
        {"baseline": np.repeat(names, len(test)), "id": np.tile([problem.id for problem in test], len(names))}
        | {"household": np.tile([str(read_household(problem)) for problem in test], len(names))}
        | {name: values.T.ravel() for name, values in arrays.items()}
    )
    return rows.assign(good=rows["reward"] >= np.tile([read_threshold(problem) for problem in test], len(names)))


def find_best_constant(train: Sequence[Record], economy: EconomyConfig) -> FloatArray:
    """Find the decision of the grid with the highest mean reward over these states: [2]."""
    states = stack_states([read_state(problem) for problem in train])
    total = np.sum([rewards.sum(axis=0) for rewards in _compute_grid_rewards(states, economy)], axis=0)
    return np.stack(build_decision_grid())[:, int(total.argmax())]


def compute_nearest_mean(test: Sequence[Record], pool: Sequence[Record], count: int, task: Task) -> FloatArray:
    """Compute the mean reference decision of the `count` states of the pool nearest to each problem: [2, n, 1].

    Raises:
        ValueError: the pool has no state of a problem's scenario from another household.
    """
    means = []
    for problem in test:
        nearest = task.select_examples(problem, pool, count, "")
        if not nearest:
            household = read_household(problem)
            raise ValueError(f"no {problem.domain} training state of another household than {household}'s")
        means.append(parse_references(nearest).mean(axis=-1))
    return np.stack(means, axis=-1)[..., None]


def parse_references(problems: Sequence[Record]) -> FloatArray:
    """Parse the problems' reference decisions: work and consumption, of shape [2, n]."""
    decisions = [parse_decision(problem.response or "") for problem in problems]
    return np.array([[decision.work for decision in decisions], [decision.consumption for decision in decisions]])


def _compute_grid_rewards(states: States, economy: EconomyConfig) -> list[FloatArray]:
    """Rewards of every decision of the grid, in arrays of shape [up to CHUNK_SIZE states, decisions]."""
    work, consumption = build_decision_grid()
    chunks = np.array_split(np.arange(len(states.age)), -(-len(states.age) // CHUNK_SIZE))
    rewards = []
    for chunk in chunks:
        utilities = compute_utility(states[chunk][:, None], work, consumption, economy)
        lowest, highest = utilities.min(axis=-1, keepdims=True), utilities.max(axis=-1, keepdims=True)
        rewards.append(scale_utilities(utilities, lowest, highest))
    return rewards

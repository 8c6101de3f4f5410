"""Comparable states: they set the threshold of a good decision, and give the worked examples of a problem.

Distances are Euclidean between standardised features (age, log real amounts, tax bracket, rates), among states of one
scenario. Search is exact, with scikit-learn's k-d tree.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from sklearn.neighbors import KDTree
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from planward.tasks.economy.environment.config import EconomyConfig
from planward.tasks.economy.environment.decisions import Decision
from planward.tasks.economy.environment.simulator import Panel
from planward.tasks.economy.environment.states import AMOUNTS, State, States, stack_states
from planward.tasks.economy.environment.utility import compute_rewards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planward.tasks.economy.environment.states import FloatArray

LOG_OFFSET = 50.0  # coins at a price level of 1, added before the log: smaller differences count little
RATES = ("age", "bracket", "inflation", "interest", "unemployment")
CHUNK_SIZE = 64  # states whose rewards are computed at once
MAX_CACHED_POOLS = 8

Item = TypeVar("Item")


def compute_features(states: States) -> FloatArray:
    """Compute the features that states are compared by, of shape [n, features]; amounts are real."""
    amounts = [np.log(getattr(states, name) / states.price + LOG_OFFSET) for name in AMOUNTS]
    return np.stack([*amounts, *(getattr(states, name) for name in RATES)], axis=-1)


class TooFewMonths(ValueError):
    """An economy holds fewer months of a scenario than needed; the message names the key."""


class StateIndex:
    """Nearest-neighbour index of states; features are standardised by the indexed states."""

    def __init__(self, states: States) -> None:
        features = compute_features(states)
        self.size = len(features)
        scaler = StandardScaler().fit(features)
        self.mean, self.scale = scaler.mean_, scaler.scale_
        self.tree = KDTree((features - self.mean) / self.scale)

    def find_nearest(self, states: States, count: int) -> NDArray[np.int64]:
        """Positions of the `count` nearest states, nearest first: [n, min(count, size)]."""
        features = (compute_features(states) - self.mean) / self.scale
        nearest: NDArray[np.int64] = self.tree.query(features, min(count, self.size), return_distance=False)
        return nearest


@dataclass(frozen=True)
class Standard:
    """What counts as a good decision in a state.

    Attributes:
        threshold: lowest reward of a good decision.
        reference: a good decision, taken by a comparable household.
    """

    threshold: float
    reference: Decision


def compute_standards(
    states: States, reference: Panel, economy: EconomyConfig, seed: int, progress: bool = False
) -> list[Standard]:
    """Compute what counts as a good decision in each of n states.

    The `neighbours` nearest months of the reference panel, of the same scenario, give decisions, whose rewards are
    computed in the state itself. Their `good_quantile` is the threshold; one of the decisions that reach it, sampled
    with `seed`, is the reference.

    Raises:
        TooFewMonths: the reference panel has fewer months of a scenario than `neighbours`.
    """
    rng, standards = np.random.default_rng([seed, 3]), dict[int, Standard]()
    bar = tqdm(total=len(states.age), desc="standards", disable=not progress, leave=False)
    for is_employed in (1, 0):
        candidates = reference.states.employed == is_employed
        targets = np.flatnonzero(states.employed == is_employed)
        if not len(targets):
            continue
        if candidates.sum() < economy.neighbours:
            job = "with" if is_employed else "without"
            raise TooFewMonths(
                f"economy.neighbours: reference households have {candidates.sum()} months {job} a job; "
                "fix: lower it, or raise households or months in economy.simulator"
            )
        index = StateIndex(reference.states[candidates])
        work, consumption = reference.work[candidates], reference.consumption[candidates]
        for chunk in np.array_split(targets, -(-len(targets) // CHUNK_SIZE)):
            nearest = index.find_nearest(states[chunk], economy.neighbours)
            rewards = compute_rewards(states[chunk], work[nearest], consumption[nearest], economy)
            for row, position in enumerate(chunk):
                threshold = _round_down(float(np.quantile(rewards[row], economy.good_quantile)))
                month = nearest[row, rng.choice(np.flatnonzero(rewards[row] >= threshold))]
                decision = Decision(float(work[month]), float(consumption[month]))
                standards[int(position)] = Standard(threshold, decision)
            bar.update(len(chunk))
    bar.close()
    return [standards[position] for position in sorted(standards)]


class ExampleSelector(Generic[Item]):
    """Selects worked examples: the nearest items of a pool, without the problem itself and its household.

    The choice depends on the pool and the problem only. Indexes of the last `MAX_CACHED_POOLS` pools are cached.
    """

    def __init__(self, key: Callable[[Item], str], state: Callable[[Item], State], household: Callable[[Item], int]):
        """`key` identifies items: items with the same key have the same state."""
        self.key, self.state, self.household = key, state, household
        self.indexes: OrderedDict[tuple[str, ...], dict[bool, _ScenarioIndex]] = OrderedDict()

    def select(self, problem: Item, pool: Sequence[Item], count: int) -> list[Item]:
        """Select up to `count` items of the problem's scenario, the nearest last."""
        if count <= 0:
            return []
        state, household = self.state(problem), self.household(problem)
        scenario = self._get_indexes(pool).get(state.employed)
        if scenario is None:
            return []
        key = self.key(problem)
        max_excluded = scenario.household_counts[household] + scenario.key_counts[key]
        nearest = scenario.index.find_nearest(stack_states([state]), count + max_excluded)[0]
        candidates = [pool[scenario.positions[i]] for i in nearest]
        others = [item for item in candidates if self.household(item) != household and self.key(item) != key]
        return others[:count][::-1]

    def _get_indexes(self, pool: Sequence[Item]) -> dict[bool, _ScenarioIndex]:
        keys = tuple(map(self.key, pool))
        if keys not in self.indexes:
            self.indexes[keys] = self._build_indexes(pool)
            while len(self.indexes) > MAX_CACHED_POOLS:
                self.indexes.popitem(last=False)
        self.indexes.move_to_end(keys)
        return self.indexes[keys]

    def _build_indexes(self, pool: Sequence[Item]) -> dict[bool, _ScenarioIndex]:
        states, indexes = [self.state(item) for item in pool], dict[bool, _ScenarioIndex]()
        for is_employed in sorted({state.employed for state in states}):
            positions = [i for i, state in enumerate(states) if state.employed == is_employed]
            households = Counter(self.household(pool[i]) for i in positions)
            keys = Counter(self.key(pool[i]) for i in positions)
            index = StateIndex(stack_states([states[i] for i in positions]))
            indexes[is_employed] = _ScenarioIndex(index, positions, households, keys)
        return indexes


@dataclass(frozen=True)
class _ScenarioIndex:
    """The items of a pool that are of one scenario."""

    index: StateIndex
    positions: list[int]  # in the pool
    household_counts: Counter[int]
    key_counts: Counter[str]


def _round_down(reward: float) -> float:
    """Round down to six decimals: the same on every machine, and never above a decision that reached it."""
    return float(np.floor(reward * 1e6) / 1e6)

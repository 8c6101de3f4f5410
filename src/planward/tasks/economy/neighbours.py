"""Comparable states: what tells a good decision, and which problems are worked examples.

Nearness is Euclidean between standardised features of states (age, amounts as the log of their worth, tax bracket,
rates), among states of one scenario, with scikit-learn's exact k-d tree.
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

from planward.params import Economy
from planward.tasks.economy.decisions import Decision
from planward.tasks.economy.simulator import Panel
from planward.tasks.economy.states import AMOUNTS, State, States, stacked
from planward.tasks.economy.utility import rewards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planward.tasks.economy.states import Numbers

SMALL = 50.0  # coins at a price level of 1: differences below it count little
RATES = ("age", "bracket", "inflation", "interest", "unemployment")
CHUNK = 64  # states valued at once
POOLS = 8  # whose indexes are kept

Item = TypeVar("Item")


def features(states: States) -> Numbers:
    """What makes states comparable, of shape [n, features]; the price level is inside amounts' worth."""
    amounts = [np.log(getattr(states, name) / states.price + SMALL) for name in AMOUNTS]
    return np.stack([*amounts, *(getattr(states, name) for name in RATES)], axis=-1)


class TooFewMonths(ValueError):
    """An economy holds fewer months of some kind than are asked for; the message names the key."""


class Index:
    """Nearest states among those given, features standardised by them."""

    def __init__(self, states: States) -> None:
        table = features(states)
        self.size = len(table)
        scaler = StandardScaler().fit(table)
        self.middle, self.spread = scaler.mean_, scaler.scale_
        self.tree = KDTree((table - self.middle) / self.spread)

    def nearest(self, states: States, count: int) -> NDArray[np.int64]:
        """Places of the `count` nearest states, nearest first: [n, count], fewer where there are fewer."""
        table = (features(states) - self.middle) / self.spread
        found: NDArray[np.int64] = self.tree.query(table, min(count, self.size), return_distance=False)
        return found


@dataclass(frozen=True)
class Standard:
    """What is good in a state.

    Attributes:
        threshold: reward from which a decision is good.
        reference: a good decision, of a comparable household.
    """

    threshold: float
    reference: Decision


def standards(states: States, reference: Panel, economy: Economy, seed: int, progress: bool = False) -> list[Standard]:
    """What is good in each of n states.

    The decisions of the `neighbours` nearest households' months of the reference panel, of the same scenario, are
    valued in the state; the `good_quantile` of these rewards is the threshold, and one of the decisions that reach it,
    drawn by `seed`, is the reference.

    Raises:
        TooFewMonths: the reference panel has fewer months of a scenario than `neighbours`.
    """
    rng, found = np.random.default_rng([seed, 3]), dict[int, Standard]()
    bar = tqdm(total=len(states.age), desc="standards", disable=not progress, leave=False)
    for employed in (1, 0):
        known = reference.states.employed == employed
        asked = np.flatnonzero(states.employed == employed)
        if not len(asked):
            continue
        if known.sum() < economy.neighbours:
            kind = "with" if employed else "without"
            raise TooFewMonths(
                f"economy.neighbours: reference households have {known.sum()} months {kind} a job, fewer than that; "
                "take fewer, or more households or months in economy.simulator"
            )
        index = Index(reference.states[known])
        work, consumption = reference.work[known], reference.consumption[known]
        for places in np.array_split(asked, -(-len(asked) // CHUNK)):
            near = index.nearest(states[places], economy.neighbours)
            valued = rewards(states[places], work[near], consumption[near], economy)
            for row, place in enumerate(places):
                threshold = _floored(float(np.quantile(valued[row], economy.good_quantile)))
                chosen = near[row, rng.choice(np.flatnonzero(valued[row] >= threshold))]
                decision = Decision(float(work[chosen]), float(consumption[chosen]))
                found[int(place)] = Standard(threshold, decision)
            bar.update(len(places))
    bar.close()
    return [found[place] for place in sorted(found)]


class Examples(Generic[Item]):
    """Worked examples out of pools: the nearest states, never the problem itself nor one of the same household.

    A pool's index is made once and kept for as long as it is among the last `POOLS` asked for. Nothing but the pool
    and the problem decides the choice.
    """

    def __init__(self, key: Callable[[Item], str], state: Callable[[Item], State], household: Callable[[Item], int]):
        """`key` tells items apart: items of one key have one state."""
        self.key, self.state, self.household = key, state, household
        self.indexes: OrderedDict[tuple[str, ...], dict[bool, _Side]] = OrderedDict()

    def nearest(self, problem: Item, pool: Sequence[Item], count: int) -> list[Item]:
        """Up to `count` items of the problem's scenario, the nearest last."""
        if count <= 0:
            return []
        state, household = self.state(problem), self.household(problem)
        side = self._sides(pool).get(state.employed)
        if side is None:
            return []
        own = side.of_household[household] + side.of_key[self.key(problem)]  # at most so many are passed over
        near = [int(side.places[i]) for i in side.index.nearest(stacked([state]), count + own)[0]]
        key = self.key(problem)
        others = [pool[i] for i in near if self.household(pool[i]) != household and self.key(pool[i]) != key]
        return others[:count][::-1]

    def _sides(self, pool: Sequence[Item]) -> dict[bool, _Side]:
        keys = tuple(map(self.key, pool))
        if keys not in self.indexes:
            self.indexes[keys] = self._indexed(pool)
            while len(self.indexes) > POOLS:
                self.indexes.popitem(last=False)
        self.indexes.move_to_end(keys)
        return self.indexes[keys]

    def _indexed(self, pool: Sequence[Item]) -> dict[bool, _Side]:
        states, sides = [self.state(item) for item in pool], dict[bool, _Side]()
        for employed in sorted({state.employed for state in states}):
            places = [i for i, state in enumerate(states) if state.employed == employed]
            households = Counter(self.household(pool[i]) for i in places)
            keys = Counter(self.key(pool[i]) for i in places)
            sides[employed] = _Side(Index(stacked([states[i] for i in places])), places, households, keys)
        return sides


@dataclass(frozen=True)
class _Side:
    """A pool's items of one scenario: their index and their places in the pool."""

    index: Index
    places: list[int]
    of_household: Counter[int]
    of_key: Counter[str]


def _floored(reward: float) -> float:
    """To six decimals, downwards: the same on every machine, and never above a decision that reached it."""
    return float(np.floor(reward * 1e6) / 1e6)

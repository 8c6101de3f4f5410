"""Trajectory constraints as small automata that watch a plan's states go by.

A monitor's memory is a few more bits of the state that it watches. So a trajectory is never looked at twice, and a
search over states is at once one over states and monitors. The semantics are those of PDDL3 (Gerevini and Long 2006)
as VAL implements them: docs/reference/verdicts.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from planward.pddl.conditions import ALWAYS, Condition, bits_of, conjunction
from planward.pddl.constraints import Constraint
from planward.pddl.formulas import text

if TYPE_CHECKING:
    from planward.pddl.grounding import Binding, Grounding

VIOLATED = -1


@dataclass(frozen=True)
class Monitor:
    """`said` is the constraint as PDDL; a plan may end only where `final` holds."""

    said: str
    condition: Condition
    final: Condition = ALWAYS

    def observe(self, state: int) -> int:
        """The state with this monitor's memory brought up to date, or VIOLATED.

        To observe a state again changes nothing, so that only changes of `watched` need to be observed.
        """
        return state

    @property
    def watched(self) -> int:
        return self.condition.bits


@dataclass(frozen=True)
class Always(Monitor):
    def observe(self, state: int) -> int:
        return state if self.condition.holds(state) else VIOLATED


@dataclass(frozen=True)
class Never(Monitor):
    def observe(self, state: int) -> int:
        return VIOLATED if self.condition.holds(state) else state

    @property
    def pair(self) -> tuple[int, ...]:
        """The two bits that must not be set together, if that is all it says."""
        bits = () if self.condition.forbids else tuple(bits_of(self.condition.needs))
        return bits if len(bits) == 2 else ()


@dataclass(frozen=True)
class Sometime(Monitor):
    seen: int = 0

    def observe(self, state: int) -> int:
        return state | self.seen if self.condition.holds(state) else state


@dataclass(frozen=True)
class AtMostOnce(Monitor):
    """Once: one unbroken stretch of states."""

    begun: int = 0
    over: int = 0

    def observe(self, state: int) -> int:
        if not self.condition.holds(state):
            return state | self.over if state & self.begun else state
        return VIOLATED if state & self.over else state | self.begun


@dataclass(frozen=True)
class SometimeBefore(Monitor):
    """`earlier` must hold in a state strictly before the first in which `condition` does."""

    earlier: Condition = ALWAYS
    seen: int = 0

    def observe(self, state: int) -> int:
        if not state & self.seen and self.condition.holds(state):
            return VIOLATED
        return state | self.seen if self.earlier.holds(state) else state

    @property
    def watched(self) -> int:
        return self.condition.bits | self.earlier.bits


@dataclass(frozen=True)
class SometimeAfter(Monitor):
    """`later` must hold in the same state as `condition` or in one after it."""

    later: Condition = ALWAYS
    pending: int = 0

    def observe(self, state: int) -> int:
        if self.later.holds(state):
            return state & ~self.pending
        return state | self.pending if self.condition.holds(state) else state

    @property
    def watched(self) -> int:
        return self.condition.bits | self.later.bits


class Monitors:
    """All monitors of a problem, each woken by the changes that it watches."""

    def __init__(self, members: Sequence[Monitor]) -> None:
        self.members = tuple(members)
        self.final = conjunction(monitor.final for monitor in members)
        self.watched = reduce(or_, (monitor.watched for monitor in members), 0)
        # Exclusions of two atoms, of which a `forall` makes many, are looked up by the one that comes true.
        self._excluded: dict[int, int] = defaultdict(int)
        self._watches = list[tuple[int, Monitor]]()
        for monitor in members:
            if isinstance(monitor, Never) and (pair := monitor.pair):
                self._excluded[pair[0]] |= pair[1]
                self._excluded[pair[1]] |= pair[0]
            else:
                self._watches.append((monitor.watched, monitor))
        self._exclusive = reduce(or_, self._excluded, 0)
        self._awake: dict[int, list[Monitor]] = {}

    def start(self, state: int) -> int:
        """The initial state with the monitors' memory, or VIOLATED."""
        for monitor in self.members:
            state = monitor.observe(state)
            if state == VIOLATED:
                return VIOLATED
        return state

    def observe(self, before: int, after: int) -> int:
        """The state `after` with the monitors' memory, or VIOLATED; `before` was observed."""
        change = (before ^ after) & self.watched
        if change:
            if new := change & after & self._exclusive:
                for bit in bits_of(new):
                    if after & self._excluded[bit]:
                        return VIOLATED
            awake = self._awake.get(change)
            if awake is None:
                awake = self._awake[change] = [monitor for mask, monitor in self._watches if mask & change]
            for monitor in awake:
                after = monitor.observe(after)
                if after == VIOLATED:
                    return VIOLATED
        return after

    def blamed(self, state: int) -> str:
        """The first constraint that a state violates, as PDDL; `state` with the memory of the state before it."""
        for monitor in self.members:
            state = monitor.observe(state)
            if state == VIOLATED:
                return monitor.said
        return next((monitor.said for monitor in self.members if not monitor.final.holds(state)), "")


def monitors_of(constraints: Sequence[Constraint], grounding: Grounding) -> Monitors:
    """A monitor for each constraint and binding of its variables; `always` over a conjunction is several."""
    members: list[Monitor] = []
    for constraint in constraints:
        for binding in grounding.bindings(constraint.variables, {}):
            members += _monitors(constraint, binding, grounding, len(members))
    return Monitors(members)


def _monitors(constraint: Constraint, binding: Binding, grounding: Grounding, number: int) -> Iterator[Monitor]:
    said = f"({' '.join([constraint.operator, *(text(formula, binding) for formula in constraint.formulas)])})"
    condition, *others = [grounding.condition(formula, binding) for formula in constraint.formulas]

    def memory(name: str) -> int:
        return grounding.bit((f"{name} {number}",))  # no predicate has a blank in its name

    match constraint.operator:
        case "always":
            for choice in condition.choices:
                yield _clause(said, choice)
            if condition.needs or condition.forbids:
                yield Always(said, Condition(condition.needs, condition.forbids))
        case "sometime":
            seen = memory("seen")
            yield Sometime(said, condition, Condition(needs=seen), seen)
        case "at-most-once":
            yield AtMostOnce(said, condition, begun=memory("begun"), over=memory("over"))
        case "sometime-before":
            yield SometimeBefore(said, condition, earlier=others[0], seen=memory("seen"))
        case "sometime-after":
            pending = memory("pending")
            yield SometimeAfter(said, condition, Condition(forbids=pending), others[0], pending)
        case "at end":
            yield Monitor(said, condition, condition)


def _clause(said: str, choice: tuple[Condition, ...]) -> Monitor:
    """`always` over a disjunction; one of literals says that their negations never hold together."""
    needs = forbids = 0
    for alternative in choice:
        if alternative.choices or len(list(bits_of(alternative.needs | alternative.forbids))) != 1:
            return Always(said, Condition(choices=(choice,)))
        needs |= alternative.forbids
        forbids |= alternative.needs
    if not choice or needs & forbids:  # nothing, or anything, would do
        return Always(said, Condition(choices=(choice,)))
    return Never(said, Condition(needs, forbids))

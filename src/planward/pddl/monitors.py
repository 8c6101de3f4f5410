"""Trajectory constraints as automata that run over a plan's states.

A monitor keeps its memory in extra bits of the state. So each state of a trajectory is evaluated once, and a search
over states covers the monitors too. The semantics are those of PDDL3 (Gerevini and Long 2006) as VAL implements them:
docs/reference/verdicts.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from planward.pddl.conditions import ALWAYS, Condition, conjoin, iter_bits
from planward.pddl.constraints import Constraint
from planward.pddl.formulas import render_formula

if TYPE_CHECKING:
    from planward.pddl.grounding import Binding, Grounding

VIOLATED = -1


@dataclass(frozen=True)
class Monitor:
    """One ground constraint; `text` is its PDDL, and a plan may end only where `final` holds."""

    text: str
    condition: Condition
    final: Condition = ALWAYS

    def observe(self, state: int) -> int:
        """Return the state with this monitor's memory updated, or VIOLATED.

        Idempotent: only changes of `watched_bits` need to be observed.
        """
        return state

    @property
    def watched_bits(self) -> int:
        """The bits that the monitor's verdict depends on."""
        return self.condition.bits


@dataclass(frozen=True)
class Always(Monitor):
    """`condition` must hold in every state."""

    def observe(self, state: int) -> int:
        return state if self.condition.holds(state) else VIOLATED


@dataclass(frozen=True)
class Never(Monitor):
    """`condition` must hold in no state."""

    def observe(self, state: int) -> int:
        return VIOLATED if self.condition.holds(state) else state

    @property
    def pair(self) -> tuple[int, ...]:
        """The two bits that must not be set together; empty where the constraint is not of that form."""
        bits = () if self.condition.forbids else tuple(iter_bits(self.condition.needs))
        return bits if len(bits) == 2 else ()


@dataclass(frozen=True)
class Sometime(Monitor):
    """`condition` must hold in some state."""

    seen: int = 0

    def observe(self, state: int) -> int:
        return state | self.seen if self.condition.holds(state) else state


@dataclass(frozen=True)
class AtMostOnce(Monitor):
    """`condition` may hold in one unbroken sequence of states only."""

    begun: int = 0
    over: int = 0

    def observe(self, state: int) -> int:
        if not self.condition.holds(state):
            return state | self.over if state & self.begun else state
        return VIOLATED if state & self.over else state | self.begun


@dataclass(frozen=True)
class SometimeBefore(Monitor):
    """`earlier` must hold in a state strictly before the first in which `condition` holds."""

    earlier: Condition = ALWAYS
    seen: int = 0

    def observe(self, state: int) -> int:
        if not state & self.seen and self.condition.holds(state):
            return VIOLATED
        return state | self.seen if self.earlier.holds(state) else state

    @property
    def watched_bits(self) -> int:
        return self.condition.bits | self.earlier.bits


@dataclass(frozen=True)
class SometimeAfter(Monitor):
    """`later` must hold in each state in which `condition` holds, or in a later one."""

    later: Condition = ALWAYS
    pending: int = 0

    def observe(self, state: int) -> int:
        if self.later.holds(state):
            return state & ~self.pending
        return state | self.pending if self.condition.holds(state) else state

    @property
    def watched_bits(self) -> int:
        return self.condition.bits | self.later.bits


class Monitors:
    """All monitors of a problem; each observes only the changes that it depends on."""

    def __init__(self, members: Sequence[Monitor]) -> None:
        self.members = tuple(members)
        self.final = conjoin(monitor.final for monitor in members)
        self.watched_bits = reduce(or_, (monitor.watched_bits for monitor in members), 0)
        # A `forall` produces many exclusions of two atoms: they are looked up by the atom that becomes true.
        self._excluded_by_bit: dict[int, int] = defaultdict(int)
        self._others = list[tuple[int, Monitor]]()
        for monitor in members:
            if isinstance(monitor, Never) and (pair := monitor.pair):
                self._excluded_by_bit[pair[0]] |= pair[1]
                self._excluded_by_bit[pair[1]] |= pair[0]
            else:
                self._others.append((monitor.watched_bits, monitor))
        self._excluded_bits = reduce(or_, self._excluded_by_bit, 0)
        self._monitors_by_change: dict[int, list[Monitor]] = {}

    def start(self, state: int) -> int:
        """Return the initial state with the monitors' memory, or VIOLATED."""
        for monitor in self.members:
            state = monitor.observe(state)
            if state == VIOLATED:
                return VIOLATED
        return state

    def observe(self, before: int, after: int) -> int:
        """Return the state `after` with the monitors' memory, or VIOLATED; `before` must have been observed."""
        change = (before ^ after) & self.watched_bits
        if change:
            if became_true := change & after & self._excluded_bits:
                for bit in iter_bits(became_true):
                    if after & self._excluded_by_bit[bit]:
                        return VIOLATED
            monitors = self._monitors_by_change.get(change)
            if monitors is None:
                monitors = self._monitors_by_change[change] = [
                    monitor for mask, monitor in self._others if mask & change
                ]
            for monitor in monitors:
                after = monitor.observe(after)
                if after == VIOLATED:
                    return VIOLATED
        return after

    def find_violated(self, state: int) -> str:
        """Return the first constraint that a state violates, as PDDL.

        `state` holds the memory of the state before it.
        """
        for monitor in self.members:
            state = monitor.observe(state)
            if state == VIOLATED:
                return monitor.text
        return next((monitor.text for monitor in self.members if not monitor.final.holds(state)), "")


def build_monitors(constraints: Sequence[Constraint], grounding: Grounding) -> Monitors:
    """Build a monitor for each constraint and binding of its variables, several for `always` over a conjunction."""
    members: list[Monitor] = []
    for constraint in constraints:
        for binding in grounding.iter_bindings(constraint.variables, {}):
            members += _iter_monitors(constraint, binding, grounding, len(members))
    return Monitors(members)


def _iter_monitors(constraint: Constraint, binding: Binding, grounding: Grounding, number: int) -> Iterator[Monitor]:
    formulas = (render_formula(formula, binding) for formula in constraint.formulas)
    text = f"({' '.join([constraint.operator, *formulas])})"
    condition, *others = [grounding.ground_formula(formula, binding) for formula in constraint.formulas]

    def allocate_bit(name: str) -> int:
        return grounding.get_bit((f"{name} {number}",))  # no predicate has a blank in its name

    match constraint.operator:
        case "always":
            for choice in condition.choices:
                yield _build_clause_monitor(text, choice)
            if condition.needs or condition.forbids:
                yield Always(text, Condition(condition.needs, condition.forbids))
        case "sometime":
            seen_bit = allocate_bit("seen")
            yield Sometime(text, condition, Condition(needs=seen_bit), seen_bit)
        case "at-most-once":
            yield AtMostOnce(text, condition, begun=allocate_bit("begun"), over=allocate_bit("over"))
        case "sometime-before":
            yield SometimeBefore(text, condition, earlier=others[0], seen=allocate_bit("seen"))
        case "sometime-after":
            pending_bit = allocate_bit("pending")
            yield SometimeAfter(text, condition, Condition(forbids=pending_bit), others[0], pending_bit)
        case "at end":
            yield Monitor(text, condition, condition)


def _build_clause_monitor(text: str, choice: tuple[Condition, ...]) -> Monitor:
    """Build `always` over a disjunction; one of literals becomes `Never` over their negations."""
    needs = forbids = 0
    for alternative in choice:
        if alternative.choices or len(list(iter_bits(alternative.needs | alternative.forbids))) != 1:
            return Always(text, Condition(choices=(choice,)))
        needs |= alternative.forbids
        forbids |= alternative.needs
    if not choice or needs & forbids:  # never or always satisfied
        return Always(text, Condition(choices=(choice,)))
    return Never(text, Condition(needs, forbids))

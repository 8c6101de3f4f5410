"""Ground formulas over bit-mask states: a state is an int with one bit per atom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Condition(NamedTuple):
    """A ground formula: all bits of `needs` are set, none of `forbids`, and an alternative of each choice holds."""

    needs: int = 0
    forbids: int = 0
    choices: tuple[tuple[Condition, ...], ...] = ()

    def holds(self, state: int) -> bool:
        """Return whether the formula holds in the state."""
        if state & self.needs != self.needs or state & self.forbids:
            return False
        return not self.choices or all(any(c.holds(state) for c in choice) for choice in self.choices)

    @property
    def bits(self) -> int:
        """All bits that the truth value depends on."""
        mask = self.needs | self.forbids
        for choice in self.choices:
            for condition in choice:
                mask |= condition.bits
        return mask


ALWAYS = Condition()
NEVER = Condition(choices=((),))


def conjoin(conditions: Iterable[Condition]) -> Condition:
    """Return the conjunction."""
    needs = forbids = 0
    choices: list[tuple[Condition, ...]] = []
    for condition in conditions:
        needs |= condition.needs
        forbids |= condition.forbids
        choices += condition.choices
    return NEVER if needs & forbids or () in choices else Condition(needs, forbids, tuple(choices))


def disjoin(conditions: Iterable[Condition]) -> Condition:
    """Return the disjunction."""
    possible = []
    for condition in conditions:
        if condition == ALWAYS:
            return ALWAYS
        if condition != NEVER:
            possible.append(condition)
    return possible[0] if len(possible) == 1 else Condition(choices=(tuple(possible),))


def negate(condition: Condition) -> Condition:
    """Return the negation."""
    parts = [Condition(forbids=bit) for bit in iter_bits(condition.needs)]
    parts += [Condition(needs=bit) for bit in iter_bits(condition.forbids)]
    parts += [conjoin(map(negate, choice)) for choice in condition.choices]
    return disjoin(parts)


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the set bits of a mask, the lowest first, each as a mask."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit

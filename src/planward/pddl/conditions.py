"""Ground formulas over bit-mask states: a state is an int, a bit an atom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Condition(NamedTuple):
    """A ground formula: all of `needs` is set, none of `forbids`, and an alternative of each of `choices` holds."""

    needs: int = 0
    forbids: int = 0
    choices: tuple[tuple[Condition, ...], ...] = ()

    def holds(self, state: int) -> bool:
        if state & self.needs != self.needs or state & self.forbids:
            return False
        return not self.choices or all(any(c.holds(state) for c in choice) for choice in self.choices)

    @property
    def bits(self) -> int:
        """Every bit on which the truth depends."""
        mask = self.needs | self.forbids
        for choice in self.choices:
            for condition in choice:
                mask |= condition.bits
        return mask


ALWAYS = Condition()
NEVER = Condition(choices=((),))


def conjunction(conditions: Iterable[Condition]) -> Condition:
    needs = forbids = 0
    choices: list[tuple[Condition, ...]] = []
    for condition in conditions:
        needs |= condition.needs
        forbids |= condition.forbids
        choices += condition.choices
    return NEVER if needs & forbids or () in choices else Condition(needs, forbids, tuple(choices))


def disjunction(conditions: Iterable[Condition]) -> Condition:
    possible = []
    for condition in conditions:
        if condition == ALWAYS:
            return ALWAYS
        if condition != NEVER:
            possible.append(condition)
    return possible[0] if len(possible) == 1 else Condition(choices=(tuple(possible),))


def negation(condition: Condition) -> Condition:
    parts = [Condition(forbids=bit) for bit in bits_of(condition.needs)]
    parts += [Condition(needs=bit) for bit in bits_of(condition.forbids)]
    parts += [conjunction(map(negation, choice)) for choice in condition.choices]
    return disjunction(parts)


def bits_of(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit

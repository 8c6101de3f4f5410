"""Which sequences of tokens are computed behind which common beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Group:
    """Sequences, by place, that begin with the same `length` tokens."""

    members: list[int]
    length: int


def groups(sequences: Sequence[Tokens]) -> list[Group]:
    """Divide the sequences into groups with common beginnings, so that few tokens are left to compute.

    A group of n with a beginning of length l saves (n - 1) l tokens. Every sequence is in one group, and has one token
    at least behind the beginning. Groups come in the order of their tokens, as do the members.

    The beginnings that several sequences share are the inner nodes of their trie, whose intervals follow from the
    lengths that neighbours share once the sequences are sorted (Abouelhoda, Kurtz and Ohlebusch, 2004). From the leaves
    up, all sequences below a node become one group where that saves more than the groups found below it do together.
    """
    if not sequences:
        return []
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">u4").tobytes())
    ranked = [sequences[i] for i in order]
    shared = [_shared(one, other) for one, other in pairwise(ranked)]
    stack = [_Node(0, 0)]
    for place, length in enumerate([*shared, 0]):
        below = _Node(place, len(ranked[place])).closed(place)
        start = place
        while stack[-1].length > length:
            node = stack.pop()
            node.add(below)
            start, below = node.start, node.closed(place)
        if stack[-1].length < length:
            stack.append(_Node(start, length))
        stack[-1].add(below)
    return [Group(order[first : last + 1], length) for first, last, length in stack[0].parts]


class _Node:
    """A beginning of `length` tokens that the sequences from `start` on share, and the best division below it."""

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length, self.saved = start, length, 0
        self.parts: list[tuple[int, int, int]] = []  # first and last sequence, length of their beginning

    def add(self, below: tuple[int, list[tuple[int, int, int]]]) -> None:
        self.saved += below[0]
        self.parts += below[1]

    def closed(self, last: int) -> tuple[int, list[tuple[int, int, int]]]:
        """The tokens saved up to the sequence `last`, and the parts that save them."""
        alone = (last - self.start) * self.length
        if alone > self.saved or not self.parts:
            return alone, [(self.start, last, self.length if last > self.start else 0)]
        return self.saved, self.parts


def _shared(one: Tokens, other: Tokens) -> int:
    """How many tokens two sequences begin with alike, short of all of either."""
    most = min(len(one), len(other)) - 1
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most

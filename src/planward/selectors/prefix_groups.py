"""Grouping of token sequences by common prefixes, so that each prefix is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PrefixGroup:
    """Sequences, by index, that begin with the same `length` tokens."""

    members: list[int]
    length: int


def group_by_prefix(sequences: Sequence[Tokens]) -> list[PrefixGroup]:
    """Group the sequences by common prefixes so that few tokens are left to compute.

    A group of n with a prefix of length l saves (n - 1) l tokens. Every sequence is in one group and has at least one
    token after the prefix. Groups, and the members of each, are sorted by their tokens.

    The prefixes that several sequences share are the inner nodes of their trie, whose intervals follow from the prefix
    lengths that neighbours share in sorted order (Abouelhoda, Kurtz and Ohlebusch, 2004). From the leaves up, all
    sequences below a node become one group where that saves more than the groups found below it together.
    """
    if not sequences:
        return []
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">u4").tobytes())
    sorted_sequences = [sequences[i] for i in order]
    shared_lengths = [_count_shared(first, second) for first, second in pairwise(sorted_sequences)]
    stack = [_Node(0, 0)]
    for rank, length in enumerate([*shared_lengths, 0]):
        best = _Node(rank, len(sorted_sequences[rank])).choose_groups(rank)
        start = rank
        while stack[-1].length > length:
            node = stack.pop()
            node.add_child(best)
            start, best = node.start, node.choose_groups(rank)
        if stack[-1].length < length:
            stack.append(_Node(start, length))
        stack[-1].add_child(best)
    return [PrefixGroup(order[first : last + 1], length) for first, last, length in stack[0].groups]


class _Node:
    """A prefix of `length` tokens shared by the sequences from `start` on, and the best grouping below it."""

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length, self.saved = start, length, 0
        self.groups: list[tuple[int, int, int]] = []  # first and last sequence, length of their prefix

    def add_child(self, child: tuple[int, list[tuple[int, int, int]]]) -> None:
        """Add what `choose_groups` returned for a node below."""
        self.saved += child[0]
        self.groups += child[1]

    def choose_groups(self, last: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Choose between one group up to the sequence `last` and the groups below: tokens saved, groups."""
        saved_as_one = (last - self.start) * self.length
        if saved_as_one > self.saved or not self.groups:
            return saved_as_one, [(self.start, last, self.length if last > self.start else 0)]
        return self.saved, self.groups


def _count_shared(first: Tokens, second: Tokens) -> int:
    """Count the tokens of the common prefix, less than all of either sequence."""
    limit = min(len(first), len(second)) - 1
    differences = np.flatnonzero(first[:limit] != second[:limit])
    return int(differences[0]) if len(differences) else limit

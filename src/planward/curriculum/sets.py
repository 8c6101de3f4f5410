"""Training sets of a given size: balanced over the domains, each inside the next."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from planward.records import Record


def training_set(records: Iterable[Record], size: int) -> list[Record]:
    """The first `size / domains` records of each domain, by id: a prefix, so sets nest.

    Records are returned domain by domain. Memory is of the order of `size`, not of the input.

    Raises:
        ValueError: `size` is no multiple of the number of domains, or a domain has too few records.
    """
    kept: dict[str, list[tuple[_Reversed, Record]]] = {}
    for record in records:
        heap = kept.setdefault(record.domain, [])
        heapq.heappush(heap, (_Reversed(record.id), record))
        if len(heap) > size:
            heapq.heappop(heap)
    if not kept:
        raise ValueError("the training split is empty")
    share, left_over = divmod(size, len(kept))
    if left_over or share < 1:
        raise ValueError(
            f"dataset size {size} cannot be balanced over {len(kept)} domains ({', '.join(sorted(kept))}); "
            f"use a multiple of {len(kept)}, such as {max(share + 1, 1) * len(kept)}"
        )
    chosen: list[Record] = []
    for domain, heap in sorted(kept.items()):
        if len(heap) < share:
            raise ValueError(
                f"dataset size {size} needs {share} training problems of {domain}, but the split holds {len(heap)}; "
                "bring more problems of it or lower dataset_sizes"
            )
        chosen += sorted((record for _, record in heap), key=lambda record: record.id)[:share]
    return chosen


def balanced(problems: Iterable[Record], count: int) -> list[Record]:
    """The first `count` problems, the domains in turn and each in the order of ids."""
    domains = defaultdict[str, list[Record]](list)
    for problem in sorted(problems, key=lambda record: record.id):
        domains[problem.domain].append(problem)
    turns = [(place, name, own[place]) for name, own in domains.items() for place in range(len(own))]
    return [problem for *_, problem in sorted(turns, key=lambda turn: turn[:2])[:count]]


class _Reversed(str):
    """Sorts backwards, so that a heap drops the largest id first."""

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

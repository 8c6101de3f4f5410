"""Training sets of a given size: balanced over the domains, each inside the next larger one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from planward.core.records import Record


def select_training_set(records: Iterable[Record], size: int) -> list[Record]:
    """Return the first `size / domains` records of each domain by id, domain by domain; larger sets contain smaller.

    Streams: memory is of the order of `size`, not of the input.

    Raises:
        ValueError: `size` is not a multiple of the number of domains, or a domain has too few records.
    """
    heaps: dict[str, list[tuple[_ReversedStr, Record]]] = {}
    for record in records:
        heap = heaps.setdefault(record.domain, [])
        heapq.heappush(heap, (_ReversedStr(record.id), record))
        if len(heap) > size:
            heapq.heappop(heap)
    if not heaps:
        raise ValueError("the training split is empty")
    share, remainder = divmod(size, len(heaps))
    if remainder or share < 1:
        raise ValueError(
            f"dataset size {size} cannot be balanced over {len(heaps)} domains ({', '.join(sorted(heaps))}); "
            f"fix: use a multiple of {len(heaps)}, such as {max(share + 1, 1) * len(heaps)}"
        )
    training_set: list[Record] = []
    for domain, heap in sorted(heaps.items()):
        if len(heap) < share:
            raise ValueError(
                f"dataset size {size} needs {share} training problems of {domain}, but the split has {len(heap)}; "
                "fix: add problems of this domain or lower dataset_sizes"
            )
        training_set += sorted((record for _, record in heap), key=lambda record: record.id)[:share]
    return training_set


def select_balanced(records: Iterable[Record], count: int) -> list[Record]:
    """Return the first `count` records, round-robin over the domains, each domain in order of ids."""
    domains = defaultdict[str, list[Record]](list)
    for record in sorted(records, key=lambda record: record.id):
        domains[record.domain].append(record)
    entries = [(rank, name, record) for name, group in domains.items() for rank, record in enumerate(group)]
    return [record for *_, record in sorted(entries, key=lambda entry: entry[:2])[:count]]


class _ReversedStr(str):
    """Sorts in reverse, so that a heap drops the largest id first."""

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

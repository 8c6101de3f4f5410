"""Candidates: the solved problems among which a query's worked examples are looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from planward.records import Record


def candidate_pool(
    query: Record, training: Sequence[Record], core: Callable[[Record], str], size: int, seed: str
) -> list[Record]:
    """Return up to `size` training problems in random order, whatever the order of `training`.

    The query itself is left out, and so are problems that its plan could be copied from: those of the same `core`
    (equal up to names and constraints). `core` is called for every training problem, so it should remember its results.
    """
    own = core(query)
    others = {record.id: record for record in training if record.id != query.id and core(record) != own}
    chosen = Random(f"{seed}:{query.id}").sample(sorted(others), min(size, len(others)))
    return [others[one] for one in chosen]

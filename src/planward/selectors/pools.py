"""Candidate pools: the solved problems from which a query's worked examples are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from planward.core.records import Record


def sample_pool(
    query: Record, training: Sequence[Record], core_digest: Callable[[Record], str], size: int, seed: str
) -> list[Record]:
    """Sample up to `size` training problems, in random order that does not depend on the order of `training`.

    Excludes the query, and every problem whose plan could be copied: one with the query's `core_digest` (equal up to
    names and constraints). `core_digest` is called for every training problem, so it should cache its results.
    """
    digest = core_digest(query)
    others = {record.id: record for record in training if record.id != query.id and core_digest(record) != digest}
    ids = Random(f"{seed}:{query.id}").sample(sorted(others), min(size, len(others)))
    return [others[problem_id] for problem_id in ids]

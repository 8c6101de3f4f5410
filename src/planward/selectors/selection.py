"""How selectors choose worked examples from a query's pool.

Every selector returns a sequence: its first k examples are the choice for k, and the first stands next to the query.
No choice depends on the order of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch
from torch.nn.functional import cosine_similarity

from planward.core.records import Record
from planward.selectors.pointer import Pointer, pad_pools


def order_for_prompt(choices: Mapping[str, Sequence[Record]]) -> Callable[[Record, int], list[Record]]:
    """Return a function from query and count to the first `count` examples of its choice (by id), in prompt order."""
    return lambda query, count: list(choices[query.id][:count])[::-1]


def select_random(query: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
    """Sample up to `count` examples of the pool, seeded by `seed` and the query's id."""
    return Random(f"{seed}:{query.id}:shots").sample(_sort_by_id(pool), len(pool))[:count]


def select_similar(
    query: Record, pool: Sequence[Record], embeddings: Mapping[str, torch.Tensor], count: int
) -> list[Record]:
    """Select up to `count` examples of the pool by the cosine of their embedding and the query's.

    The most similar comes first; ties are broken by id.
    """
    candidates = _sort_by_id(pool)
    if not candidates:
        return []
    vectors = torch.stack([embeddings[example.id] for example in candidates]).double()
    cosines = cosine_similarity(embeddings[query.id].double(), vectors, dim=-1)
    return [candidates[i] for i in cosines.argsort(descending=True, stable=True).tolist()[:count]]


def select_by_pointer(
    pointer: Pointer,
    queries: Sequence[Record],
    pools: Mapping[str, Sequence[Record]],
    embeddings: Mapping[str, torch.Tensor],
    count: int,
) -> dict[str, list[Record]]:
    """Select `count` examples for each query greedily with the pointer; returns them by query id, first choice first.

    Raises:
        ValueError: a pool holds fewer than `count`.
    """
    candidates = [_sort_by_id(pools[query.id]) for query in queries]
    for query, pool in zip(queries, candidates, strict=True):
        if len(pool) < count:
            raise ValueError(f"query {query.id}: the pool holds {len(pool)} examples, fewer than shot_num ({count})")
    if not queries:
        return {}
    vectors = torch.stack([embeddings[query.id] for query in queries])
    pool_vectors, mask = pad_pools([torch.stack([embeddings[example.id] for example in pool]) for pool in candidates])
    device = next(pointer.parameters()).device
    choices = pointer.choose_greedily(vectors.to(device), pool_vectors.to(device), mask.to(device), count).tolist()
    return {
        query.id: [pool[i] for i in indices] for query, pool, indices in zip(queries, candidates, choices, strict=True)
    }


def _sort_by_id(pool: Sequence[Record]) -> list[Record]:
    return sorted(pool, key=lambda record: record.id)

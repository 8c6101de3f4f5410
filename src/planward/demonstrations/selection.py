"""Which worked examples a selector takes from a query's pool.

All selectors give a sequence: its first k examples are the choice for k, and the first stands next to the query. No
choice depends on the order of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch
from torch.nn.functional import cosine_similarity

from planward.demonstrations.pointer import Pointer, padded_pools
from planward.records import Record


def prompt_order(choices: Mapping[str, Sequence[Record]]) -> Callable[[Record, int], list[Record]]:
    """A function from query and count to the first examples of its choice (by id), the first of them last."""
    return lambda query, count: list(choices[query.id][:count])[::-1]


def random_shots(query: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
    """Up to `count` examples of the pool at random; `seed` and the query's id decide which."""
    return Random(f"{seed}:{query.id}:shots").sample(_by_id(pool), len(pool))[:count]


def similar_shots(
    query: Record, pool: Sequence[Record], embeddings: Mapping[str, torch.Tensor], count: int
) -> list[Record]:
    """Up to `count` examples of the pool, by the cosine of their embeddings and the query's.

    The most similar comes first; of equally similar ones, the smaller id.
    """
    candidates = _by_id(pool)
    if not candidates:
        return []
    vectors = torch.stack([embeddings[shot.id] for shot in candidates]).double()
    cosines = cosine_similarity(embeddings[query.id].double(), vectors, dim=-1)
    return [candidates[i] for i in cosines.argsort(descending=True, stable=True).tolist()[:count]]


def pointer_shots(
    pointer: Pointer,
    queries: Sequence[Record],
    pools: Mapping[str, Sequence[Record]],
    embeddings: Mapping[str, torch.Tensor],
    count: int,
) -> dict[str, list[Record]]:
    """By query id, the `count` examples that the pointer takes greedily, in its order.

    Raises:
        ValueError: a pool holds fewer than `count`.
    """
    candidates = [_by_id(pools[query.id]) for query in queries]
    for query, own in zip(queries, candidates, strict=True):
        if len(own) < count:
            raise ValueError(f"query {query.id}: its pool holds {len(own)} examples, fewer than shot_num ({count})")
    if not queries:
        return {}
    vectors = torch.stack([embeddings[query.id] for query in queries])
    pool, mask = padded_pools([torch.stack([embeddings[shot.id] for shot in own]) for own in candidates])
    device = next(pointer.parameters()).device
    chosen = pointer.greedy(vectors.to(device), pool.to(device), mask.to(device), count).tolist()
    return {
        query.id: [own[place] for place in places]
        for query, own, places in zip(queries, candidates, chosen, strict=True)
    }


def _by_id(pool: Sequence[Record]) -> list[Record]:
    return sorted(pool, key=lambda record: record.id)

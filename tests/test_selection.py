"""What selectors choose: from any order of a pool the same, the first k of a sequence for k."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from letters import problems
from planward.demonstrations.pointer import Pointer
from planward.demonstrations.selection import pointer_shots, random_shots, similar_shots
from planward.params import Params
from planward.records import Record

RECORDS = problems(40)
QUERY, POOL = RECORDS[0], RECORDS[1:25]


def vectors(size: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {record.id: torch.randn(size, generator=generator) for record in RECORDS}


def ids(shots: Sequence[Record]) -> list[str]:
    return [shot.id for shot in shots]


def test_random_shots_are_of_the_pool_and_nested() -> None:
    four = random_shots(QUERY, POOL, 4, "1")
    assert len(set(ids(four))) == 4
    assert set(ids(four)) <= set(ids(POOL))
    assert random_shots(QUERY, POOL, 2, "1") == four[:2]
    assert random_shots(QUERY, POOL[::-1], 4, "1") == four
    assert random_shots(QUERY, POOL, 4, "2") != four
    assert random_shots(RECORDS[30], POOL, 4, "1") != four
    assert len(random_shots(QUERY, POOL[:2], 4, "1")) == 2


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_similar_shots_come_by_cosine_whatever_the_pools_order(seed: int) -> None:
    embeddings = vectors()
    pool = Random(seed).sample(POOL, 12)
    found = similar_shots(QUERY, pool, embeddings, 12)
    query = embeddings[QUERY.id]
    cosines = [float(query @ embeddings[name] / query.norm() / embeddings[name].norm()) for name in ids(found)]
    assert cosines == sorted(cosines, reverse=True)
    assert similar_shots(QUERY, pool[::-1], embeddings, 12) == found
    assert similar_shots(QUERY, pool, embeddings, 3) == found[:3]


def test_equally_similar_shots_come_by_id_and_length_does_not_matter() -> None:
    embeddings = {record.id: torch.tensor([1.0, 0.1]) for record in RECORDS}
    embeddings[POOL[5].id] = torch.tensor([8.0, 0.8])
    embeddings[POOL[7].id] = torch.tensor([0.1, 1.0])
    embeddings[POOL[8].id] = torch.zeros(2)
    shots = ids(similar_shots(QUERY, POOL[::-1], embeddings, len(POOL)))
    last = [POOL[7].id, POOL[8].id]
    assert shots == [name for name in sorted(ids(POOL)) if name not in last] + last
    assert similar_shots(QUERY, [], embeddings, 2) == []


def pointer(shipped: Params) -> Pointer:
    torch.manual_seed(5)
    found = Pointer(6, shipped.demonstrations.pointer.model_copy(update={"hidden": 16, "heads": 2, "layers": 1}))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return found


def test_a_pointer_chooses_from_each_pool_as_if_it_were_alone(shipped: Params) -> None:
    chooser, embeddings = pointer(shipped), vectors()
    queries = RECORDS[30:36]
    pools = {query.id: RECORDS[place : place + 4 + 3 * place] for place, query in enumerate(queries)}
    found = pointer_shots(chooser, queries, pools, embeddings, 4)
    assert list(found) == ids(queries)
    for query in queries:
        pool = sorted(pools[query.id], key=lambda record: record.id)
        vector, pool_vectors = embeddings[query.id][None], torch.stack([embeddings[shot.id] for shot in pool])[None]
        mask = torch.ones(1, len(pool), dtype=torch.bool)
        (places,) = chooser.greedy(vector, pool_vectors, mask, 4).tolist()
        assert found[query.id] == [pool[place] for place in places]
        assert len(set(ids(found[query.id]))) == 4
    turned = {name: pool[::-1] for name, pool in pools.items()}
    assert pointer_shots(chooser, queries, turned, embeddings, 4) == found
    assert pointer_shots(chooser, [], {}, embeddings, 4) == {}
    with pytest.raises(ValueError, match=f"query {queries[0].id}: its pool holds 4 examples, fewer than shot_num"):
        pointer_shots(chooser, queries, pools, embeddings, 5)

"""Choices of selectors: independent of the order of the pool, and nested in shot_num."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from letters import build_problems
from planward.core.records import Record
from planward.selectors.config import SelectorsConfig
from planward.selectors.pointer import Pointer
from planward.selectors.selection import select_by_pointer, select_random, select_similar

RECORDS = build_problems(40)
QUERY, POOL = RECORDS[0], RECORDS[1:25]


def build_embeddings(size: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {record.id: torch.randn(size, generator=generator) for record in RECORDS}


def get_ids(examples: Sequence[Record]) -> list[str]:
    return [example.id for example in examples]


def test_random_examples_are_from_the_pool_and_nested() -> None:
    four = select_random(QUERY, POOL, 4, "1")
    assert len(set(get_ids(four))) == 4
    assert set(get_ids(four)) <= set(get_ids(POOL))
    assert select_random(QUERY, POOL, 2, "1") == four[:2]
    assert select_random(QUERY, POOL[::-1], 4, "1") == four
    assert select_random(QUERY, POOL, 4, "2") != four
    assert select_random(RECORDS[30], POOL, 4, "1") != four
    assert len(select_random(QUERY, POOL[:2], 4, "1")) == 2


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_similar_examples_are_sorted_by_cosine_for_any_order_of_the_pool(seed: int) -> None:
    embeddings = build_embeddings()
    pool = Random(seed).sample(POOL, 12)
    examples = select_similar(QUERY, pool, embeddings, 12)
    query = embeddings[QUERY.id]
    cosines = [float(query @ embeddings[name] / query.norm() / embeddings[name].norm()) for name in get_ids(examples)]
    assert cosines == sorted(cosines, reverse=True)
    assert select_similar(QUERY, pool[::-1], embeddings, 12) == examples
    assert select_similar(QUERY, pool, embeddings, 3) == examples[:3]


def test_ties_are_broken_by_id_and_vector_length_does_not_matter() -> None:
    embeddings = {record.id: torch.tensor([1.0, 0.1]) for record in RECORDS}
    embeddings[POOL[5].id] = torch.tensor([8.0, 0.8])
    embeddings[POOL[7].id] = torch.tensor([0.1, 1.0])
    embeddings[POOL[8].id] = torch.zeros(2)
    examples = get_ids(select_similar(QUERY, POOL[::-1], embeddings, len(POOL)))
    last = [POOL[7].id, POOL[8].id]
    assert examples == [name for name in sorted(get_ids(POOL)) if name not in last] + last
    assert select_similar(QUERY, [], embeddings, 2) == []


def build_pointer(config: SelectorsConfig) -> Pointer:
    torch.manual_seed(5)
    pointer = Pointer(6, config.pointer.model_copy(update={"hidden": 16, "heads": 2, "layers": 1}))
    with torch.no_grad():
        for parameter in pointer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return pointer


def test_a_pointer_chooses_from_each_pool_independently(shipped_selectors: SelectorsConfig) -> None:
    pointer, embeddings = build_pointer(shipped_selectors), build_embeddings()
    queries = RECORDS[30:36]
    pools = {query.id: RECORDS[i : i + 4 + 3 * i] for i, query in enumerate(queries)}
    choices = select_by_pointer(pointer, queries, pools, embeddings, 4)
    assert list(choices) == get_ids(queries)
    for query in queries:
        pool = sorted(pools[query.id], key=lambda record: record.id)
        vector, pool_vectors = (
            embeddings[query.id][None],
            torch.stack([embeddings[example.id] for example in pool])[None],
        )
        mask = torch.ones(1, len(pool), dtype=torch.bool)
        (indices,) = pointer.choose_greedily(vector, pool_vectors, mask, 4).tolist()
        assert choices[query.id] == [pool[i] for i in indices]
        assert len(set(get_ids(choices[query.id]))) == 4
    reversed_pools = {name: pool[::-1] for name, pool in pools.items()}
    assert select_by_pointer(pointer, queries, reversed_pools, embeddings, 4) == choices
    assert select_by_pointer(pointer, [], {}, embeddings, 4) == {}
    with pytest.raises(ValueError, match=f"query {queries[0].id}: the pool holds 4 examples, fewer than shot_num"):
        select_by_pointer(pointer, queries, pools, embeddings, 5)

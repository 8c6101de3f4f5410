"""The pointer network: probabilities, invariance to the order of the pool, initial choices, files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from planward.selectors.config import PointerConfig
from planward.selectors.pointer import CONFIG_FILE, Pointer, load_pointer, save_pointer

POINTER_CONFIG = PointerConfig(hidden=16, layers=2, heads=2, dropout=0.2)
SIZE = 6
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def build_pointer(seed: int = 0, size: int = SIZE) -> Pointer:
    """A pointer in which every part has an effect, as after training."""
    torch.manual_seed(seed)
    pointer = Pointer(size, POINTER_CONFIG)
    with torch.no_grad():
        for weights in pointer.parameters():
            weights.add_(0.3 * torch.randn(weights.shape) / max(weights.shape[-1:], default=1) ** 0.5)
    return pointer.eval()


def build_inputs(seed: int, sizes: list[int]) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(len(sizes), max(sizes), SIZE, generator=generator)
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return torch.randn(len(sizes), SIZE, generator=generator), pool, mask


def sample_sequences(seed: int, sizes: list[int], beams: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.stack([torch.randperm(size, generator=generator)[:count] for _ in range(beams)]) for size in sizes]
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(3, 9), min_size=1, max_size=3))
def test_earlier_choices_and_padding_have_probability_zero_and_the_others_sum_to_one(
    seed: int, sizes: list[int]
) -> None:
    query, pool, mask = build_inputs(seed, sizes)
    choices = sample_sequences(seed, sizes, beams=2, count=3)
    probabilities = build_pointer().compute_log_probs(query, pool, mask, choices).exp()
    for step in range(3):
        available = mask[:, None].expand(-1, 2, -1).scatter(-1, choices[..., :step], False)
        assert torch.equal(probabilities[:, :, step] > 0, available)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(sizes), 2, 3))


@settings(max_examples=25)
@given(seed=st.integers(0, 99), size=st.integers(4, 9))
def test_the_order_of_the_pool_does_not_matter(seed: int, size: int) -> None:
    query, pool, mask = build_inputs(seed, [size])
    choices = sample_sequences(seed, [size], beams=2, count=3)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    pointer = build_pointer()
    in_order = pointer.compute_log_probs(query, pool, mask, choices)
    permuted_log_probs = pointer.compute_log_probs(query, pool[:, order], mask, order.argsort()[choices])
    torch.testing.assert_close(permuted_log_probs, in_order[..., order])


def test_the_content_of_padding_does_not_matter() -> None:
    query, pool, mask = build_inputs(1, [5, 9])
    choices = sample_sequences(1, [5, 9], beams=2, count=4)
    pointer, other_pool = build_pointer(), pool.masked_fill(~mask[..., None], 7.0)
    padded_log_probs = pointer.compute_log_probs(query, other_pool, mask, choices)
    torch.testing.assert_close(padded_log_probs, pointer.compute_log_probs(query, pool, mask, choices))
    unpadded_log_probs = pointer.compute_log_probs(query[:1], pool[:1, :5], mask[:1, :5], choices[:1])
    torch.testing.assert_close(padded_log_probs[:1, ..., :5], unpadded_log_probs)


def test_a_choice_depends_on_the_order_of_earlier_ones() -> None:
    query, pool, mask = build_inputs(2, [6])
    both = torch.tensor([[[0, 1, 2], [1, 0, 2]]])
    third = build_pointer().compute_log_probs(query, pool, mask, both)[0, :, 2]
    assert not torch.allclose(third[0], third[1], atol=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(4, 9), min_size=1, max_size=3))
def test_greedy_choices_are_the_most_likely_at_each_step_and_distinct(seed: int, sizes: list[int]) -> None:
    query, pool, mask = build_inputs(seed, sizes)
    pointer = build_pointer(seed)
    choices = pointer.choose_greedily(query, pool, mask, 4)
    log_probs = pointer.compute_log_probs(query, pool, mask, choices[:, None])[:, 0]
    assert torch.equal(log_probs.argmax(-1), choices)
    assert all(len(set(row)) == 4 for row in choices.tolist())


def test_greedy_choices_use_no_dropout_and_restore_the_mode() -> None:
    query, pool, mask = build_inputs(3, [8])
    pointer = build_pointer()
    without_dropout = pointer.choose_greedily(query, pool, mask, 3)
    pointer.train()
    assert all(torch.equal(pointer.choose_greedily(query, pool, mask, 3), without_dropout) for _ in range(5))
    assert pointer.training


def test_an_untrained_pointer_ranks_nearly_like_the_cosine() -> None:
    torch.manual_seed(0)
    pointer = Pointer(SIZE, POINTER_CONFIG).eval()
    query, pool, mask = build_inputs(4, [30] * 20)
    logits = pointer.compute_log_probs(query, pool, mask, torch.zeros(20, 1, 1, dtype=torch.long))[:, 0, 0]
    cosine = cosine_similarity(query[:, None], pool, dim=-1)
    ranks = [values.argsort(dim=-1).argsort(dim=-1).double() for values in (logits, cosine)]
    rank_correlations = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(*ranks, strict=True)]
    assert min(rank_correlations) > 0.95


def test_whitening_removes_scale_and_correlation() -> None:
    torch.manual_seed(0)
    embeddings = torch.randn(500, SIZE).double() @ torch.randn(SIZE, SIZE).double() + 5
    pointer = Pointer(SIZE, POINTER_CONFIG)
    pointer.set_whitening(embeddings.mean(0), embeddings.T.cov(correction=0))
    whitened_embeddings = (embeddings.float() - pointer.mean) @ pointer.whitening
    torch.testing.assert_close(whitened_embeddings.T.cov(correction=0), torch.eye(SIZE), atol=0.02, rtol=0)


def test_embeddings_without_any_variance_can_be_whitened() -> None:
    pointer = Pointer(SIZE, POINTER_CONFIG).eval()
    pointer.set_whitening(torch.ones(SIZE), torch.zeros(SIZE, SIZE))
    _, pool, mask = build_inputs(5, [4])
    choices = pointer.choose_greedily(torch.ones(1, SIZE), torch.ones_like(pool), mask, 4)
    assert sorted(choices[0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_finite_for_equal_and_single_candidates(size: int) -> None:
    query, pool, mask = build_inputs(6, [size])
    pointer = build_pointer().train()
    choices = torch.arange(size)[None, None]
    log_probs = pointer.compute_log_probs(query, pool[:, :1].expand(-1, size, -1).clone(), mask, choices)
    log_probs.gather(-1, choices[..., None]).sum().backward()
    assert all(weights.grad is None or bool(weights.grad.isfinite().all()) for weights in pointer.parameters())


def test_a_pool_that_is_too_small_raises() -> None:
    query, pool, mask = build_inputs(7, [3, 9])
    with pytest.raises(ValueError, match="cannot choose 4 examples from a pool of 3"):
        build_pointer().choose_greedily(query, pool, mask, 4)


def test_a_saved_pointer_is_loaded_unchanged(tmp_path: Path) -> None:
    pointer = build_pointer()
    pointer.set_whitening(torch.randn(SIZE), torch.eye(SIZE) * 3)
    save_pointer(pointer, tmp_path)
    query, pool, mask = build_inputs(8, [7])
    choices = sample_sequences(8, [7], beams=1, count=3)
    loaded_pointer = load_pointer(tmp_path)
    assert torch.equal(
        loaded_pointer.compute_log_probs(query, pool, mask, choices),
        pointer.compute_log_probs(query, pool, mask, choices),
    )
    assert loaded_pointer.config == POINTER_CONFIG
    assert not loaded_pointer.training


@pytest.mark.parametrize("text", ['{"embedding_size": 6}', "{", '{"hidden": 8}', "[]"])
def test_a_folder_without_a_pointer_raises(tmp_path: Path, text: str) -> None:
    save_pointer(build_pointer(), tmp_path)
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(ValueError, match=f"{tmp_path}: config.json and model.safetensors"):
        load_pointer(tmp_path)

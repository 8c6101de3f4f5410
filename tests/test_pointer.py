"""The pointer selector: what it gives probability to, in which order of the pool, and what it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from planward import params
from planward.demonstrations.pointer import CONFIG, Pointer, load_pointer, save_pointer

SETTINGS = params.Pointer(hidden=16, layers=2, heads=2, dropout=0.2)
SIZE = 6
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def pointer(seed: int = 0, size: int = SIZE) -> Pointer:
    """A pointer in which every part has a say, as after training."""
    torch.manual_seed(seed)
    made = Pointer(size, SETTINGS)
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.3 * torch.randn(weights.shape) / max(weights.shape[-1:], default=1) ** 0.5)
    return made.eval()


def inputs(seed: int, sizes: list[int]) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(len(sizes), max(sizes), SIZE, generator=generator)
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return torch.randn(len(sizes), SIZE, generator=generator), pool, mask


def sequences(seed: int, sizes: list[int], beams: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.stack([torch.randperm(size, generator=generator)[:count] for _ in range(beams)]) for size in sizes]
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(3, 9), min_size=1, max_size=3))
def test_what_was_chosen_and_padding_have_probability_zero_and_the_others_share_one(
    seed: int, sizes: list[int]
) -> None:
    query, pool, mask = inputs(seed, sizes)
    chosen = sequences(seed, sizes, beams=2, count=3)
    probabilities = pointer().sequence_log_probs(query, pool, mask, chosen).exp()
    for step in range(3):
        free = mask[:, None].expand(-1, 2, -1).scatter(-1, chosen[..., :step], False)
        assert torch.equal(probabilities[:, :, step] > 0, free)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(sizes), 2, 3))


@settings(max_examples=25)
@given(seed=st.integers(0, 99), size=st.integers(4, 9))
def test_the_order_of_the_pool_does_not_matter(seed: int, size: int) -> None:
    query, pool, mask = inputs(seed, [size])
    chosen = sequences(seed, [size], beams=2, count=3)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    made = pointer()
    straight = made.sequence_log_probs(query, pool, mask, chosen)
    mixed = made.sequence_log_probs(query, pool[:, order], mask, order.argsort()[chosen])
    torch.testing.assert_close(mixed, straight[..., order])


def test_what_stands_in_padding_does_not_matter() -> None:
    query, pool, mask = inputs(1, [5, 9])
    chosen = sequences(1, [5, 9], beams=2, count=4)
    made, other = pointer(), pool.masked_fill(~mask[..., None], 7.0)
    wide = made.sequence_log_probs(query, other, mask, chosen)
    torch.testing.assert_close(wide, made.sequence_log_probs(query, pool, mask, chosen))
    alone = made.sequence_log_probs(query[:1], pool[:1, :5], mask[:1, :5], chosen[:1])
    torch.testing.assert_close(wide[:1, ..., :5], alone)


def test_the_next_choice_depends_on_the_order_of_the_ones_before() -> None:
    query, pool, mask = inputs(2, [6])
    both = torch.tensor([[[0, 1, 2], [1, 0, 2]]])
    third = pointer().sequence_log_probs(query, pool, mask, both)[0, :, 2]
    assert not torch.allclose(third[0], third[1], atol=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(4, 9), min_size=1, max_size=3))
def test_greedy_takes_the_likeliest_at_every_step_and_none_twice(seed: int, sizes: list[int]) -> None:
    query, pool, mask = inputs(seed, sizes)
    made = pointer(seed)
    chosen = made.greedy(query, pool, mask, 4)
    followed = made.sequence_log_probs(query, pool, mask, chosen[:, None])[:, 0]
    assert torch.equal(followed.argmax(-1), chosen)
    assert all(len(set(row)) == 4 for row in chosen.tolist())


def test_greedy_has_no_dropout_and_leaves_the_mode_as_it_was() -> None:
    query, pool, mask = inputs(3, [8])
    made = pointer()
    quiet = made.greedy(query, pool, mask, 3)
    made.train()
    assert all(torch.equal(made.greedy(query, pool, mask, 3), quiet) for _ in range(5))
    assert made.training


def test_an_untrained_pointer_ranks_nearly_as_the_cosine_does() -> None:
    torch.manual_seed(0)
    made = Pointer(SIZE, SETTINGS).eval()
    query, pool, mask = inputs(4, [30] * 20)
    logits = made.sequence_log_probs(query, pool, mask, torch.zeros(20, 1, 1, dtype=torch.long))[:, 0, 0]
    cosine = cosine_similarity(query[:, None], pool, dim=-1)
    ranks = [values.argsort(dim=-1).argsort(dim=-1).double() for values in (logits, cosine)]
    rank_correlations = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(*ranks, strict=True)]
    assert min(rank_correlations) > 0.95


def test_whitening_undoes_the_embeddings_scale_and_correlation() -> None:
    torch.manual_seed(0)
    embeddings = torch.randn(500, SIZE).double() @ torch.randn(SIZE, SIZE).double() + 5
    made = Pointer(SIZE, SETTINGS)
    made.whiten(embeddings.mean(0), embeddings.T.cov(correction=0))
    whitened = (embeddings.float() - made.mean) @ made.whitening
    torch.testing.assert_close(whitened.T.cov(correction=0), torch.eye(SIZE), atol=0.02, rtol=0)


def test_embeddings_without_any_variance_can_be_whitened() -> None:
    made = Pointer(SIZE, SETTINGS).eval()
    made.whiten(torch.ones(SIZE), torch.zeros(SIZE, SIZE))
    _, pool, mask = inputs(5, [4])
    chosen = made.greedy(torch.ones(1, SIZE), torch.ones_like(pool), mask, 4)
    assert sorted(chosen[0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_finite_where_candidates_are_alike_or_alone(size: int) -> None:
    query, pool, mask = inputs(6, [size])
    made = pointer().train()
    chosen = torch.arange(size)[None, None]
    log_probs = made.sequence_log_probs(query, pool[:, :1].expand(-1, size, -1).clone(), mask, chosen)
    log_probs.gather(-1, chosen[..., None]).sum().backward()
    assert all(weights.grad is None or bool(weights.grad.isfinite().all()) for weights in made.parameters())


def test_too_small_a_pool_is_refused() -> None:
    query, pool, mask = inputs(7, [3, 9])
    with pytest.raises(ValueError, match="4 examples are to be chosen from a pool of 3"):
        pointer().greedy(query, pool, mask, 4)


def test_a_saved_pointer_chooses_as_before(tmp_path: Path) -> None:
    made = pointer()
    made.whiten(torch.randn(SIZE), torch.eye(SIZE) * 3)
    save_pointer(made, tmp_path)
    query, pool, mask = inputs(8, [7])
    chosen = sequences(8, [7], beams=1, count=3)
    again = load_pointer(tmp_path)
    assert torch.equal(
        again.sequence_log_probs(query, pool, mask, chosen), made.sequence_log_probs(query, pool, mask, chosen)
    )
    assert again.settings == SETTINGS
    assert not again.training


@pytest.mark.parametrize("text", ['{"embedding_size": 6}', "{", '{"hidden": 8}', "[]"])
def test_a_folder_without_a_pointer_is_named(tmp_path: Path, text: str) -> None:
    save_pointer(pointer(), tmp_path)
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=f"{tmp_path}: config.json and model.safetensors"):
        load_pointer(tmp_path)

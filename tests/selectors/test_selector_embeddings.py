"""Embeddings: values, invariance to batching and names, files that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from letters import write_base
from planward.inference.models import load_model
from planward.params import Params
from planward.selectors.batching import batch_by_length
from planward.selectors.embeddings import (
    EmbeddingsError,
    compute_model_embeddings,
    compute_tfidf_embeddings,
    find_predicates,
    read_embeddings,
    standardise,
    write_embeddings,
)

LAYERS = (0, -1)
PROMPTS = [[3, 4, 5], [6], [3, 4, 5, 6, 7, 8, 9], [7, 8], [3, 9, 5]]


def test_a_model_embedding_is_the_mean_state_of_the_prompts_tokens(tmp_path: Path, shipped_params: Params) -> None:
    write_base(tmp_path / "base")
    model, _ = load_model(shipped_params.model, str(tmp_path / "base"), 40, 0)
    together = compute_model_embeddings(model, PROMPTS, 1000, LAYERS)
    assert together.shape == (5, 2, 32)
    assert together.dtype == torch.float32
    for prompt, vectors in zip(PROMPTS, together, strict=True):
        with torch.no_grad():
            first = model.get_input_embeddings()(torch.tensor(prompt)).mean(0)
            last = model.model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        assert torch.allclose(vectors, torch.stack([first, last]), atol=1e-5)
    for tokens in (1, 6, 9):
        assert torch.allclose(compute_model_embeddings(model, PROMPTS, tokens, LAYERS), together, atol=1e-5)
    assert torch.equal(
        compute_model_embeddings(model, PROMPTS, 9, LAYERS), compute_model_embeddings(model, PROMPTS, 9, LAYERS)
    )
    assert compute_model_embeddings(model, PROMPTS, 9, layers=[-1]).shape == (5, 1, 32)
    with pytest.raises(EmbeddingsError, match=r"layers: the model has no layer 99; fix: name layers from 0 to 2"):
        compute_model_embeddings(model, PROMPTS, 9, layers=[0, 99])


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 100))
def test_batches_hold_every_prompt_once_and_no_more_tokens_than_the_limit(lengths: list[int], tokens: int) -> None:
    batches = batch_by_length(lengths, tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens


TEXTS = [
    "blocks\nobjects b1 b2 b3\ninit (clear b1) (handempty) (on b1 b2) (on b2 b3)\ngoal (on b3 b1)\nplan\n",
    "blocks\nobjects b1 b2\ninit (clear b1) (handempty-2) (on b1 b2)\ngoal (on b2 b1)\nplan\n",
    "ferry\nobjects l1 c1\ninit (at c1 l1) (empty-ferry)\ngoal (at c1 l2)\nplan\n",
]


def test_tfidf_is_of_predicates_not_of_object_names() -> None:
    other_names = TEXTS[0].replace("b1", "b9")
    other_predicates = TEXTS[0].replace("handempty", "handempty-2")
    one, same, other, ferry = compute_tfidf_embeddings(TEXTS, [TEXTS[0], other_names, other_predicates, TEXTS[2]])
    assert torch.equal(one, same)
    assert one @ other < 0.95
    assert one @ ferry == 0
    assert find_predicates(
        "(define (problem x) (:objects a b - block) (:init (On a b) (free )) (:goal (and (on b a))))"
    ) == [*("problem", "on", "free", "on")]


def test_tfidf_is_fitted_on_the_training_texts_only() -> None:
    training_only = compute_tfidf_embeddings(TEXTS[:2], TEXTS[:2])
    assert training_only.shape == (2, 4)
    assert torch.equal(compute_tfidf_embeddings(TEXTS[:2], TEXTS)[:2], training_only)
    with pytest.raises(EmbeddingsError, match="no training problem holds an atom"):
        compute_tfidf_embeddings(["no atoms", ""], TEXTS)


@pytest.mark.parametrize("shape", [(9, 4), (9, 2, 4)])
def test_training_vectors_are_centred_and_have_mean_length_1(shape: tuple[int, ...]) -> None:
    vectors = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 50 + 7
    standardised_vectors = standardise(vectors, num_training=6)
    parts = standardised_vectors.view(9, -1, 4)[:6]
    assert torch.allclose(parts.mean(0), torch.zeros(parts.shape[1:]), atol=1e-5)
    assert torch.allclose(parts.norm(dim=-1).mean(0), torch.ones(parts.shape[1]))
    vectors[7] *= 2
    assert torch.equal(standardise(vectors, num_training=6)[:7], standardised_vectors[:7])
    with pytest.raises(EmbeddingsError, match="the same"):
        standardise(torch.ones(9, 4), num_training=6)


def test_written_embeddings_are_read_back_unchanged(tmp_path: Path) -> None:
    vectors = {name: torch.rand(5) for name in "cab"}
    write_embeddings(tmp_path / "one.safetensors", vectors)
    write_embeddings(tmp_path / "two.safetensors", {name: vectors[name] for name in "abc"})
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    embeddings = read_embeddings(tmp_path / "one.safetensors")
    assert embeddings.keys() == vectors.keys()
    assert all(torch.equal(embeddings[name], vectors[name]) for name in vectors)
    assert list(read_embeddings(tmp_path / "one.safetensors", ["c", "a"])) == ["c", "a"]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64])
def test_a_matrix_is_read_by_the_ids_beside_it(tmp_path: Path, dtype: type) -> None:
    matrix = np.arange(6).reshape(3, 2).astype(dtype)
    np.save(tmp_path / "own.npy", matrix)
    (tmp_path / "own.txt").write_text("p2\np1\np3\n")
    embeddings = read_embeddings(tmp_path / "own.npy", ["p1", "p2"])
    assert {name: vector.tolist() for name, vector in embeddings.items()} == {"p1": [2.0, 3.0], "p2": [0.0, 1.0]}
    assert all(vector.dtype == torch.float32 for vector in embeddings.values())


def write_npy(array: object, ids: str | None = "a\nb\n") -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        np.save(folder / "own.npy", array, allow_pickle=True)
        if ids is not None:
            (folder / "own.txt").write_text(ids)
        return "own.npy"

    return write


def write_tensors(**vectors: torch.Tensor) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        save_file(vectors, folder / "own.safetensors")
        return "own.safetensors"

    return write


def write_bytes(name: str, content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / name).write_bytes(content)
        return name

    return write


GOOD, ONE = torch.ones(3), np.ones((2, 3))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda _: "own.safetensors", "own.safetensors: no such file"),
        (write_bytes("own.pt", b""), "own.pt: expected a .safetensors or .npy file"),
        (write_bytes("own.safetensors", b"nothing"), "own.safetensors: not a safetensors file"),
        (write_tensors(a=GOOD), "no vector for 1 of 2 problems, the first b"),
        (write_tensors(c=GOOD), "no vector for 2 of 2 problems, the first a"),
        (write_tensors(a=GOOD, b=torch.ones(4)), "b has 4 numbers, but a has 3"),
        (write_tensors(a=GOOD, b=torch.tensor([1.0, float("nan"), 0.0])), "b: holds NaN"),
        (write_tensors(a=GOOD, b=torch.tensor([1.0, float("inf"), 0.0])), "b: holds NaN, infinite"),
        (write_tensors(a=torch.ones(1, 3), b=GOOD), r"a: expected a vector, found the shape \[1, 3\]"),
        (write_tensors(a=torch.ones(0), b=torch.ones(0)), r"a: expected a vector, found the shape \[0\]"),
        (write_bytes("own.npy", b"nothing"), "own.npy: not an array"),
        (write_npy(ONE, ids=None), "needs own.txt beside it"),
        (write_npy(ONE, ids="a\nb\nc\n"), r"shape \[2, 3\], but own.txt has 3 ids"),
        (write_npy(np.ones(2)), r"shape \[2\], but own.txt has 2 ids"),
        (write_npy(ONE, ids="a\na\n"), "a is listed more than once"),
        (write_npy(ONE, ids="a\nc\n"), "no vector for 1 of 2 problems, the first b"),
        (write_npy(np.array([["x", "y"], ["z", "w"]])), "expected numbers"),
        (write_npy(np.full((2, 3), np.nan)), "a: holds NaN"),
        (write_npy(np.array([[1, None], [2, 3]], dtype=object)), "not an array of numbers"),  # would need unpickling
    ],
)
def test_embeddings_that_cannot_be_used_raise(tmp_path: Path, write: Callable[[Path], str], message: str) -> None:
    with pytest.raises(EmbeddingsError, match=message):
        read_embeddings(tmp_path / write(tmp_path), ["a", "b"])

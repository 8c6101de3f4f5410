"""Embeddings: a vector for every problem, from which worked examples are chosen.

Three sources: a language model's hidden states, TF-IDF of atoms, or a file of vectors. `standardise` makes them
comparable: what all problems have in common distinguishes none, yet makes up most of a mean hidden state (the states
of a language model lie in a narrow cone: Ethayarajh, 2019, arXiv:1909.00512).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from torch.nn.functional import normalize
from tqdm import tqdm

from planward.core.files import replace_atomic
from planward.core.paths import params_file
from planward.selectors.batching import batch_by_length

MAX_TERMS = 512  # of TF-IDF; all planning domains here together have less than a tenth of it
_PREDICATE = re.compile(r"\(\s*([^\s():?][^\s()]*)[^()]*\)")


class EmbeddingsError(ValueError):
    """Embeddings cannot be used; the message says which and how to fix it."""


@torch.no_grad()
def compute_model_embeddings(
    model: Any, prompts: Sequence[Sequence[int]], batch_tokens: int, layers: Sequence[int]
) -> torch.Tensor:
    """Compute the mean hidden states [n, L, D] over each prompt's tokens, float32.

    A rare, informative word, such as a dialect's marker, can be read off the mean of the first states, but hardly off
    that of the last, which hold what the model makes of the problem: together they say more.

    Args:
        model: a causal language model of Transformers.
        prompts: token ids, without padding.
        batch_tokens: maximum tokens of a forward pass, padding included; a longer prompt has one to itself.
        layers: 0 is the input of the first layer, -1 the output of the last.

    Raises:
        EmbeddingsError: the model has no such layer.
    """
    model.eval()
    num_layers = model.config.num_hidden_layers
    if unknown := [layer for layer in layers if not -num_layers - 1 <= layer <= num_layers]:
        raise EmbeddingsError(
            f"{params_file('selectors')}: layers: the model has no layer {unknown[0]}; "
            f"fix: name layers from 0 to {num_layers}, or -1 for the last"
        )
    means = dict[int, torch.Tensor]()
    with tqdm(total=len(prompts), desc="embedding", unit="problem") as bar:
        for batch in batch_by_length([len(prompt) for prompt in prompts], batch_tokens):
            longest = len(prompts[batch[-1]])
            # Padding is on the right, where a causal model cannot see it.
            ids = torch.tensor([[*prompts[i], *[0] * (longest - len(prompts[i]))] for i in batch], device=model.device)
            lengths = torch.tensor([len(prompts[i]) for i in batch], device=model.device)
            mask = torch.arange(longest, device=model.device) < lengths[:, None]
            states = model(
                input_ids=ids,
                attention_mask=mask.long(),
                output_hidden_states=True,
                use_cache=False,
                logits_to_keep=1,
            ).hidden_states
            for i, mean in zip(batch, _mean_states([states[layer] for layer in layers], mask), strict=True):
                means[i] = mean
            bar.update(len(batch))
    return torch.stack([means[i] for i in range(len(prompts))])


def _mean_states(states: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """Average states [B, T, D] of L layers over the tokens where `mask` [B, T] is true: [B, L, D]."""
    present = mask[..., None]
    sums = [torch.where(present, layer.float(), 0.0).sum(1) for layer in states]
    return (torch.stack(sums, dim=1) / mask.sum(1)[:, None, None]).cpu()


def compute_tfidf_embeddings(training_texts: Sequence[str], texts: Sequence[str]) -> torch.Tensor:
    """Compute the TF-IDF vectors [n, D] of texts that hold atoms, fitted on the training texts only.

    A term is an atom's predicate, weighted by the logarithm of its count. Object names are left out: they are
    exchangeable, and with whole atoms as terms, problems would be near because they happened to draw the same names.

    Raises:
        EmbeddingsError: no training text holds an atom.
    """
    vectorizer = TfidfVectorizer(analyzer=find_predicates, sublinear_tf=True, max_features=MAX_TERMS)
    if not any(map(find_predicates, training_texts)):
        raise EmbeddingsError("tfidf: no training problem holds an atom such as (on b1 b2); fix: `embeddings: model`")
    vectorizer.fit(training_texts)
    return torch.from_numpy(vectorizer.transform(texts).toarray()).float()


def find_predicates(text: str) -> list[str]:
    """List the first word of each innermost form, in lower case; keywords such as `:objects` are left out."""
    return [match[1].lower() for match in _PREDICATE.finditer(text)]


def standardise(vectors: torch.Tensor, num_training: int) -> torch.Tensor:
    """Centre vectors [n, D] on the mean of the first `num_training` ones and scale these to mean length 1.

    Of vectors [n, L, D] each of the L parts is standardised by itself; the result is [n, L·D]. Directions and relative
    distances within a part are kept, so cosines are those of centred vectors.

    Raises:
        EmbeddingsError: all training vectors are the same.
    """
    parts = vectors if vectors.ndim == 3 else vectors[:, None]
    centred_parts = parts - parts[:num_training].mean(0)
    lengths = centred_parts[:num_training].norm(dim=-1).mean(0)
    if not bool((lengths > 0).all()):
        raise EmbeddingsError("the embeddings of all training problems are the same; fix: choose other `embeddings`")
    scaled_parts: torch.Tensor = centred_parts / lengths[:, None]
    return scaled_parts.flatten(1)


def find_nearest(vectors: torch.Tensor, num_training: int) -> list[int]:
    """Find for each vector [n, D] the index of the nearest of the first `num_training` ones, by cosine, not itself."""
    directions, nearest = normalize(vectors, dim=-1), list[int]()
    for i, direction in enumerate(directions):
        cosines = directions[:num_training] @ direction
        if i < num_training:
            cosines[i] = -2
        nearest.append(int(cosines.argmax()))
    return nearest


def write_embeddings(path: Path, embeddings: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file with one vector [D] for each problem id; equal embeddings give equal bytes."""
    with replace_atomic(path) as partial:
        save_file({name: embeddings[name].contiguous() for name in sorted(embeddings)}, partial)


def read_embeddings(path: Path, ids: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Read vectors [D], float32, by problem id: all in the file, or those of `ids` in their order.

    `.safetensors` holds one vector per id, under that name. `.npy` holds a matrix [n, D], and a `.txt` file of the
    same name beside it the n ids, one per line. Further ids in the file are ignored. Nothing is unpickled.

    Raises:
        EmbeddingsError: there is no such file, it has another format, an id is missing, or the vectors are not finite
            or not equally long.
    """
    readers = {".safetensors": _read_safetensors, ".npy": _read_matrix}
    if path.suffix not in readers:
        raise EmbeddingsError(f"{path}: expected a .safetensors or .npy file")
    if not path.is_file():
        raise EmbeddingsError(f"{path}: no such file; fix: check embeddings_file in {params_file('selectors')}")
    vectors = readers[path.suffix](path, ids)
    if not vectors:
        raise EmbeddingsError(f"{path}: holds no embeddings")
    first, size = next((name, vector.numel()) for name, vector in vectors.items())
    for name, vector in vectors.items():
        if vector.ndim != 1 or not size:
            raise EmbeddingsError(f"{path}: {name}: expected a vector, found the shape {list(vector.shape)}")
        if vector.numel() != size:
            raise EmbeddingsError(f"{path}: {name} has {vector.numel()} numbers, but {first} has {size}")
        if vector.is_complex() or not bool(torch.isfinite(vector).all()):
            raise EmbeddingsError(f"{path}: {name}: holds NaN, infinite or complex numbers")
    return {name: vector.float() for name, vector in vectors.items()}


def _read_safetensors(path: Path, ids: Collection[str] | None) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            return {name: file.get_tensor(name) for name in _select_ids(path, sorted(names), ids)}
    except SafetensorError as error:
        raise EmbeddingsError(f"{path}: not a safetensors file: {error}") from None


def _read_matrix(path: Path, ids: Collection[str] | None) -> dict[str, torch.Tensor]:
    try:
        matrix = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise EmbeddingsError(f"{path}: not an array of numbers in NumPy's format: {error}") from None
    id_file = path.with_suffix(".txt")
    if not id_file.is_file():
        raise EmbeddingsError(f"{path}: needs {id_file.name} beside it, with the id of each row on a line")
    names = id_file.read_text(encoding="utf-8").split()
    if matrix.ndim != 2 or len(matrix) != len(names):
        raise EmbeddingsError(f"{path}: shape {list(matrix.shape)}, but {id_file.name} has {len(names)} ids, one a row")
    if matrix.dtype.kind not in "fiu":
        raise EmbeddingsError(f"{path}: expected numbers, found {matrix.dtype}")
    indices = {name: i for i, name in enumerate(names)}
    if len(indices) < len(names):
        duplicate = next(name for i, name in enumerate(names) if indices[name] != i)
        raise EmbeddingsError(f"{id_file}: {duplicate} is listed more than once")
    return {name: torch.from_numpy(matrix[indices[name]].astype(np.float32)) for name in _select_ids(path, names, ids)}


def _select_ids(path: Path, names: Collection[str], ids: Collection[str] | None) -> Collection[str]:
    """Select `ids`, or all names; raises EmbeddingsError where an id has no vector."""
    if ids is None:
        return names
    known_names = set(names)
    if missing := [name for name in ids if name not in known_names]:
        raise EmbeddingsError(
            f"{path}: no vector for {len(missing)} of {len(ids)} problems, the first {missing[0]}; "
            "fix: embed every problem of results/score/*.jsonl under its id"
        )
    return ids

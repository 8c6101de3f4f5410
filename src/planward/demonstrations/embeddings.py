"""Embeddings: a vector for every problem, by which worked examples are chosen.

Three kinds: a language model's hidden states, TF-IDF of atoms, or vectors of a user's own. `standardised` makes them
comparable: what all problems have in common tells none from another, yet makes up most of a mean hidden state (the
states of a language model lie in a narrow cone: Ethayarajh, 2019, arXiv:1909.00512).
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
from tqdm import tqdm

from planward.records import replaced

MOST_TERMS = 512  # of TF-IDF; no collection of planning domains here has a tenth of it
_PREDICATE = re.compile(r"\(\s*([^\s():?][^\s()]*)[^()]*\)")


class EmbeddingsError(ValueError):
    """Embeddings that cannot be used; the message says which and what to do."""


@torch.no_grad()
def model_embeddings(
    model: Any, prompts: Sequence[Sequence[int]], batch_tokens: int, layers: Sequence[int]
) -> torch.Tensor:
    """Return the mean hidden states [n, L, D] over each prompt's tokens, float32.

    A word that is rare and tells much, such as a dialect's marker, can be read off the average of the first states, but
    hardly off that of the last, which hold what the model makes of the problem: together they say more.

    Args:
        model: a causal language model of Transformers.
        prompts: token ids, without padding.
        batch_tokens: most tokens of a forward pass, padding among them; a longer prompt has one to itself.
        layers: 0 is the input of the first layer, -1 the output of the last.

    Raises:
        EmbeddingsError: the model has no such layer.
    """
    model.eval()
    most = model.config.num_hidden_layers
    if wrong := [layer for layer in layers if not -most - 1 <= layer <= most]:
        raise EmbeddingsError(f"demonstrations.layers: {wrong[0]}: the model's go from 0 to {most}, -1 is the last")
    means = dict[int, torch.Tensor]()
    with tqdm(total=len(prompts), desc="embedding", unit="problem") as bar:
        for batch in batches([len(prompt) for prompt in prompts], batch_tokens):
            longest = len(prompts[batch[-1]])
            # Padding stands on the right, where a causal model cannot see it.
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
            for i, mean in zip(batch, _means([states[layer] for layer in layers], mask), strict=True):
                means[i] = mean
            bar.update(len(batch))
    return torch.stack([means[i] for i in range(len(prompts))])


def _means(states: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """Means [B, L, D] over the tokens that are none of padding."""
    kept = mask[..., None]
    sums = [torch.where(kept, layer.float(), 0.0).sum(1) for layer in states]
    return (torch.stack(sums, dim=1) / mask.sum(1)[:, None, None]).cpu()


def batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Places of prompts, shortest first, in batches of at most `batch_tokens` tokens when padded."""
    found = list[list[int]]()
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if found and (len(found[-1]) + 1) * lengths[i] <= batch_tokens:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def tfidf_embeddings(training: Sequence[str], texts: Sequence[str]) -> torch.Tensor:
    """Return the TF-IDF vectors [n, D] of texts that hold atoms, fitted on the training texts only.

    A term is an atom's predicate, counted with the logarithm of how often it stands there. Names of objects are left
    out: they are exchangeable, and with whole atoms as terms those problems are near that drew the same names.

    Raises:
        EmbeddingsError: no training text holds an atom.
    """
    vectorizer = TfidfVectorizer(analyzer=predicates, sublinear_tf=True, max_features=MOST_TERMS)
    if not any(map(predicates, training)):
        raise EmbeddingsError("tfidf: no training problem holds an atom such as (on b1 b2); take embeddings: model")
    vectorizer.fit(training)
    return torch.from_numpy(vectorizer.transform(texts).toarray()).float()


def predicates(text: str) -> list[str]:
    """The first word of each innermost form in the text, in lower case; keywords such as `:objects` are none."""
    return [match[1].lower() for match in _PREDICATE.finditer(text)]


def standardised(vectors: torch.Tensor, training: int) -> torch.Tensor:
    """Return vectors [n, D] less the mean of the first `training` ones, whose mean length is 1 then.

    Of vectors [n, L, D], each of the L parts by itself; they become [n, L·D]. Directions and distances inside a part
    are kept, so that a cosine is what it is for centred vectors.

    Raises:
        EmbeddingsError: all training vectors are the same.
    """
    parts = vectors if vectors.ndim == 3 else vectors[:, None]
    centred = parts - parts[:training].mean(0)
    lengths = centred[:training].norm(dim=-1).mean(0)
    if not bool((lengths > 0).all()):
        raise EmbeddingsError("the embeddings of all training problems are the same: nothing can be told by them")
    scaled: torch.Tensor = centred / lengths[:, None]
    return scaled.flatten(1)


def write_embeddings(path: Path, embeddings: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file with one vector [D] for each problem's id; the same ones give the same bytes."""
    with replaced(path) as partial:
        save_file({name: embeddings[name].contiguous() for name in sorted(embeddings)}, partial)


def read_embeddings(path: Path, ids: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Read vectors [D], float32, by problem id; of all problems in the file, or of `ids` in their order.

    `.safetensors` holds one vector for each id, under that name. `.npy` holds a matrix [n, D], and a `.txt` of the
    same name beside it the n ids, one a line. Others than `ids` may be there too. Nothing is unpickled.

    Raises:
        EmbeddingsError: no such file, another format, an id is missing, or what is there is no vector of finite
            numbers as long as the others.
    """
    readers = {".safetensors": _safetensors, ".npy": _matrix}
    if path.suffix not in readers:
        raise EmbeddingsError(f"{path}: expected a .safetensors or .npy file")
    if not path.is_file():
        raise EmbeddingsError(f"{path}: no such file; check demonstrations.embeddings_file in params.yaml")
    found = readers[path.suffix](path, ids)
    if not found:
        raise EmbeddingsError(f"{path}: holds no embeddings")
    first, size = next((name, vector.numel()) for name, vector in found.items())
    for name, vector in found.items():
        if vector.ndim != 1 or not size:
            raise EmbeddingsError(f"{path}: {name}: expected a vector, found the shape {list(vector.shape)}")
        if vector.numel() != size:
            raise EmbeddingsError(f"{path}: {name} has {vector.numel()} numbers, but {first} has {size}")
        if vector.is_complex() or not bool(torch.isfinite(vector).all()):
            raise EmbeddingsError(f"{path}: {name}: holds NaN, infinite or complex numbers")
    return {name: vector.float() for name, vector in found.items()}


def _safetensors(path: Path, ids: Collection[str] | None) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            return {name: file.get_tensor(name) for name in _wanted(path, sorted(names), ids)}
    except SafetensorError as error:
        raise EmbeddingsError(f"{path}: not a safetensors file: {error}") from None


def _matrix(path: Path, ids: Collection[str] | None) -> dict[str, torch.Tensor]:
    try:
        rows = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise EmbeddingsError(f"{path}: not an array of numbers in NumPy's format: {error}") from None
    listed = path.with_suffix(".txt")
    if not listed.is_file():
        raise EmbeddingsError(f"{path}: needs {listed.name} beside it, with the id of each row on a line")
    names = listed.read_text(encoding="utf-8").split()
    if rows.ndim != 2 or len(rows) != len(names):
        raise EmbeddingsError(f"{path}: shape {list(rows.shape)}, but {listed.name} has {len(names)} ids, a row each")
    if rows.dtype.kind not in "fiu":
        raise EmbeddingsError(f"{path}: expected numbers, found {rows.dtype}")
    places = {name: place for place, name in enumerate(names)}
    if len(places) < len(names):
        twice = next(name for place, name in enumerate(names) if places[name] != place)
        raise EmbeddingsError(f"{listed}: {twice} stands there more than once")
    return {name: torch.from_numpy(rows[places[name]].astype(np.float32)) for name in _wanted(path, names, ids)}


def _wanted(path: Path, names: Collection[str], ids: Collection[str] | None) -> Collection[str]:
    """`ids`, or all names; raises EmbeddingsError where some have no vector."""
    if ids is None:
        return names
    known = set(names)
    if missing := [name for name in ids if name not in known]:
        raise EmbeddingsError(
            f"{path}: no vector for {len(missing)} of {len(ids)} problems, the first {missing[0]}; "
            "ids are those of results/score/*.jsonl"
        )
    return ids

"""Embeddings of problems that a selector was not trained on, on the scale of those that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from planward.core.files import replace_atomic, write_json
from planward.core.records import Record
from planward.core.tasks import Task
from planward.params import Params
from planward.selectors.config import SelectorsConfig
from planward.selectors.embeddings import MAX_TERMS, compute_model_embeddings, find_predicates, read_embeddings
from planward.selectors.frozen_model import load_frozen_model
from planward.stages.selectors.embed import encode_problem, get_problem_text

SCALE_FILE, TERMS_FILE = "embedding_scale.safetensors", "tfidf.json"
CHUNK = 4096  # problems whose prompts are encoded at once


@dataclass(frozen=True)
class Scale:
    """What `selectors.embeddings.standardise` subtracts and divides by.

    Attributes:
        mean: of the training problems' embeddings [L, D].
        length: mean length of these without their mean [L].
    """

    mean: torch.Tensor
    length: torch.Tensor

    @classmethod
    def measure(cls, vectors: torch.Tensor) -> Scale:
        """Measure training embeddings [n, D] or [n, L, D]."""
        parts = vectors if vectors.ndim == 3 else vectors[:, None]
        mean = parts.mean(0)
        return cls(mean, (parts - mean).norm(dim=-1).mean(0))

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        """Standardise embeddings [n, D] or [n, L, D]: [n, L·D]."""
        parts = vectors if vectors.ndim == 3 else vectors[:, None]
        return ((parts - self.mean) / self.length[:, None]).flatten(1)

    def save(self, folder: Path) -> None:
        with replace_atomic(folder / SCALE_FILE) as partial:
            save_file({"mean": self.mean, "length": self.length}, partial)

    @classmethod
    def load(cls, folder: Path) -> Scale:
        return cls(**load_file(folder / SCALE_FILE))


class ModelEmbedder:
    """Mean hidden states of the frozen language model."""

    def __init__(self, task: Task, params: Params, config: SelectorsConfig) -> None:
        self.task, self.params, self.config = task, params, config
        self.model, self.tokenizer = load_frozen_model(params, config)

    def embed(self, problems: Sequence[Record]) -> torch.Tensor:
        """Return vectors [n, L, D]."""
        chunks = [problems[start : start + CHUNK] for start in range(0, len(problems), CHUNK)]
        return torch.cat([self._embed_chunk(chunk) for chunk in chunks])

    def _embed_chunk(self, problems: Sequence[Record]) -> torch.Tensor:
        prompts = [encode_problem(self.task, problem, self.tokenizer, self.params.prompt) for problem in problems]
        return compute_model_embeddings(self.model, prompts, self.config.batch_tokens, self.config.layers)


class TfidfEmbedder:
    """TF-IDF of a problem's predicates, with the terms and weights of the training problems."""

    def __init__(self, task: Task, terms: dict[str, float]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.task, self.terms = task, terms
        vocabulary = {term: index for index, term in enumerate(terms)}
        self._vectorizer = TfidfVectorizer(analyzer=find_predicates, sublinear_tf=True, vocabulary=vocabulary)
        self._vectorizer.idf_ = np.array(list(terms.values()))

    @classmethod
    def fit(cls, task: Task, training: Sequence[Record]) -> TfidfEmbedder:
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer=find_predicates, sublinear_tf=True, max_features=MAX_TERMS)
        vectorizer.fit([get_problem_text(task.prompt(problem, [])) for problem in training])
        return cls(task, dict(zip(vectorizer.get_feature_names_out().tolist(), vectorizer.idf_.tolist(), strict=True)))

    def embed(self, problems: Sequence[Record]) -> torch.Tensor:
        """Return vectors [n, D]."""
        texts = [get_problem_text(self.task.prompt(problem, [])) for problem in problems]
        return torch.from_numpy(self._vectorizer.transform(texts).toarray()).float()

    def save(self, folder: Path) -> None:
        write_json(folder / TERMS_FILE, self.terms)


class FileEmbedder:
    """Vectors of a file, by problem id."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def embed(self, problems: Sequence[Record]) -> torch.Tensor:
        """Return vectors [n, D]."""
        return torch.stack(list(read_embeddings(self.file, [problem.id for problem in problems]).values()))


class Embedder(Protocol):
    """What embeds problems, not yet on the scale of training."""

    def embed(self, problems: Sequence[Record]) -> torch.Tensor: ...

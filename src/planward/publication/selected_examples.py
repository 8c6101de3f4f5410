"""Worked examples for a planner, chosen by a published selector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from planward.core.hashing import compute_md5
from planward.core.records import Record
from planward.planner.problems import hash_examples
from planward.publication.embedders import Embedder
from planward.publication.selectors import Selector, load_selector
from planward.tasks.planning.identity import identify_problem


class CachedEmbedder:
    """Embeds each problem once, by its id."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.vectors = embedder, dict[str, torch.Tensor]()

    def embed(self, problems: Sequence[Record]) -> torch.Tensor:
        missing = [problem for problem in problems if problem.id not in self.vectors]
        if missing:
            self.vectors |= zip((problem.id for problem in missing), self.embedder.embed(missing), strict=True)
        return torch.stack([self.vectors[problem.id] for problem in problems])


@dataclass(frozen=True)
class SelectedExamples:
    """Selects `count` examples of the pool for a problem, as the selector's evaluation does.

    Args:
        selector: with a `CachedEmbedder`, since the candidates of problems overlap.
        folder: the published selector's.

    Raises:
        ValueError: the pool holds fewer examples than `count`.
    """

    selector: Selector
    folder: Path
    pool: Sequence[Record]
    count: int

    def __call__(self, problem: Record) -> list[Record]:
        candidates = self.selector.config.pool or None
        # Candidates are sampled by the query's id. This one depends on the content of the files only; `split` gives the
        # same. A dialect of a problem has another one here, but keeps the original's in the selectors' evaluation.
        identity = identify_problem(Path(problem.meta.domain_file), Path(problem.meta.problem_file))
        query = problem.model_copy(update={"id": identity.id})
        ((_, ids),) = self.selector.choose([query], self.pool, self.count, candidates)
        return [self._by_id[id] for id in ids]

    @property
    def identity(self) -> dict[str, Any]:
        files = sorted(file for file in self.folder.rglob("*") if file.is_file() and file.suffix != ".md")
        selector = {file.relative_to(self.folder).as_posix(): compute_md5(file) for file in files}
        return {"examples": hash_examples(self.pool), "shots": self.count, "selector": selector}

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        return {record.id: record for record in self.pool}


def load_selected_examples(folder: Path, pool: Sequence[Record], count: int | None) -> SelectedExamples:
    """Load a published selector for a planner.

    Args:
        count: examples in a prompt; None: as many as in the selector's training.

    Raises:
        PublicationError, ParamsError: as `load_selector`.
    """
    selector = load_selector(folder)
    cached_selector = replace(selector, embedder=CachedEmbedder(selector.embedder))
    return SelectedExamples(cached_selector, folder, pool, count or selector.config.shot_num)

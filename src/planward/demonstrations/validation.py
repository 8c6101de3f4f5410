"""How good a selector is while it is trained: the language model's success with its examples, on held-out problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from planward.demonstrations.pointer import Pointer
from planward.demonstrations.selection import pointer_shots, prompt_order
from planward.evaluation.scoring import answers, queries
from planward.params import Params
from planward.records import Record
from planward.tasks.base import Task


class Validation:
    """Calling it with a pointer returns the mean success over all queries and 1 to `shot_num` worked examples.

    Verdicts are in-process ones. What the model answered under the same examples before is not asked again.
    """

    def __init__(
        self,
        task: Task,
        model: Any,
        tokenizer: Any,
        queries: Sequence[Record],
        pools: Mapping[str, Sequence[Record]],
        embeddings: Mapping[str, torch.Tensor],
        params: Params,
    ) -> None:
        self.task, self.model, self.tokenizer, self.params = task, model, tokenizer, params
        self.queries, self.pools, self.embeddings = queries, pools, embeddings
        self.known = dict[tuple[str, tuple[str, ...]], bool]()

    def __call__(self, pointer: Pointer) -> float:
        most = self.params.demonstrations.shot_num
        choices = pointer_shots(pointer, self.queries, self.pools, self.embeddings, most)
        wanted = queries(
            self.task,
            self.tokenizer,
            self.queries,
            prompt_order(choices),
            range(1, most + 1),
            self.params,
        )
        keys = [(query.problem.id, tuple(shot.id for shot in query.shots)) for query in wanted]
        new = {key: query for key, query in zip(keys, wanted, strict=True) if key not in self.known}
        found = answers(
            self.task, self.model, self.tokenizer, list(new.values()), self.params, quickly=True, progress=False
        )
        self.known |= {key: answer.verdict.success for key, answer in zip(new, found, strict=True)}
        return fmean(self.known[key] for key in keys)

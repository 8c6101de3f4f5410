"""Validation of a selector in training: the language model's success with its examples, on held-out problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from planward.core import fingerprints
from planward.core.prompt_templates import identify_prompts
from planward.core.records import Record
from planward.core.tasks import Task
from planward.evaluation.scoring import build_evaluation_prompts, complete_and_judge
from planward.params import Params
from planward.selectors.pointer import Pointer
from planward.selectors.selection import order_for_prompt, select_by_pointer

# Packages that a trained pointer depends on.
PACKAGES = ("core", "curriculum", "evaluation", "inference", "pddl", "selectors", "tasks", "val")


def compute_fingerprint(
    problems: Sequence[Record],
    pools: Mapping[str, Sequence[Record]],
    embeddings: Mapping[str, torch.Tensor],
    params: Params,
    model: Path,
) -> str:
    """Return a digest of all that the success of a pointer on `problems` depends on, Planward's code included.

    Args:
        model: folder of the frozen model.
    """
    settings = {
        "seed": params.seed,
        "prompt": identify_prompts(params.prompt),
        "model": params.model.model_dump(exclude={"vllm"}),
        "batch_size": params.evaluate.batch_size,
    }
    pool_ids = [[candidate.id for candidate in pools[query.id]] for query in problems]
    queries = [embeddings[query.id].tolist() for query in problems]
    return fingerprints.compute_fingerprint(settings, problems, [pool_ids, queries], str(model), 1, PACKAGES)


class SelectorValidation:
    """Computes the mean success over all queries and 1 to `shot_num` examples that a pointer chooses.

    Verdicts are the in-process verifier's. They are cached by query and examples.
    """

    def __init__(
        self,
        task: Task,
        model: Any,
        tokenizer: Any,
        problems: Sequence[Record],
        pools: Mapping[str, Sequence[Record]],
        embeddings: Mapping[str, torch.Tensor],
        params: Params,
        shot_num: int,
    ) -> None:
        self.task, self.model, self.tokenizer, self.params = task, model, tokenizer, params
        self.problems, self.pools, self.embeddings, self.shot_num = problems, pools, embeddings, shot_num
        self._verdicts = dict[tuple[str, tuple[str, ...]], bool]()

    def __call__(self, pointer: Pointer) -> float:
        choices = select_by_pointer(pointer, self.problems, self.pools, self.embeddings, self.shot_num)
        counts = range(1, self.shot_num + 1)
        prompts = build_evaluation_prompts(
            self.task, self.tokenizer, self.problems, order_for_prompt(choices), counts, self.params
        )
        keys = [(prompt.problem.id, tuple(example.id for example in prompt.examples)) for prompt in prompts]
        new = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._verdicts}
        completions = complete_and_judge(
            self.task, self.model, self.tokenizer, list(new.values()), self.params, in_process=True, progress=False
        )
        self._verdicts |= {key: item.verdict.success for key, item in zip(new, completions, strict=True)}
        return fmean(self._verdicts[key] for key in keys)

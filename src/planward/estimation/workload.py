"""How many tokens a run reads and writes, from the parameters and a sample of the problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from planward.core import paths
from planward.core.prompts import encode_completion, encode_prompt, fit_prompt
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.tasks import Messages, Task
from planward.core.training_prompts import sample_training_prompt
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.params import Params

SAMPLE = 40  # problems, balanced over the domains, whose prompts are counted
RANDOM_SEQUENCES = 8
DEFAULT_PROBLEMS = 100  # of an evaluation, where the test split is not known yet

Sequence_ = tuple[list[int], list[int]]  # token ids of a prompt and of its reference completion


@dataclass(frozen=True)
class Workload:
    """Means are in tokens."""

    source: str  # what the lengths were taken from
    sequences: list[Sequence_]  # as SFT trains on
    grpo_prompt: float
    completion: float  # reference completions; the model's may be longer
    max_completion: int
    validation_prompt: float
    validation_problems: int
    evaluation_prompts: dict[int, float]  # by number of worked examples
    sample_prompt: float  # with `evaluate.samples.shot_num` worked examples
    test_problems: int

    @property
    def sft_sequence(self) -> float:
        return fmean(len(prompt) + len(completion) for prompt, completion in self.sequences)

    @property
    def longest_sequence(self) -> int:
        return max(len(prompt) + len(completion) for prompt, completion in self.sequences)

    @property
    def longest_prompt(self) -> int:
        return max(len(prompt) for prompt, _ in self.sequences)


def build_workload(tokenizer: Any, params: Params) -> Workload:
    """Count tokens of present problems; without results/score, take the longest that the parameters allow.

    Raises:
        PromptTooLong: a problem does not fit; the message names it.
        ValueError: a reference completion has a word outside the vocabulary.
    """
    score = paths.results(params.task).score
    if (score / "train.jsonl").exists():
        splits = {split: list(read_records(score / f"{split}.jsonl")) for split in paths.SPLITS}
        return measure_problems(load_task(params), tokenizer, splits, params, str(score))
    return assume_longest(len(tokenizer), params)


def measure_problems(
    task: Task, tokenizer: Any, splits: dict[str, list[Record]], params: Params, source: str
) -> Workload:
    """Count the tokens of a sample of each split's prompts, with the worked examples that the parameters ask for."""
    seed = str(params.seed)
    train = select_training_set(splits["train"], params.dataset_sizes[-1])
    pool = select_training_set(splits["train"], params.dataset_sizes[0])
    sample = select_balanced(train, SAMPLE)
    draw = partial(sample_training_prompt, task, tokenizer, records=train, seed=seed, config=params.prompt)
    sequences = []
    for problem in sample:
        prompt = draw(problem, shot_range=params.sft.shots, rename=params.sft.renaming)
        reference = task.reference_completion(problem, prompt.renaming)
        sequences.append((prompt.ids, encode_completion(tokenizer, problem.id, reference)))
    shots = (params.grpo.shots, params.grpo.shots)
    grpo = [len(draw(problem, shot_range=shots, rename=params.grpo.renaming).ids) for problem in sample]

    def encode(prompt: str | Messages) -> list[int]:
        return encode_prompt(tokenizer, prompt, params.prompt.chat_template_options)

    def count_tokens(problem: Record, shot_num: int) -> int:
        examples = task.select_examples(problem, pool, shot_num, seed)
        prompt, _ = fit_prompt(task, problem, examples, lambda text: len(encode(text)), params.prompt.max_tokens)
        return len(encode(prompt))

    def average(problems: Sequence[Record], shot_num: int) -> float:
        return fmean(count_tokens(problem, shot_num) for problem in problems)

    validation = select_balanced(splits["validation"], min(SAMPLE, params.validation.problems)) or sample
    test = select_balanced(splits["test"], SAMPLE) or sample
    return Workload(
        source=f"{len(sample)} problems of {source}",
        sequences=sequences,
        grpo_prompt=fmean(grpo),
        completion=fmean(len(completion) for _, completion in sequences),
        max_completion=params.prompt.max_completion_tokens,
        validation_prompt=average(validation, 0),
        validation_problems=min(params.validation.problems, len(splits["validation"])),
        evaluation_prompts={shot_num: average(test, shot_num) for shot_num in params.evaluate.shots},
        sample_prompt=average(test, params.evaluate.samples.shot_num),
        test_problems=len(splits["test"]),
    )


def assume_longest(vocabulary: int, params: Params) -> Workload:
    """Random tokens, as many in each prompt and completion as `prompt` allows."""
    rng, prompt = Random(params.seed), params.prompt
    sequences = [
        (
            rng.choices(range(vocabulary), k=prompt.max_tokens),
            rng.choices(range(vocabulary), k=prompt.max_completion_tokens),
        )
        for _ in range(RANDOM_SEQUENCES)
    ]
    return Workload(
        source="random tokens, prompts and completions as long as prompt.* allows (no problems in results/score yet)",
        sequences=sequences,
        grpo_prompt=prompt.max_tokens,
        completion=prompt.max_completion_tokens,
        max_completion=prompt.max_completion_tokens,
        validation_prompt=prompt.max_tokens,
        validation_problems=params.validation.problems,
        evaluation_prompts=dict.fromkeys(params.evaluate.shots, float(prompt.max_tokens)),
        sample_prompt=prompt.max_tokens,
        test_problems=DEFAULT_PROBLEMS,
    )

"""Samples several completions of each test problem and judges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planward.core.prompts import encode_prompt
from planward.core.records import SampledAnswer
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.evaluation.scoring import EvaluationPrompt, judge_answers
from planward.inference.sampling import generate_samples
from planward.params import Params


def sample_and_judge(
    task: Task, model: Any, tokenizer: Any, prompts: Sequence[EvaluationPrompt], run: Run, params: Params
) -> list[SampledAnswer]:
    """Return `evaluate.samples.count` completions of each prompt with their verdicts, in the prompts' order.

    Args:
        model: a network or vLLM.

    Raises:
        VerifierError: no verdict could be reached.
    """
    settings = params.evaluate.samples
    options = params.prompt.chat_template_options
    samples = generate_samples(
        model,
        tokenizer,
        [encode_prompt(tokenizer, prompt.prompt, options) for prompt in prompts],
        settings.count,
        settings.temperature,
        params.prompt.max_completion_tokens,
        params.evaluate.batch_size,
        params.seed,
        generation=params.model.generation,
    )
    answers = [(prompt.problem, sample.text) for prompt, row in zip(prompts, samples, strict=True) for sample in row]
    verdicts = iter(judge_answers(task, answers))
    rows = []
    for prompt, row in zip(prompts, samples, strict=True):
        row_verdicts = [next(verdicts) for _ in row]
        problem = prompt.problem
        rows.append(
            SampledAnswer(
                id=problem.id,
                domain=problem.domain,
                bucket=problem.bucket or "easy",
                constrained=problem.constrained,
                method=run.method,
                dataset_size=run.size,
                seed=params.seed if run.method == "base" else run.seed,
                shot_num=prompt.shot_num,
                shot_ids=[example.id for example in prompt.examples],
                completions=[sample.text for sample in row],
                tokens=[sample.num_tokens for sample in row],
                labels=[verdict.label for verdict in row_verdicts],
                successes=[verdict.success for verdict in row_verdicts],
                plan_sizes=[verdict.outcome.plan_size if verdict.outcome else 0 for verdict in row_verdicts],
            )
        )
    return rows

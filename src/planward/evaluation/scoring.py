"""Builds evaluation prompts, completes them and turns judged completions into the rows of result files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Prediction, Record
from planward.core.runs import Run
from planward.core.tasks import Messages, Task
from planward.core.verdicts import Verdict
from planward.inference.decoding import generate_greedy
from planward.params import Params


@dataclass(frozen=True)
class EvaluationPrompt:
    """A problem's prompt with up to `shot_num` worked examples: as many as fit."""

    problem: Record
    shot_num: int
    examples: list[Record]
    prompt: str | Messages


def build_evaluation_prompts(
    task: Task,
    tokenizer: Any,
    problems: Sequence[Record],
    select_examples: Callable[[Record, int], Sequence[Record]],
    shot_nums: Iterable[int],
    params: Params,
) -> list[EvaluationPrompt]:
    """Return a prompt for each of `shot_nums` and each problem, in this order.

    Args:
        select_examples: returns the worked examples of a problem, in the prompt's order, given their number.

    Raises:
        PromptTooLong: a problem does not fit even without worked examples.
    """

    def count_tokens(prompt: str | Messages) -> int:
        return len(encode_prompt(tokenizer, prompt, params.prompt.chat_template_options))

    prompts, max_tokens = [], params.prompt.max_tokens
    for shot_num in shot_nums:
        for problem in problems:
            examples = select_examples(problem, shot_num)
            prompt, kept_examples = fit_prompt(task, problem, examples, count_tokens, max_tokens)
            prompts.append(EvaluationPrompt(problem, shot_num, kept_examples, prompt))
    return prompts


@dataclass(frozen=True)
class JudgedCompletion:
    """The completion of a prompt, in the prompt's names, with its verdict, in the problem's own."""

    prompt: EvaluationPrompt
    ids: list[int]  # token ids of the prompt
    completion: str
    verdict: Verdict


def complete_and_judge(
    task: Task,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[EvaluationPrompt],
    params: Params,
    *,
    in_process: bool = False,
    progress: bool = True,
) -> list[JudgedCompletion]:
    """Return greedy completions with verdicts, in the prompts' order; equal prompts are completed and judged once.

    Args:
        model: a network or vLLM.
        in_process: judge by `task.verify`, as in training, instead of `task.judge`.

    Raises:
        VerifierError: no verdict could be reached.
    """
    options = params.prompt.chat_template_options
    token_ids = [tuple(encode_prompt(tokenizer, prompt.prompt, options)) for prompt in prompts]
    distinct = list(dict.fromkeys(token_ids))
    completions = generate_greedy(
        model,
        tokenizer,
        distinct,
        params.prompt.max_completion_tokens,
        params.evaluate.batch_size,
        generation=params.model.generation,
        progress=progress,
    )
    by_ids = dict(zip(distinct, completions, strict=True))
    answers = [(prompt.problem, by_ids[ids]) for prompt, ids in zip(prompts, token_ids, strict=True)]
    verdicts = judge_answers(task, answers, in_process=in_process)
    return [
        JudgedCompletion(prompt, list(ids), completion, verdict)
        for prompt, ids, (_, completion), verdict in zip(prompts, token_ids, answers, verdicts, strict=True)
    ]


def judge_answers(task: Task, answers: Sequence[tuple[Record, str]], *, in_process: bool = False) -> list[Verdict]:
    """Return the verdicts on problems' completions, in their prompts' names; equal pairs are judged once.

    Raises:
        VerifierError: no verdict could be reached.
    """
    problems = {(problem.id, completion): problem for problem, completion in answers}
    pairs = [(problem, task.undo_renaming(problem, completion)) for (_, completion), problem in problems.items()]
    pair_verdicts = [task.verify(problem, text) for problem, text in pairs] if in_process else task.judge(pairs)
    verdicts = dict(zip(problems, pair_verdicts, strict=True))
    return [verdicts[problem.id, completion] for problem, completion in answers]


def build_predictions(
    judged: Sequence[JudgedCompletion], tokenizer: Any, run: Run, seed: int
) -> tuple[list[Prediction], dict[str, Any]]:
    """Return a run's completions as prediction rows, and their metrics.

    Args:
        seed: of the rows; differs from `run.seed` for base and rule-based selectors, which have no training seed.
    """
    rows = []
    for item in judged:
        prompt, verdict = item.prompt, item.verdict
        problem, outcome = prompt.problem, verdict.outcome
        rows.append(
            Prediction(
                id=problem.id,
                domain=problem.domain,
                bucket=problem.bucket or "easy",
                score=problem.score or 0.0,
                constrained=problem.constrained,
                method=run.method,
                dataset_size=run.size,
                seed=seed,
                shot_num=prompt.shot_num,
                shot_ids=[example.id for example in prompt.examples],
                prompt=tokenizer.decode(item.ids),
                completion=item.completion,
                plan=verdict.plan,
                label=verdict.label,
                success=verdict.success,
                reward=verdict.reward,
                detail=verdict.detail,
                plan_size=outcome.plan_size if outcome else 0,
                failing_step=outcome.failing_step if outcome else None,
                goals_satisfied=outcome.goals_satisfied if outcome else None,
                goals_total=outcome.goals_total if outcome else None,
            )
        )
    unknown = tokenizer.unk_token_id
    return rows, {
        "problems": len({row.id for row in rows}),
        "success_rate": compute_success_by_shots(rows),
        "shots_dropped": sum(item.prompt.shot_num - len(item.prompt.examples) for item in judged),
        "prompts_with_unknown_words": sum(unknown is not None and unknown in item.ids for item in judged),
    }


def compute_success_by_shots(rows: Sequence[Prediction]) -> dict[str, float]:
    """Return the success rate for each number of worked examples."""
    by_shots: dict[int, list[bool]] = defaultdict(list)
    for row in rows:
        by_shots[row.shot_num].append(row.success)
    return {str(shot_num): sum(values) / len(values) for shot_num, values in sorted(by_shots.items())}

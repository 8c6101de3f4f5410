"""Predictions: every test problem, with every number of worked examples, under the task's authority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from planward.evaluation.generation import greedy_completions
from planward.params import Params
from planward.records import Prediction, Record, Run, Verdict
from planward.tasks.base import Messages, Task
from planward.tasks.fitting import encode, fit


@dataclass(frozen=True)
class Query:
    """One prompt to complete: a problem with so many worked examples, as far as they fit."""

    problem: Record
    shot_num: int
    shots: list[Record]
    prompt: str | Messages


def queries(
    task: Task,
    tokenizer: Any,
    problems: Sequence[Record],
    shots_of: Callable[[Record, int], Sequence[Record]],
    shot_nums: Iterable[int],
    params: Params,
) -> list[Query]:
    """Every problem with so many worked examples as each of `shot_nums` says, as far as they fit.

    Args:
        shots_of: the examples of a problem, in the prompt's order, where so many are wanted.

    Raises:
        PromptTooLong: a problem does not fit even without examples.
    """

    def length(prompt: str | Messages) -> int:
        return len(encode(tokenizer, prompt))

    found = []
    for shot_num in shot_nums:
        for problem in problems:
            prompt, kept = fit(task, problem, shots_of(problem, shot_num), length, params.prompt.max_tokens)
            found.append(Query(problem, shot_num, kept, prompt))
    return found


@dataclass(frozen=True)
class Answer:
    """A model's answer to a query, and the authority's verdict on it."""

    query: Query
    ids: list[int]  # the prompt's tokens
    completion: str
    verdict: Verdict


def answers(
    task: Task,
    model: Any,
    tokenizer: Any,
    asked: Sequence[Query],
    params: Params,
    *,
    quickly: bool = False,
    progress: bool = True,
) -> list[Answer]:
    """Greedy answers with their verdicts, in the queries' order; equal prompts are completed, and judged, once.

    Args:
        quickly: `task.verify` judges, as in training, and not the task's authority.

    Raises:
        VerifierError: the verifier broke; no verdict is made up in its place.
    """
    prompts = [tuple(encode(tokenizer, query.prompt)) for query in asked]
    distinct = list(dict.fromkeys(prompts))
    written = greedy_completions(
        model,
        tokenizer,
        distinct,
        params.prompt.max_completion_tokens,
        params.evaluate.batch_size,
        progress=progress,
    )
    completed = dict(zip(distinct, written, strict=True))
    told = {(query.problem.id, completed[ids]): query.problem for query, ids in zip(asked, prompts, strict=True)}
    pairs = [(problem, text) for (_, text), problem in told.items()]
    judged = [task.verify(problem, text) for problem, text in pairs] if quickly else task.judge(pairs)
    verdicts = dict(zip(told, judged, strict=True))
    return [
        Answer(query, list(ids), completed[ids], verdicts[query.problem.id, completed[ids]])
        for query, ids in zip(asked, prompts, strict=True)
    ]


def predictions(
    answered: Sequence[Answer], tokenizer: Any, run: Run, seed: int
) -> tuple[list[Prediction], dict[str, Any]]:
    """The answers of a run as rows, and what a reader of the table must know about them.

    Args:
        seed: what the rows tell; base, and selectors that are rules, have no seed of their own.
    """
    rows = []
    for answer in answered:
        query, verdict = answer.query, answer.verdict
        problem, outcome = query.problem, verdict.outcome
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
                shot_num=query.shot_num,
                shot_ids=[shot.id for shot in query.shots],
                prompt=tokenizer.decode(answer.ids),
                completion=answer.completion,
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
        "success_rate": success_by_shots(rows),
        "shots_dropped": sum(answer.query.shot_num - len(answer.query.shots) for answer in answered),
        "prompts_with_unknown_words": sum(unknown is not None and unknown in answer.ids for answer in answered),
    }


def success_by_shots(rows: Sequence[Prediction]) -> dict[str, float]:
    hits: dict[int, list[bool]] = defaultdict(list)
    for row in rows:
        hits[row.shot_num].append(row.success)
    return {str(shot_num): sum(values) / len(values) for shot_num, values in sorted(hits.items())}

"""Predictions: every test problem, with every number of worked examples, under the task's authority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planward.evaluation.generation import greedy_completions
from planward.params import Params
from planward.records import Prediction, Record
from planward.tasks.base import Messages, Task
from planward.tasks.fitting import drawn_shots, encode, fit


@dataclass(frozen=True)
class Query:
    """One prompt to complete: a problem with so many worked examples, as far as they fit."""

    problem: Record
    shot_num: int
    shots: list[Record]
    prompt: str | Messages


def queries(
    task: Task, tokenizer: Any, problems: Sequence[Record], pool: Sequence[Record], params: Params
) -> list[Query]:
    """Every problem with every number of worked examples; raises PromptTooLong where a problem does not fit."""

    def length(prompt: str | Messages) -> int:
        return len(encode(tokenizer, prompt))

    found = []
    for shot_num in params.evaluate.shots:
        for problem in problems:
            shots = drawn_shots(problem, pool, shot_num, str(params.seed))
            prompt, kept = fit(task, problem, shots, length, params.prompt.max_tokens)
            found.append(Query(problem, shot_num, kept, prompt))
    return found


def predictions(
    task: Task, model: Any, tokenizer: Any, asked: Sequence[Query], params: Params, method: str, size: int
) -> tuple[list[Prediction], dict[str, Any]]:
    """Completions with their verdicts, and what a reader of the table must know about them.

    Raises:
        VerifierError: the verifier broke; no prediction is made up in its place.
    """
    prompts = [encode(tokenizer, query.prompt) for query in asked]
    completions = greedy_completions(
        model, tokenizer, prompts, params.prompt.max_completion_tokens, params.evaluate.batch_size
    )
    verdicts = task.judge([(query.problem, text) for query, text in zip(asked, completions, strict=True)])
    rows = []
    for query, ids, completion, verdict in zip(asked, prompts, completions, verdicts, strict=True):
        problem, outcome = query.problem, verdict.outcome
        rows.append(
            Prediction(
                id=problem.id,
                domain=problem.domain,
                bucket=problem.bucket or "easy",
                score=problem.score or 0.0,
                constrained=problem.constrained,
                method=method,
                dataset_size=size,
                seed=params.seed,
                shot_num=query.shot_num,
                shot_ids=[shot.id for shot in query.shots],
                prompt=tokenizer.decode(ids),
                completion=completion,
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
        "shots_dropped": sum(query.shot_num - len(query.shots) for query in asked),
        "prompts_with_unknown_words": sum(unknown is not None and unknown in ids for ids in prompts),
    }


def success_by_shots(rows: Sequence[Prediction]) -> dict[str, float]:
    hits: dict[int, list[bool]] = defaultdict(list)
    for row in rows:
        hits[row.shot_num].append(row.success)
    return {str(shot_num): sum(values) / len(values) for shot_num, values in sorted(hits.items())}

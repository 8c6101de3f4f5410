"""evaluate: complete every test problem with each number of worked examples; VAL gives the verdicts."""

from __future__ import annotations

from pathlib import Path

from planward.curriculum.sets import training_set
from planward.params import Params, ParamsError
from planward.records import METHODS, Record, Run, read_records, write_json, write_jsonl
from planward.stages.score import OUT as SCORE
from planward.stages.sft import MODELS
from planward.tasks import load_task
from planward.tasks.base import Task

OUT = Path("results/predictions")


def run(params: Params, run: Run, task: Task | None = None) -> None:
    """Write results/predictions/RUN.jsonl and RUN.json.

    Worked examples are drawn by `params.seed`, whatever the run's, which only its rows tell; base has no other.

    Args:
        task: judges in place of the one that `params` names.

    Raises:
        ParamsError: there can be no such model.
    """
    known = [*METHODS, *params.ablations.variants]
    if run.method not in known or (run.size == 0) != (run.method == "base"):
        raise ParamsError(f"evaluate: no model {run.name}; methods are {', '.join(known)}; size is 0 for base only")
    from planward.evaluation.scoring import answers, predictions, queries
    from planward.training import models

    path = params.model.path if run.method == "base" else str(params.placed(MODELS) / run.name)
    score, out = params.placed(SCORE), params.placed(OUT)
    limits = params.prompt
    model, tokenizer = models.load(params.model, path, limits.max_tokens + limits.max_completion_tokens, params.seed)
    problems = sorted(read_records(score / "test.jsonl"), key=lambda record: (record.domain, record.id))
    if not problems:
        raise ValueError(f"{score}/test.jsonl is empty: bring more problems or raise split.test")
    # The smallest set is inside all others, so every method sees the same examples and comparisons are paired.
    pool = training_set(read_records(score / "train.jsonl"), params.dataset_sizes[0])
    task = task or load_task(params)

    def shots_of(problem: Record, count: int) -> list[Record]:
        return task.shots(problem, pool, count, str(params.seed))

    asked = queries(task, tokenizer, problems, shots_of, params.evaluate.shots, params)
    answered = answers(task, model, tokenizer, asked, params)
    rows, metrics = predictions(answered, tokenizer, run, params.seed if run.method == "base" else run.seed)
    write_jsonl(out / f"{run.name}.jsonl", (row.model_dump() for row in rows))
    write_json(out / f"{run.name}.json", metrics)

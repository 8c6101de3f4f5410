"""evaluate: complete every test problem with each number of worked examples; VAL gives the verdicts."""

from __future__ import annotations

from pathlib import Path

from planward.curriculum.sets import training_set
from planward.params import Params, ParamsError
from planward.records import read_records, write_json, write_jsonl
from planward.stages.score import OUT as SCORE
from planward.tasks import load_task

OUT = Path("results/predictions")
METHODS = ("base", "sft", "grpo")


def run(params: Params, method: str, size: int) -> None:
    if method not in METHODS or (size == 0) != (method == "base"):
        raise ParamsError(f"evaluate: no model {method}-{size}; methods are base (size 0), sft and grpo")
    from planward.evaluation.scoring import predictions, queries
    from planward.training import models

    name = f"{method}-{size}"
    path = params.model.path if method == "base" else f"results/models/{name}"
    limits = params.prompt
    model, tokenizer = models.load(params.model, path, limits.max_tokens + limits.max_completion_tokens, params.seed)
    problems = sorted(read_records(SCORE / "test.jsonl"), key=lambda record: (record.domain, record.id))
    if not problems:
        raise ValueError(f"{SCORE}/test.jsonl is empty: bring more problems or raise split.test")
    # The smallest set is inside all others, so every method sees the same examples and comparisons are paired.
    pool = training_set(read_records(SCORE / "train.jsonl"), params.dataset_sizes[0])
    task = load_task(params)
    asked = queries(task, tokenizer, problems, pool, params)
    rows, metrics = predictions(task, model, tokenizer, asked, params, method, size)
    write_jsonl(OUT / f"{name}.jsonl", (row.model_dump() for row in rows))
    write_json(OUT / f"{name}.json", metrics)

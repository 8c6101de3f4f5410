"""Stage `sample`, and `sample-base`: several sampled completions of every test problem, judged by VAL, for pass@k."""

from __future__ import annotations

from collections.abc import Sequence

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.params import Params
from planward.stages.evaluate import build_test_prompts, check_run, load_run_model


def run(params: Params, run: Run) -> None:
    """Write samples/RUN.jsonl, without rows where `evaluate.samples.count` is 0, and RUN.json.

    Raises:
        ParamsError: there is no such model.
        ValueError: the test split is empty.
    """
    check_run(params, run)
    file, settings = paths.results(params.task).sampled_answers(run), params.evaluate.samples
    rows = []
    if settings.count:
        from planward.evaluation.samples import sample_and_judge

        model, tokenizer = load_run_model(params, run)
        task = load_task(params)
        prompts = build_test_prompts(task, tokenizer, [settings.shot_num], params)
        rows = sample_and_judge(task, model, tokenizer, prompts, run, params)
    write_jsonl(file, (row.model_dump() for row in rows))
    metrics = {
        "problems": len(rows),
        "samples": settings.count,
        "success_rate": _compute_mean([success for row in rows for success in row.successes]),
        "tokens": _compute_mean([tokens for row in rows for tokens in row.tokens]),
    }
    write_json(file.with_suffix(".json"), {"run": run.as_dict(params.task)} | metrics)


def _compute_mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

"""Stage `transfer-evaluate`, and `transfer-evaluate-base`: complete the problems of `transfer-problems`, and judge."""

from __future__ import annotations

from itertools import islice

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.records import TRANSFER_KINDS, Record, TransferProblem, read_transfer_problems
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.stages.evaluate import check_run, load_run_model
from planward.tasks.planning.config import PlanningParams


def run(params: PlanningParams, run: Run) -> None:
    """Write results/transfer/predictions/RUN.jsonl, and RUN.json with metrics by kind of problem.

    Raises:
        ParamsError: there is no such model.
    """
    check_run(params, run)
    from planward.evaluation.scoring import build_evaluation_prompts, build_predictions, complete_and_judge

    results = paths.results().transfer
    problems = sorted(read_transfer_problems(results.records), key=lambda problem: (problem.domain, problem.id))
    model, tokenizer = load_run_model(params, run)
    task = load_task(params, results.problems)

    def select_examples(problem: Record, count: int) -> list[Record]:
        assert isinstance(problem, TransferProblem)
        return problem.examples[:count]

    prompts = {
        kind: build_evaluation_prompts(
            task,
            tokenizer,
            [problem for problem in problems if problem.kind == kind],
            select_examples,
            getattr(params.transfer.shots, kind),
            params,
        )
        for kind in TRANSFER_KINDS
    }
    all_prompts = [prompt for kind in TRANSFER_KINDS for prompt in prompts[kind]]
    judged_completions = iter(complete_and_judge(task, model, tokenizer, all_prompts, params))
    seed = params.seed if run.method == "base" else run.seed
    rows, metrics = [], {}
    for kind in TRANSFER_KINDS:
        rows_of_kind, metrics[kind] = build_predictions(
            list(islice(judged_completions, len(prompts[kind]))), tokenizer, run, seed
        )
        rows += rows_of_kind
    write_jsonl(results.answers(run), (row.model_dump() for row in rows))
    write_json(results.answers(run).with_suffix(".json"), {"run": run.as_dict(params.task)} | metrics)

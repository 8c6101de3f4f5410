"""Stage `evaluate`: complete every test problem with each number of worked examples, and judge the completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.curriculum.training_sets import select_training_set
from planward.params import METHODS, Params, ParamsError

if TYPE_CHECKING:
    from planward.evaluation.scoring import EvaluationPrompt


def run(params: Params, run: Run, task: Task | None = None) -> None:
    """Write predictions/RUN.jsonl and RUN.json.

    Examples are sampled with `params.seed`, not the run's seed, so that all models see the same prompts.

    Args:
        task: judges instead of the task that `params` names.

    Raises:
        ParamsError: there is no such model.
        ValueError: the test split is empty.
    """
    check_run(params, run)
    from planward.evaluation.scoring import build_predictions, complete_and_judge

    results = paths.results(params.task)
    model, tokenizer = load_run_model(params, run)
    task = task or load_task(params)
    prompts = build_test_prompts(task, tokenizer, params.evaluate.shots, params)
    judged_completions = complete_and_judge(task, model, tokenizer, prompts, params)
    rows, metrics = build_predictions(
        judged_completions, tokenizer, run, params.seed if run.method == "base" else run.seed
    )
    write_jsonl(results.answers(run), (row.model_dump() for row in rows))
    write_json(results.answers(run).with_suffix(".json"), {"run": run.as_dict(params.task)} | metrics)


def build_test_prompts(task: Task, tokenizer: Any, shot_nums: Sequence[int], params: Params) -> list[EvaluationPrompt]:
    """Return the prompt of each test problem with each number of worked examples.

    Raises:
        ValueError: the test split is empty.
        PromptTooLong: a problem does not fit even without worked examples.
    """
    from planward.evaluation.scoring import build_evaluation_prompts

    results = paths.results(params.task)
    test = results.score / "test.jsonl"
    problems = sorted(read_records(test), key=lambda record: (record.domain, record.id))
    if not problems:
        raise ValueError(f"{test} is empty; fix: bring more problems or raise split.test")
    # The smallest set is inside all others, so every method sees the same examples and comparisons are paired.
    pool = select_training_set(read_records(results.score / "train.jsonl"), params.dataset_sizes[0])

    def select_examples(problem: Record, count: int) -> list[Record]:
        return task.select_examples(problem, pool, count, str(params.seed))

    return build_evaluation_prompts(task, tokenizer, problems, select_examples, shot_nums, params)


def check_run(params: Params, run: Run) -> None:
    """Raise ParamsError where no run of this method and size exists."""
    methods = [*METHODS, *params.ablations.variants]
    if run.method not in methods or (run.size == 0) != (run.method == "base"):
        raise ParamsError(f"evaluate: no model {run.name}; methods are {', '.join(methods)}; size is 0 for base only")


def load_run_model(params: Params, run: Run) -> tuple[Any, Any]:
    """Load the model of a run, as `generate_greedy` takes it, and its tokenizer."""
    from planward.inference import models, vllm

    path = params.model.path if run.method == "base" else str(paths.results(params.task).model(run))
    length = params.prompt.max_tokens + params.prompt.max_completion_tokens
    if params.model.generation == "vllm":
        return vllm.load_vllm(params.model, path, length, params.seed)
    return models.load_model(params.model, path, length, params.seed, training=False)

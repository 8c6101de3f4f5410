"""Commands of the stages that every task shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from planward.cli.execution import format_stage, hold_stage, limit_threads, report_errors, run_stage
from planward.cli.options import Address, Engine, EngineName, Seed, Size, TaskName, Variant
from planward.cli.parameters import MODELS_PIPELINE, find_pipeline
from planward.core.registry import load_params
from planward.core.runs import Run
from planward.params import Params

if TYPE_CHECKING:
    from planward.core.tasks import Task

PANEL = "Stages"


def register(app: typer.Typer) -> None:
    """Add the commands in the order of the pipeline."""
    for command in (
        problems,
        split,
        score,
        schedule,
        sft,
        start,
        grpo,
        evaluate,
        sample,
        compare,
        analyse,
        track,
        report,
    ):
        app.command(rich_help_panel=PANEL)(command)
    for command in (base, adapter):
        app.command(rich_help_panel="Shipped models")(command)


def problems(task: TaskName = "planning", engine: EngineName = Engine.local, address: Address = None) -> None:
    """Collect problems from any source in results/problems."""
    from planward.stages import problems as stage

    run_stage("problems", _with_engine(stage.run, engine, address), task)


def split(task: TaskName = "planning") -> None:
    """Validate every line, quarantine bad ones, divide the rest into train, validation and test."""
    from planward.stages import split as stage

    run_stage("split", stage.run, task)


def score(task: TaskName = "planning") -> None:
    """Score the difficulty of every problem and bucket each domain."""
    from planward.stages import score as stage

    run_stage("score", stage.run, task)


def schedule(size: Size, seed: Seed, method: Variant = "grpo", task: TaskName = "planning") -> None:
    """Write which problem is trained on at which step."""
    from planward.stages import schedule as stage

    run = Run(method, size, seed)
    run_stage(format_stage("schedule", run), lambda params: stage.run(params, run), task, run=run)


def sft(size: Size, seed: Seed, task: TaskName = "planning") -> None:
    """Fine-tune the base model on reference completions."""
    from planward.stages import sft as stage

    run = Run("sft", size, seed)
    run_stage(format_stage("sft", run), lambda params: stage.run(params, run), task, run=run)


def start(size: Size, seed: Seed, task: TaskName = "planning") -> None:
    """List the weights that GRPO starts from (grpo.from) by content, so that it depends on them."""
    from planward.stages import start as stage

    with report_errors(), hold_stage(f"{task}-start@{size}-{seed}", find_pipeline(task)):
        stage.run(load_params(task), Run("grpo", size, seed))


def grpo(size: Size, seed: Seed, method: Variant = "grpo", task: TaskName = "planning") -> None:
    """Train the weights of grpo.from, by default the SFT model, by curriculum GRPO, rewarded by the task's verifier."""
    from planward.stages import grpo as stage

    run = Run(method, size, seed)
    run_stage(format_stage("grpo", run), lambda params: stage.run(params, run), task, run=run)


def evaluate(
    method: Annotated[str, typer.Option(help="base, sft, grpo, or a variant under `ablations` in params.yaml.")],
    size: Annotated[int, typer.Option(help="The model's dataset size; 0 for base.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The model's seed; not for base.")] = None,
    task: TaskName = "planning",
    engine: EngineName = Engine.local,
    address: Address = None,
) -> None:
    """Complete every test problem with each number of worked examples in evaluate.shots, and judge the plans."""
    from planward.stages import evaluate as stage

    run = _build_run(method, size, seed)
    function = _with_engine(lambda params, judge: stage.run(params, run, judge), engine, address)
    run_stage(format_stage("evaluate", run), function, task, run=run)


def sample(
    method: Annotated[str, typer.Option(help="base, sft or grpo.")],
    size: Annotated[int, typer.Option(help="The model's dataset size; 0 for base.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The model's seed; not for base.")] = None,
    task: TaskName = "planning",
) -> None:
    """Sample several completions of every test problem (evaluate.samples), for pass@k; VAL gives the verdicts."""
    from planward.stages import sample as stage

    run = _build_run(method, size, seed)
    run_stage(format_stage("sample", run), lambda params: stage.run(params, run), task, run=run)


def compare(task: TaskName = "planning") -> None:
    """Compute every table from the stored predictions."""
    from planward.stages import compare as stage

    run_stage("compare", stage.run, task)


def analyse(task: TaskName) -> None:
    """Compute the tables that only this task has, from the stored predictions."""
    from planward.stages import analyse as stage

    run_stage("analyse", stage.run, task)


def track(name: Annotated[str, typer.Argument(help="One of `tracks` in params.yaml.")]) -> None:
    """List the results of another track by content, so that the report depends on them."""
    from planward.stages import track as stage

    with report_errors(), hold_stage(f"planning-track@{name}", find_pipeline("planning")):
        stage.run(name)


def report() -> None:
    """Write results/report.html."""
    from planward.stages import report as stage

    with report_errors(), hold_stage("planning-report", find_pipeline("planning")):
        stage.run(load_params())


def base() -> None:
    """Train models/base from scratch (about 85 minutes on one core; see models/base/README.md)."""
    from planward.stages import base as stage

    limit_threads()
    with report_errors(), hold_stage("models-base", MODELS_PIPELINE):
        stage.run()


def adapter(task: TaskName) -> None:
    """Train the shipped adapter that teaches models/base a task's vocabulary (see models/TASK/README.md)."""
    from planward.stages import adapter as stage

    limit_threads()
    with report_errors(), hold_stage(f"models-{task}", MODELS_PIPELINE):
        stage.run(load_params(task))


def _build_run(method: str, size: int, seed: int | None) -> Run:
    if seed is None and method != "base":
        raise typer.BadParameter(f"{method} has one model per seed; name one", param_hint="--seed")
    return Run(method, size, seed or 0)


def _with_engine(
    stage: Callable[[Params, Task], None], engine: Engine, address: str | None
) -> Callable[[Params], None]:
    """The stage with a task whose bulk work runs on the engine."""

    def run(params: Params) -> None:
        from planward.integrations.ray.engine import open_task

        with open_task(params, engine.value, address) as task:
            stage(params, task)

    return run

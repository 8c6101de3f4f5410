"""Commands of the stages on problems that are unlike those of training."""

from __future__ import annotations

from typing import Annotated

import typer

from planward.cli.execution import run_stage
from planward.core.runs import Run

app = typer.Typer(help="Stages on renamed problems, larger ones and those of held-out domains.", no_args_is_help=True)


@app.command()
def problems() -> None:
    """Build the problems, with their worked examples."""
    from planward.stages.transfer import problems as stage

    run_stage("transfer-problems", stage.run)


@app.command()
def evaluate(
    method: Annotated[str, typer.Option(help="base, sft or grpo.")],
    size: Annotated[int, typer.Option(help="The model's dataset size; 0 for base.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The model's seed; not for base.")] = None,
) -> None:
    """Complete the problems with a model; VAL gives the verdicts."""
    from planward.stages.transfer import evaluate as stage

    if seed is None and method != "base":
        raise typer.BadParameter(f"{method} has one model per seed; name one", param_hint="--seed")
    run = Run(method, size, seed or 0)
    name = "transfer-evaluate-base" if method == "base" else f"transfer-evaluate@{run.name}"
    run_stage(name, lambda params: stage.run(params, run), run=run)


@app.command()
def compare() -> None:
    """Compute the table of success, from the stored predictions."""
    from planward.stages.transfer import compare as stage

    run_stage("transfer-compare", stage.run)

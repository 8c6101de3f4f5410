"""Commands of the stages on hosted and served models."""

from __future__ import annotations

from typing import Annotated

import typer

from planward.cli.execution import run_stage
from planward.core.runs import Run

app = typer.Typer(help="Stages on hosted and served models, `endpoints` in params.yaml.", no_args_is_help=True)


@app.callback()
def endpoints() -> None:
    """Hosted and served models, `endpoints` in params.yaml."""


@app.command()
def evaluate(name: Annotated[str, typer.Argument(help="One of `endpoints.run`.")]) -> None:
    """Ask a model for a plan for every test problem; VAL gives the verdicts.

    Answers are stored in results/endpoints/NAME.jsonl as they arrive, and none is asked for twice: a run that was
    stopped is continued by the same command.
    """
    from planward.stages.endpoints import evaluate as stage

    run_stage(f"endpoints-evaluate@{name}", lambda params: stage.run(params, name), run=Run(name, 0, 0))

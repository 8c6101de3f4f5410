"""Commands of the selectors track: which worked examples stand in the prompt of a frozen model."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from planward.cli.execution import run_stage
from planward.cli.options import Seed, Size
from planward.core.runs import POINTERS, Run

if TYPE_CHECKING:
    from planward.selectors.config import SelectorsConfig
    from planward.tasks.planning.config import PlanningParams

app = typer.Typer(help="Stages that choose worked examples for a frozen model.", no_args_is_help=True)


class Split(StrEnum):
    train = "train"
    test = "test"


@app.command()
def dialects() -> None:
    """Put the problems of each split into dialects of their domains, so that worked examples matter."""
    from planward.stages.selectors import dialects as stage

    _run("dialects", stage.run)


@app.command()
def embed() -> None:
    """Compute an embedding of every problem."""
    from planward.stages.selectors import embed as stage

    _run("embed", stage.run)


@app.command()
def beams(split: Annotated[Split, typer.Option(help="train, or test for the oracle.")]) -> None:
    """Search for the worked examples under which each query's reference plan is most likely."""
    from planward.stages.selectors import beams as stage

    _run(f"beams@{split}", lambda params, config: stage.run(params, config, split.value))


@app.command()
def train(
    method: Annotated[str, typer.Option(help="pointer-sft, pointer-rce or pointer-grpo, each after the one before.")],
    size: Size,
    seed: Seed,
) -> None:
    """Train the pointer network that chooses worked examples."""
    from planward.stages.selectors import train as stage

    run = Run(method, size, seed)
    name = f"{method.removeprefix('pointer-')}@{size}-{seed}"
    _run(name, lambda params, config: stage.run(params, config, run), run)


@app.command()
def evaluate(
    size: Annotated[int, typer.Option(help="The pointers' dataset size; 0 for random, similarity and oracle.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The pointers' seed; not for rules.")] = None,
) -> None:
    """Complete every test problem with the worked examples that selectors choose; VAL gives the verdicts."""
    from planward.stages.selectors import evaluate as stage

    if (seed is None) != (size == 0):
        raise typer.BadParameter("pointers have a size and a seed, rules have neither", param_hint="--seed")
    name = f"evaluate@{size}-{seed}" if size else "evaluate-rules"
    run = Run(POINTERS[-1], size, seed or 0) if size else None  # the last of the three that are evaluated
    _run(name, lambda params, config: stage.run(params, config, size, seed or 0), run)


@app.command()
def compare() -> None:
    """Compute every table of the selectors from their stored predictions."""
    from planward.stages.selectors import compare as stage

    _run("compare", lambda params, _: stage.run(params))


def _run(stage: str, function: Callable[[PlanningParams, SelectorsConfig], None], run: Run | None = None) -> None:
    from planward.selectors.config import load_selectors_config

    run_stage(stage, lambda params: function(params, load_selectors_config()), track="selectors", run=run)

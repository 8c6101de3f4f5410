"""Commands that exchange answers with benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from planward.cli.cluster import export
from planward.cli.execution import report_errors
from planward.core import paths

PANEL = "Benchmarks"
import_ = typer.Typer(help="Read answers that a benchmark recorded.", no_args_is_help=True)


@import_.callback()
def _import() -> None:
    """Read answers that a benchmark recorded."""


@export.command("planbench")
def export_planbench(
    run: Annotated[str, typer.Argument(help="Whose predictions: results/predictions/RUN.jsonl.")],
    shots: Annotated[int, typer.Option(min=0, help="Worked examples in the prompt, one of evaluate.shots.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write: a checkout's results/, or by default results/planbench.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="The name of the model there; by default RUN.")] = None,
) -> None:
    """Write a run's predictions in the result format of PlanBench.

    Needs problems read with problems.source: planbench. Files: DOMAIN/ENGINE/TASK.json, where TASK is
    task_1_plan_generation_zero_shot_pddl, or task_1_plan_generation_pddl with worked examples.
    """
    from planward.integrations.planbench import export_results

    results = paths.results()
    with report_errors():
        for file in export_results(results, run, shots, out or results.root / "planbench", engine or run):
            print(file)


@import_.command("planbench")
def import_planbench(
    results: Annotated[list[Path], typer.Argument(help="CHECKOUT/results/DOMAIN/ENGINE/TASK.json, one or several.")],
    root: Annotated[
        Path | None,
        typer.Option(help="The folder with configs/ and instances/; by default the CHECKOUT of the result file."),
    ] = None,
) -> None:
    """Print answers recorded by PlanBench as JSON lines for `planward judge`.

    Reads task_1_plan_generation and its variants. Answers in PDDL are judged as given; of answers in words, the plan
    that the benchmark extracted from them.
    """
    from planward.integrations.planbench import iter_answers

    with report_errors():
        for file in results:
            for line in iter_answers(file, root):
                print(json.dumps(line))

"""`planward preflight`: whether stages can run, before the first of them."""

from __future__ import annotations

from typing import Annotated

import typer

from planward.cli.execution import report_errors


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(preflight)


def preflight(
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            help="Stages as DVC calls them, such as grpo@400-3407.", show_default="all that the report needs"
        ),
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="They run on other machines: leave out this one's GPU and memory.")
    ] = False,
) -> None:
    """Check what stages need before they run: models, packages, keys, servers, folders, disk, memory.

    Prints all faults at once, a line each: key or file, what is wrong, the fix. No model is loaded. Each stage checks
    its own needs when it starts, and `snakemake` those of all its jobs; before `dvc repro` this command checks the
    whole pipeline. Exit status: 2 where a stage cannot run.
    """
    from planward.preflight.checks import check_stages
    from planward.preflight.stages import read_stages

    with report_errors():
        stage_needs = read_stages(stages or ())
        check_stages(stage_needs, local=not elsewhere)
        print(f"{len(stage_needs)} checked: nothing is missing")

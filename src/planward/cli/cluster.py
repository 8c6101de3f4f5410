"""Commands that take a run to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planward.cli.execution import report_errors
from planward.cli.options import Seed, Size, TaskName, Variant
from planward.core.registry import load_params
from planward.core.runs import Run

PANEL = "On a cluster"
export = typer.Typer(help="Write a run for another trainer, or its answers for a benchmark.", no_args_is_help=True)
launch = typer.Typer(help="Submit an exported run to a cluster.", no_args_is_help=True)


@export.callback()
def _export() -> None:
    """Write a run for another trainer, or its answers for a benchmark."""


@launch.callback()
def _launch() -> None:
    """Submit an exported run to a cluster."""


@export.command("verl")
def export_verl(
    size: Size,
    seed: Seed,
    method: Variant = "grpo",
    task: TaskName = "planning",
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default results/verl/RUN.")] = None,
) -> None:
    """Write a GRPO run as a folder that verl trains from on a Ray cluster."""
    from planward.integrations.verl.config import load_cluster_config
    from planward.integrations.verl.export import export_run

    with report_errors():
        folder = export_run(load_params(task), Run(method, size, seed), load_cluster_config(), out)
        print(f"{folder}: planward launch verl {folder} --address http://HEAD:8265")


@launch.command("verl")
def launch_verl(
    folder: Annotated[Path, typer.Argument(help="What `planward export verl` wrote.")],
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The cluster's: http://HOST:8265 or ray://HOST:10001.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted.")] = False,
) -> None:
    """Train an exported run on a Ray cluster, and follow the job.

    Exit status: 0 succeeded, 1 failed or stopped, 130 interrupted (the job goes on).
    """
    from planward.integrations.verl.jobs import launch_job

    with report_errors():
        status = launch_job(folder, address, dry_run=dry_run)
    raise typer.Exit(status)

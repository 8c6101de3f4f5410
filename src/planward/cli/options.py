"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated

import typer

from planward.core.registry import task_names


def check_choice(value: str, choices: Collection[str]) -> str:
    """Return the value; raises typer.BadParameter where it is none of the choices."""
    if value not in choices:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
    return value


class Engine(StrEnum):
    local = "local"
    ray = "ray"


Size = Annotated[int, typer.Option(help="Training problems of all domains, one of dataset_sizes.")]
Seed = Annotated[int, typer.Option(help="The run's seed, one of seeds.")]
Variant = Annotated[str, typer.Option(help="grpo, or a variant under `ablations` in params.yaml.")]
TaskName = Annotated[
    str,
    typer.Option(
        "--task",
        callback=lambda name: check_choice(name, task_names()),
        metavar=f"[{'|'.join(task_names())}]",
        help="The task to serve; results of another task than planning are in results/TASK/.",
    ),
]
EngineName = Annotated[
    Engine,
    typer.Option("--engine", envvar="PLANWARD_ENGINE", help="Where bulk work runs: on this machine or a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", envvar="PLANWARD_ADDRESS", help="The Ray cluster's: auto, local, HOST:PORT or ray://HOST:PORT."
    ),
]

"""Tasks: everything that the trainers must not know."""

from __future__ import annotations

from pathlib import Path

from planward.params import Params
from planward.tasks.base import Task

PROBLEMS = Path("results/problems")


def load_task(params: Params, root: Path = PROBLEMS) -> Task:
    """The task that params.yaml describes; its problem files lie under `root`."""
    from planward.tasks.planning.task import PlanningTask

    return PlanningTask(params, root)

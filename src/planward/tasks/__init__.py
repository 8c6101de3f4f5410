"""Tasks: everything that the trainers must not know."""

from __future__ import annotations

from pathlib import Path

from planward.params import Params
from planward.tasks.base import Task

PROBLEMS = Path("results/problems")


def load_task(params: Params, root: Path | None = None) -> Task:
    """The task that `params.task` names; its problem files lie under `root`, by default where `problems` puts them."""
    root = params.placed(PROBLEMS) if root is None else root
    if params.task == "economy":
        from planward.tasks.economy.task import EconomyTask

        return EconomyTask(params, root)
    from planward.tasks.planning.task import PlanningTask

    return PlanningTask(params, root)

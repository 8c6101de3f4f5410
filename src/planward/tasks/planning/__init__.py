"""The planning task: a PDDL problem in, a plan out, judged by VAL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planward.core.registry import TaskSpec
from planward.tasks.planning.config import PlanningParams

if TYPE_CHECKING:
    from planward.core.tasks import Task


def _load(params: PlanningParams, root: Path) -> Task:
    from planward.tasks.planning.task import PlanningTask

    return PlanningTask(params, root)


SPEC = TaskSpec(params=PlanningParams, load=_load, title="Planning")

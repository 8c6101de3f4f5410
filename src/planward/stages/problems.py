"""problems: bring the task's problems from any source into results/problems, as JSON lines beside their files."""

from __future__ import annotations

import shutil

from planward.params import Params
from planward.tasks import PROBLEMS, load_task
from planward.tasks.base import Task


def run(params: Params, task: Task | None = None) -> None:
    """Write results/problems; raises ParamsError where params.yaml asks for problems that cannot be had.

    Args:
        task: does the work in place of the one that `params` names.
    """
    folder = params.placed(PROBLEMS)
    shutil.rmtree(folder, ignore_errors=True)
    (task or load_task(params)).bring(folder)

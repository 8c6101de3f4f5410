"""Stage `problems`: collect problems from any source in results/problems, as JSON lines beside their files."""

from __future__ import annotations

import shutil

from planward.core import paths
from planward.core.registry import load_task
from planward.core.tasks import Task
from planward.params import Params


def run(params: Params, task: Task | None = None) -> None:
    """Write results/problems.

    Args:
        task: prepares the problems instead of the task that `params` names.

    Raises:
        ParamsError: the problems that the parameters ask for are not available.
    """
    folder = paths.results(params.task).problems
    shutil.rmtree(folder, ignore_errors=True)
    (task or load_task(params)).prepare_problems(folder)

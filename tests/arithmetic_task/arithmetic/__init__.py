"""A third task, in a distribution of its own: sums and differences of digits, verified by computing them."""

from __future__ import annotations

from pathlib import Path

from planward.core.registry import TaskSpec
from planward.core.tasks import Task
from planward.params import Params


def load(params: Params, root: Path) -> Task:
    from arithmetic.task import ArithmeticTask

    return ArithmeticTask(params, root)


SPEC = TaskSpec(params=Params, load=load, title="Arithmetic")

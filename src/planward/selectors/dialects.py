"""Dialects of problems."""

from __future__ import annotations

from typing import Any

from planward.core import paths
from planward.core.records import Record
from planward.core.registry import load_task
from planward.core.tasks import Task
from planward.params import Params
from planward.selectors.config import SelectorsConfig


def load_track_task(params: Params, config: SelectorsConfig) -> Task:
    """Load the task of the track's problems, with `prompt.names: literal` where they are put into dialects.

    Dialects of a domain differ in names and the order of arguments only. Translated by structure, all would look like
    the plain one, and no example could tell anything about a problem's dialect.
    """
    if translates_problems(params, config):
        prompt = params.prompt.model_copy(update={"names": "literal"})
        params = params.model_copy(update={"prompt": prompt})
    return load_task(params, paths.SELECTORS.problems)


def translates_problems(params: Params, config: SelectorsConfig) -> bool:
    """Return whether the stage `dialects` translates problems: generated ones that are all in the plain domain."""
    problems: Any = getattr(params, "problems", None)  # the planning task's section
    is_plain = problems is not None and problems.source == "generated" and problems.dialects == 1
    return is_plain and config.dialects > 1


def get_dialect(record: Record) -> int:
    """Number of the dialect that the problem is written in; 0, the plain domain, where its `meta` has none."""
    return int(getattr(record.meta, "dialect", 0))

"""The economy task: a household decides each month how much to work and how much of its means to spend."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from planward.core.registry import AdapterFunction, AnalysisFunction, TaskSpec
from planward.tasks.economy.environment.config import EconomyParams

if TYPE_CHECKING:
    from planward.core.tasks import Task


def _load(params: EconomyParams, root: Path) -> Task:
    from planward.tasks.economy.task import EconomyTask

    return EconomyTask(params, root)


def _load_section() -> ModuleType:
    from planward.tasks.economy.reporting import section

    return section


def _load_analysis() -> AnalysisFunction:
    from planward.tasks.economy.reporting.analysis import analyse

    return analyse


def _load_adapter() -> AdapterFunction:
    from planward.tasks.economy.adapter import build_adapter_sources

    return build_adapter_sources


SPEC = TaskSpec(
    params=EconomyParams,
    load=_load,
    title="Economy",
    success_title="good decisions",
    resampling_unit="household",
    load_section=_load_section,
    load_analysis=_load_analysis,
    load_adapter=_load_adapter,
)

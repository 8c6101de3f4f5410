"""Probability of having a job next month, from the unemployment rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.tasks.economy.environment.config import LabourConfig

if TYPE_CHECKING:
    from planward.tasks.economy.environment.states import FloatArray


def compute_separation_probability(unemployment: FloatArray, labour: LabourConfig) -> FloatArray:
    """Probability that an employed household loses its job; rises with unemployment."""
    return np.clip(labour.separation * _compute_slack(unemployment, labour), 0.0, 0.5)


def compute_finding_probability(unemployment: FloatArray, labour: LabourConfig) -> FloatArray:
    """Probability that an unemployed household finds a job other than the offered one; falls with unemployment."""
    return np.clip(labour.finding / _compute_slack(unemployment, labour), 0.01, 1.0)


def compute_job_probability(
    employed: FloatArray, work: FloatArray, unemployment: FloatArray, labour: LabourConfig
) -> FloatArray:
    """Probability of having a job next month; without a job it rises with the work taken up in the offered one."""
    finding = np.minimum(compute_finding_probability(unemployment, labour) + labour.kept_offer * work, 1.0)
    return np.where(employed > 0, 1 - compute_separation_probability(unemployment, labour), finding)


def _compute_slack(unemployment: FloatArray, labour: LabourConfig) -> FloatArray:
    return np.sqrt(np.maximum(unemployment, 1e-3) / labour.natural)

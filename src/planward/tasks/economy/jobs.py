"""The chance of having a job next month, as the unemployment rate tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planward.params import Labour

if TYPE_CHECKING:
    from planward.tasks.economy.states import Numbers


def separation(unemployment: Numbers, labour: Labour) -> Numbers:
    """Chance of the employed to lose the job: more where many are without."""
    return np.clip(labour.separation * _slack(unemployment, labour), 0.0, 0.5)


def finding(unemployment: Numbers, labour: Labour) -> Numbers:
    """Chance of the unemployed to find a job, besides that of keeping the offered one: less where many look for one."""
    return np.clip(labour.finding / _slack(unemployment, labour), 0.01, 1.0)


def job_next_month(employed: Numbers, work: Numbers, unemployment: Numbers, labour: Labour) -> Numbers:
    """Chance of a job next month. The more of the offered job is taken up, the likelier it is kept."""
    found = np.minimum(finding(unemployment, labour) + labour.kept_offer * work, 1.0)
    return np.where(employed > 0, 1 - separation(unemployment, labour), found)


def _slack(unemployment: Numbers, labour: Labour) -> Numbers:
    return np.sqrt(np.maximum(unemployment, 1e-3) / labour.natural)

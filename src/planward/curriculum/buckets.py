"""Easy, medium and hard, by percentiles of the training split's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from planward.params import BUCKETS, Bucket, Percentiles


@dataclass(frozen=True)
class Thresholds:
    """Upper bounds, included, of easy and medium."""

    easy: float
    medium: float

    def bucket(self, score: float) -> Bucket:
        return "easy" if score <= self.easy else "medium" if score <= self.medium else "hard"


def thresholds(scores: Sequence[float], percentiles: Percentiles) -> Thresholds:
    """Percentiles by linear interpolation; scores are small integers, so ties decide the bucket sizes."""
    easy, medium = np.percentile(scores, [percentiles.easy, percentiles.medium])
    return Thresholds(float(easy), float(medium))


def distribution(scores: Sequence[float], bounds: Thresholds) -> dict[str, Any]:
    """The difficulty table's row for one domain."""
    buckets = [bounds.bucket(score) for score in scores]
    return {
        "count": len(scores),
        "min": min(scores),
        "max": max(scores),
        "mean": mean(scores),
        "median": median(scores),
        "p40": bounds.easy,
        "p80": bounds.medium,
        "buckets": {bucket: buckets.count(bucket) for bucket in BUCKETS},
    }

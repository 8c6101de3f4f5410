"""Easy, medium and hard, by percentiles of the training split's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from planward.params import BUCKETS, Bucket, BucketsConfig


@dataclass(frozen=True)
class Thresholds:
    """Upper bounds of the scores of easy and medium problems, inclusive."""

    easy: float
    medium: float

    def classify(self, score: float) -> Bucket:
        return "easy" if score <= self.easy else "medium" if score <= self.medium else "hard"


def compute_thresholds(scores: Sequence[float], percentiles: BucketsConfig) -> Thresholds:
    """Return percentiles of the scores, linearly interpolated; with small integer scores, ties set the bucket sizes."""
    easy, medium = np.percentile(scores, [percentiles.easy, percentiles.medium])
    return Thresholds(float(easy), float(medium))


def compute_distribution(scores: Sequence[float], thresholds: Thresholds) -> dict[str, Any]:
    """Return one domain's row of the difficulty table."""
    buckets = [thresholds.classify(score) for score in scores]
    return {
        "count": len(scores),
        "min": min(scores),
        "max": max(scores),
        "mean": mean(scores),
        "median": median(scores),
        "p40": thresholds.easy,
        "p80": thresholds.medium,
        "buckets": {bucket: buckets.count(bucket) for bucket in BUCKETS},
    }

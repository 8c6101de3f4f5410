"""Tables of a tally: success with Wilson intervals, paired tests on shared problems, labels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from planward.analysis.names import ALL
from planward.analysis.statistics import (
    Pairs,
    adjust_p_values,
    compute_detectable_difference,
    compute_paired_interval,
    compute_sign_flip_p,
    compute_wilson_interval,
)
from planward.analysis.tables import classify_result
from planward.core.verdicts import Label
from planward.judgement.tally import Tally

SUCCESS = ["model", "shot_num", "domain", "n", "successes", "success_rate", "ci_low", "ci_high"]
PAIRED = ["shot_num", "model_a", "model_b", "n", "both", "only_a", "only_b", "difference", "ci_low", "ci_high", "p"]
PAIRED += ["p_holm", "result", "detectable_difference"]
LABELS = ["model", "shot_num", "label", "count", "share"]


@dataclass(frozen=True)
class Tables:
    """Rates and shares are from 0 to 1, differences in points."""

    success: pd.DataFrame
    paired: pd.DataFrame
    labels: pd.DataFrame
    confidence: float


def compute_tables(tally: Tally, confidence: float) -> Tables:
    return Tables(
        _compute_success(tally, confidence), _compute_paired(tally, confidence), _compute_labels(tally), confidence
    )


def _compute_success(tally: Tally, confidence: float) -> pd.DataFrame:
    rows = []
    for cell in tally.cells:
        answer_mask, success_mask = tally.build_outcomes(cell)
        counts = np.bincount(tally.problem_domains[answer_mask], minlength=len(tally.domains))
        successes = np.bincount(tally.problem_domains[success_mask], minlength=len(tally.domains))
        by_domain = {name: (int(counts[i]), int(successes[i])) for i, name in enumerate(tally.domains) if counts[i]}
        for domain, (n, k) in [(ALL, (int(answer_mask.sum()), int(success_mask.sum()))), *sorted(by_domain.items())]:
            rows.append((*cell, domain, n, k, k / n, *compute_wilson_interval(k, n, confidence)))
    return pd.DataFrame(rows, columns=SUCCESS)


def _compute_paired(tally: Tally, confidence: float) -> pd.DataFrame:
    """All pairs of models with the same shot_num that share a problem; `p_holm` is adjusted over the table."""
    rows: list[dict[str, Any]] = []
    pairs = [(a, b) for a, b in combinations(tally.cells, 2) if a.shot_num == b.shot_num]
    for a, b in sorted(pairs, key=lambda pair: pair[0].shot_num):
        answer_mask_a, success_mask_a = tally.build_outcomes(a)
        answer_mask_b, success_mask_b = tally.build_outcomes(b)
        shared_mask = answer_mask_a & answer_mask_b
        if not shared_mask.any():
            continue
        x, y = success_mask_a[shared_mask], success_mask_b[shared_mask]
        counts = Pairs(*(int(cell.sum()) for cell in (x & y, x & ~y, ~x & y, ~x & ~y)))
        low, high = compute_paired_interval(counts, confidence)
        discordance = (counts.only_a + counts.only_b) / counts.n
        rows.append(
            {"shot_num": a.shot_num, "model_a": a.model, "model_b": b.model, "n": counts.n, "both": counts.both}
            | {"only_a": counts.only_a, "only_b": counts.only_b, "difference": 100 * counts.difference}
            | {"ci_low": 100 * low, "ci_high": 100 * high}
            | {"p": compute_sign_flip_p(y.astype(np.int64) - x.astype(np.int64))}
            | {"detectable_difference": 100 * compute_detectable_difference(discordance, counts.n, confidence)}
        )
    for row, p in zip(rows, adjust_p_values([row["p"] for row in rows]), strict=True):
        row |= {"p_holm": p, "result": classify_result(p, row["difference"], 1 - confidence)}
    return pd.DataFrame(rows, columns=PAIRED)


def _compute_labels(tally: Tally) -> pd.DataFrame:
    rows = []
    for cell in tally.cells:
        counts = tally.labels[cell]
        rows += [(*cell, str(label), counts[label], counts[label] / counts.total()) for label in Label]
    return pd.DataFrame(rows, columns=LABELS)

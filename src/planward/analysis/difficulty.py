"""Whether the difficulty score ranks problems as it should: by reference plans' lengths and by success of `base`.

Scores are comparable within a domain only, so correlations are computed in each domain; that of all domains is their
mean, weighted by the numbers of problems.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planward.analysis.cells import Uncertainty
from planward.analysis.names import ALL
from planward.analysis.statistics import RESAMPLES_PER_CHUNK
from planward.analysis.success_arrays import SuccessArrays

COLUMNS = ["domain", "problems", "measure", "shot_num", "domains", "n", "correlation", "ci_low", "ci_high", "undefined"]
KINDS = {ALL: ALL, "constrained": True, "unconstrained": False}  # of problems: the value of `constrained`
LENGTH, SUCCESS = "reference_length", "base_success"  # measures
BASE = ("base", 0)
MIN_PROBLEMS = 3  # of two, every order is perfect
Array = NDArray[np.float64]
Measure = tuple[str, str]  # its name and shot_num; '' where that has no meaning


@dataclass(frozen=True)
class Correlation:
    """The score's correlation with a measure on `n` problems of one domain."""

    n: int
    values: Array  # on the problems, then on each resample; NaN where undefined
    undefined: str  # why it is; ''


def read_reference_lengths(path: Path) -> dict[str, float]:
    """The length of each test problem's reference plan, by id, from the table of stage `score`.

    Returns:
        Without the problems whose reference is no plan; empty where the file has no lengths or is missing.
    """
    if not path.exists():
        return {}
    table = pd.read_csv(path, dtype={"id": str})
    if "reference_length" not in table:
        return {}
    rows = table[(table["split"] == "test") & table["reference_length"].notna()]
    return dict(zip(rows["id"], rows["reference_length"].astype(float), strict=True))


def compute_difficulty_table(
    success: SuccessArrays, reference_lengths: Mapping[str, float], by: Uncertainty
) -> pd.DataFrame:
    """Spearman's correlation of the score with each measure, by domain (`all` included) and kind of problems.

    Measures: the length of the reference plan, and the success of `base` by shot_num and over all of them (`all`: the
    share of successes). Kinds other than `all` only where the test set has both; no row for a measure that no problem
    has. Where a correlation is undefined, `undefined` says why; of all domains, it names those left out.

    Args:
        success: its problems have the column `score`.
        reference_lengths: by id.
    """
    lengths = success.problems["id"].map(reference_lengths).to_numpy(np.float64, na_value=np.nan)
    measures: dict[Measure, Array] = {(LENGTH, ""): lengths} if not np.isnan(lengths).all() else {}
    if BASE in success.arrays:
        rates = success.arrays[BASE].mean(axis=0)  # [shot_nums, problems]
        measures |= {(SUCCESS, str(n)): rate for n, rate in zip(success.shot_nums, rates, strict=True)}
        measures[SUCCESS, ALL] = rates.mean(axis=0)
    kinds = KINDS if success.problems["constrained"].nunique() > 1 else {ALL: ALL}
    rows = []
    for kind, value in kinds.items():
        by_domain = {
            domain: _correlate(success, measures, {"domain": domain, "constrained": value}, by, seed)
            for seed, domain in enumerate(sorted(success.problems["domain"].unique()))
        }
        for name, shot_num in measures:
            parts = {domain: cells[name, shot_num] for domain, cells in by_domain.items() if cells}
            correlations = {ALL: pool_correlations(parts)} | {
                domain: (int(not c.undefined), c) for domain, c in parts.items()
            }
            rows += [
                {"domain": domain, "problems": kind, "measure": name, "shot_num": shot_num, "domains": domains}
                | {"n": cell.n, "undefined": cell.undefined}
                | _describe_values(cell.values, by.confidence)
                for domain, (domains, cell) in correlations.items()
            ]
    ranks = {kind: rank for rank, kind in enumerate(KINDS)}
    rows.sort(key=lambda row: (row["domain"] != ALL, row["domain"], ranks[row["problems"]]))
    return pd.DataFrame(rows, columns=COLUMNS)


def pool_correlations(parts: Mapping[str, Correlation]) -> tuple[int, Correlation]:
    """The mean of the domains' correlations, weighted by their problems, and the number of domains in it.

    Domains where it is undefined are left out; a resample leaves out those where it is undefined in that resample.
    """
    usable = [part for part in parts.values() if not part.undefined]
    reasons = "; ".join(f"{domain}: {part.undefined}" for domain, part in parts.items() if part.undefined)
    if not usable:
        return 0, Correlation(sum(part.n for part in parts.values()), np.full(1, np.nan), reasons)
    values = np.stack([part.values for part in usable])
    weights = np.where(np.isnan(values), 0.0, np.array([[part.n] for part in usable]))
    with np.errstate(invalid="ignore"):
        means = (np.nan_to_num(values) * weights).sum(axis=0) / weights.sum(axis=0)
    return len(usable), Correlation(sum(part.n for part in usable), means, reasons)


def correlate_ranks(scores: Array, measures: Sequence[Array], counts: Array) -> Array:
    """Spearman's rank correlation of scores and each measure in each draw; equal values get their mean rank.

    Args:
        counts: shape [draws, problems]: how often a draw has each problem.

    Returns:
        Shape [measures, draws]; NaN where scores or measure are constant in the draw.
    """
    ranks = _compute_centred_ranks(scores, counts)
    weighted_ranks = counts * ranks
    deviation, correlations = np.sqrt(np.einsum("dp,dp->d", weighted_ranks, ranks)), []
    for measure in measures:
        others = _compute_centred_ranks(measure, counts)
        scale = deviation * np.sqrt(np.einsum("dp,dp->d", counts * others, others))
        covariance = np.einsum("dp,dp->d", weighted_ranks, others)
        correlations.append(np.clip(covariance / np.where(scale > 0, scale, np.nan), -1, 1))
    return np.stack(correlations)


def _compute_centred_ranks(values: Array, counts: Array) -> Array:
    """Each problem's mean rank less the mean of all ranks, [draws, problems]; exactly 0 where values are constant."""
    distinct, positions = np.unique(values, return_inverse=True)
    value_counts = counts @ np.eye(len(distinct))[positions]  # [draws, distinct values]: how often each is in the draw
    ranks = np.cumsum(value_counts, axis=1) - value_counts / 2
    centred_ranks: Array = (ranks - counts.sum(axis=1, keepdims=True) / 2)[:, positions]
    return centred_ranks


def _correlate(
    success: SuccessArrays, measures: Mapping[Measure, Array], group: Mapping[str, Any], by: Uncertainty, seed: int
) -> dict[Measure, Correlation]:
    """The score's correlation with each measure on the problems of a group; {} where it has none.

    Args:
        seed: beside that of `by`: domains are resampled independently.
    """
    mask = success.build_mask(**group)
    scores, correlations = success.problems["score"].to_numpy(np.float64), {}
    on_same_problems: dict[bytes, list[Measure]] = defaultdict(list)
    for measure, values in measures.items():
        rows = mask & ~np.isnan(values)
        reason = _explain_undefined(scores[rows], values[rows], measure[0])
        correlations[measure] = Correlation(int(rows.sum()), np.full(1, np.nan), reason)
        if not reason:
            on_same_problems[rows.tobytes()].append(measure)
    for names in on_same_problems.values():
        rows = mask & ~np.isnan(measures[names[0]])
        draws = _resample(scores[rows], [measures[name][rows] for name in names], by, seed)
        correlations |= {name: Correlation(int(rows.sum()), row, "") for name, row in zip(names, draws, strict=True)}
    return correlations if mask.any() else {}


def _resample(scores: Array, measures: Sequence[Array], by: Uncertainty, seed: int) -> Array:
    """The correlations of the problems as they are, then of draws with replacement; shape [measures, 1 + draws]."""
    n, rng = len(scores), np.random.default_rng([by.seed, seed])
    chunks = [correlate_ranks(scores, measures, np.ones((1, n)))]
    for start in range(0, by.resamples, RESAMPLES_PER_CHUNK):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(RESAMPLES_PER_CHUNK, by.resamples - start))
        chunks.append(correlate_ranks(scores, measures, counts.astype(np.float64)))
    return np.concatenate(chunks, axis=1)


def _explain_undefined(scores: Array, values: Array, measure: str) -> str:
    """Why the scores have no rank correlation with a measure; '' where they have one."""
    if measure == LENGTH and not len(scores):
        return "no reference plans"
    if len(scores) < MIN_PROBLEMS:
        return f"fewer than {MIN_PROBLEMS} problems"
    if np.ptp(scores) == 0:
        return "all problems have one score"
    if np.ptp(values):
        return ""
    if measure == LENGTH:
        return "all reference plans are equally long"
    return {0.0: "base solves no problem", 1.0: "base solves every problem"}.get(
        float(values[0]), "base solves every problem equally often"
    )


def _describe_values(values: Array, confidence: float) -> dict[str, float]:
    """The correlation and its percentile interval, over the resamples in which it is defined."""
    value, replicates = values[0], values[1:][~np.isnan(values[1:])]
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail]) if len(replicates) else (np.nan, np.nan)
    return {"correlation": float(value), "ci_low": float(low), "ci_high": float(high)}

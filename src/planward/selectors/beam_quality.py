"""Statistics of beams: how much a selector can learn from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, pstdev
from typing import Any

from planward.selectors.beams import QueryBeams


def compute_quality_by_domain(rows: Sequence[QueryBeams], domains: Mapping[str, str]) -> dict[str, Any]:
    """Compute the quality of all queries (`all`) and of each domain's (`domains`).

    Args:
        domains: the domain of each query, by id.
    """
    by_domain: dict[str, list[QueryBeams]] = {}
    for row in rows:
        by_domain.setdefault(domains[row.query], []).append(row)
    return {
        "all": compute_quality(rows),
        "domains": {name: compute_quality(by_domain[name]) for name in sorted(by_domain)},
    }


def compute_quality(rows: Sequence[QueryBeams]) -> dict[str, float | None]:
    """Compute statistics by name. Shares are between 0 and 1; a mean or share of nothing is None.

    - `queries`, `beams`, `judged` (beams with a verdict)
    - `correct`: share of the judged beams whose verdict is success
    - `score_mean` of all beams, and `score_spread`, the mean of the queries' standard deviations, nats
    - `positive`: share of the beams whose examples make the reference plan more likely
    - `candidates`: distinct examples in all beams; `effective_candidates`: how many equally frequent ones would be as
      diverse, the exponential of the entropy of their frequencies; `distinct_shots`: distinct ones per query, mean
    - `all_right`, `all_wrong`, `mixed`: shares of the queries all of whose beams were judged
    - `without_signal`: share of the queries whose beams have one score and one verdict (or none), so that no beam is
      preferred to another
    """
    beams = [beam for row in rows for beam in row.beams]
    verdicts = [beam.success for beam in beams if beam.success is not None]
    usage = Counter(example for beam in beams for example in beam.examples)
    verdict_sets = [{beam.success for beam in row.beams} for row in rows]
    judged_sets = [verdict_set for verdict_set in verdict_sets if None not in verdict_set]
    return {
        "queries": len(rows),
        "beams": len(beams),
        "judged": len(verdicts),
        "correct": _mean(verdicts),
        "score_mean": _mean(beam.score for beam in beams),
        "score_spread": _mean(pstdev(beam.score for beam in row.beams) for row in rows),
        "positive": _mean(beam.score > 0 for beam in beams),
        "candidates": len(usage),
        "effective_candidates": exp(_entropy(usage)),
        "distinct_shots": _mean(len({example for beam in row.beams for example in beam.examples}) for row in rows),
        "all_right": _mean(verdict_set == {True} for verdict_set in judged_sets),
        "all_wrong": _mean(verdict_set == {False} for verdict_set in judged_sets),
        "mixed": _mean(len(verdict_set) == 2 for verdict_set in judged_sets),
        "without_signal": _mean(len({(beam.score, beam.success) for beam in row.beams}) == 1 for row in rows),
    }


def _entropy(counts: Counter[str]) -> float:
    """Entropy of the frequencies, in nats."""
    total = counts.total()
    return -sum(count / total * log(count / total) for count in counts.values())


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None

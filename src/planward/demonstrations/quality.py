"""Data quality of beams: what a selector can learn from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, pstdev
from typing import Any

from planward.demonstrations.beams import QueryBeams


def beam_quality(rows: Sequence[QueryBeams], domain_of: Mapping[str, str]) -> dict[str, Any]:
    """Return `quality` of all queries under `all`, and by the query's domain under `domains`."""
    by_domain: dict[str, list[QueryBeams]] = {}
    for row in rows:
        by_domain.setdefault(domain_of[row.query], []).append(row)
    return {"all": quality(rows), "domains": {name: quality(some) for name, some in sorted(by_domain.items())}}


def quality(rows: Sequence[QueryBeams]) -> dict[str, float | None]:
    """Return figures by name; shares are between 0 and 1, and None where there is nothing to take them of.

    - `queries`, `beams`, `judged` (beams with a verdict)
    - `correct`: share of the judged beams whose verdict is success
    - `score_mean` of all beams, and `score_spread`, the mean of the queries' standard deviations, nats
    - `positive`: share of the beams whose shots make the reference answer more likely
    - `candidates`: different examples chosen by all beams; `effective_candidates`: how many equally frequent ones would
      be as mixed, the exponential of the entropy of their frequencies; `distinct_shots`: different ones a query, mean
    - `all_right`, `all_wrong`, `mixed`: shares of the queries all of whose beams were judged
    - `without_signal`: share of the queries whose beams have one score and one verdict (or none), so that no beam is
      preferred to another
    """
    beams = [beam for row in rows for beam in row.beams]
    verdicts = [beam.success for beam in beams if beam.success is not None]
    chosen = Counter(shot for beam in beams for shot in beam.shots)
    judged = [{beam.success for beam in row.beams} for row in rows]
    judged = [found for found in judged if None not in found]
    return {
        "queries": len(rows),
        "beams": len(beams),
        "judged": len(verdicts),
        "correct": _mean(verdicts),
        "score_mean": _mean(beam.score for beam in beams),
        "score_spread": _mean(pstdev(beam.score for beam in row.beams) for row in rows),
        "positive": _mean(beam.score > 0 for beam in beams),
        "candidates": len(chosen),
        "effective_candidates": exp(_entropy(chosen)),
        "distinct_shots": _mean(len({shot for beam in row.beams for shot in beam.shots}) for row in rows),
        "all_right": _mean(found == {True} for found in judged),
        "all_wrong": _mean(found == {False} for found in judged),
        "mixed": _mean(len(found) == 2 for found in judged),
        "without_signal": _mean(len({(beam.score, beam.success) for beam in row.beams}) == 1 for row in rows),
    }


def _entropy(counts: Counter[str]) -> float:
    """Of the frequencies, nats."""
    total = counts.total()
    return -sum(count / total * log(count / total) for count in counts.values())


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None

"""Difficulty and curriculum: what was asked, scheduled and consumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import pandas as pd

from planward.params import BUCKETS, Params
from planward.records import Run
from planward.reporting import figures
from planward.reporting.figures import Figure
from planward.reporting.names import rank, title
from planward.reporting.results import Results
from planward.reporting.sections.elements import Table, number

BINS = 10  # parts of a run over which shares of the curriculum are averaged
ADAPTIVE = "chosen as training went"


def curriculum(results: Results, params: Params) -> Table:
    """For each GRPO run how many problems were scheduled and consumed, and whether they are the same row for row."""
    rows = []
    for run in _runs(results):
        scheduled, consumed = (_problems(frames.get(run)) for frames in (results.schedules, results.consumed))
        differ = sum(a != b for a, b in zip_longest(scheduled, consumed))
        same = "" if not (scheduled and consumed) else f"{differ} rows differ" if differ else "all"
        if differ and params.variant(run.method).grpo.adaptive.on:
            same = ADAPTIVE
        frame = results.schedules.get(run, results.consumed.get(run))
        balanced = "" if frame is None else "yes" if frame.groupby(["step", "domain"]).size().nunique() == 1 else "no"
        counts = [len(problems) or "not written" for problems in (scheduled, consumed)]
        rows.append([title(run.method, run.size), run.seed, *counts, same, balanced])
    head = ["run", "seed", "scheduled", "consumed", "same problems in the same order", "domains balanced in every step"]
    return Table("What was scheduled and what training consumed", head, rows)


def departures(results: Results, params: Params) -> list[tuple[str, str]]:
    """Runs that consumed other problems than were scheduled: how many rows differ, and the run."""
    rows = curriculum(results, params).rows
    return [(row[4], f"{row[0]}, seed {row[1]}") for row in rows if row[4] not in ("", "all", ADAPTIVE)]


def empty_buckets(results: Results) -> str:
    """Which buckets the schedules asked for in vain: `no hard problem to draw in blocksworld, ferry`."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for frame in results.schedules.values():
        if "wanted_bucket" in frame:
            others = frame[frame["bucket"] != frame["wanted_bucket"]]
            for domain, bucket in zip(others["domain"], others["wanted_bucket"], strict=True):
                wanted[str(bucket)].add(str(domain))
    return "; ".join(f"no {bucket} problem to draw in {', '.join(sorted(names))}" for bucket, names in wanted.items())


def curriculum_panels(results: Results, params: Params) -> list[Figure]:
    """The bucket shares of `grpo` at each N, of the first seed: others draw otherwise from the same shares."""
    shown: dict[int, Run] = {}
    for run in _runs(results):
        if run.method == "grpo":
            shown.setdefault(run.size, run)
    panels = []
    shares = [next(p for p in params.curriculum if x < 100 * p.until or p.until == 1).shares for x in range(101)]
    wanted = {str(bucket): [(x / 100, share[bucket]) for x, share in enumerate(shares)] for bucket in shares[0]}
    for size, run in sorted(shown.items()):
        series = {f"{bucket}, asked": points for bucket, points in wanted.items()}
        for name, frame in (("drawn", results.schedules.get(run)), ("used", results.consumed.get(run))):
            if frame is not None and len(frame):
                progress = (frame["step"] - frame["step"].min()) / (frame["step"].max() - frame["step"].min() + 1)
                drawn = pd.crosstab((progress * BINS).astype(int), frame["bucket"], normalize="index")
                for bucket, column in drawn.reindex(columns=list(BUCKETS), fill_value=0.0).items():
                    points = [((x + 0.5) / BINS, y) for x, y in zip(drawn.index, column, strict=True)]
                    series[f"{bucket}, {name}"] = points
        kinds = len(series) // len(BUCKETS)
        colours = list(range(len(BUCKETS))) * kinds
        dashes = [kind for kind in (2, 1, 0)[:kinds] for _ in BUCKETS]
        panels.append(figures.lines(f"Bucket shares, N = {size}", series, "progress", (0, 1), dashes, colours))
    return panels


def difficulty(metrics: Mapping[str, Any]) -> Table | None:
    """Scores and bucket sizes of the training split, a row a domain."""
    if not metrics.get("domains"):
        return None
    columns = ["count", "min", "max", "mean", "median", "p40", "p80"]
    rows = [
        [name, *(number(d.get(c)) for c in columns), *(d.get("buckets", {}).get(b, 0) for b in BUCKETS)]
        for name, d in sorted(metrics["domains"].items())
    ]
    return Table("Difficulty scores and buckets, training split", ["domain", *columns, *BUCKETS], rows)


def _runs(results: Results) -> list[Run]:
    return sorted(
        {*results.schedules, *results.consumed}, key=lambda run: (*rank("method", run.method), run.size, run.seed)
    )


def _problems(frame: pd.DataFrame | None) -> list[str]:
    return [] if frame is None else list(frame.sort_values(["step", "slot"], kind="stable")["id"])

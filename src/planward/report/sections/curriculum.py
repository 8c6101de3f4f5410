"""Section "Curriculum": difficulty, and the problems requested, scheduled and consumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import mean
from typing import Any

import pandas as pd

from planward.analysis.names import format_run, sort_key
from planward.core.runs import Run
from planward.params import BUCKETS, Bucket, Params
from planward.report import figures
from planward.report.data import PageData
from planward.report.figures import Figure, Point
from planward.report.sections.elements import Table, format_number

NUM_BINS = 10  # parts of a run over which bucket shares are averaged
ADAPTIVE = "adapted during training"


def build_curriculum_table(data: PageData, params: Params) -> Table:
    """For each GRPO run the number of problems scheduled and consumed, and whether they agree row by row.

    A run that validation stopped early agrees if it does up to there.
    """
    rows = []
    for run in _list_runs(data):
        schedule, consumption = (_list_problems(frames.get(run)) for frames in (data.schedules, data.consumed))
        expected = _list_problems(data.schedules.get(run), data.training.get(run, {}).get("stop_step"))
        differences = sum(a != b for a, b in zip_longest(expected, consumption))
        agreement = "" if not (schedule and consumption) else f"{differences} rows differ" if differences else "all"
        if differences and params.variant(run.method).grpo.adaptive.on:
            agreement = ADAPTIVE
        frame = data.schedules.get(run, data.consumed.get(run))
        balance = "" if frame is None else "yes" if frame.groupby(["step", "domain"]).size().nunique() == 1 else "no"
        counts = [len(problems) or "not written" for problems in (schedule, consumption)]
        rows.append([format_run(run.method, run.size), run.seed, *counts, agreement, balance])
    head = ["run", "seed", "scheduled", "consumed", "same problems in the same order", "domains balanced in every step"]
    return Table("Problems scheduled and consumed by training", head, rows)


def find_schedule_differences(data: PageData, params: Params) -> list[tuple[str, str]]:
    """Runs that consumed other problems than scheduled: the number of rows that differ, and the run."""
    rows = build_curriculum_table(data, params).rows
    return [(row[4], f"{row[0]}, seed {row[1]}") for row in rows if row[4] not in ("", "all", ADAPTIVE)]


def describe_empty_buckets(data: PageData) -> str:
    """The buckets that the schedules found empty: `no hard problem to draw in blocksworld, ferry`."""
    domains: dict[str, set[str]] = defaultdict(set)
    for frame in data.schedules.values():
        if "wanted_bucket" in frame:
            fallbacks = frame[frame["bucket"] != frame["wanted_bucket"]]
            for domain, bucket in zip(fallbacks["domain"], fallbacks["wanted_bucket"], strict=True):
                domains[str(bucket)].add(str(domain))
    return "; ".join(f"no {bucket} problem to draw in {', '.join(sorted(names))}" for bucket, names in domains.items())


def draw_curriculum_panels(data: PageData, params: Params) -> list[Figure]:
    """The bucket shares of `grpo` at each N, of the first seed: other seeds draw from the same shares.

    The target is the mean over the schedule's domains, which have equally many prompts in every step.
    """
    runs: dict[int, Run] = {}
    for run in _list_runs(data):
        if run.method == "grpo":
            runs.setdefault(run.size, run)
    panels = []
    for size, run in sorted(runs.items()):
        prompts = data.schedules[run] if run in data.schedules else data.consumed[run]
        targets = _compute_targets(params, prompts["domain"].unique())
        series = {f"{bucket}, target": points for bucket, points in targets.items()}
        for name, frame in (("drawn", data.schedules.get(run)), ("used", data.consumed.get(run))):
            if frame is not None and len(frame):
                progress = (frame["step"] - frame["step"].min()) / (frame["step"].max() - frame["step"].min() + 1)
                bin_shares = pd.crosstab((progress * NUM_BINS).astype(int), frame["bucket"], normalize="index")
                for bucket, column in bin_shares.reindex(columns=list(BUCKETS), fill_value=0.0).items():
                    points = [((x + 0.5) / NUM_BINS, y) for x, y in zip(bin_shares.index, column, strict=True)]
                    series[f"{bucket}, {name}"] = points
        num_sources = len(series) // len(BUCKETS)
        colours = list(range(len(BUCKETS))) * num_sources
        dashes = [dash for dash in (2, 1, 0)[:num_sources] for _ in BUCKETS]
        panels.append(figures.draw_lines(f"Bucket shares, N = {size}", series, "progress", (0, 1), dashes, colours))
    return panels


def build_difficulty_table(metrics: Mapping[str, Any]) -> Table | None:
    """Scores and bucket sizes of the training split, one row per domain."""
    if not metrics.get("domains"):
        return None
    columns = ["count", "min", "max", "mean", "median", "p40", "p80"]
    rows = [
        [name, *(format_number(d.get(c)) for c in columns), *(d.get("buckets", {}).get(b, 0) for b in BUCKETS)]
        for name, d in sorted(metrics["domains"].items())
    ]
    return Table("Difficulty scores and buckets, training split", ["domain", *columns, *BUCKETS], rows)


def _compute_targets(params: Params, domains: Sequence[str]) -> dict[Bucket, list[Point]]:
    """Compute the share of each bucket that the curricula of the domains ask for, by progress."""
    curricula = [params.curriculum_by_domain.get(domain, params.curriculum) for domain in domains]
    curricula = curricula or [params.curriculum]
    targets: dict[Bucket, list[Point]] = {bucket: [] for bucket in BUCKETS}
    for x in range(101):
        shares = [next(p for p in phases if x < 100 * p.until or p.until == 1).shares for phases in curricula]
        for bucket, points in targets.items():
            points.append((x / 100, mean(share[bucket] for share in shares)))
    return targets


def _list_runs(data: PageData) -> list[Run]:
    return sorted(
        {*data.schedules, *data.consumed}, key=lambda run: (*sort_key("method", run.method), run.size, run.seed)
    )


def _list_problems(frame: pd.DataFrame | None, num_steps: int | None = None) -> list[str]:
    """The problems of the first `num_steps` steps, or of all, in order."""
    if frame is None:
        return []
    frame = frame if num_steps is None else frame[frame["step"] < num_steps]
    return list(frame.sort_values(["step", "slot"], kind="stable")["id"])

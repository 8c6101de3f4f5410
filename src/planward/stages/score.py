"""Stage `score`: difficulty of every problem, buckets of every domain."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.paths import HELD_OUT, SPLITS
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.tables import escape_formula
from planward.core.tasks import Task
from planward.curriculum.buckets import Thresholds, compute_distribution, compute_thresholds
from planward.curriculum.difficulty_figure import render_difficulty_svg
from planward.params import BUCKETS, BucketsConfig, Params


@runtime_checkable
class ActionCounting(Protocol):
    """Optional: a task whose references are plans."""

    def count_reference_actions(self, problem: Record) -> int | None:
        """Count the actions of the reference plan; None where the reference is missing or no plan."""
        ...


def run(params: Params) -> None:
    """Write score/: every record with its score and bucket, a flat table of them, metrics and a figure.

    Metrics and buckets are those of the training split; buckets of a held-out domain are those of all its problems.

    Raises:
        ValueError: the training split is empty, or lacks a domain that another split has.
    """
    results, task = paths.results(params.task), load_task(params)
    scores: dict[str, list[float]] = defaultdict(list)
    lengths: dict[str, list[int | None]] = defaultdict(list)
    for record in read_records(results.split / "train.jsonl"):
        scores[record.domain].append(task.score_difficulty(record) or 0.0)
        lengths[record.domain].append(count_reference_actions(task, record))
    if not scores:
        raise ValueError(f"{results.split}/train.jsonl is empty: nothing to train on")
    bounds = {domain: compute_thresholds(values, params.buckets) for domain, values in sorted(scores.items())}
    held_out = compute_held_out_thresholds(task, results.split / f"{HELD_OUT}.jsonl", params.buckets)
    num_unmatched = write_scored(task, bounds | held_out, results.split, results.score)
    table = {domain: compute_distribution(scores[domain], bounds[domain]) for domain in bounds}
    for domain, row in table.items():
        buckets = map(bounds[domain].classify, scores[domain])
        row["reference_length"] = compute_lengths_by_bucket(zip(buckets, lengths[domain], strict=True))
    write_json(results.score / "metrics.json", {"domains": table, "unmatched_names": num_unmatched})
    with open_atomic(results.score / "difficulty.svg") as figure:
        figure.write(render_difficulty_svg(scores, {domain: (b.easy, b.medium) for domain, b in bounds.items()}))
    print_tables(table)


def compute_held_out_thresholds(task: Task, file: Path, percentiles: BucketsConfig) -> dict[str, Thresholds]:
    """Compute the bounds of the buckets of each held-out domain."""
    scores: dict[str, list[float]] = defaultdict(list)
    for record in read_records(file):
        scores[record.domain].append(task.score_difficulty(record) or 0.0)
    return {domain: compute_thresholds(values, percentiles) for domain, values in scores.items()}


def count_reference_actions(task: Task, record: Record) -> int | None:
    """Count the actions of the reference plan; None where the reference is missing or no plan."""
    return task.count_reference_actions(record) if isinstance(task, ActionCounting) else None


def compute_lengths_by_bucket(problems: Iterable[tuple[str, int | None]]) -> dict[str, dict[str, float]]:
    """Median and maximum of the lengths of reference plans by bucket; without buckets that have none.

    Args:
        problems: the bucket of each, and the length of its reference plan.
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    for bucket, length in problems:
        if length is not None:
            lengths[bucket].append(length)
    return {b: {"median": median(lengths[b]), "max": max(lengths[b])} for b in BUCKETS if b in lengths}


def write_scored(task: Task, bounds: dict[str, Thresholds], source: Path, folder: Path) -> int:
    """Write every record with its score and bucket; returns the number of records without a difficulty."""
    num_unmatched = 0
    with open_atomic(folder / "difficulty.csv") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["id", "split", "domain", "problem_file", "score", "bucket", "reference_length"])
        for split in (*SPLITS, HELD_OUT):
            with open_atomic(folder / f"{split}.jsonl") as lines:
                for record in read_records(source / f"{split}.jsonl"):
                    if record.domain not in bounds:
                        raise ValueError(
                            f"{record.domain}: has problems in the {split} split and none in train; fix: bring more"
                        )
                    name = record.meta.problem_file
                    score = task.score_difficulty(record)
                    if score is None:
                        num_unmatched += 1
                        warning = Text(f"no difficulty in the name {name}: score 0, bucket easy", style="yellow")
                        Console(stderr=True, soft_wrap=True).print(warning)
                    bucket = "easy" if score is None else bounds[record.domain].classify(score)
                    scored_record = record.model_copy(update={"score": score or 0.0, "bucket": bucket})
                    lines.write(scored_record.model_dump_json(exclude_none=True) + "\n")
                    length = count_reference_actions(task, record)
                    row = [record.id, split, record.domain, name, score or 0.0, bucket, length]
                    rows.writerow(map(escape_formula, row))
    return num_unmatched


def print_tables(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print scores and bucket sizes of the training split and, where references are plans, their lengths by bucket."""
    columns = ("count", "min", "max", "mean", "median", "p40", "p80")
    table = Table("domain", *columns, *BUCKETS, title="Difficulty of the training split")
    for domain, row in rows.items():
        table.add_row(domain, *(f"{row[name]:g}" for name in columns), *(str(row["buckets"][b]) for b in BUCKETS))
    Console().print(table)
    if not any(row["reference_length"] for row in rows.values()):
        return
    table = Table("domain", *BUCKETS, title="Actions of reference plans of the training split: median, maximum")
    for domain, row in rows.items():
        lengths = [row["reference_length"].get(bucket) for bucket in BUCKETS]
        table.add_row(domain, *(f"{cell['median']:g}, {cell['max']}" if cell else "" for cell in lengths))
    Console().print(table)

"""Stage `score`: difficulty of every problem, buckets of every domain."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.paths import SPLITS
from planward.core.records import read_records
from planward.core.registry import load_task
from planward.core.tasks import Task
from planward.curriculum.buckets import Thresholds, compute_distribution, compute_thresholds
from planward.curriculum.difficulty_figure import render_difficulty_svg
from planward.params import BUCKETS, Params


def run(params: Params) -> None:
    """Write score/: every record with its score and bucket, a flat table of them, metrics and a figure.

    Raises:
        ValueError: the training split is empty, or lacks a domain that another split has.
    """
    results, task = paths.results(params.task), load_task(params)
    scores: dict[str, list[float]] = defaultdict(list)
    for record in read_records(results.split / "train.jsonl"):
        scores[record.domain].append(task.score_difficulty(record) or 0.0)
    if not scores:
        raise ValueError(f"{results.split}/train.jsonl is empty: nothing to train on")
    bounds = {domain: compute_thresholds(values, params.buckets) for domain, values in sorted(scores.items())}
    unmatched = write_scored(task, bounds, results.split, results.score)
    table = {domain: compute_distribution(scores[domain], bounds[domain]) for domain in bounds}
    write_json(results.score / "metrics.json", {"domains": table, "unmatched_names": unmatched})
    with open_atomic(results.score / "difficulty.svg") as figure:
        figure.write(render_difficulty_svg(scores, {domain: (b.easy, b.medium) for domain, b in bounds.items()}))
    print_table(table)


def write_scored(task: Task, bounds: dict[str, Thresholds], source: Path, folder: Path) -> int:
    """Write every record with its score and bucket; returns the number of records without a difficulty."""
    unmatched = 0
    with open_atomic(folder / "difficulty.csv") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["id", "split", "domain", "problem_file", "score", "bucket"])
        for split in SPLITS:
            with open_atomic(folder / f"{split}.jsonl") as lines:
                for record in read_records(source / f"{split}.jsonl"):
                    if record.domain not in bounds:
                        raise ValueError(
                            f"{record.domain}: has problems in the {split} split and none in train; fix: bring more"
                        )
                    name = record.meta.problem_file
                    score = task.score_difficulty(record)
                    if score is None:
                        unmatched += 1
                        warning = Text(f"no difficulty in the name {name}: score 0, bucket easy", style="yellow")
                        Console(stderr=True, soft_wrap=True).print(warning)
                    bucket = "easy" if score is None else bounds[record.domain].classify(score)
                    scored = record.model_copy(update={"score": score or 0.0, "bucket": bucket})
                    lines.write(scored.model_dump_json(exclude_none=True) + "\n")
                    rows.writerow([record.id, split, record.domain, name, score or 0.0, bucket])
    return unmatched


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    columns = ("count", "min", "max", "mean", "median", "p40", "p80")
    table = Table("domain", *columns, *BUCKETS, title="Difficulty of the training split")
    for domain, row in rows.items():
        table.add_row(domain, *(f"{row[name]:g}" for name in columns), *(str(row["buckets"][b]) for b in BUCKETS))
    Console().print(table)

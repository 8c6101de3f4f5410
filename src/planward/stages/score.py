"""score: difficulty of every problem, buckets of every domain."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.curriculum.buckets import Thresholds, distribution, thresholds
from planward.params import BUCKETS, Params
from planward.records import read_records, write_json, written
from planward.reporting.difficulty import difficulty_svg
from planward.stages.split import OUT as SPLIT
from planward.stages.split import SIDES
from planward.tasks import load_task
from planward.tasks.base import Task

OUT = Path("results/score")


def run(params: Params) -> None:
    """Write results/score: every record with its score and bucket, a flat table of them, metrics and a figure."""
    split, out, task = params.placed(SPLIT), params.placed(OUT), load_task(params)
    scores: dict[str, list[float]] = defaultdict(list)
    for record in read_records(split / "train.jsonl"):
        scores[record.domain].append(task.difficulty(record) or 0.0)
    if not scores:
        raise ValueError(f"{split}/train.jsonl is empty: nothing to train on")
    bounds = {domain: thresholds(values, params.buckets) for domain, values in sorted(scores.items())}
    unmatched = write_scored(task, bounds, split, out)
    table = {domain: distribution(scores[domain], bounds[domain]) for domain in bounds}
    write_json(out / "metrics.json", {"domains": table, "unmatched_names": unmatched})
    with written(out / "difficulty.svg") as figure:
        figure.write(difficulty_svg(scores, {domain: (b.easy, b.medium) for domain, b in bounds.items()}))
    print_table(table)


def write_scored(task: Task, bounds: dict[str, Thresholds], split: Path, out: Path) -> int:
    """Write every record with its score and bucket; returns how many nothing told the difficulty of."""
    unmatched = 0
    with written(out / "difficulty.csv") as flat:
        rows = csv.writer(flat, lineterminator="\n")
        rows.writerow(["id", "split", "domain", "problem_file", "score", "bucket"])
        for side in SIDES:
            with written(out / f"{side}.jsonl") as lines:
                for record in read_records(split / f"{side}.jsonl"):
                    if record.domain not in bounds:
                        raise ValueError(f"{record.domain}: problems in the {side} split, none to train on; bring more")
                    name = record.meta.problem_file
                    score = task.difficulty(record)
                    if score is None:
                        unmatched += 1
                        warning = Text(f"no difficulty in the name {name}: score 0, easy", style="yellow")
                        Console(stderr=True, soft_wrap=True).print(warning)
                    bucket = "easy" if score is None else bounds[record.domain].bucket(score)
                    scored = record.model_copy(update={"score": score or 0.0, "bucket": bucket})
                    lines.write(scored.model_dump_json(exclude_none=True) + "\n")
                    rows.writerow([record.id, side, record.domain, name, score or 0.0, bucket])
    return unmatched


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    figures = ("count", "min", "max", "mean", "median", "p40", "p80")
    table = Table("domain", *figures, *BUCKETS, title="Difficulty of the training split")
    for domain, row in rows.items():
        table.add_row(domain, *(f"{row[name]:g}" for name in figures), *(str(row["buckets"][b]) for b in BUCKETS))
    Console().print(table)

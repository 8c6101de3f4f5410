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
from planward.curriculum.difficulty import difficulty_score
from planward.params import BUCKETS, Params
from planward.records import read_records, write_json, written
from planward.reporting.difficulty import difficulty_svg
from planward.stages.split import OUT as SPLIT
from planward.stages.split import SIDES

OUT = Path("results/score")


def run(params: Params) -> None:
    scores: dict[str, list[float]] = defaultdict(list)
    for record in read_records(SPLIT / "train.jsonl"):
        score = difficulty_score(record.meta.problem_file, params.difficulty[record.domain])
        scores[record.domain].append(score or 0.0)
    if not scores:
        raise ValueError(f"{SPLIT}/train.jsonl is empty: nothing to train on")
    bounds = {domain: thresholds(values, params.buckets) for domain, values in sorted(scores.items())}
    unmatched = write_scored(params, bounds)
    table = {domain: distribution(scores[domain], bounds[domain]) for domain in bounds}
    write_json(OUT / "metrics.json", {"domains": table, "unmatched_names": unmatched})
    with written(OUT / "difficulty.svg") as out:
        out.write(difficulty_svg(scores, {domain: (b.easy, b.medium) for domain, b in bounds.items()}))
    print_table(table)


def write_scored(params: Params, bounds: dict[str, Thresholds]) -> int:
    """Write every record with its score and bucket; returns how many names did not match their pattern."""
    unmatched = 0
    with written(OUT / "difficulty.csv") as flat:
        rows = csv.writer(flat, lineterminator="\n")
        rows.writerow(["id", "split", "domain", "problem_file", "score", "bucket"])
        for side in SIDES:
            with written(OUT / f"{side}.jsonl") as out:
                for record in read_records(SPLIT / f"{side}.jsonl"):
                    if record.domain not in bounds:
                        raise ValueError(f"{record.domain}: problems in the {side} split, none to train on; bring more")
                    name = record.meta.problem_file
                    score = difficulty_score(name, params.difficulty[record.domain])
                    if score is None:
                        unmatched += 1
                        warning = Text(f"no difficulty in the name {name}: score 0, easy", style="yellow")
                        Console(stderr=True, soft_wrap=True).print(warning)
                    bucket = "easy" if score is None else bounds[record.domain].bucket(score)
                    scored = record.model_copy(update={"score": score or 0.0, "bucket": bucket})
                    out.write(scored.model_dump_json(exclude_none=True) + "\n")
                    rows.writerow([record.id, side, record.domain, name, score or 0.0, bucket])
    return unmatched


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    figures = ("count", "min", "max", "mean", "median", "p40", "p80")
    table = Table("domain", *figures, *BUCKETS, title="Difficulty of the training split")
    for domain, row in rows.items():
        table.add_row(domain, *(f"{row[name]:g}" for name in figures), *(str(row["buckets"][b]) for b in BUCKETS))
    Console().print(table)

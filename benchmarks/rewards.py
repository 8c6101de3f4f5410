"""Throughput of verl's reward function: in-process, in a process pool, and as Ray tasks.

    python benchmarks/rewards.py                                    10,000 stored completions of planning
    python benchmarks/rewards.py --completions 200 --repeats 1      a smoke test; its figures mean nothing

The completions are those of results/predictions, of all models in turn, scored by
`planward.integrations.verl.rewards.compute_score` with the arguments that verl passes. All variants must return the
same scores; reported is also how many equal the stored verdicts, which are VAL's. Ray is started and stopped here; it
needs the extra `cluster`.

Rewards per second are wall-clock medians over the repeats. Two warm-up rounds come first: a worker parses and grounds a
problem when it first meets it. `first pass` includes that.

batches    a task scores `--batch` completions
single     a task scores one completion, as in verl; the overhead per task is the time beyond scoring, on one worker
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from planward.core import paths
from planward.core.records import Prediction, read_predictions, read_records
from planward.integrations.verl.rewards import PARAMS_FILE, PROBLEMS_DIR, SOURCE_PREFIX, compute_score

NUM_PROCESSES = 2
MAX_SINGLE = 2000  # tasks of one completion
WARM_UP_ROUNDS = 2
Case = tuple[str, str, str, str]  # data_source, completion, ground truth, exported folder
Score = dict[str, Any]
Scorer = Callable[[Sequence[Case]], list[Score]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        predictions = list(iter_stored_predictions(options.completions))
        cases = list(iter_cases(predictions, Path(folder)))
        start = perf_counter()
        expected = score_cases(cases)
        first_pass_s = perf_counter() - start
        stored_pairs = [(prediction.label, prediction.reward) for prediction in predictions]
        equal = sum(
            (score["label"], score["verdict"]) == pair for score, pair in zip(expected, stored_pairs, strict=True)
        )
        print_line(
            f"{len(cases)} completions; equal to VAL's stored verdict: {equal}; first pass: {first_pass_s:.1f} s\n"
        )
        print_line(format_row("", "rewards/s", "x in-process", "equal"))
        in_process_s = measure_seconds(score_cases, cases, options.repeats, expected)
        print_line(format_row("in-process", f"{len(cases) / in_process_s:.0f}", "1.00", "all"))

        def report(name: str, scorer: Scorer) -> None:
            seconds = measure_seconds(scorer, cases, options.repeats, expected)
            print_line(format_row(name, f"{len(cases) / seconds:.0f}", f"{in_process_s / seconds:.2f}", "all"))

        with multiprocessing.get_context("spawn").Pool(NUM_PROCESSES) as pool:
            run_batches = build_scorer(lambda batches: pool.map(score_cases, batches, chunksize=1), options.batch)
            report(f"pool, {NUM_PROCESSES} processes", run_batches)
        for workers in (1, 2):
            with start_ray(workers) as run_tasks:
                report(f"Ray, {workers} worker(s), batches", build_scorer(run_tasks, options.batch))
                part = cases[:MAX_SINGLE]
                single_s = measure_seconds(build_scorer(run_tasks, 1), part, options.repeats, expected[:MAX_SINGLE])
                scoring_s = measure_seconds(score_cases, part, options.repeats, expected[:MAX_SINGLE])
                overhead = (
                    f"; {1000 * (single_s - scoring_s) / len(part):.2f} ms overhead per task" if workers == 1 else ""
                )
                ratio = len(part) / single_s / (len(cases) / in_process_s)
                name = f"Ray, {workers} worker(s), single"
                print_line(format_row(name, f"{len(part) / single_s:.0f}", f"{ratio:.2f}", "all") + overhead)


def iter_stored_predictions(count: int) -> Iterator[Prediction]:
    """Yield stored predictions, round-robin over the models."""
    folder = paths.results().predictions
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder} is empty; fix: run the pipeline first")
    rounds = zip_longest(*map(read_predictions, files))
    predictions = (prediction for row in rounds for prediction in row if prediction is not None)
    for _, prediction in zip(range(count), predictions, strict=False):
        yield prediction


def iter_cases(predictions: Sequence[Prediction], folder: Path) -> Iterator[Case]:
    """Yield the reward function's arguments for each prediction; `folder` becomes an exported folder."""
    results = paths.results()
    shutil.copyfile(paths.params_file("planning"), folder / PARAMS_FILE)
    (folder / PROBLEMS_DIR).symlink_to(results.problems.resolve())
    records = {record.id: record.model_dump_json() for record in read_records(results.score / "test.jsonl")}
    for prediction in predictions:
        yield f"{SOURCE_PREFIX}planning", prediction.completion, records[prediction.id], str(folder)


def score_cases(cases: Sequence[Case]) -> list[Score]:
    info = {"alias": "{}", "split": "validation"}
    return [compute_score(source, text, truth, info, folder=folder) for source, text, truth, folder in cases]


def build_scorer(run: Callable[[list[Sequence[Case]]], list[list[Score]]], size: int) -> Scorer:
    """Return a scorer in batches of `size`, each scored by `run`."""

    def score(cases: Sequence[Case]) -> list[Score]:
        batches = [cases[start : start + size] for start in range(0, len(cases), size)]
        return [score for scores in run(batches) for score in scores]

    return score


@contextmanager
def start_ray(workers: int) -> Iterator[Callable[[list[Sequence[Case]]], list[list[Score]]]]:
    """Start a local Ray; yield a function that scores each batch in a task of its own."""
    ray = import_module("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(num_cpus=1)(score_cases)
    try:
        yield lambda batches: ray.get([task.remote(batch) for batch in batches])
    finally:
        ray.shutdown()


def measure_seconds(scorer: Scorer, cases: Sequence[Case], repeats: int, expected: list[Score]) -> float:
    """Return the median time of the repeats, after the warm-up rounds; exits if a score differs."""
    seconds = []
    for _ in range(repeats + WARM_UP_ROUNDS):
        start = perf_counter()
        scores = scorer(cases)
        seconds.append(perf_counter() - start)
        if scores != expected:
            difference = next(pair for pair in zip(scores, expected, strict=True) if pair[0] != pair[1])
            raise SystemExit(f"scores differ: {json.dumps(difference)}")
    return median(seconds[WARM_UP_ROUNDS:])


def format_row(name: str, *cells: str) -> str:
    return f"{name:28}" + "".join(f" {cell:>12}" for cell in cells)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

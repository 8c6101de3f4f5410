"""How fast verl's reward function judges completions: in-process, by a pool of processes, and as tasks on Ray.

    python benchmarks/rewards.py                     10,000 stored completions of planning
    python benchmarks/rewards.py --completions 200 --repeats 1      a smoke test; its figures mean nothing

Completions are those of results/predictions, all models and numbers of worked examples in turn, judged by
`planward.clusters.verl.rewards.compute_score` as verl calls it; all ways must give the same answers, and the verdicts
must be those that are stored with the completions, which VAL gave. Ray is started here and ended again; it needs the
extra `cluster`.

Rewards/s are by the clock, medians over repeats; `x in-process` says how many times as many as in-process. Two rounds
go before those that are timed: a worker parses and grounds a problem when it first meets it. `first time` has that.

batches    a task judges `--batch` completions
single     a task judges one completion, as verl asks; overhead a task is the time beyond judging, on one worker
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

from planward.clusters.verl.rewards import PARAMS, PROBLEMS, SOURCE, compute_score
from planward.params import PARAMS_FILE
from planward.records import Prediction, read_predictions, read_records

PROCESSES = 2
SINGLE = 2000  # tasks of one completion
Case = tuple[str, str, str, str]  # data_source, completion, ground truth, exported folder
Answer = dict[str, Any]
Judging = Callable[[Sequence[Case]], list[Answer]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        predictions = list(drawn(asked.completions))
        cases = list(prepared(predictions, Path(folder)))
        start = perf_counter()
        wanted = judged(cases)
        first = perf_counter() - start
        stored = [(prediction.label, prediction.reward) for prediction in predictions]
        agreed = sum((told["label"], told["verdict"]) == pair for told, pair in zip(wanted, stored, strict=True))
        say(f"{len(cases)} completions; VAL's stored verdicts: {agreed} the same; first time: {first:.1f} s\n")
        say(row("", "rewards/s", "x in-process", "equal"))
        alone = timed(judged, cases, asked.repeats, wanted)
        say(row("in-process", f"{len(cases) / alone:.0f}", "1.00", "all"))
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            work = batched(lambda batches: pool.map(judged, batches, chunksize=1), asked.batch)
            compare(f"pool, {PROCESSES} processes", work, cases, asked.repeats, wanted, alone)
        for workers in (1, 2):
            with ray_tasks(workers) as run:
                work = batched(run, asked.batch)
                compare(f"Ray, {workers} worker(s), batches", work, cases, asked.repeats, wanted, alone)
                few = cases[:SINGLE]
                single = timed(batched(run, 1), few, asked.repeats, wanted[:SINGLE])
                share = timed(judged, few, asked.repeats, wanted[:SINGLE])
                beyond = f"; {1000 * (single - share) / len(few):.2f} ms overhead a task" if workers == 1 else ""
                ratio = len(few) / single / (len(cases) / alone)
                name = f"Ray, {workers} worker(s), single"
                say(row(name, f"{len(few) / single:.0f}", f"{ratio:.2f}", "all") + beyond)


def drawn(count: int) -> Iterator[Prediction]:
    """Stored completions, of every model in turn."""
    files = sorted(Path("results/predictions").glob("*.jsonl"))
    if not files:
        raise SystemExit("results/predictions is empty: run the pipeline first")
    turns = (each for turn in zip_longest(*map(read_predictions, files)) for each in turn if each is not None)
    for _, prediction in zip(range(count), turns, strict=False):
        yield prediction


def prepared(predictions: Sequence[Prediction], folder: Path) -> Iterator[Case]:
    """What verl would hand to the reward function; `folder` becomes what it needs beside."""
    shutil.copyfile(PARAMS_FILE, folder / PARAMS)
    (folder / PROBLEMS).symlink_to(Path("results/problems").resolve())
    records = {record.id: record.model_dump_json() for record in read_records(Path("results/score/test.jsonl"))}
    for prediction in predictions:
        yield f"{SOURCE}planning", prediction.completion, records[prediction.id], str(folder)


def judged(cases: Sequence[Case]) -> list[Answer]:
    info = {"alias": "{}", "split": "validation"}
    return [compute_score(source, text, truth, info, folder=folder) for source, text, truth, folder in cases]


def batched(run: Callable[[list[Sequence[Case]]], list[list[Answer]]], size: int) -> Judging:
    """Judging in batches, by whatever runs them and returns their answers in order."""

    def judging(cases: Sequence[Case]) -> list[Answer]:
        batches = [cases[start : start + size] for start in range(0, len(cases), size)]
        return [answer for answers in run(batches) for answer in answers]

    return judging


@contextmanager
def ray_tasks(workers: int) -> Iterator[Callable[[list[Sequence[Case]]], list[list[Answer]]]]:
    ray = import_module("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(num_cpus=1)(judged)
    try:
        yield lambda batches: ray.get([task.remote(batch) for batch in batches])
    finally:
        ray.shutdown()


def compare(name: str, work: Judging, cases: Sequence[Case], repeats: int, wanted: list[Answer], alone: float) -> None:
    seconds = timed(work, cases, repeats, wanted)
    say(row(name, f"{len(cases) / seconds:.0f}", f"{alone / seconds:.2f}", "all"))


def timed(work: Judging, cases: Sequence[Case], repeats: int, wanted: list[Answer]) -> float:
    """Seconds, the median of the repeats after two that warm up; raises where an answer is another one."""
    seconds = []
    for _ in range(repeats + 2):
        start = perf_counter()
        answers = work(cases)
        seconds.append(perf_counter() - start)
        if answers != wanted:
            wrong = next(pair for pair in zip(answers, wanted, strict=True) if pair[0] != pair[1])
            raise SystemExit(f"another answer: {json.dumps(wrong)}")
    return median(seconds[2:])


def row(name: str, *cells: str) -> str:
    return f"{name:28}" + "".join(f" {cell:>12}" for cell in cells)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

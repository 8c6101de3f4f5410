"""Wall time, CPU time and peak memory of a stage on many lines, beside a loop that a first draft would have.

    python benchmarks/scale.py STAGE LINES [--workers N] [--folder FOLDER] [--loop]

STAGE is problems, split, score or compare; `planward judge` has benchmarks/judge.py. Problems are generated: half
blocksworld, half ferry, half of them with constraints, no two equal up to renaming. The stages before it make a stage's
input, which stays in FOLDER/LINES; from 200,000 lines on, score gets those of 100,000 several times. Predictions are
made up, of seven runs with five numbers of worked examples each. `--loop` times a loop in one process over the same
lines, too: json.loads and nothing else, and for split with VAL as the judge of each reference plan.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryFile
from typing import Any

import yaml

from planward import val
from planward.core.files import open_atomic, write_json
from planward.core.verdicts import Label

ROOT = Path(__file__).parents[1]
BEFORE = {"problems": [], "split": ["problems"], "score": ["problems", "split"], "compare": []}
RUNS = [("base", 0), *((method, size) for method in ("sft", "grpo") for size in (100, 200, 400))]
SHOTS = range(5)
SEED = 3407
SAMPLE_INTERVAL_S = 0.2
MAX_PROBLEMS = 100_000  # that are generated for score
LOOP_SAMPLE = 500  # lines that VAL judges in the loop


def create_project(folder: Path, lines: int, workers: int) -> None:
    """Write params.yaml of a project with this many problems."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    half = lines // 2
    params["problems"]["generated"] = {
        "blocksworld": {"count": lines - half, "blocks": [8, 12]},
        "ferry": {"count": half, "locations": [5, 9], "cars": [6, 10]},
    }
    params["problems"]["base_share"] = 0.0
    params["split"]["held_out_domains"] = []
    params["val"]["workers"] = workers
    params["prompt"]["template"] = str(ROOT / params["prompt"]["template"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")


def write_predictions(folder: Path, lines: int) -> None:
    """Write results/predictions: success by chance, prompts and completions of usual length."""
    rng, problem_num = Random(20), max(1, lines // (len(RUNS) * len(SHOTS)))
    for method, size in RUNS:
        name = f"{method}-{size}-{SEED}" if size else "base-0"
        run = {"task": "planning", "method": method, "size": size, "seed": SEED if size else 0}
        with open_atomic(folder / "results/predictions" / f"{name}.jsonl") as out:
            for number in range(problem_num):
                for shot_num in SHOTS:
                    out.write(json.dumps(build_prediction(rng, number, (method, size), shot_num)) + "\n")
        write_json(folder / "results/predictions" / f"{name}.json", {"run": run})


def build_prediction(rng: Random, number: int, run: tuple[str, int], shot_num: int) -> dict[str, Any]:
    label = rng.choice(list(Label))
    return {
        "id": f"{number * 2654435761 % 2**32:08x}{number:08x}",
        "domain": ("blocksworld", "delivery", "ferry", "grippers", "spanner")[number % 5],
        "bucket": ("easy", "easy", "medium", "medium", "hard")[number // 5 % 5],
        "score": float(5 * (number // 5 % 25)),
        "constrained": number % 2 == 1,
        "method": run[0],
        "dataset_size": run[1],
        "seed": SEED,
        "shot_num": shot_num,
        "shot_ids": [f"{rng.randrange(2**64):016x}" for _ in range(shot_num)],
        "prompt": f"(on b1 b{number}) " * (30 + 20 * shot_num),
        "completion": "(stack b1 b2)\n" * 10,
        "plan": "(stack b1 b2)\n" * 10,
        "label": label,
        "success": label is Label.SUCCESS,
        "reward": 1.0 if label is Label.SUCCESS else -0.5,
        "detail": "",
        "plan_size": 10,
        "failing_step": None,
        "goals_satisfied": 2,
        "goals_total": 3,
    }


def measure_tree(pid: int) -> tuple[float, float]:
    """Memory of a process and its descendants in MB: the peak of the largest; of all now, shared pages once (PSS)."""
    largest, total, pending = 0, 0, [pid]
    while pending:
        process = Path("/proc", str(pending.pop()))
        try:
            largest = max(largest, read_kilobytes(process / "status", "VmHWM:"))
            total += read_kilobytes(process / "smaps_rollup", "Pss:")
            for task in (process / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):  # it has ended
            continue
    return largest / 1024, total / 1024


def read_kilobytes(path: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))


def run_stage(stage: str, folder: Path, workers: int) -> dict[str, float]:
    """Run a stage; seconds, CPU seconds, and peak memory in MB: of the largest process and of all together."""
    command, environment = [sys.executable, "-m", "planward", stage], os.environ | {"PLANWARD_THREADS": str(workers)}
    before, start, largest, total = getrusage(RUSAGE_CHILDREN), time.perf_counter(), 0.0, 0.0
    with TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            now = measure_tree(process.pid)
            largest, total = max(largest, now[0]), max(total, now[1])
            time.sleep(SAMPLE_INTERVAL_S)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(errors.read().decode()[-2000:])
    seconds, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"s": seconds, "cpu_s": cpu, "largest_mb": largest, "all_mb": total}


def iter_input(stage: str, folder: Path) -> Iterator[bytes]:
    name = {"split": "problems", "score": "split", "compare": "predictions"}[stage]
    for path in sorted((folder / "results" / name).glob("*.jsonl")):
        with path.open("rb") as lines:
            yield from lines


def time_loop(stage: str, folder: Path) -> tuple[float, float | None]:
    """Seconds of json.loads on each line of a stage's input, and with VAL's verdicts, from those on the first lines."""
    start, count, verdict_num, val_s = time.perf_counter(), 0, 0, 0.0
    for line in iter_input(stage, folder):
        row = json.loads(line)
        count += 1
        if stage == "split" and verdict_num < LOOP_SAMPLE:
            val_start = time.perf_counter()
            domain, problem = (
                folder / "results/problems" / row["meta"][f"{name}_file"] for name in ("domain", "problem")
            )
            assert val.validate(domain, problem, row["response"]).label is Label.SUCCESS
            verdict_num, val_s = verdict_num + 1, val_s + time.perf_counter() - val_start
    seconds = time.perf_counter() - start - val_s
    return seconds, seconds + val_s / verdict_num * count if verdict_num else None


def prepare_input(stage: str, lines: int, folder: Path, workers: int) -> None:
    """Write what a stage reads, where it is missing."""
    if stage == "compare" and not (folder / "results/predictions").exists():
        write_predictions(folder, lines)
    copies = lines // MAX_PROBLEMS if stage == "score" else 1
    if copies > 1 and not (folder / "results/split").exists():
        part = folder.with_name(str(MAX_PROBLEMS))
        create_project(part, MAX_PROBLEMS, workers)
        prepare_input(stage, MAX_PROBLEMS, part, workers)
        for path in (part / "results/split").glob("*.jsonl"):
            with open_atomic(folder / "results/split" / path.name) as out:
                for _ in range(copies):
                    with path.open(encoding="utf-8") as rows:
                        shutil.copyfileobj(rows, out)
    for before in BEFORE[stage] if copies <= 1 else []:
        if not (folder / "results" / before).exists():
            run_stage(before, folder, workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=BEFORE)
    parser.add_argument("lines", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("scale"))
    parser.add_argument("--loop", action="store_true")
    args = parser.parse_args()
    if args.stage == "score" and args.lines > MAX_PROBLEMS and args.lines % MAX_PROBLEMS:
        parser.error(f"LINES of score must be a multiple of {MAX_PROBLEMS:,}")
    if args.stage == "compare":
        args.lines -= args.lines % (len(RUNS) * len(SHOTS))  # equally many predictions of each run
    folder = (args.folder / str(args.lines)).resolve()
    create_project(folder, args.lines, args.workers)
    prepare_input(args.stage, args.lines, folder, args.workers)
    usage = run_stage(args.stage, folder, args.workers)
    sys.stdout.write(
        f"{args.stage}, {args.lines} lines, {args.workers} workers: {usage['s']:.1f} s, {usage['cpu_s']:.1f} CPU s; "
        f"largest process {usage['largest_mb']:.0f} MB, all together {usage['all_mb']:.0f} MB\n"
    )
    if args.loop and args.stage != "problems":
        seconds, with_val = time_loop(args.stage, folder)
        sys.stdout.write(
            f"json.loads in one process: {seconds:.1f} s{f', with VAL {with_val:.0f} s' if with_val else ''}\n"
        )


if __name__ == "__main__":
    main()

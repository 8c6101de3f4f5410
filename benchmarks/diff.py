"""Time of `planward diff` on two revisions of 20,000 predictions each, and of other ways to read them.

    python benchmarks/diff.py [RUNS]

Makes a Git and DVC repository in a temporary folder: 8 runs, 500 problems, 5 numbers of worked examples, two commits
whose predictions all differ. Each command is timed as a process, alternating; prints minimum, median and maximum wall
seconds, CPU seconds, and the ratio of medians to `planward diff`.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROBLEM_COUNT, SHOT_COUNT = 500, 5
RUNS = ["base-0", *(f"{method}-{size}-1" for method in ("sft", "grpo") for size in (100, 200, 400)), "uniform-400-1"]
STAGES = """\
stages:
  evaluate:
    matrix: {run: [%s]}
    cmd: >-
      mkdir -p results/predictions && cp made/${grpo.beta}/${item.run}.jsonl results/predictions/${item.run}.jsonl
      && cp made/${grpo.beta}/${item.run}.json results/predictions/${item.run}.json
    params: [grpo]
    outs: ["results/predictions/${item.run}.jsonl"]
    metrics: ["results/predictions/${item.run}.json"]
"""
PARAMS = "seed: 1\ngrpo: {beta: %s}\ncompare: {confidence: 0.95, resamples: 10000}\n"
READ_SCRIPT = """\
import glob, pandas
print(sum(len(pandas.read_json(path, lines=True)) for path in glob.glob("made/*/*.jsonl")))
"""
COMMANDS = {
    "planward diff": ["planward", "diff", "HEAD~1", "HEAD"],
    "planward diff --html": ["planward", "diff", "HEAD~1", "HEAD", "--html", "page.html"],
    "dvc metrics diff": ["dvc", "metrics", "diff", "HEAD~1", "HEAD"],
    "pandas.read_json": [sys.executable, "-c", READ_SCRIPT],
}


def main(repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_repository(root)
        wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
        cpu: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(repeats):
            for name, command in COMMANDS.items():
                start, cpu_start = time.perf_counter(), measure_cpu()
                subprocess.run(command, cwd=root, check=True, capture_output=True)
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(measure_cpu() - cpu_start)
        page = (root / "page.html").stat().st_size / 1e6
    reference = statistics.median(wall["planward diff"])
    print(f"{'':22} {'min':>6} {'median':>6} {'max':>6} {'CPU':>6} {'ratio':>6}")
    for name, seconds in wall.items():
        median = statistics.median(seconds)
        figures = (min(seconds), median, max(seconds), statistics.median(cpu[name]), median / reference)
        print(f"{name:22} {' '.join(f'{figure:6.2f}' for figure in figures)}")
    print(f"{2 * len(RUNS) * PROBLEM_COUNT * SHOT_COUNT} predictions; the page has {page:.1f} MB")


def measure_cpu() -> float:
    """CPU seconds of all processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def write_repository(root: Path) -> None:
    def run(*command: str) -> None:
        subprocess.run(command, cwd=root, check=True, capture_output=True)

    run("git", "init", "--quiet")
    run("git", "config", "user.name", "a")
    run("git", "config", "user.email", "a@example.com")
    run("dvc", "init")
    (root / ".gitignore").write_text("/results/\n/made/\n")
    (root / "dvc.yaml").write_text(STAGES % ", ".join(RUNS))
    for beta, rate in ((0.0, 0.60), (0.1, 0.62)):
        for name in RUNS:
            write_run(root / f"made/{beta}", name, rate, random.Random(f"{beta}{name}"))
        (root / "params.yaml").write_text(PARAMS % beta)
        run("dvc", "repro")
        run("git", "add", ".")
        run("git", "commit", "--quiet", "-m", f"beta {beta}")


def write_run(folder: Path, run: str, rate: float, rng: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{run}.jsonl").open("w") as out:
        for shot_num in range(SHOT_COUNT):
            for i in range(PROBLEM_COUNT):
                out.write(json.dumps(build_prediction(run, i, shot_num, rng.random() < rate)) + "\n")
    (folder / f"{run}.json").write_text(json.dumps({"success": rate}))


def build_prediction(run: str, i: int, shot_num: int, success: bool) -> dict[str, Any]:
    method, size, seed = (*run.split("-"), "1")[:3]
    plan = "\n".join(f"(unstack b{step} b{i % 7})" for step in range(8))
    atoms = "\n".join(f"(on b{atom} b{atom + i % 5})" for atom in range(12))
    label = "success_plans" if success else "precondition_violation"
    return {
        "id": f"{i:016x}",
        "domain": f"domain{i % 5}",
        "bucket": "easy",
        "score": 1.0,
        "constrained": False,
        "method": method,
        "dataset_size": int(size),
        "seed": int(seed),
        "shot_num": shot_num,
        "shot_ids": [f"{k:016x}" for k in range(shot_num)],
        "prompt": f"{i}\n{atoms}\n" * (1 + shot_num),
        "completion": plan,
        "plan": plan,
        "label": label,
        "success": success,
        "reward": 1.0 if success else -0.5,
        "detail": "",
        "plan_size": 8,
        "failing_step": None if success else 3,
        "goals_satisfied": None,
        "goals_total": 3,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

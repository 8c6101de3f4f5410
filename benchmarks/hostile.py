"""Time and memory of `split` on each problem of hostile_problems.py, as the table in docs/reference/limits.md.

    python benchmarks/hostile.py

With --split, runs the stage on all of them, or on those named, in the current folder and within 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from hostile_problems import DOMAIN, SHAPES, write_shape
from planward.core.registry import load_params
from planward.stages import split
from planward.tasks.planning.config import DifficultyConfig

ROOT = Path(__file__).parent.parent
MAX_MEMORY_BYTES = 1 << 30
VAL_TIMEOUT_S = 10.0


def run_split(names: Sequence[str], timeout: float) -> dict[str, Any]:
    """Run the stage on one line for each shape; returns reasons, seconds, and peaks of memory in MB."""
    params: Any = load_params(root=ROOT)
    changes = {
        "split": params.split.model_copy(update={"held_out_domains": []}),
        "val": params.val.model_copy(update={"timeout": timeout}),
        "difficulty": {DOMAIN: DifficultyConfig()},
    }
    problems = Path("results/problems")
    lines = [write_shape(problems, name) for name in names]
    (problems / "problems.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, resource.RLIM_INFINITY))
    start = perf_counter()
    split.run(params.model_copy(update=changes))
    seconds = perf_counter() - start
    rows = map(json.loads, Path("results/split/quarantine.jsonl").read_text().splitlines())
    peaks = [resource.getrusage(target).ru_maxrss / 1024 for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"reasons": {row["line"]: row["reason"] for row in rows}, "seconds": seconds, "peak_mb": max(peaks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", nargs="*", metavar="SHAPE")
    parser.add_argument("--timeout", type=float, default=VAL_TIMEOUT_S, help="seconds for one run of VAL")
    args = parser.parse_args()
    if args.split is not None:
        print(json.dumps(run_split(args.split or list(SHAPES), args.timeout)))
        return
    print("| a line with | outcome | seconds | MB |\n|---|---|---:|---:|")
    for name in SHAPES:
        other = "plain" if name != "plain" else "goal over 2 variables"  # a domain needs a valid line
        with TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__).absolute()), "--split", other, name]
            process = subprocess.run(
                [*command, "--timeout", str(args.timeout)], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
            )
        result = json.loads(process.stdout)
        reason = result["reasons"].get("2", "accepted").replace(f"{DOMAIN}/", "")
        print(f"| {name} | {reason} | {result['seconds']:.1f} | {result['peak_mb']:.0f} |", flush=True)


if __name__ == "__main__":
    main()

"""Time that Snakemake and DVC take to find that every stage is up to date.

    python benchmarks/noop.py [REPEATS]

Run it from the project's root after `make report`. Prints minimum, median and maximum wall seconds of each.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "snakemake": ["snakemake", "--cores", "2", "results/report.html"],
    "dvc repro": ["dvc", "repro", "--all-pipelines"],
    "dvc status": ["dvc", "status"],
}


def main(repeats: int) -> None:
    for name, command in COMMANDS.items():
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds.append(time.perf_counter() - start)
            if "Running stage" in process.stdout or "Execute" in process.stderr:
                sys.exit(f"{name} had something to do: run it once, then measure")
        print(f"{name:11} {min(seconds):6.2f} {statistics.median(seconds):6.2f} {max(seconds):6.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

"""Wall time of a recipe on this machine and through a Slurm of one node, and what a job and Ray cost.

    pip install -r requirements-slurm.lock -r requirements-cluster.lock
    python benchmarks/executors.py [RECIPE]

RECIPE is workflow/recipes/quick.yaml unless another is named. Each run starts from a clone of the last commit, two jobs
at a time. A Slurm job costs what its run takes longer than the local one, divided by the number of submitted jobs (some
hold several stages). Ray runs `problems` and `evaluate --method base` of the local run again, in a cluster that starts
and ends with the command. Prints a table; exits with status 1 where the hashes of two runs differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import crashes
from slurm_cluster import PATH, SlurmCluster, find_missing

ROOT = Path(__file__).parent.parent
COMMANDS = (["problems"], ["evaluate", "--method", "base"])  # that take --engine


def main(recipe: str = "workflow/recipes/quick.yaml") -> None:
    print("| run | jobs | wall s | s more a job |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the cluster's last files
        local_project, slurm_project = (
            build_project(Path(name) / "local", recipe),
            build_project(Path(name) / "slurm", recipe),
        )
        wall, output = run(local_project, ["snakemake", "--cores", "2"])
        print(f"| local | {count_stages(output)} | {wall:.0f} | |", flush=True)
        if missing := find_missing() or find_missing_plugin():
            print(f"| Slurm | {missing} | | |")
        else:
            cluster = SlurmCluster(Path(name) / "cluster")
            try:
                command = ["snakemake", "--workflow-profile", "profiles/slurm", "--jobs", "2"]
                slurm_wall, output = run(slurm_project, cluster.command(*command, folder=slurm_project))
            finally:
                cluster.stop()
            jobs = len(re.findall(r"submitted with SLURM jobid", output))
            print(f"| Slurm | {jobs} | {slurm_wall:.0f} | {(slurm_wall - wall) / jobs:.1f} |", flush=True)
            if crashes.read_hashes(local_project) != crashes.read_hashes(slurm_project):
                sys.exit("the hashes of the two runs differ")
        for command in COMMANDS:
            plain, _ = run(local_project, ["planward", *command])
            ray, _ = run(local_project, ["planward", *command, "--engine", "ray"])
            print(
                f"| {' '.join(command)} | 1 | {plain:.1f} | |\n| with Ray | 1 | {ray:.1f} | {ray - plain:.1f} |",
                flush=True,
            )


def find_missing_plugin() -> str:
    """What Snakemake needs for Slurm and does not have; empty where it is there."""
    return "" if find_spec("snakemake_executor_plugin_slurm") else "not installed: requirements-slurm.lock"


def build_project(folder: Path, recipe: str) -> Path:
    """A clone of the last commit, with the recipe's parameters."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    run(folder, ["planward", "params", recipe])
    return folder


def run(folder: Path, command: list[str]) -> tuple[float, str]:
    """The seconds that a command takes in a folder, and what it prints."""
    environment = os.environ | {"PATH": PATH, "PYTHONPATH": str(folder / "src"), "PLANWARD_GPU": "0"}  # Slurm has none
    start = time.perf_counter()
    process = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{process.stdout[-4000:]}")
    return time.perf_counter() - start, process.stdout


def count_stages(output: str) -> int:
    """The jobs of a Snakemake run, by its own count."""
    return int(re.findall(r"^\d+ of (\d+) steps", output, re.M)[-1])


if __name__ == "__main__":
    main(*sys.argv[1:2])

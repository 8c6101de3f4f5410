"""The pipeline on a real Slurm: jobs in parallel, a cancelled one, a preempted one, and the digits of a local run."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import crashes
from project import Project
from slurm_cluster import PATH, SlurmCluster, find_missing

MISSING = find_missing() or ("" if find_spec("snakemake_executor_plugin_slurm") else "the extra `slurm` is missing")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

PARAMS = """
seeds: [3407, 1]
sft: {epochs: 60, save_steps: 4}
grpo: {steps: 60, save_steps: 4}
"""  # laid over those of the kills: longer training, two seeds
TARGETS = ["results/models/grpo-10-3407", "results/models/sft-10-1"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose stages ran on this machine."""
    project = build_project(tmp_path_factory.mktemp("local"))
    project.run("snakemake", "--cores", "2", *TARGETS)
    return project


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


def test_cancelled_and_preempted_jobs_go_on_to_the_digits_of_a_local_run(
    local: Project, cluster: SlurmCluster, tmp_path: Path
) -> None:
    project = build_project(tmp_path)

    first = start_snakemake(project, cluster)
    running = wait_for(lambda: [*cluster.list_jobs("RUNNING", "rule_sft")], lambda jobs: len(jobs) == 2, first)
    cluster.run("scancel", running[0])
    output = first.communicate()[0]
    assert first.returncode != 0
    assert "rule sft" in output

    second = start_snakemake(project, cluster)
    wait_for(lambda: list_checkpoints(project, "grpo"), bool, second)
    (job_id,) = cluster.list_jobs("RUNNING", "rule_grpo")
    cluster.run("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=true")
    wait_for(
        lambda: cluster.show_job(job_id), lambda job: (job["Restarts"], job["JobState"]) == ("1", "PENDING"), second
    )
    ended_at = max(list_checkpoints(project, "grpo"))
    cluster.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")  # Slurm's pause before the restart
    output = second.communicate()[0]
    assert second.returncode == 0, output
    log = (project.folder / "logs/grpo/10-3407.log").read_text()
    steps = [int(step) for step in re.findall(r"\b([1-9]\d*)/60\b", log)]  # of the job's last start
    assert min(steps) > ended_at
    assert crashes.read_hashes(project.folder) == crashes.read_hashes(local.folder)


def build_project(folder: Path) -> Project:
    project = Project(folder)
    project.run("planward", "params", "workflow/recipes/quick.yaml")
    project.lay_over(crashes.PARAMS)
    project.lay_over(PARAMS)
    return project


def start_snakemake(project: Project, cluster: SlurmCluster) -> subprocess.Popen[str]:
    command = ["snakemake", "--workflow-profile", "profiles/slurm", "--latency-wait", "5", *TARGETS]
    return subprocess.Popen(
        cluster.command(*command, folder=project.folder),
        env=os.environ | {"PATH": PATH, "PLANWARD_GPU": "0"},  # the cluster has none, whatever the machine has
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(read: Callable[[], Any], is_reached: Callable[[Any], bool], process: subprocess.Popen[str]) -> Any:
    """What `read` returns once it is as wanted, while the process runs."""
    while not is_reached(value := read()):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.5)
    return value


def list_checkpoints(project: Project, method: str) -> list[int]:
    """The steps of the complete checkpoints."""
    journals = (project.folder / ".checkpoints").glob(f"{method}-*/checkpoint-*/journal.json")
    return [int(journal.parent.name.rpartition("-")[2]) for journal in journals]

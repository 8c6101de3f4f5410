"""What profiles/slurm submits: jobs that fit on a node of two CPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from project import Project

MAX_CPUS = 2
LIST_JOBS = """
import json
from snakemake.cli import main
from snakemake.executors.dryrun import Executor
from snakemake.resources import GroupResources

run_job = Executor.run_job

def record_job(self, job):
    resources = job.resources
    if job.is_group():  # as it is submitted: a dry run counts its jobs as run here
        resources = GroupResources.basic_layered(job.toposorted, job.global_resources, run_local=False)
    with open("jobs.jsonl", "a") as file:
        row = {name: resources.get(name, 0) for name in ("_cores", "mem_mb", "gpu")}
        file.write(json.dumps({"name": job.name, "rules": sorted(job.rules)} | row) + "\\n")
    run_job(self, job)

Executor.run_job = record_job
main(["-n", "--quiet", "all", "--workflow-profile", "profiles/slurm", "--cores", "1000"])
"""


@pytest.mark.parametrize("recipe", [None, "workflow/recipes/thorough.yaml"])
def test_no_job_asks_for_more_than_two_cpus(tmp_path: Path, recipe: str | None) -> None:
    project = Project(tmp_path)
    profile = tmp_path / "profiles/slurm/config.yaml"
    settings = yaml.safe_load(profile.read_text())  # without the keys of the executor plugin, which may be missing
    settings = {key: value for key, value in settings.items() if key != "executor" and not key.startswith("slurm-")}
    profile.write_text(yaml.safe_dump(settings))
    if recipe:
        project.run("planward", "params", recipe)
    project.run(sys.executable, "-c", LIST_JOBS)
    jobs = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    groups = [set(job["rules"]) for job in jobs]
    assert {"sft", "start"} in groups
    assert {"grpo"} in groups
    assert {"problems", "split", "score"} in groups
    assert max(job["_cores"] for job in jobs) == MAX_CPUS
    assert max(job["mem_mb"] for job in jobs) <= 6000  # of the largest stage alone

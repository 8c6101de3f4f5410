"""The whole pipeline is checked before its first stage runs: `planward preflight`, and `snakemake`."""

from __future__ import annotations

import shlex
import shutil
from copy import copy
from pathlib import Path

import pytest
import torch

from planward.core.runs import Run
from planward.preflight.stages import read_stages
from project import Project

RECIPE = """
dataset_sizes: [10]
ablations: {run: [], dataset_size: 10}
transfer: {methods: [], dataset_size: 10}
evaluate: {samples: {methods: []}}
model: {backend: unsloth, lora: {r: 2, alpha: 2, dropout: 0.0, target_modules: all-linear, merge: true}}
endpoints:
  run: [hosted]
  models: {hosted: {url: "http://127.0.0.1:9/v1", model: m, api: completions}}
  access: {hosted: {key_env: PREFLIGHT_TEST_KEY}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("preflight"))
    project.lay_over(RECIPE)
    return project


def fail(project: Project, *command: str) -> str:
    """What a command prints that must fail."""
    return project.run("bash", "-c", f"! {shlex.join(command)}")


def test_snakemake_checks_the_parameters_before_dvc_reads_them(project: Project) -> None:
    file = project.folder / "params.yaml"
    before = file.read_text()
    try:
        project.edit("  beta:", "  betta:")
        assert "grpo.betta: unknown key" in fail(project, "snakemake", "--dry-run")
        lines = [f"level{level}: &l{level} [{f'*l{level - 1}, ' * 9}]\n" for level in range(1, 12)]
        file.write_text(before + "level0: &l0 [x]\n" + "".join(lines))  # 31 billion values, which DVC would write out
        assert "values once aliases (*name) are written out" in fail(project, "snakemake", "--dry-run")
    finally:
        file.write_text(before)


def test_a_project_without_git_or_without_a_commit_names_the_fix(project: Project, tmp_path: Path) -> None:
    new_project = copy(project)
    new_project.folder = tmp_path
    shutil.copytree(project.folder, tmp_path, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    for fault in ("is not a git repository", "its Git repository has no commit"):
        output = fail(new_project, "snakemake", "--dry-run")
        assert "dvc/scm.py" not in output
        assert fault in output
        for text in (output, fail(new_project, "planward", "doctor", "--json")):
            assert "git init && git add . && git commit" in text
        new_project.run("git", "init", "--quiet")


def test_snakemake_stops_before_the_first_job_where_a_later_one_cannot_run(project: Project) -> None:
    output = fail(project, "snakemake", "--cores", "2", "results/report.html")
    assert "the environment variable PREFLIGHT_TEST_KEY is not set" in output
    assert "http://127.0.0.1:9/v1 does not answer" in output
    assert "(endpoints-evaluate@hosted)" in output
    assert not (project.folder / "results").exists()
    project.run("snakemake", "--cores", "2", "problems")  # which needs none of it
    assert (project.folder / "results/problems").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA here, preflight rightly finds no fault")
def test_this_machine_counts_only_for_stages_that_run_on_it(project: Project) -> None:
    assert "unsloth needs CUDA" in fail(project, "planward", "preflight", "sft@10-3407")
    assert "unsloth needs CUDA" not in fail(project, "planward", "preflight", "--elsewhere", "sft@10-3407")
    assert "2 checked: nothing is missing" in project.run("planward", "preflight", "problems", "split")
    assert "no stage sft@11-3407" in fail(project, "planward", "preflight", "sft@11-3407")


def test_tracks_that_the_report_does_not_have_are_left_out(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    assert {stage.track for stage in read_stages()} == {"planning", "economy", "selectors"}
    project.lay_over("tracks: []")
    stages = {stage.name: stage for stage in read_stages()}
    assert {stage.track for stage in stages.values()} == {"planning"}
    assert stages["grpo@10-3407"].run == Run("grpo", 10, 3407)
    assert stages["evaluate@sft-10-3407"].run == Run("sft", 10, 3407)
    assert stages["endpoints-evaluate@hosted"].run == Run("hosted", 0, 0)

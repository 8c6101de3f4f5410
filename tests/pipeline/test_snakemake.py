"""Snakemake's own options, as docs/how-to/snakemake.md describes them, on a pipeline of stages that take no time."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from instant_pipeline import Pipeline


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(tmp_path_factory.mktemp("pipeline"))


def test_views_show_a_finished_pipeline(pipeline: Pipeline) -> None:
    assert "Nothing to be done" in pipeline.snakemake("-n", "--rerun-incomplete")
    lines = [line.split("\t") for line in pipeline.snakemake("--detailed-summary").splitlines()]
    states = {line[0]: line[-2:] for line in lines if line[0].startswith("results/")}
    assert set(states) == {
        "results/data.txt",
        "results/report.html",
        "results/models/m-1.txt",
        "results/models/m-2.txt",
    }
    assert set(map(tuple, states.values())) == {("ok", "no update")}
    graph = pipeline.snakemake("--rulegraph")
    assert {"all", "data", "train", "report"} == set(re.findall(r'label = "(\w+)"', graph))
    assert pipeline.snakemake("--dag").count('label = "train') == 2


def test_forced_stages_run_and_others_only_where_their_input_changed(pipeline: Pipeline) -> None:
    assert pipeline.list_new_runs("snakemake", "--cores", "1", "-R", "results/models/m-2.txt") == {"train-2"}
    assert pipeline.list_new_runs("snakemake", "--cores", "1", "-f", "data") == {"data"}
    assert pipeline.list_new_runs("snakemake", "--cores", "2", "-F") == {"data", "train-1", "train-2", "report"}
    output = pipeline.snakemake("--cores", "1", "-n", "-R", "data", "--until", "train")
    assert re.search(r"^train +2$", output, re.M)
    assert not re.search(r"^report +", output, re.M)
    pipeline.check_finished()


def test_waiting_jobs_are_looked_at_only_when_a_job_ends(pipeline: Pipeline) -> None:
    def count_looks(*options: str) -> int:
        return pipeline.snakemake("--cores", "1", "--forceall", "--verbose", *options).count("Ready jobs: ")

    num_jobs = 5  # data, two of train, report, all
    assert count_looks() <= num_jobs < count_looks("--max-jobs-per-timespan", "99/1s")
    pipeline.check_finished()


def test_a_run_beside_another_one_names_its_process_once(pipeline: Pipeline) -> None:
    holder = {"pid": os.getpid(), "cmd": "dvc repro train@1"}
    outs = [str(pipeline.folder / name) for name in ("results/models/m-1.txt", "results/kept-1.txt")]
    lock = pipeline.folder / ".dvc/tmp/rwlock"
    lock.write_text(json.dumps({"write": dict.fromkeys(outs, holder)}))
    output = pipeline.run("bash", "-c", "! snakemake --cores 1")
    assert output.count(f"(PID {os.getpid()}): dvc repro train@1") == 1
    assert "Traceback" not in output
    lock.unlink()
    pipeline.check_finished()


def test_touched_and_deleted_outputs_come_from_the_cache(pipeline: Pipeline) -> None:
    pipeline.snakemake("--cores", "1", "--touch")
    assert "Nothing to be done" in pipeline.snakemake("--cores", "1")
    pipeline.snakemake("--cores", "1", "--delete-all-output")
    assert not (pipeline.folder / "results/report.html").exists()
    assert (pipeline.folder / "results/kept-1.txt").exists()
    train_stages = {"train-1", "train-2"}  # DVC restores no stage that continues a file (`persist`)
    assert pipeline.list_new_runs("snakemake", "--cores", "1") == train_stages
    pipeline.check_finished()


def test_garbage_collection_keeps_what_the_lock_names(pipeline: Pipeline) -> None:
    text = (pipeline.folder / "results/kept-1.txt").read_text()
    pipeline.run("dvc", "gc", "--workspace", "--force")
    shutil.rmtree(pipeline.folder / "results")
    pipeline.run("dvc", "checkout")
    assert (pipeline.folder / "results/kept-1.txt").read_text() == text
    assert (pipeline.folder / "results/base.txt").exists()
    pipeline.check_finished()


def test_files_that_dvc_add_tracks_are_no_rules(pipeline: Pipeline) -> None:
    (pipeline.folder / "own").mkdir()
    (pipeline.folder / "own/problems.jsonl").write_text("{}")
    pipeline.run("dvc", "add", "own")
    assert "Nothing to be done" in pipeline.snakemake("-n")


def test_the_main_process_decides_whether_stages_request_a_gpu(pipeline: Pipeline) -> None:
    node = pipeline.folder / "node"
    node.mkdir()
    (node / "nvidia-smi").write_text("#!/bin/sh\n")
    (node / "nvidia-smi").chmod(0o755)
    command = ("snakemake", "--dry-run", "--forcerun", "report", "--workflow-profile", "none")
    for switch, has_gpu in (("1", True), ("0", False)):
        output = pipeline.run("env", f"PLANWARD_GPU={switch}", f"PATH={node}{os.pathsep}{os.environ['PATH']}", *command)
        assert ("gpu=1" in output) == has_gpu
    output = pipeline.run("bash", "-c", f"! PLANWARD_GPU=yes {' '.join(command)}")
    assert "PLANWARD_GPU is 'yes'; fix: 1 where stages are to request a GPU, else 0" in output

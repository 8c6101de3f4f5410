"""Results through a real DVC remote: a folder, an S3 server and an SSH server on the loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
import yaml

from planward.core.files import write_json
from planward.core.runs import BASE, Run
from project import Project
from remote_stores import Store, find_missing, serve
from result_trees import build_prediction, write_prediction_file
from support import ROOT, merge_values

pytestmark = pytest.mark.integration

SMALL = """
dataset_sizes: [20]
ablations: {run: []}
endpoints:
  run: [gpt-x]
  models: {gpt-x: {url: 'http://127.0.0.1:9/v1', model: m, api: completions}}
"""  # laid over workflow/recipes/quick.yaml; nothing answers there
RUNS = [BASE, Run("sft", 20, 3407), Run("grpo", 20, 3407), Run("gpt-x", 0, 0)]


@dataclass(frozen=True)
class Shared:
    """A project whose results are in a remote; the last commit names the remote."""

    project: Project
    remote: str
    store: Store

    def clone(self, folder: Path) -> Project:
        """Clone the project and set the credentials, as a colleague does."""
        clone = self.project.clone(folder)
        set_credentials(clone, self.remote, self.store)
        return clone


def set_credentials(project: Project, remote: str, store: Store) -> None:
    for key, value in store.credentials.items():
        project.run("dvc", "remote", "modify", "--local", remote, key, value)


def write_outputs(folder: Path) -> None:
    """Write a file or folder for every output of every stage; predictions are such as `compare` reads."""
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        outputs = [Path(out.fs_path) for stage in repo.index.stages if not stage.frozen for out in stage.outs]
    for path in outputs:
        if path.suffix == ".json":
            write_json(path, {"stage": path.stem})
        else:
            file = path if path.suffix else path / "values.tsv"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{path.relative_to(folder)}\n", encoding="utf-8")
    (folder / "results/score/test.jsonl").write_text("", encoding="utf-8")  # prompts identify the problems
    for run in RUNS:
        rows = [build_prediction(run.method, run.size, "ferry", i, k, run.seed) for k in (0, 1) for i in range(20)]
        write_prediction_file(folder / "results/predictions", run, rows)


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose every stage has an output in DVC's cache and an entry in dvc.lock; none has run."""
    project = Project(tmp_path_factory.mktemp("finished"))
    quick = yaml.safe_load((ROOT / "workflow/recipes/quick.yaml").read_text())
    project.lay_over(yaml.safe_dump(merge_values(quick, yaml.safe_load(SMALL))))
    write_outputs(project.folder)
    project.run("dvc", "commit", "--force", "--quiet")
    project.commit()
    return project


@pytest.fixture(scope="module", params=["folder", "s3", "ssh"])
def shared_project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The project after `dvc push`."""
    name = request.param
    if missing := find_missing(name):
        pytest.skip(missing)
    finished_project: Project = request.getfixturevalue("finished_project")
    with serve(name, tmp_path_factory.mktemp(name) / "server") as store:
        finished_project.run("dvc", "remote", "add", "--default", name, store.url)
        for key, value in {"verify": "true", **store.options}.items():
            finished_project.run("dvc", "remote", "modify", name, key, value)
        set_credentials(finished_project, name, store)
        finished_project.run("dvc", "push")
        finished_project.commit()
        yield Shared(finished_project, name, store)


def list_files(folder: Path) -> set[str]:
    """Paths of all files below a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_clone_has_nothing_to_do_after_pull(shared_project: Shared, tmp_path: Path) -> None:
    clone = shared_project.clone(tmp_path / "clone")
    clone.run("dvc", "pull")
    assert list_files(clone.folder / "results") == list_files(shared_project.project.folder / "results")
    assert clone.stale() == set()
    assert "Running stage" not in clone.run("dvc", "repro")
    assert "Nothing to be done" in clone.run("snakemake", "--dry-run")
    assert clone.run("git", "status", "--porcelain") == ""


def test_credentials_stay_out_of_git(shared_project: Shared) -> None:
    config = shared_project.project.run("git", "show", "HEAD:.dvc/config")
    assert shared_project.store.url in config
    assert not [key for key in shared_project.store.credentials if f"{key} =" in config]
    assert "config.local" not in shared_project.project.run("git", "ls-files", ".dvc")


def test_diff_fetches_what_it_compares_and_nothing_else(shared_project: Shared, tmp_path: Path) -> None:
    clone = shared_project.clone(tmp_path / "clone")
    assert "planward diff --pull" in clone.run("bash", "-c", "! planward diff HEAD HEAD~1")
    output = clone.run("bash", "-c", "planward diff HEAD HEAD~1 --pull --json 2> /dev/null")
    assert [revision["name"] for revision in json.loads(output)["revisions"]] == ["HEAD", "HEAD~1"]
    assert not (clone.folder / "results").exists()
    cache_contents = {path.read_bytes() for path in (clone.folder / ".dvc/cache/files").rglob("*") if path.is_file()}
    results = shared_project.project.folder / "results"
    assert {(results / f"predictions/{run.name}.jsonl").read_bytes() for run in RUNS} < cache_contents
    assert (results / "models/grpo-20-3407/values.tsv").read_bytes() not in cache_contents


@pytest.mark.parametrize("shared_project", ["ssh"], indirect=True)
def test_a_file_that_was_changed_in_the_remote_is_refused(shared_project: Shared, tmp_path: Path) -> None:
    clone, page = shared_project.clone(tmp_path / "clone"), "results/report.html"
    content = (shared_project.project.folder / page).read_bytes()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    file = Path(urlsplit(shared_project.store.url).path, "files/md5", md5[:2], md5[2:])
    file.chmod(0o644)
    file.write_text("another page", encoding="utf-8")
    try:
        assert "failed to pull" in clone.run("bash", "-c", f"! dvc pull {page}")
        assert not (clone.folder / page).exists()
    finally:
        file.write_bytes(content)
    clone.run("dvc", "pull", page)
    assert list_files(clone.folder / "results") == {"report.html"}


@pytest.mark.parametrize("shared_project", ["folder"], indirect=True)
def test_repro_with_pull_runs_only_what_has_changed(shared_project: Shared, tmp_path: Path) -> None:
    clone = shared_project.clone(tmp_path / "clone")
    clone.edit("confidence: 0.95", "confidence: 0.9")
    output = clone.run("dvc", "repro", "--pull", "compare")
    assert [line for line in output.splitlines() if line.startswith("Running stage")] == ["Running stage 'compare':"]
    assert {run.method for run in RUNS} <= set(pd.read_csv(clone.folder / "results/tables/success.csv")["method"])
    assert clone.run("git", "diff", "--name-only").split() == ["dvc.lock", "params.yaml"]

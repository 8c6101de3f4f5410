"""DVC's experiments, as docs/how-to/experiments.md describes them; the queue is in test_diff.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from instant_pipeline import PIPELINE, Pipeline

STAGE = """\
  train-by-seed:
    cmd: grep '^seed:' params.yaml > results/seed.txt && echo train-by-seed >> ran.txt
    deps: [results/data.txt]
    params: [seed]
    outs: [results/seed.txt]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """With a Git remote and a DVC remote that hold the committed state."""
    folder = tmp_path / "pipeline"
    folder.mkdir()
    pipeline = Pipeline(folder, PIPELINE + STAGE)
    pipeline.run("dvc", "repro")
    pipeline.run("dvc", "remote", "add", "--default", "store", str(tmp_path / "store"))
    pipeline.commit()
    pipeline.run("git", "init", "--quiet", "--bare", str(tmp_path / "remote.git"))
    pipeline.run("git", "remote", "add", "origin", str(tmp_path / "remote.git"))
    pipeline.run("git", "push", "--quiet", "origin", "HEAD")
    pipeline.run("dvc", "push")
    return pipeline


def read_seed(pipeline: Pipeline) -> str:
    assert "up to date" in pipeline.run("dvc", "status")
    return (pipeline.folder / "results/seed.txt").read_text().split()[1]


@pytest.mark.integration
def test_an_experiment_beside_the_workspace_is_shared_applied_and_branched(pipeline: Pipeline, tmp_path: Path) -> None:
    seed = read_seed(pipeline)
    assert not pipeline.list_new_runs("dvc", "exp", "run", "--temp", "--name", "other", "-S", "seed=7")
    assert not pipeline.run("git", "status", "--short")
    assert read_seed(pipeline) == seed
    pipeline.run("dvc", "exp", "push", "origin", "other")

    (tmp_path / "remote.git/HEAD").write_text((pipeline.folder / ".git/HEAD").read_text())
    colleague = pipeline.clone(tmp_path / "colleague")
    colleague.run("git", "remote", "set-url", "origin", str(tmp_path / "remote.git"))
    colleague.run("dvc", "pull")
    assert read_seed(colleague) == seed
    colleague.run("dvc", "exp", "pull", "origin", "other")
    colleague.run("dvc", "exp", "apply", "other")
    assert read_seed(colleague) == "7"
    assert not (colleague.folder / "ran.txt").exists()  # nothing was computed again

    colleague.run("git", "checkout", "--quiet", ".")
    colleague.run("dvc", "checkout")
    assert read_seed(colleague) == seed
    colleague.run("dvc", "exp", "branch", "other", "with-other-seed")
    colleague.run("git", "checkout", "--quiet", "with-other-seed")
    colleague.run("dvc", "checkout")
    assert read_seed(colleague) == "7"
    colleague.run("dvc", "exp", "remove", "--git-remote", "origin", "other")
    assert "other" not in pipeline.run("dvc", "exp", "list", "origin")

"""What DVC's cache loses comes back, as docs/how-to/resuming.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from instant_pipeline import Pipeline
from planward.core.hashing import compute_md5


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture
def cached_file(pipeline: Pipeline) -> Path:
    """The cache's file of an output that no other output equals."""
    digest = compute_md5(pipeline.folder / "results/report.html")
    file = pipeline.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    assert file.read_text() == "texttext"
    return file


@pytest.mark.parametrize("command", [("snakemake", "--cores", "2"), ("dvc", "repro")], ids=" ".join)
def test_the_stage_of_a_lost_file_runs_again(pipeline: Pipeline, cached_file: Path, command: tuple[str, ...]) -> None:
    cached_file.unlink()
    assert "not in cache" in pipeline.run("dvc", "status")
    assert pipeline.list_new_runs(*command) == {"report"}
    assert cached_file.read_text() == "texttext"
    pipeline.check_finished()


def test_a_lost_file_can_be_stored_again_without_a_run(pipeline: Pipeline, cached_file: Path) -> None:
    cached_file.unlink()
    assert not pipeline.list_new_runs("dvc", "commit", "--force", "report")
    pipeline.check_finished()


def test_a_damaged_file_is_found_once_the_cache_is_writable(pipeline: Pipeline, cached_file: Path) -> None:
    cached_file.chmod(0o644)
    cached_file.write_text("testtest")
    cached_file.chmod(0o444)
    assert "up to date" in pipeline.run("dvc", "status")
    pipeline.run("chmod", "-R", "u+w", ".dvc/cache")
    assert "not in cache" in pipeline.run("dvc", "status")
    assert pipeline.list_new_runs("dvc", "repro") == {"report"}
    assert cached_file.read_text() == "texttext"
    pipeline.check_finished()

"""Where GRPO starts from: `grpo.from` in the parameters, in the pipelines' graph, and in the stage `start`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from dvc.repo import Repo
from typer.testing import CliRunner

import letters
from planward.cli import app
from planward.core.model_folders import find_start_weights
from planward.core.registry import load_params
from planward.core.runs import Run
from planward.params import ParamsError
from support import ROOT

RUN = Run("grpo", 100, 3407)


def copy_pipelines(project: Path, start: str) -> None:
    """The pipelines and parameters of this repository, with another `grpo.from`."""
    for name in ("dvc.yaml", "params.yaml", "workflow/economy/dvc.yaml", "workflow/economy/params.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text((ROOT / name).read_text().replace("  from: sft ", f"  from: {start} "))


@pytest.mark.parametrize(
    ("start", "planning", "economy"),
    [
        ("sft", "results/models/sft-100-3407", "results/economy/models/sft-100-3407"),
        ("base", "models/base", "models/economy"),
        ("models/mine", "models/mine", "models/mine"),
    ],
)
def test_the_graph_has_the_weights_that_the_stage_reads(project: Path, start: str, planning: str, economy: str) -> None:
    copy_pipelines(project, start)
    Repo.init(no_scm=True).close()
    expected = {"dvc.yaml": planning, "workflow/economy/dvc.yaml": economy}
    with Repo() as repo:
        stages = {stage.addressing: stage for stage in repo.index.stages}
        for file, weights in expected.items():
            prefix = "" if file == "dvc.yaml" else f"{file}:"
            stage, grpo = stages[f"{prefix}start@100-3407-from0"], stages[f"{prefix}grpo@100-3407"]
            assert str(stage.deps[0]) == weights
            upstream = {upstream_stage.name for upstream_stage in repo.index.graph.successors(stage)}
            assert upstream == ({"sft@100-3407"} if start == "sft" else set())
            grpo_upstream = {upstream_stage.name for upstream_stage in repo.index.graph.successors(grpo)}
            assert "start@100-3407-from0" in grpo_upstream
            assert "sft@100-3407" not in grpo_upstream
            params = load_params("planning" if prefix == "" else "economy")
            assert find_start_weights(params, RUN) == weights


def test_the_stage_lists_weights_by_content(project: Path) -> None:
    copy_pipelines(project, "models/mine")
    command = ["start", "--size", "100", "--seed", "3407"]
    missing = CliRunner().invoke(app, command)
    assert missing.exit_code == 2
    assert "params.yaml: grpo.from: no folder models/mine; fix: correct it" in missing.stderr

    def list_weights() -> bytes:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        return (project / "results/starts/100-3407.json").read_bytes()

    letters.write_base(project / "models/mine")
    first = list_weights()
    assert set(json.loads(first)["files"]) == {path.name for path in (project / "models/mine").iterdir()}
    (project / "models/mine/README.md").write_text("Mine.")
    (project / "models/mine/.snakemake_timestamp").touch()  # after `snakemake`, not after `dvc repro`
    assert list_weights() == first
    shutil.copyfile(ROOT / "models/base/config.json", project / "models/mine/config.json")
    assert list_weights() != first


def test_a_variant_may_leave_out_sft(project: Path) -> None:
    params = load_params(root=ROOT)
    assert find_start_weights(params.variant("from_base"), Run("from_base", 400, 1)) == params.model.path
    assert find_start_weights(params.variant("dense"), Run("dense", 400, 1)) == "results/models/sft-400-1"
    text = (ROOT / "params.yaml").read_text()
    for old, new, message in (
        (
            "from: base}",
            "from: models/mine}",
            r"variants\.from_base\.grpo\.from: a variant starts from base or as grpo",
        ),
        ("  from: sft ", "  from: /mine ", r"grpo\.from: .*must be sft, base or a folder relative to the project"),
    ):
        (project / "params.yaml").write_text(text.replace(old, new))
        with pytest.raises(ParamsError, match=message):
            load_params()

"""Parameters and code that are edited while DVC runs a stage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planward.cli.parameters import ParametersChanged, guard_parameters
from planward.cli.processes import DVC_VARIABLE
from planward.doctor import inspect_code
from planward.params import read_yaml
from support import ROOT

STAGE = """
import pathlib, time
import typer
from planward.cli.execution import run_stage

def run(params):
    pathlib.Path("started").touch()
    while not pathlib.Path("edited").exists():
        time.sleep(0.05)
    pathlib.Path("out.txt").write_text(str(params.split.test))

typer.run(lambda: run_stage("compare", run))
"""
PIPELINE = {
    "stages": {
        "compare": {
            "cmd": f"{sys.executable} stage.py",
            "deps": ["src/used"],
            "params": ["seed", "split.test", "dataset_sizes.0"],
            "outs": ["out.txt"],
        }
    }
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one stage, which waits until the file `edited` is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("params.yaml", ".dvcignore"):
        shutil.copyfile(ROOT / name, name)
    Path("stage.py").write_text(STAGE)
    for name in ("used", "unused"):
        Path("src", name).mkdir(parents=True)
        Path("src", name, "module.py").touch()
    Path("dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    subprocess.run(["dvc", "init", "--no-scm", "--quiet"], check=True)
    return tmp_path


def repro(*replacements: tuple[str, str], code: str = "", name: str = "module.py") -> subprocess.CompletedProcess[str]:
    """Run `dvc repro`; while its stage runs, edit params.yaml and the file `name` in the folder `code` of src."""
    for signal in ("started", "edited"):
        Path(signal).unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        ["dvc", "repro"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while not Path("started").exists() and process.poll() is None:
        time.sleep(0.05)
    text = Path("params.yaml").read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    Path("params.yaml").write_text(text)
    if code:
        Path("src", code, name).write_text("edited = True")
    Path("edited").touch()
    output, _ = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def read_recorded() -> dict[str, object]:
    params: dict[str, object] = yaml.safe_load(Path("dvc.lock").read_text())["stages"]["compare"]["params"][
        "params.yaml"
    ]
    return params


@pytest.mark.usefixtures("project")
def test_a_stage_whose_parameters_change_while_it_runs_fails_and_runs_again() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    share = params["split"]["test"]
    old, new = f"\n  test: {share}", f"\n  test: {share / 2}"
    process = repro((old, new))
    assert process.returncode != 0
    assert "ParametersChanged: params.yaml: split.test changed while compare ran" in process.stdout
    assert "exited with 2" in process.stdout
    assert "Traceback" not in process.stdout
    assert not Path("dvc.lock").exists()  # nothing is recorded

    assert repro((new, old), (old, new)).returncode == 0  # the same values again
    assert Path("out.txt").read_text() == str(share / 2)
    assert read_recorded() == {
        "seed": params["seed"],
        "split.test": share / 2,
        "dataset_sizes.0": params["dataset_sizes"][0],
    }


@pytest.mark.usefixtures("project")
def test_a_stage_records_its_values_where_other_parameters_change() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    sizes = f"dataset_sizes: {params['dataset_sizes']}"
    assert repro((sizes, f"{sizes.removesuffix(']')}, 77]"), ("\nseed:", "\n# a comment\nseed:")).returncode == 0
    assert read_recorded()["seed"] == params["seed"]


@pytest.mark.usefixtures("project")
def test_parameters_that_cannot_be_read_when_a_stage_ends_are_named() -> None:
    process = repro(("\nseed:", "\nseed: ["))
    assert process.returncode != 0
    assert "ParametersChanged: params.yaml changed while compare ran" in process.stdout
    assert not Path("dvc.lock").exists()


@pytest.mark.usefixtures("project")
def test_an_edit_that_is_undone_before_the_stage_ends_counts_if_the_stage_has_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DVC_VARIABLE, "compare")
    file = Path("params.yaml")
    text = file.read_text()
    share = yaml.safe_load(text)["split"]["test"]
    new_text = text.replace(f"\n  test: {share}", f"\n  test: {share / 2}")
    assert new_text != text

    def edit_and_undo(during: Callable[[], object]) -> None:
        with guard_parameters(Path("dvc.yaml")):
            file.write_text(new_text)
            during()
            file.write_text(text)
            read_yaml(file)

    edit_and_undo(lambda: None)
    with pytest.raises(ParametersChanged, match=r"^params\.yaml: split\.test changed while compare ran"):
        edit_and_undo(lambda: read_yaml(file))


@pytest.mark.usefixtures("project")
def test_code_that_changes_while_its_stage_runs_is_named_until_the_stage_runs_again() -> None:
    process = repro(code="used")
    assert process.returncode == 0
    assert "warning: src/used/module.py changed while compare ran" in process.stdout
    assert "dvc repro --force --single-item compare" in process.stdout
    assert inspect_code().status == "warn"
    assert inspect_code().fix == "dvc repro --force --single-item compare"
    subprocess.run(["dvc", "repro", "--quiet", "--force"], check=True)
    assert inspect_code().status == "ok"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", [".module.py.swp", "module.py~", ".#module.py", "#module.py#"])
def test_files_of_editors_are_no_code(name: str) -> None:
    process = repro(code="used", name=name)
    assert process.returncode == 0
    assert "changed while" not in process.stdout
    assert inspect_code().status == "ok"
    Path("src/used", name).unlink()
    assert "up to date" in subprocess.run(["dvc", "status"], check=True, capture_output=True, text=True).stdout


@pytest.mark.usefixtures("project")
def test_code_of_other_stages_may_change() -> None:
    process = repro(code="unused")
    assert process.returncode == 0
    assert "changed while" not in process.stdout
    assert inspect_code().status == "ok"

"""`planward doctor`: its findings here, in a faulty project, and outside of a project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planward import val
from planward.cli import app
from planward.core.dvc_locks import list_lock_faults
from planward.doctor import inspect_dvc
from support import ROOT

LENIENT = """sed 's/:precondition (off)/:precondition ()/' "$2" > lenient; exec {val} "$1" lenient "$3" "$4\""""
MACHINE_CHECKS = ["Python", "packages", "extras", "VAL", "processors", "memory", "GPU", "browser"]


@pytest.fixture(autouse=True)
def programs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs of this environment on PATH, as activating it does."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run_doctor() -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status, and findings by name."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    return result.exit_code, {finding["name"]: finding for finding in json.loads(result.output)}


@pytest.fixture
def copied_project(project: Path) -> Path:
    """The project without results, under Git and DVC."""
    for name in ("params.yaml", "dvc.yaml", "dvc.lock", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    (project / "models").mkdir()
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        shutil.copy(ROOT / "models" / name, project / "models")
    for name in ("models/base", "models/economy", "workflow"):
        shutil.copytree(ROOT / name, project / name)
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "all"], check=True)
    return project


def test_this_project_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    status, findings = run_doctor()
    assert status == 0, findings
    assert list(findings) == [*MACHINE_CHECKS, "parameters", "recipes", "models", "Git", "disk", "DVC", "code", "needs"]
    assert {findings[name]["status"] for name in ("Python", "VAL", "parameters", "recipes", "models", "needs")} == {
        "ok"
    }
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "tells a good plan from a bad one" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.usefixtures("project")
def test_outside_of_a_project_only_the_machine_is_checked() -> None:
    status, findings = run_doctor()
    assert status == 0
    assert list(findings) == [*MACHINE_CHECKS, "project"]
    assert findings["project"]["status"] == "warn"
    assert "neither params.yaml nor dvc.yaml" in findings["project"]["finding"]


def test_faults_of_a_project_are_reported_with_their_fix(copied_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, findings = run_doctor()
    assert status == 0, findings
    assert findings["Git"]["status"] in {"ok", "warn"}  # warn where nobody is configured

    recipe = copied_project / "workflow/recipes/quick.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 4", "stepps: 4"))
    status, findings = run_doctor()
    assert (status, findings["recipes"]["status"]) == (0, "warn")
    assert "params.yaml with workflow/recipes/quick.yaml" in findings["recipes"]["finding"]
    assert "grpo.stepps: unknown key" in findings["recipes"]["finding"]

    (copied_project / "results").write_text("")
    status, findings = run_doctor()
    assert (status, findings["needs"]["status"]) == (1, "fail")
    assert " more: results: a file, where a folder is to be written" in findings["needs"]["finding"]
    assert "move it away" in findings["needs"]["fix"]
    (copied_project / "results").unlink()

    for name, old, new in (
        ("params.yaml", "beta: 0.0 ", "betta: 0.0 "),
        ("workflow/economy/params.yaml", "lora", "lorra"),
    ):
        file = copied_project / name
        file.write_text(file.read_text().replace(old, new))
    weights = copied_project / "models/base/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"?")
    (copied_project / "models/economy/config.json").unlink()
    lock = (copied_project / "requirements.lock").read_text()
    (copied_project / "requirements.lock").write_text(lock.replace("typer==", "typer==99."))
    (copied_project / ".dvc/tmp/rwlock").write_text(
        json.dumps({"write": {"results/score": {"pid": os.getpid(), "cmd": "dvc repro score"}}})
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    status, findings = run_doctor()
    assert status == 1
    assert findings["parameters"]["status"] == "fail"
    assert "grpo.betta: unknown key" in findings["parameters"]["finding"]
    assert "model.lorra: unknown key" in findings["parameters"]["finding"]
    assert findings["models"]["status"] == "fail"
    assert "models/base/model.safetensors is not the file" in findings["models"]["finding"]
    assert "models/economy/config.json is missing" in findings["models"]["finding"]
    assert findings["packages"]["status"] == "warn"
    assert "typer" in findings["packages"]["finding"]
    assert findings["Git"]["status"] == "warn"
    assert "git config user.name" in findings["Git"]["fix"]
    assert (findings["DVC"]["status"], "busy: dvc repro score" in findings["DVC"]["finding"]) == ("warn", True)


def test_a_project_without_git_or_weights_or_a_needed_gpu_cannot_run(project: Path) -> None:
    text = (ROOT / "params.yaml").read_text().replace("backend: auto ", "backend: unsloth ")
    (project / "params.yaml").write_text(text)
    status, findings = run_doctor()
    assert status == 1
    assert findings["models"]["finding"] == "params.yaml: model.path: no folder models/base"
    assert {findings[name]["status"] for name in ("models", "Git", "DVC")} == {"fail"}
    assert findings["GPU"]["status"] == "ok" or "unsloth" in findings["GPU"]["finding"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (None, "VAL is missing"),
        ("exit 3", "no verdict"),
        (LENIENT, "says success_plans where it is precondition_violation"),
    ],
)
def test_a_missing_broken_or_wrong_val_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, text: str
) -> None:
    program = project / "Validate"
    if script is not None:
        program.write_text("#!/bin/sh\n" + script.format(val=val.find_binary()) + "\n")
        program.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(program))
    status, findings = run_doctor()
    assert (status, findings["VAL"]["status"]) == (1, "fail")
    assert text in findings["VAL"]["finding"]
    assert findings["VAL"]["fix"]


def test_without_torch_everything_else_is_still_checked(project: Path) -> None:
    (project / "torch.py").write_text("raise ImportError('no torch here')\n")
    command = [sys.executable, "-m", "planward", "doctor", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(project)})
    findings = {finding["name"]: finding for finding in json.loads(process.stdout)}
    assert process.returncode == 1
    assert (findings["GPU"]["status"], "no torch here" in findings["GPU"]["finding"]) == ("fail", True)
    assert findings["VAL"]["status"] == "ok"


@pytest.mark.parametrize("content", ["", "schema: '2.0'\nstages:\n  split:\n    cmd: planward", "schema: '2.0'\nsta\n"])
def test_a_lock_file_that_dvc_did_not_finish_is_named(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("workflow/selectors").mkdir(parents=True)
    complete = "schema: '2.0'\nstages:\n  split:\n    cmd: planward split\n"
    for file in (Path("dvc.lock"), Path("workflow/selectors/dvc.lock")):
        file.write_text(complete)
    Path("workflow/selectors/params.yaml").touch()
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "dvc.lock"], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "a"], check=True)
    assert list_lock_faults() == []
    for file in (Path("dvc.lock"), Path("workflow/selectors/dvc.lock")):
        file.write_text(content)
    finding = inspect_dvc()
    assert finding.status == "fail"
    assert finding.finding.startswith("dvc.lock: cut off or empty")
    assert finding.fix.startswith("git checkout -- dvc.lock, then dvc status")
    assert "\nrm workflow/selectors/dvc.lock" in finding.fix
    Path("dvc.lock").write_text(f"<<<<<<< HEAD\n{complete}=======\n{complete}>>>>>>> other\n")
    assert list_lock_faults()[0].startswith("dvc.lock: a merge conflict; fix: git checkout --ours dvc.lock")

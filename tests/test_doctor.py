"""`planward doctor`: what it finds here, in a folder where something is wrong, and outside of a project."""

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

ROOT = Path(__file__).parents[1]
LENIENT = """sed 's/:precondition (off)/:precondition ()/' "$2" > lenient; exec {val} "$1" lenient "$3" "$4\""""
EVERYWHERE = ["Python", "packages", "extras", "VAL", "processors", "memory", "GPU", "browser"]


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of this environment can be called, as where it is activated."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def checked() -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status, and findings by the name of their check."""
    done = CliRunner().invoke(app, ["doctor", "--json"])
    return done.exit_code, {finding["name"]: finding for finding in json.loads(done.output)}


@pytest.fixture
def copied(project: Path) -> Path:
    """A project's files without results, under Git and DVC."""
    for name in ("params.yaml", "dvc.yaml", "dvc.lock", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    for name in ("models/base", "models/economy"):
        shutil.copytree(ROOT / name, project / name)
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "commit", "--quiet", "-m", "all"], check=True)
    return project


def test_nothing_stops_a_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    status, found = checked()
    assert status == 0, found
    assert list(found) == [*EVERYWHERE, "params.yaml", "models", "Git", "disk", "DVC"]
    assert {found[name]["status"] for name in ("Python", "VAL", "params.yaml", "models")} == {"ok"}
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    assert "tells a good plan from a bad one" in " ".join(shown.output.replace("│", " ").split())


@pytest.mark.usefixtures("project")
def test_outside_of_a_project_it_says_so_and_checks_the_machine() -> None:
    status, found = checked()
    assert status == 0
    assert list(found) == [*EVERYWHERE, "project"]
    assert found["project"]["status"] == "warn"
    assert "neither params.yaml nor dvc.yaml" in found["project"]["finding"]


def test_faults_of_a_project_are_named_with_their_mend(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = checked()
    assert status == 0, found
    assert found["Git"]["status"] in {"ok", "warn"}  # warn where nobody is configured

    (copied / "params.yaml").write_text((copied / "params.yaml").read_text().replace("beta: 0.0 ", "betta: 0.0 "))
    weights = copied / "models/base/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"?")
    (copied / "models/economy/config.json").unlink()
    lock = (copied / "requirements.lock").read_text()
    (copied / "requirements.lock").write_text(lock.replace("typer==", "typer==99."))
    (copied / ".dvc/tmp/rwlock").write_text(
        json.dumps({"write": {"results/score": {"pid": os.getpid(), "cmd": "dvc repro score"}}})
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    status, found = checked()
    assert status == 1
    assert found["params.yaml"]["status"] == "fail"
    assert "grpo.betta" in found["params.yaml"]["finding"]
    assert found["models"]["status"] == "fail"
    assert "models/base/model.safetensors is not the file" in found["models"]["finding"]
    assert "models/economy/config.json is missing" in found["models"]["finding"]
    assert found["packages"]["status"] == "warn"
    assert "typer" in found["packages"]["finding"]
    assert found["Git"]["status"] == "warn"
    assert "git config user.name" in found["Git"]["mend"]
    assert (found["DVC"]["status"], "busy: dvc repro score" in found["DVC"]["finding"]) == ("warn", True)


def test_a_project_without_git_or_weights_or_what_params_ask_for_cannot_run(project: Path) -> None:
    text = (ROOT / "params.yaml").read_text().replace("backend: auto ", "backend: unsloth ")
    (project / "params.yaml").write_text(text)
    status, found = checked()
    assert status == 1
    assert found["models"]["finding"] == "model.path: no folder models/base"
    assert {found[name]["status"] for name in ("models", "Git", "DVC")} == {"fail"}
    assert found["GPU"]["status"] == "ok" or "unsloth" in found["GPU"]["finding"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "VAL is missing"),
        ("exit 3", "no verdict"),
        (LENIENT, "says success_plans where it is precondition_violation"),
    ],
)
def test_a_val_that_is_missing_broken_or_lies_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    program = project / "Validate"
    if script is not None:
        program.write_text("#!/bin/sh\n" + script.format(val=val.binary()) + "\n")
        program.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(program))
    status, found = checked()
    assert (status, found["VAL"]["status"]) == (1, "fail")
    assert said in found["VAL"]["finding"]
    assert found["VAL"]["mend"]


def test_without_torch_it_still_tells_everything_else(project: Path) -> None:
    (project / "torch.py").write_text("raise ImportError('no torch here')\n")
    command = [sys.executable, "-m", "planward", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(project)})
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert (found["GPU"]["status"], "no torch here" in found["GPU"]["finding"]) == ("fail", True)
    assert found["VAL"]["status"] == "ok"

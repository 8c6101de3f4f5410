"""The wheel, installed without a checkout: what it holds, and what its commands do in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import planward
from planward.tasks.planning.domains import load_domain_text
from support import ROOT, read_rows, write_lines

PROBLEM = """(define (problem p) (:domain blocksworld) (:objects a b)
 (:init (handempty) (clear a) (clear b) (ontable a) (ontable b)) (:goal (and (on a b))))
"""
PLAN = "(pick-up a)\n(stack a b)\n"
OF_THE_PIPELINE = [  # commands that need the parameters, the stages or the results of a checkout
    ["params"],
    ["sft", "--size", "100", "--seed", "1"],
    ["diff", "HEAD", "workspace"],
    ["publish", "grpo-400-3407", "out"],
]


def list_sources() -> list[str]:
    """The tracked files of src/."""
    output = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in output.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in list_sources():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`planward` of an environment that has the wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    package_folders = [path for path in sys.path if Path(path).name == "site-packages"]  # their .pth files are not read
    (site_packages / "shared.pth").write_text("\n".join(package_folders) + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", "--force-reinstall", str(wheel)], check=True)
    return folder / "bin/planward"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a problem and a plan, and an environment in which no other Planward is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", os.defpath)  # no environment is active
    Path("domain.pddl").write_text(load_domain_text("blocksworld"))
    Path("problem.pddl").write_text(PROBLEM)
    Path("plan.txt").write_text(PLAN)
    return tmp_path


def run(program: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    process = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert process.returncode == status, process.stdout + process.stderr
    return process


def test_the_wheel_holds_all_files_of_the_package(wheel: Path) -> None:
    expected = {Path(name).relative_to("src").as_posix() for name in list_sources()}
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == expected
    assert "planward/py.typed" in expected


@pytest.mark.usefixtures("empty")
def test_the_imported_package_is_that_of_the_wheel(program: Path) -> None:
    script = "import planward, importlib.metadata as m; print(planward.__file__, m.version('planward'))"
    process = subprocess.run([program.parent / "python", "-c", script], capture_output=True, text=True, check=True)
    file, version = process.stdout.split()
    assert Path(file).is_relative_to(program.parent.parent)
    assert version == planward.__version__


def test_validate_and_judge_work_without_a_checkout(program: Path, empty: Path) -> None:
    files = ("domain.pddl", "problem.pddl", "plan.txt")
    assert "label: success_plans" in run(program, "validate", *files).stdout
    (empty / "plan.txt").write_text("(stack a b)\n")
    assert "label: precondition_violation" in run(program, "validate", *files, status=1).stdout
    line = {"domain_file": "domain.pddl", "problem_file": "problem.pddl"}
    answers = {"good": PLAN, "bad": "(stack a b)"}
    write_lines(empty / "answers.jsonl", [line | {"model": name, "completion": answers[name]} for name in answers])
    run(program, "judge", "answers.jsonl", "--workers", "1")
    verdicts = [row["label"] for row in read_rows(empty / "answers-judged/verdicts.jsonl")]
    assert verdicts == ["success_plans", "precondition_violation"]
    assert "<html" in (empty / "answers-judged/page.html").read_text()


def test_plan_works_with_a_model_folder(program: Path, empty: Path) -> None:
    shutil.copytree(ROOT / "models/base", empty / "base")
    assert run(program, "plan", "domain.pddl", "problem.pddl", "--model", "base").stdout.startswith(PLAN)


@pytest.mark.usefixtures("empty")
def test_doctor_checks_the_machine_and_says_how_to_get_a_project(program: Path) -> None:
    findings = {each["name"]: each for each in json.loads(run(program, "doctor", "--json").stdout)}
    assert findings["packages"]["status"] == findings["VAL"]["status"] == "ok", findings
    assert "git clone" in findings["project"]["fix"]
    assert not any("pip install -e" in each["fix"] for each in findings.values())


@pytest.mark.parametrize("arguments", OF_THE_PIPELINE, ids=lambda arguments: arguments[0])
def test_commands_of_the_pipeline_say_that_they_need_a_checkout(
    program: Path, empty: Path, arguments: list[str]
) -> None:
    process = run(program, *arguments, status=2)
    assert "run from the root of a checkout of Planward (git clone)" in process.stderr
    assert sorted(path.name for path in empty.iterdir()) == ["domain.pddl", "plan.txt", "problem.pddl"]

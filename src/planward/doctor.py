"""`planward doctor`: whether this machine and this folder can run the pipeline, and the fix where they cannot.

Each `inspect_` function looks at one thing and returns a `Finding`. None of them changes anything.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import md5
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import psutil
from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from planward import val
from planward.core.dvc_locks import list_lock_faults
from planward.core.model_folders import check_model_folder
from planward.core.parallel import count_processors
from planward.core.paths import MODELS, WORKFLOW, list_tracks, params_file, results
from planward.core.recipes import apply_recipes, check_params
from planward.core.registry import load_params, task_names
from planward.loggers import list_missing
from planward.params import PARAMS_FILE, Params, ParamsError
from planward.preflight.checks import find_faults, list_names, list_warnings
from planward.preflight.resources import GIB, format_size, measure_folders, measure_free_memory
from planward.preflight.stages import read_stages
from planward.preflight.verifier import list_val_faults

OLDEST_PYTHON = (3, 11)
LOCK, PIPELINE, PROJECT = Path("requirements.lock"), Path("dvc.yaml"), Path("pyproject.toml")
MIN_MEMORY_BYTES = 2 * GIB  # the largest stage of the default run takes 1.7 GB
MIN_DISK_BYTES = 2 * GIB  # results take 0.25 GB, DVC's cache of them as much again with each experiment
FULL_DISK_BYTES = GIB // 4  # not enough for a run
MAX_NAMES = 5  # packages or stages that a finding lists
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXTRAS = {
    "dev": "tests and linters",
    "docs": "the documentation as a site",
    "browser": "tests of the page in a browser",
    "gpu": "Unsloth, for bigger models on a GPU",
    "4bit": "4-bit weights without Unsloth",
    "vllm": "faster completions on a GPU",
    "cluster": "Ray and verl, for clusters",
    "pretrained": "pretrained models from the package index",
    "loggers": "curves in Weights & Biases, TensorBoard, Trackio and MLflow",
    "endpoints": "hosted and served models in the tables",
    "remotes": "results through S3 and SSH",
    "slurm": "jobs on a Slurm cluster",
    "fast-downward": "reference plans by Fast Downward",
    "mutation": "tests of the tests",
    "sbom": "a list of all packages in CycloneDX's format",
}
FIRST_COMMIT = "git init && git add . && git commit -m start"
CHANGED_BY_RUNS = (PARAMS_FILE.name, "dvc.lock")  # file names of every pipeline
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one inspection; `fail` prevents a run, and `fix` says what to do."""

    name: str
    status: Status
    finding: str
    fix: str = ""


def iter_findings(deep: bool = False) -> Iterator[Finding]:
    """Inspect this machine and the current folder; `deep` asks DVC which stages are out of date."""
    params, params_finding = inspect_params() if is_project() else ({}, None)
    machine: dict[str, Callable[[], Finding]] = {
        "Python": inspect_python,
        "packages": inspect_packages,
        "extras": partial(inspect_extras, params),
        "VAL": inspect_val,
        "processors": inspect_processors,
        "memory": inspect_memory,
        "GPU": partial(inspect_gpu, params),
        "browser": inspect_browser,
    }
    project: dict[str, Callable[[], Finding]] = {
        "models": partial(inspect_models, params),
        "Git": inspect_git,
        "disk": inspect_disk,
        "DVC": inspect_dvc,
        "code": inspect_code,
        "needs": inspect_needs,
    }
    for name, inspect in machine.items():
        yield _run_inspection(name, inspect)
    if params_finding is None:
        text = f"this folder holds neither {PARAMS_FILE} nor {PIPELINE}: no project was checked"
        fix = "to run the pipeline, git clone Planward; validate, judge, plan and choose work in any folder"
        yield Finding("project", "warn", text, fix)
        return
    yield params_finding
    if params_finding.status == "ok":
        yield _run_inspection("recipes", inspect_recipes)
    for name, inspect in (project | ({"stages": inspect_stages} if deep else {})).items():
        yield _run_inspection(name, inspect)


def is_project() -> bool:
    """Whether the current folder holds a pipeline."""
    return PARAMS_FILE.exists() or PIPELINE.exists()


def compute_exit_status(findings: Sequence[Finding]) -> int:
    return int(any(finding.status == "fail" for finding in findings))


def format_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def build_table(findings: Sequence[Finding]) -> Table:
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(show_lines=True)
    for head in ("check", "", "finding", "fix"):
        table.add_column(head, overflow="fold")
    for row in findings:
        table.add_row(row.name, Text(row.status, style=colours[row.status]), Text(row.finding), Text(row.fix))
    return table


def inspect_python() -> Finding:
    version, oldest = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, OLDEST_PYTHON))
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", "fail", f"{version}; Planward needs {oldest} or newer", "make PYTHON=python3.11")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def inspect_packages() -> Finding:
    """Compare installed versions with what Planward needs, and with requirements.lock where that is here."""
    requirements, _ = read_requirements()
    missing = [f"{need.name} ({_find_version(need.name) or 'missing'})" for need in requirements if not _is_met(need)]
    programs = [name for name in ("dvc", "snakemake", "git") if is_project() and shutil.which(name) is None]
    fix = f"pip install -r {LOCK}, or make .venv/ready" if LOCK.exists() else format_install()
    if missing:
        return Finding("packages", "fail", f"missing or of another version: {', '.join(missing)}", fix)
    if programs:
        path_fix = f"put {Path(sys.executable).parent} on PATH, or install {' and '.join(programs)}"
        return Finding("packages", "fail", f"no program {', '.join(programs)} on PATH", path_fix)
    if not LOCK.exists():
        return Finding("packages", "ok", f"all {len(requirements)} installed; no {LOCK} here to compare versions with")
    pins = [line.partition("==") for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line]
    other = [f"{name} {_find_version(name)} ({version})" for name, _, version in pins if _differs(name, version)]
    if other:
        names = ", ".join(other[:MAX_NAMES]) + (f" and {len(other) - MAX_NAMES} more" if len(other) > MAX_NAMES else "")
        return Finding("packages", "warn", f"{len(other)} not of the version in {LOCK}: {names}", fix)
    return Finding("packages", "ok", f"all {len(pins)} as in {LOCK}")


def inspect_extras(params: Mapping[str, Params]) -> Finding:
    """List optional packages that are not installed, and what they are for; a failure where parameters need them."""
    _, optional = read_requirements()
    missing = [name for name, needs in optional.items() if not all(map(_is_met, needs))]
    keys_by_extra = {}
    for task, settings in params.items():
        if getattr(getattr(settings, "problems", None), "planner", "") == "fast-downward":
            keys_by_extra["fast-downward"] = f"{params_file(task)}: problems.planner"
        if list_missing(settings.logging):
            keys_by_extra["loggers"] = f"{PARAMS_FILE}: logging.report_to"
    for name in missing:
        if key := keys_by_extra.get(name):
            return Finding("extras", "fail", f"{key} needs {name}, which is missing", format_install(name))
    if not missing:
        return Finding("extras", "ok", "all installed")
    text = "; ".join(f"{name} ({EXTRAS.get(name, 'optional')})" for name in missing)
    return Finding("extras", "ok", f"not installed: {text}", f"{format_install(missing[0])}, if you need it")


def inspect_val() -> Finding:
    """Run VAL on a plan that succeeds and on one that fails."""
    if faults := list_val_faults():
        return _build_finding("VAL", faults)
    return Finding("VAL", "ok", f"tells a good plan from a bad one: {val.find_binary()}")


def inspect_processors() -> Finding:
    count = count_processors()
    threads = {name: os.environ[name] for name in ("PLANWARD_THREADS", "OMP_NUM_THREADS") if name in os.environ}
    text = ", ".join(f"{name}={value}" for name, value in threads.items()) or "stages take one thread each"
    if any(value.isdigit() and int(value) > count for value in threads.values()):
        return Finding("processors", "warn", f"{count}, but {text}", f"set it to {count} at most")
    return Finding("processors", "ok", f"{count}; {text}")


def inspect_memory() -> Finding:
    free = measure_free_memory()
    if free < MIN_MEMORY_BYTES:
        return Finding("memory", "warn", f"{format_size(free)} free; a stage takes up to 1.7 GB", "close programs")
    return Finding("memory", "ok", f"{format_size(free)} free")


def inspect_browser() -> Finding:
    names = [*BROWSERS, os.environ.get("PLANWARD_BROWSER", "")]
    program = next((path for name in names if name and (path := shutil.which(name))), None)
    if program:
        return Finding("browser", "ok", f"{program}, for tests of the page")
    return Finding("browser", "ok", "none, or Playwright's own; without one, tests of the page are skipped")


def inspect_params() -> tuple[dict[str, Params], Finding]:
    """Validate the parameter file of every track; returns the valid parameters by task."""
    params, faults, files = dict[str, Params](), list[str](), list[str]()
    for track in list_tracks():
        try:
            check_params(track)
            if track in task_names():
                params[track] = load_params(track)
        except ParamsError as error:
            faults.append(str(error))
        files.append(str(params_file(track)))
    if faults:
        return params, Finding("parameters", "fail", "\n".join(faults), "correct the file; planward params checks it")
    planning = params["planning"]
    runs = len(planning.seeds) * len(planning.dataset_sizes)
    sizes, seeds = (", ".join(map(str, values)) for values in (planning.dataset_sizes, planning.seeds))
    text = f"valid: {', '.join(files)}; N = {sizes}, seeds {seeds}: {runs} runs of every method"
    return params, Finding("parameters", "ok", text)


def inspect_recipes() -> Finding:
    """Try every recipe of workflow/recipes on copies of the parameter files."""
    recipes, faults = sorted((WORKFLOW / "recipes").glob("*.yaml")), []
    for recipe in recipes:
        with TemporaryDirectory() as folder:
            for file in map(params_file, list_tracks()):
                (copy := Path(folder, file)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
            try:
                apply_recipes([recipe], Path(folder))
            except ParamsError as error:
                faults.append(str(error).replace(f"{folder}{os.sep}", ""))
    if faults:
        return Finding("recipes", "warn", "\n".join(faults), "correct the recipe, or the parameter file")
    return Finding("recipes", "ok", ", ".join(recipe.stem for recipe in recipes) or "none")


def inspect_gpu(params: Mapping[str, Params]) -> Finding:
    """What CUDA offers, and whether the parameters can do without."""
    unsloth = [task for task, settings in params.items() if settings.model.backend == "unsloth"]
    try:
        import torch
    except ImportError as error:
        return Finding("GPU", "fail", f"torch cannot be imported: {error}", "see packages")
    if not torch.cuda.is_available():
        if unsloth:
            text = f"model.backend is unsloth for {' and '.join(unsloth)}, and there is no CUDA"
            return Finding("GPU", "fail", text, "set model.backend to auto, or use a machine with a GPU")
        text = "none: everything runs on the CPU, which is enough for models/base, not for a big model"
        return Finding("GPU", "ok", text)
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return Finding("GPU", "ok", ", ".join(f"{device.name}, {format_size(device.total_memory)}" for device in devices))


def inspect_models(params: Mapping[str, Params]) -> Finding:
    """Whether shipped weights are the files that their pipelines made, and whether the parameters' models are here."""
    import yaml

    wrong, lock = [], MODELS / "dvc.lock"
    if lock.exists():
        for out in (out for stage in yaml.safe_load(lock.read_bytes())["stages"].values() for out in stage["outs"]):
            path = Path(out["path"])
            if not path.exists():
                wrong.append(f"{path} is missing")
            elif md5(path.read_bytes()).hexdigest() != out["md5"]:
                wrong.append(f"{path} is not the file that {lock} names")
    if wrong:
        fix = f"git checkout {MODELS}; if you rebuilt it, dvc commit {MODELS}/dvc.yaml"
        return Finding("models", "fail", "; ".join(wrong), fix)
    for task, settings in params.items():
        try:
            check_model_folder(settings.model.path, f"{params_file(task)}: model.path")
        except ParamsError as error:
            text, _, fix = str(error).partition("; fix: ")
            return Finding("models", "fail", text, fix)
    return Finding("models", "ok", "shipped weights are the files that their pipelines made")


def inspect_git() -> Finding:
    """Experiments are commits: Git needs the checkout and the user's identity."""
    if (status := _run_command("git", "status", "--porcelain")) is None:
        return Finding("Git", "fail", "no Git repository here", f"git clone the project, or {FIRST_COMMIT}")
    if (commit := _run_command("git", "rev-parse", "--short", "--verify", "HEAD")) is None:
        return Finding("Git", "fail", "no commit in the Git repository here", FIRST_COMMIT)
    missing = [key for key in ("user.name", "user.email") if not _run_command("git", "config", key)]
    if missing:
        fix = " && ".join(f"git config {key} ..." for key in missing)
        return Finding("Git", "warn", f"no {' and '.join(missing)}: dvc exp run cannot commit", fix)
    changes = [line[3:] for line in status.splitlines() if Path(line[3:]).name not in CHANGED_BY_RUNS]
    if changes:
        text = (
            f"{len(changes)} files differ from commit {commit}, such as {changes[0]}: results will not be of its code"
        )
        return Finding("Git", "warn", text, "git commit")
    return Finding("Git", "ok", f"the code is that of commit {commit}")


def inspect_disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    sizes = {name: measure_folders(Path(name)) for name in ("results", ".dvc/cache", ".checkpoints")}
    text = f"{format_size(free)} free; " + ", ".join(f"{n} {format_size(size)}" for n, size in sizes.items() if size)
    need = max(MIN_DISK_BYTES, 2 * sizes["results"])
    if free < need:
        status: Status = "fail" if free < FULL_DISK_BYTES else "warn"
        fix = "dvc gc --workspace removes results that no file here names; or use another disk"
        return Finding("disk", status, f"{text}; {format_size(need)} should be", fix)
    return Finding("disk", "ok", text.rstrip("; "))


def inspect_dvc() -> Finding:
    """The repository, its lock files, whether a run locks it, and its remotes."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    if faults := list_lock_faults():
        return _build_finding("DVC", faults)
    try:
        repo = Repo()
    except DvcException as error:
        return Finding("DVC", "fail", str(error), "git clone the project, or dvc init")
    with repo:
        if holders := _find_lock_holders(Path(repo.tmp_dir or "", "rwlock")):
            text = "; ".join(f"{command} (process {pid})" for pid, command in holders.items())
            return Finding("DVC", "warn", f"busy: {text}", "wait for it to end; dvc --wait-for-lock repro does")
        remotes = ", ".join(repo.config["remote"]) or "no remote: results stay on this machine"
        return Finding("DVC", "ok", f"a repository, free; {remotes}")


def inspect_code() -> Finding:
    """Stages whose code was edited while they ran: DVC takes their outputs for those of the edited code."""
    stages = list[str]()
    for track in list_tracks():
        pipeline = params_file(track).with_name(PIPELINE.name)
        for file in sorted(results(track).timing.glob("*.json")):
            if "changed_code" in json.loads(file.read_bytes()):
                stages.append(file.stem if pipeline == PIPELINE else f"{pipeline}:{file.stem}")
    if stages:
        text = f"edited while stages ran, whose outputs may be those of the earlier code: {list_names(stages)}"
        return Finding("code", "warn", text, f"dvc repro --force --single-item {' '.join(stages)}")
    return Finding("code", "ok", "no timing file names code that was edited while its stage ran")


def inspect_needs() -> Finding:
    """Check what every stage needs before it runs."""
    stages = read_stages()
    if faults := find_faults(stages):
        return _build_finding("needs", [f"{list_names(names)}: {fault}" for fault, names in faults.items()])
    if warnings := list_warnings(stages):
        return _build_finding("needs", warnings, "warn")
    return Finding("needs", "ok", f"all that {len(stages)} stages ask for is here")


def inspect_stages() -> Finding:
    """List the stages that DVC would run again; takes as long as reading all files that changed."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of every frozen stage
    try:
        with Repo() as repo:
            stale = sorted(repo.status())
    except DvcException as error:
        return Finding("stages", "warn", f"DVC cannot say: {error}", "wait until no other run holds the repository")
    if not stale:
        return Finding("stages", "ok", "all results are up to date")
    names = ", ".join(stale[:MAX_NAMES]) + (" ..." if len(stale) > MAX_NAMES else "")
    return Finding("stages", "warn", f"{len(stale)} out of date: {names}", "snakemake --cores 2")


def format_install(extra: str = "") -> str:
    """The command that installs Planward with an extra, from the checkout where this is one."""
    name = ("." if PROJECT.exists() else "planward") + (f"[{extra}]" if extra else "")
    return f"pip install -e '{name}'" if PROJECT.exists() else f"pip install '{name}'"


def read_requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Requirements of Planward, and of its extras: from pyproject.toml where it is here, else as installed.

    Those for other systems or Python versions are left out.
    """
    if PROJECT.exists():
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
        if project["name"] == "planward":
            extras = project["optional-dependencies"]
            return _parse_requirements(project["dependencies"]), {
                name: _parse_requirements(lines) for name, lines in extras.items()
            }
    try:
        distribution = metadata.distribution("planward")
    except metadata.PackageNotFoundError:
        return [], {}
    lines, names = distribution.requires or [], distribution.metadata.get_all("Provides-Extra") or []
    by_extra = {
        name: _parse_requirements(line for line in lines if re.search(rf"extra == ['\"]{name}['\"]", line))
        for name in names
    }
    return _parse_requirements(line for line in lines if "extra ==" not in line), by_extra


def _parse_requirements(lines: Iterable[str]) -> list[Requirement]:
    requirements = [Requirement(line) for line in lines]
    return [need for need in requirements if not need.marker or "extra" in str(need.marker) or need.marker.evaluate()]


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_met(requirement: Requirement) -> bool:
    version = _find_version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _differs(name: str, version: str) -> bool:
    """Whether another version is installed; a local suffix, as in 2.13.0+cpu, is another build of the same version."""
    return (_find_version(name) or "missing").partition("+")[0] != version.strip().partition("+")[0]


def _find_lock_holders(path: Path) -> Mapping[int, str]:
    """Running processes that hold files of a DVC repository, with their commands."""
    if not path.exists():
        return {}
    locks = json.loads(path.read_text(encoding="utf-8") or "{}")
    readers = [entry for entries in locks.get("read", {}).values() for entry in entries]
    commands = {int(entry["pid"]): str(entry["cmd"]) for entry in [*readers, *locks.get("write", {}).values()] if entry}
    return {pid: command for pid, command in commands.items() if psutil.pid_exists(pid)}


def _run_command(*command: str) -> str | None:
    """The output of a command; None where it fails or does not exist."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.rstrip()


def _build_finding(name: str, faults: Sequence[str], status: Status = "fail") -> Finding:
    """A finding of faults, or warnings, that say their fix, a line each."""
    parts = [fault.partition("; fix: ") for fault in faults]
    return Finding(name, status, "\n".join(part[0] for part in parts), "\n".join(part[2] for part in parts))


def _run_inspection(name: str, inspect: Callable[[], Finding]) -> Finding:
    """Run an inspection; an exception is a finding too, so that the others still run."""
    try:
        return inspect()
    except Exception as error:
        return Finding(name, "warn", f"could not be checked: {type(error).__name__}: {error}")

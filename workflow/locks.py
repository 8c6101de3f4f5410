"""`make locks`: writes the lock files and environment.yml from pyproject.toml.

All locks are one resolution, so any of them can be installed beside requirements.lock. Existing pins are kept: to move
one, delete its lines; to move all, delete the files. CUDA packages are in no lock: torch's CUDA builds bring theirs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

MAIN_LOCK = "requirements.lock"
IN_MAIN_LOCK = ("dev", "fast-downward")  # extras
UNLOCKED = {"vllm": "0.28.0 needs fastapi<0.137, older than other extras got; not tested here: it needs a GPU"}
ALSO_LOCKED = {  # what the tests of an extra need
    "endpoints": ["transformers[serving]"],  # a server of models
    "remotes": ["boto3", "flask", "flask-cors", "moto"],  # a server of S3
}
CUDA = re.compile(r"triton|cuda-.*|nvidia-(?!ml-py).*")
ENVIRONMENT = """\
# Written by `make locks`. conda env create -f environment.yml: the pins of {lock}, from the package index.
name: planward
channels: [conda-forge, nodefaults]
dependencies:
  - python={python}
  - pip
  - make
  - git
  - pip:
      - -r {lock}
      - -e .
"""


@dataclass(frozen=True)
class Distribution:
    """One version of a package, and what it requires."""

    name: str
    version: str
    requires: tuple[str, ...] = ()


def read_project(root: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def list_roots(project: Mapping[str, Any]) -> dict[str, list[str]]:
    """The direct requirements of each lock, by its file name."""
    extras = project["optional-dependencies"]
    roots = {MAIN_LOCK: [*project["dependencies"], *(line for extra in IN_MAIN_LOCK for line in extras[extra])]}
    for extra, lines in extras.items():
        if extra not in (*IN_MAIN_LOCK, *UNLOCKED):
            roots[f"requirements-{extra}.lock"] = [*lines, *ALSO_LOCKED.get(extra, [])]
    return roots


def read_lock(path: Path) -> dict[str, str]:
    """Versions by canonical name.

    Raises:
        ValueError: a line is no pin, or a package is pinned twice.
    """
    pins = dict[str, str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;+]+)", line)
        if match is None or canonicalize_name(match[1]) in pins:
            raise ValueError(f"{path}: {line!r} is no pin, NAME==VERSION, or is there twice; fix: make locks")
        pins[canonicalize_name(match[1])] = match[2]
    return pins


def find_oldest_python(project: Mapping[str, Any]) -> str:
    """`3.11` of `requires-python = ">=3.11"`."""
    return next(each.version for each in SpecifierSet(project["requires-python"]) if each.operator == ">=")


def find_closure(roots: Iterable[str], distributions: Mapping[str, Distribution]) -> set[str]:
    """Canonical names of what `roots` require on this machine, directly or not, but CUDA packages.

    Raises:
        KeyError: a required package is not in `distributions`.
    """
    todo, resolved_extras = [(Requirement(line), "") for line in roots], set[tuple[str, str]]()
    while todo:
        requirement, parent_extra = todo.pop()
        name = canonicalize_name(requirement.name)
        if CUDA.fullmatch(name) or (requirement.marker and not requirement.marker.evaluate({"extra": parent_extra})):
            continue
        for extra in {"", *requirement.extras} - {extra for other, extra in resolved_extras if other == name}:
            resolved_extras.add((name, extra))
            todo += [(Requirement(line), extra) for line in distributions[name].requires]
    return {name for name, _ in resolved_extras}


def build_locks(project: Mapping[str, Any], distributions: Mapping[str, Distribution]) -> dict[str, str]:
    """The text of each lock; what requirements.lock holds is in no other."""
    roots = list_roots(project)
    main = find_closure(roots[MAIN_LOCK], distributions)
    names = {file: find_closure(lines, distributions) - main for file, lines in roots.items()} | {MAIN_LOCK: main}
    return {file: "".join(format_pin(distributions[name]) for name in sorted(names[file])) for file in roots}


def format_pin(distribution: Distribution) -> str:
    """The line of a lock, without the local part that names a build (`+cpu`)."""
    return f"{distribution.name}=={distribution.version.partition('+')[0]}\n"


def build_environment(project: Mapping[str, Any]) -> str:
    """The text of environment.yml."""
    return ENVIRONMENT.format(lock=MAIN_LOCK, python=find_oldest_python(project))


def resolve(roots: Iterable[str], constraints: Iterable[Path]) -> dict[str, Distribution]:
    """Let pip choose a version of everything that `roots` require; nothing is installed.

    Raises:
        CalledProcessError: there is no such choice; pip has said why.
    """
    with TemporaryDirectory() as folder:
        requirements, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        requirements.write_text("\n".join(roots), encoding="utf-8")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report), "-r", str(requirements)]
        constraint_options = [argument for path in constraints for argument in ("-c", str(path))]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *constraint_options], check=True)
        packages = [item["metadata"] for item in json.loads(report.read_bytes())["install"]]
    return {
        canonicalize_name(item["name"]): Distribution(
            item["name"], item["version"], tuple(item.get("requires_dist", []))
        )
        for item in packages
    }


def main(root: Path = Path()) -> None:
    project = read_project(root)
    oldest = find_oldest_python(project)
    if "{}.{}".format(*sys.version_info) != oldest:
        raise SystemExit(
            f"locks are made with Python {oldest}, the oldest one supported; fix: make PYTHON=python{oldest}"
        )
    roots = list_roots(project)
    distributions = resolve((line for lines in roots.values() for line in lines), root.glob("requirements*.lock"))
    for file, text in (build_locks(project, distributions) | {"environment.yml": build_environment(project)}).items():
        (root / file).write_text(text, encoding="utf-8")
        print(f"{file}: {text.count('==')} pins" if "==" in text else f"{file}: Python {oldest}")


if __name__ == "__main__":
    main()

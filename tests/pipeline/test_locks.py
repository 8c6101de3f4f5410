"""pyproject.toml, the locks, environment.yml and whatever else names a Python version or a package agree."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from locks import (
    MAIN_LOCK,
    UNLOCKED,
    Distribution,
    build_environment,
    find_closure,
    find_oldest_python,
    list_roots,
    read_lock,
    read_project,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from planward import doctor
from support import ROOT

PROJECT = read_project(ROOT)
EXTRAS = set(PROJECT["optional-dependencies"])
ROOTS = list_roots(PROJECT)
OLDEST = find_oldest_python(PROJECT)


def read_locked(file: str) -> dict[str, str]:
    """Versions of an environment with this lock: those of requirements.lock as well."""
    return read_lock(ROOT / MAIN_LOCK) | read_lock(ROOT / file)


def read_installed(names: set[str]) -> dict[str, Distribution]:
    """Those of `names` that are installed."""
    distributions = {}
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        distributions[name] = Distribution(distribution.name, distribution.version, tuple(distribution.requires or ()))
    return distributions


def test_every_extra_has_a_lock_or_a_reason_why_not() -> None:
    assert {path.name for path in ROOT.glob("requirements*.lock")} == set(ROOTS)
    assert set(UNLOCKED) <= EXTRAS
    assert all(UNLOCKED.values())


def test_every_extra_is_described() -> None:
    assert set(doctor.EXTRAS) == EXTRAS
    page = (ROOT / "docs/how-to/installing.md").read_text()
    assert {
        name for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    } == EXTRAS


@pytest.mark.parametrize("file", ROOTS)
def test_pins_satisfy_pyproject(file: str) -> None:
    versions = read_locked(file)
    for line in ROOTS[file]:
        requirement = Requirement(line)
        version = versions.get(canonicalize_name(requirement.name), "none")
        assert version != "none", f"{file}: no {requirement.name}; fix: make locks"
        assert requirement.specifier.contains(version, prereleases=True), f"{file}: {version} is not {line}"


@pytest.mark.parametrize("file", ROOTS)
def test_a_lock_holds_what_is_required_and_nothing_else(file: str) -> None:
    """What the packages require, directly or not, is pinned to a version that they accept."""
    versions, pins = read_locked(file), set(read_lock(ROOT / file))
    distributions = read_installed(set(versions))
    if missing := pins - set(distributions):
        pytest.skip(f"what packages require is read where they are installed; of {file} is missing: {min(missing)}")
    names = find_closure(ROOTS[file], distributions)  # a required package without a pin is a KeyError
    main = set(read_lock(ROOT / MAIN_LOCK))
    assert (names if file == MAIN_LOCK else names - main) == pins, "fix: make locks"
    for name in names:
        for requirement in map(Requirement, distributions[name].requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                version = versions[canonicalize_name(requirement.name)]
                text = f"{file}: {name} requires {requirement}, but the lock has {version}"
                assert requirement.specifier.contains(version, prereleases=True), text


def test_locks_agree_on_the_packages_they_share() -> None:
    versions: dict[str, dict[str, str]] = {}
    for file in ROOTS:
        for name, version in read_lock(ROOT / file).items():
            versions.setdefault(name, {})[file] = version
    assert not {name: files for name, files in versions.items() if len(set(files.values())) > 1}
    shared_packages = {name for name, files in versions.items() if MAIN_LOCK in files and len(files) > 1}
    assert not shared_packages, f"in {MAIN_LOCK} and in others; fix: make locks"


def test_environment_yml_is_that_of_the_locks() -> None:
    text = (ROOT / "environment.yml").read_text()
    assert text == build_environment(PROJECT), "fix: make locks"
    *packages, pip = yaml.safe_load(text)["dependencies"]
    assert f"python={OLDEST}" in packages
    assert "pip" in packages
    assert pip == {"pip": [f"-r {MAIN_LOCK}", "-e ."]}


def test_python_is_the_same_everywhere() -> None:
    versions = {
        "classifiers": [match for line in PROJECT["classifiers"] for match in re.findall(r":: (3\.\d+)$", line)],
        "mypy": re.findall(r'^python_version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE),
        "CI": re.findall(r'python-version: "(.+)"', (ROOT / ".github/workflows/ci.yaml").read_text()),
        "Dockerfile": re.findall(r"^FROM python:(\d+\.\d+)-", (ROOT / "Dockerfile").read_text(), re.MULTILINE),
        "Makefile": [".".join(match) for match in re.findall(r"\((\d+), (\d+)\)", (ROOT / "Makefile").read_text())],
        "doctor": [".".join(map(str, doctor.OLDEST_PYTHON))],
    }
    assert versions == {name: [OLDEST] for name in versions}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("numpy==2.4.6\nnumpy>=2\n", "numpy>=2"),
        ("a-b==1\nA_B==2\n", "A_B==2"),
        ("torch==2.13.0+cpu\n", "torch==2.13.0"),
    ],
)
def test_a_line_that_is_no_pin_is_reported(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "requirements.lock"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(line)):
        read_lock(file)


def test_a_lock_names_what_extras_of_extras_require_and_no_cuda_packages() -> None:
    distributions = {
        "app": Distribution("app", "1", ('web; extra == "all"', "nvidia-nccl-cu13==2", 'old; python_version < "3"')),
        "web": Distribution("Web", "1", ("app",)),
    }
    assert find_closure(["app"], distributions) == {"app"}
    assert find_closure(["app[all]"], distributions) == {"app", "web"}
    with pytest.raises(KeyError, match="other"):
        find_closure(["other"], distributions)

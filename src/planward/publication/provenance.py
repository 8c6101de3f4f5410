"""Where published weights come from: the commit, the state of the working tree, and what DVC records of the weights."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from planward import __version__
from planward.comparison import revisions
from planward.core.hashing import compute_md5

MAX_NOTES = 5  # disagreements that an error lists


class PublicationError(ValueError):
    """A run cannot be published; the message says why, and how to fix it."""


@dataclass(frozen=True)
class Provenance:
    """The origin of a run's weights.

    Attributes:
        commit: of the working tree; None outside of Git.
        is_dirty: tracked files differ from the commit.
        weights_md5: by which DVC knows the folder of weights.
        stage: the stage of which dvc.lock records these very weights; None where it records others, or none.
    """

    version: str
    commit: str | None
    is_dirty: bool
    weights_md5: str
    stage: str | None


def find_provenance(weights: Path) -> Provenance:
    """Find the origin of the weights in the folder that a stage wrote.

    Raises:
        PublicationError: dvc.lock records these weights, but other parameters or inputs than there are now: tables and
            parameters are not those of this run.
    """
    digest = compute_folder_md5(weights)
    commit = _run_git("rev-parse", "HEAD")
    is_dirty = bool(_run_git("status", "--porcelain", "--untracked-files=no"))
    return Provenance(__version__, commit, is_dirty, digest, _find_stage(weights, digest))


def compute_folder_md5(folder: Path) -> str:
    """Compute the hash by which DVC knows a folder, `.dir` at its end; hidden files are not DVC's."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    rows = sorted((path.relative_to(folder).as_posix(), compute_md5(path)) for path in files)
    listing = json.dumps([{"md5": md5, "relpath": name} for name, md5 in rows])
    return f"{hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest()}.dir"


def _find_stage(weights: Path, digest: str) -> str | None:
    try:
        with revisions.open_repository() as repo:
            revision = revisions.read_revision(repo, revisions.WORKSPACE)
    except revisions.RevisionError:
        return None
    stage = next((stage for stage in revision.stages.values() if stage.outputs.get(str(weights)) == digest), None)
    if stage is None:
        return None
    lineage = revisions.find_lineage(revision, [str(weights)])
    if notes := revisions.find_disagreements(revision, lineage):
        rest = f"; and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
        raise PublicationError(
            f"{weights} is not what the present parameters lead to: {'; '.join(notes[:MAX_NOTES])}{rest}; fix: "
            "`dvc repro`, or restore the parameters"
        )
    return stage.name


def _run_git(*arguments: str) -> str | None:
    """Return what git prints; None where it fails or is missing."""
    try:
        process = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return process.stdout.strip() if process.returncode == 0 else None

"""Files dvc.lock that cannot be read: DVC did not finish them, or Git could not merge them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from planward.core import paths

CONFLICT = re.compile(rb"^<{7} ", re.M)


def list_lock_faults() -> list[str]:
    """Return a line with its fix for each dvc.lock that is no lock file any more."""
    folders = [*(paths.params_file(track).parent for track in paths.list_tracks()), paths.MODELS]
    files = [folder / "dvc.lock" for folder in dict.fromkeys(folders)]
    return [_describe(file) for file in files if file.exists() and not _is_complete(file)]


def _is_complete(file: Path) -> bool:
    content = file.read_bytes()
    try:
        document = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return content.endswith(b"\n") and isinstance(document, dict) and isinstance(document.get("stages"), dict)


def _describe(file: Path) -> str:
    if CONFLICT.search(file.read_bytes()):
        choice = f"git checkout --ours {file} (or --theirs)"
        return f"{file}: a merge conflict; fix: {choice}, git add {file}, then dvc repro"
    is_committed = not subprocess.run(["git", "cat-file", "-e", f"HEAD:./{file}"], capture_output=True).returncode
    command = f"git checkout -- {file}" if is_committed else f"rm {file}"
    return (
        f"{file}: cut off or empty, as DVC leaves it if it is killed or the disk is full; fix: {command}, then "
        "dvc status; stages that ran since are recorded by running them again, from DVC's run cache"
    )

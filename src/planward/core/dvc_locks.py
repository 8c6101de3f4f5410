"""Files dvc.lock that DVC did not finish: killed or on a full disk, it leaves them cut off or empty."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from planward.core import paths


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
    is_committed = not subprocess.run(["git", "cat-file", "-e", f"HEAD:./{file}"], capture_output=True).returncode
    mend = f"git checkout -- {file}" if is_committed else f"rm {file}"
    return (
        f"{file}: cut off or empty, as DVC leaves it if it is killed or the disk is full; "
        f"fix: {mend}, then dvc status; stages that ran since are recorded by running them again, from DVC's run cache"
    )

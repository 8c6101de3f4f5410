"""Temporary files for VAL, whose errors name the folder: another one can be chosen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planward.core.files import CannotWriteError

FIX = "fix: free space on its disk, or set TMPDIR to a folder on another one"


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a temporary folder, which is deleted after the block; raises CannotWriteError."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="planward-val-")
    except OSError as error:
        raise CannotWriteError(f"cannot write temporary files: {error.strerror}; {FIX}") from error
    with folder as name:
        yield Path(name)


def write_file(file: Path, text: str) -> None:
    """Write a file of such a folder as it is, in UTF-8; raises CannotWriteError."""
    try:
        file.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        folder = tempfile.gettempdir()
        raise CannotWriteError(f"cannot write temporary files in {folder}: {error.strerror}; {FIX}") from error

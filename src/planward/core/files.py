"""Atomic writing of text, JSON and JSON lines."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel

FIX = "fix: free space on its disk, or let this user write there"
RUST_ERROR = re.compile(r"\(os error (\d+)\)")  # in what safetensors and tokenizers raise
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what file systems without flock answer
UMASK = os.umask(0o077)  # reading it means setting it
os.umask(UMASK)
TORCH_WRITERS = ("inline_container.cc", "PytorchStreamWriter")  # in what torch.save raises, without a reason


class CannotWriteError(OSError):
    """A file could not be written; the message names it."""


def write_jsonl(path: Path, rows: Iterable[BaseModel | dict[str, Any]]) -> int:
    """Write rows as JSON lines, atomically; return the number of rows."""
    count = 0
    with open_atomic(path) as out:
        for row in rows:
            data = row.model_dump(exclude_none=True) if isinstance(row, BaseModel) else row
            out.write(json.dumps(data, ensure_ascii=False) + "\n")
            count += 1
    return count


def write_json(path: Path, data: Any) -> None:
    """Write JSON with sorted keys, atomically."""
    with open_atomic(path) as out:
        json.dump(data, out, indent=2, sort_keys=True, ensure_ascii=False)
        out.write("\n")


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[str]]:
    """Open `path` for writing UTF-8 text that replaces it atomically; raises as `replace_atomic` does.

    Other files may be written in the block: their errors stay as they are.
    """
    with (
        replace_atomic(path, by_name=True) as partial,
        io.TextIOWrapper(io.BufferedWriter(_NamedFileIO(partial, "w")), encoding="utf-8", newline="\n") as out,
    ):
        yield out


@contextmanager
def replace_atomic(path: Path, *, by_name: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` if the block succeeds and is deleted otherwise.

    Args:
        by_name: as for `name_write_errors`.

    Raises:
        CannotWriteError: the disk is full or the folder is not writable; the message names `path`.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWriteError(f"cannot write {path}: {error.strerror}; {FIX}") from error
    try:
        with name_write_errors(path, partial, by_name=by_name):
            yield partial
            apply_umask(partial)
            partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def apply_umask(path: Path) -> None:
    """Give a file, or those below a folder, the permissions of new ones.

    safetensors renames temporary files, which only their owner may read (its issue 782).
    """
    for file in path.rglob("*") if path.is_dir() else (path,):
        if file.is_file():
            with suppress(OSError):  # a file system without permissions
                file.chmod(0o666 & ~UMASK)


@contextmanager
def name_write_errors(path: Path, written: Path | None = None, *, by_name: bool = False) -> Iterator[None]:
    """Raise CannotWriteError, with path and reason, where Python or a library cannot write a file or folder.

    Args:
        written: what is written in place of `path`, if not `path` itself.
        by_name: take only errors that name the file; otherwise also those that name none, as libraries raise them.
    """
    try:
        yield
    except Exception as error:
        reason = _find_reason(error, written or path, by_name)
        if reason is None:
            raise
        raise CannotWriteError(f"cannot write {path}: {reason}; {FIX}") from error


class _NamedFileIO(io.FileIO):
    """Adds the file's name to errors that lack it, as those of a full disk do."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:  # some file systems notice only now that the disk is full
            raise OSError(error.errno, error.strerror, str(self.name)) from None


def _find_reason(error: Exception, path: Path, by_name: bool) -> str | None:
    """Return why `path`, or a file below it, could not be written; None if it is another error."""
    if isinstance(error, OSError):
        name = error.filename
        is_ours = not by_name if name is None else Path(os.fsdecode(name)).is_relative_to(path)
        return (error.strerror or str(error)) if is_ours and not isinstance(error, CannotWriteError) else None
    if by_name:
        return None
    if match := RUST_ERROR.search(str(error)):
        return os.strerror(int(match[1]))
    if any(name in str(error) for name in TORCH_WRITERS):
        return f"torch.save failed, with {shutil.disk_usage(path.parent).free} bytes free"
    return None

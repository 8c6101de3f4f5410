"""Atomic writing of text, JSON and JSON lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel


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
    """Open `path` for writing UTF-8 text that replaces it atomically; raises as `replace_atomic` does."""
    with (
        replace_atomic(path) as partial,
        io.TextIOWrapper(io.BufferedWriter(_NamedFileIO(partial, "w")), encoding="utf-8", newline="\n") as out,
    ):
        yield out


@contextmanager
def replace_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` if the block succeeds and is deleted otherwise.

    Raises:
        CannotWriteError: the disk is full or the folder is not writable; the message names `path`.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield partial
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        is_ours = isinstance(error, OSError) and error.filename in (None, str(partial))
        if is_ours and not isinstance(error, CannotWriteError):
            raise _cannot_write(path, error) from error
        raise


class _NamedFileIO(io.FileIO):
    """Adds the file's name to errors that lack it, as those of a full disk do."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None


def _cannot_write(path: Path, error: BaseException) -> CannotWriteError:
    return CannotWriteError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")

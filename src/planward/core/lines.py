"""Lines of JSON from elsewhere: read in bounded memory, and parsed or rejected with a reason."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from planward.core.tasks import InvalidLine

MAX_LINE_BYTES = 1 << 24
MAX_DEPTH = 100  # of a line's objects and lists; pydantic writes and reads 200, some of them around those of a line
TOO_DEEP = f"bad JSON: nested too deeply: at most {MAX_DEPTH} levels are allowed"
OUTSIDE = "is outside the data root"  # of a file that a line names
CUT_BYTES = 1000  # of a longer line, that are kept
CHUNK_BYTES, CHUNK_LINES = 1 << 20, 100  # a chunk goes to one process: whichever comes first


class Line(NamedTuple):
    """A line of a file.

    Attributes:
        number: from 1.
        raw: its bytes; only the first where it is longer than `MAX_LINE_BYTES`.
        is_cut: whether it is longer.
        size: number of bytes in the file.
    """

    number: int
    raw: bytes
    is_cut: bool
    size: int


def iter_lines(path: Path) -> Iterator[Line]:
    """Read a file line by line, blank lines included; a byte order mark at its start is dropped."""
    number = 0
    with path.open("rb") as file:
        while raw := file.readline(MAX_LINE_BYTES):
            number, size = number + 1, len(raw)
            is_cut = size == MAX_LINE_BYTES and not raw.endswith(b"\n")
            rest = raw if is_cut else b"\n"
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES)
                size += len(rest)
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            yield Line(number, raw[:CUT_BYTES] if is_cut else raw, is_cut, size)


def iter_chunks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Group lines for several processes, whatever their number: the same lines give the same chunks."""
    chunk, size = list[Line](), 0
    for line in lines:
        chunk.append(line)
        size += line.size
        if size >= CHUNK_BYTES or len(chunk) == CHUNK_LINES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def parse_object(line: Line) -> dict[str, Any]:
    """Parse a line as a JSON object; raises InvalidLine where it is none, too long or nested too deeply."""
    if line.is_cut:
        raise InvalidLine(f"too long: more than {MAX_LINE_BYTES >> 20} MiB")
    try:
        data = json.loads(line.raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidLine(f"not UTF-8: byte {error.start}") from None
    except ValueError as error:  # no JSON, or a number with too many digits
        raise InvalidLine(f"bad JSON: {error}") from None
    except RecursionError:
        raise InvalidLine(TOO_DEEP) from None
    if _is_deeper(data, MAX_DEPTH):
        raise InvalidLine(TOO_DEEP)
    if not isinstance(data, dict):
        raise InvalidLine(f"bad JSON: expected an object, found {type(data).__name__}")
    return data


def find_file(root: Path, name: str) -> Path:
    """Return a regular file that a line names, below `root`; raises InvalidLine where there is none."""
    path = root / name
    try:
        is_inside, exists = path.resolve().is_relative_to(root.resolve()), path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, invalid characters, or links in a circle
        is_inside, exists = True, False
    if not is_inside:
        raise InvalidLine(f"missing file: {name!r} {OUTSIDE}")
    if not exists:
        raise InvalidLine(f"missing file: {name!r}")
    return path


def _is_deeper(data: Any, limit: int) -> bool:
    """Whether objects and lists are nested in more than `limit` levels."""
    level = [data]
    for _ in range(limit + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return False
        level = [part for parent in level for part in (parent.values() if isinstance(parent, dict) else parent)]
    return True

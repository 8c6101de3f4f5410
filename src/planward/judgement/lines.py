"""The lines of a file to judge: which problem, and what a model wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planward.core.lines import Line, iter_chunks, iter_lines, parse_object
from planward.core.tasks import InvalidLine

MAX_NAME_LENGTH = 200  # characters of a model's name or an id
UNNAMED = "unnamed"


@dataclass(frozen=True)
class Answer:
    """A parsed line: the problem by `id` or by both files, and the text of the completion or plan."""

    id: str | None
    files: tuple[str, str] | None
    text: str
    model: str
    shot_num: int


def read_chunks(path: Path, advance: Callable[[int], object]) -> Iterator[list[Line]]:
    """Read a file in chunks of lines, blank ones included; see `core.lines`.

    Args:
        advance: called with the number of bytes of each chunk, when it has been read.
    """
    for chunk in iter_chunks(iter_lines(path)):
        advance(sum(line.size for line in chunk))
        yield chunk


def parse_answer(line: Line) -> Answer:
    """Parse a line; raises InvalidLine with the reason for quarantine."""
    data = parse_object(line)
    files = (_read_name(data, "domain_file"), _read_name(data, "problem_file"))
    id = _read_name(data, "id")
    if id is None and None in files:
        raise InvalidLine("no problem: needs `id`, or `domain_file` and `problem_file`")
    shot_num = data.get("shot_num", 0)
    if not isinstance(shot_num, int) or isinstance(shot_num, bool) or not 0 <= shot_num < 1000:
        raise InvalidLine("bad field: `shot_num` must be a whole number from 0 to 999")
    both = (files[0], files[1]) if files[0] is not None and files[1] is not None else None
    return Answer(id, both, _read_text(data), _read_name(data, "model") or UNNAMED, shot_num)


def _read_name(data: dict[str, Any], key: str) -> str | None:
    name = data.get(key)
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidLine(f"bad field: `{key}` must be a printable string of up to {MAX_NAME_LENGTH} characters")
    return name


def _read_text(data: dict[str, Any]) -> str:
    """The completion, or the plan as text or as a list of actions."""
    keys = [key for key in ("completion", "plan") if data.get(key) is not None]
    if len(keys) != 1:
        raise InvalidLine(f"{'both' if keys else 'neither'} of `completion` and `plan`: needs one of them")
    text = data[keys[0]]
    if keys == ["plan"] and isinstance(text, list) and all(isinstance(action, str) for action in text):
        text = "\n".join(text)
    if not isinstance(text, str):
        raise InvalidLine(f"bad field: `{keys[0]}` must be a string{' or a list of them' * (keys == ['plan'])}")
    return text

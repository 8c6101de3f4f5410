"""Lines of problem files, validated by several processes: what one of them does with a chunk of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planward.core.lines import Line, iter_chunks, iter_lines, parse_object
from planward.core.records import Record
from planward.core.registry import load_task
from planward.core.tasks import InvalidLine, SplitValidation
from planward.params import Params

MAX_REASON_LENGTH = 2000  # characters


@dataclass(frozen=True)
class LineChunk:
    """Lines of a file, whose name is relative to the folder of the problem files."""

    file: str
    lines: list[Line]


@dataclass(frozen=True)
class ValidatedLine:
    """What became of a line: the text and the digests of its record, or the reason why it is invalid.

    Attributes:
        domain: that it names, else its file; "" where the task does not know it.
        core: digest of the problem without its constraints.
        domain_key: of the check that the first problem of a domain needs, see `SplitValidation`.
    """

    file: str
    line: Line
    domain: str
    id: str = ""
    core: str = ""
    constrained: bool = False
    domain_key: str = ""
    record: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line.number}"

    def reject(self, error: InvalidLine) -> ValidatedLine:
        reason = str(error)
        is_long = len(reason) > MAX_REASON_LENGTH  # it quotes much of a file
        return replace(self, reason=f"{reason[:MAX_REASON_LENGTH]} ..." if is_long else reason)


def iter_line_chunks(folder: Path) -> Iterator[LineChunk]:
    """Read the lines of all *.jsonl files below a folder, in the order of their names, without blank ones."""
    for path in sorted(folder.rglob("*.jsonl")):
        file = path.relative_to(folder).as_posix()
        for lines in iter_chunks(line for line in iter_lines(path) if line.raw.strip()):
            yield LineChunk(file, lines)


class ChunkValidator:
    """Validates the lines of a chunk, whatever chunks went before."""

    def __init__(self, params: Params) -> None:
        self.task = load_task(params)

    def __call__(self, chunk: LineChunk) -> list[ValidatedLine]:
        return [self._validate(chunk.file, line) for line in chunk.lines]

    def _validate(self, file: str, line: Line) -> ValidatedLine:
        stem = Path(file).stem
        validated_line = ValidatedLine(file, line, stem if stem in self.task.domains else "")
        try:
            data = parse_object(line)
            scenario = get_scenario(data, validated_line.domain)
            validated_line = replace(validated_line, domain=scenario if scenario in self.task.domains else "")
            record, core, key = self._validate_problem(data, scenario)
            check_text(data, line)
        except InvalidLine as error:
            return validated_line.reject(error)
        return replace(
            validated_line,
            id=record.id,
            core=core,
            constrained=record.constrained,
            domain_key=key,
            record=record.model_dump_json(exclude_none=True),
        )

    def _validate_problem(self, data: dict[str, Any], domain: str) -> tuple[Record, str, str]:
        if isinstance(self.task, SplitValidation):
            return self.task.validate_problem(data, domain)
        return (*self.task.validate_line(data, domain), "")


class DomainChecks:
    """Checks the first problem of each domain, in the order of the lines."""

    def __init__(self, params: Params) -> None:
        self.task = load_task(params)
        self.accepted: set[str] = set()

    def check(self, validated: ValidatedLine) -> None:
        """Raise InvalidLine where the line's domain fails."""
        if validated.domain_key not in self.accepted and isinstance(self.task, SplitValidation):
            self.task.check_domain(Record.model_validate_json(validated.record))
            self.accepted.add(validated.domain_key)


def get_scenario(data: dict[str, Any], default: str) -> str:
    """The domain that a line names in `meta.scenario`, else `default`: the one its file is named after."""
    meta = data.get("meta")
    scenario = meta.get("scenario") if isinstance(meta, dict) else None
    return scenario.lower() if isinstance(scenario, str) and scenario else default


def check_text(data: dict[str, Any], line: Line) -> None:
    """Raise InvalidLine where a string of the line cannot be written as UTF-8: an escaped half of a surrogate pair."""
    if b"\\ud" in line.raw.lower():
        try:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidLine("bad JSON: half of a surrogate pair") from None

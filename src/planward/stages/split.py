"""split: check every line, set bad ones apart, and divide the rest by a hash that renaming does not change."""

from __future__ import annotations

import errno
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from planward.params import Params
from planward.pddl.canonical import fraction
from planward.records import write_json, written
from planward.tasks import PROBLEMS, load_task
from planward.tasks.base import BadLine

OUT = Path("results/split")
SIDES = ("train", "validation", "test")


@dataclass
class Tally:
    """What was read, by domain: enough to say whether a domain is left with nothing."""

    lines: Counter[str] = field(default_factory=Counter)
    sides: dict[str, Counter[str]] = field(default_factory=lambda: {side: Counter() for side in SIDES})
    constrained: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_reason: dict[str, str] = field(default_factory=dict)

    def kept(self, domain: str) -> int:
        return sum(side[domain] for side in self.sides.values())


def run(params: Params) -> None:
    problems, out = params.placed(PROBLEMS), params.placed(OUT)
    files = sorted(problems.rglob("*.jsonl"))
    task, tally = load_task(params), Tally()
    with ExitStack() as stack:
        sides = {side: stack.enter_context(written(out / f"{side}.jsonl")) for side in SIDES}
        quarantine = stack.enter_context(written(out / "quarantine.jsonl"))
        seen = stack.enter_context(Seen())
        for file, number, raw in tqdm(raw_lines(files), desc="splitting", unit="line"):
            name = file.relative_to(problems).as_posix()
            domain = file.stem if file.stem in task.domains else ""
            try:
                data = parsed_line(raw)
                claimed = claimed_domain(data, domain)
                domain = claimed if claimed in task.domains else ""
                record, core = task.admitted(data, claimed)
                if first := seen.place_of(record.id, f"{name}:{number}"):
                    raise BadLine(f"duplicate: a renaming of {first}")
            except BadLine as reason:
                text = raw.decode("utf-8", "backslashreplace")
                row = {"file": name, "line": number, "reason": str(reason), "text": text}
                quarantine.write(json.dumps(row, ensure_ascii=True) + "\n")
                tally.reasons[str(reason).partition(":")[0]] += 1
                tally.first_reason.setdefault(domain, f"{name}:{number}: {reason}")
            else:
                side = side_of(core, params)
                tally.sides[side][domain] += 1
                tally.constrained[side] += record.constrained
                sides[side].write(record.model_dump_json(exclude_none=True) + "\n")
            tally.lines[domain] += 1
        complain_of_empty_domains(tally, problems)
    write_json(out / "metrics.json", metrics(tally))


def raw_lines(files: list[Path]) -> Iterator[tuple[Path, int, bytes]]:
    for file in files:
        with file.open("rb") as lines:
            yield from ((file, number, line) for number, line in enumerate(lines, 1) if line.strip())


def parsed_line(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # no JSON, a number of too many digits, too deep
        raise BadLine(f"bad JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadLine(f"bad JSON: expected an object, found {type(data).__name__}")
    return data


def claimed_domain(data: dict[str, Any], default: str) -> str:
    """The domain a line says it is of, or the one its file is named after."""
    meta = data.get("meta")
    scenario = meta.get("scenario") if isinstance(meta, dict) else None
    return scenario.lower() if isinstance(scenario, str) and scenario else default


def side_of(core: str, params: Params) -> str:
    """The side of a problem: depends on nothing but the problem without its constraints, and the shares."""
    draw = fraction(core, "split")
    if draw < params.split.test:
        return "test"
    return "validation" if draw < params.split.test + params.split.validation else "train"


class Seen:
    """The problems met so far, on disk, so that memory stays flat."""

    def __enter__(self) -> Seen:
        self.folder = tempfile.TemporaryDirectory()
        self.database = sqlite3.connect(Path(self.folder.name) / "seen.sqlite")
        self._execute("PRAGMA synchronous = OFF")
        self._execute("CREATE TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID")
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.folder.cleanup()

    def place_of(self, identity: str, place: str) -> str:
        """Where the problem was first met, or "" if that is here."""
        if self._execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", identity, place).rowcount:
            return ""
        return str(self._execute("SELECT place FROM seen WHERE id = ?", identity).fetchone()[0])

    def _execute(self, statement: str, *values: str) -> sqlite3.Cursor:
        try:
            return self.database.execute(statement, values)
        except sqlite3.OperationalError as error:  # the disk of temporary files is full
            raise OSError(errno.EIO, str(error), self.folder.name) from None


def complain_of_empty_domains(tally: Tally, problems: Path) -> None:
    if not tally.lines:
        raise ValueError(f"{problems}: no problem lines found; check problems.source and problems.path in params.yaml")
    empty = [domain for domain in sorted(tally.lines) if not tally.kept(domain) and domain]
    if empty or not any(tally.kept(domain) for domain in tally.lines):
        reasons = "\n".join(f"  {domain or 'all'}: first, {tally.first_reason[domain]}" for domain in empty or [""])
        raise ValueError(f"every line is bad for {', '.join(empty) or 'every domain'}:\n{reasons}")


def metrics(tally: Tally) -> dict[str, Any]:
    return {
        "lines": sum(tally.lines.values()),
        "kept": {side: sum(counts.values()) for side, counts in tally.sides.items()},
        "constrained": {side: tally.constrained[side] for side in tally.sides},
        "kept_by_domain": {side: dict(counts) for side, counts in tally.sides.items()},
        "quarantined": sum(tally.reasons.values()),
        "quarantined_by_reason": dict(tally.reasons),
    }

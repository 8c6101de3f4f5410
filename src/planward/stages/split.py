"""split: check every line, set bad ones apart, and divide the rest by a hash that renaming does not change."""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tqdm import tqdm

from planward.params import Params
from planward.pddl.canonical import fraction
from planward.pddl.expressions import PddlError, Unsupported
from planward.pddl.search import SearchLimit, Unsolvable
from planward.records import Record, write_json, written
from planward.tasks import PROBLEMS, load_task
from planward.tasks.base import Task
from planward.tasks.planning.identity import identified
from planward.tasks.planning.references import reference_plan
from planward.val import InputError

OUT = Path("results/split")
SIDES = ("train", "validation", "test")


class BadLine(ValueError):
    """A line that cannot be used; the message is the reason that goes to quarantine."""


@dataclass
class Tally:
    """What was read, by domain: enough to say whether a domain is left with nothing."""

    lines: Counter[str] = field(default_factory=Counter)
    sides: dict[str, Counter[str]] = field(default_factory=lambda: {side: Counter() for side in SIDES})
    constrained: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_reason: dict[str, str] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)  # domain files that VAL is known to read, by content

    def kept(self, domain: str) -> int:
        return sum(side[domain] for side in self.sides.values())


def run(params: Params) -> None:
    files = sorted(PROBLEMS.rglob("*.jsonl"))
    task, tally = load_task(params), Tally()
    with ExitStack() as stack:
        sides = {side: stack.enter_context(written(OUT / f"{side}.jsonl")) for side in SIDES}
        quarantine = stack.enter_context(written(OUT / "quarantine.jsonl"))
        seen = stack.enter_context(Seen())
        for file, number, raw in tqdm(raw_lines(files), desc="splitting", unit="line"):
            name = file.relative_to(PROBLEMS).as_posix()
            domain = file.stem if file.stem in params.difficulty else ""
            try:
                data = parsed_line(raw)
                claimed = claimed_domain(data, domain)
                domain = claimed if claimed in params.difficulty else ""
                record, core = checked_record(data, claimed, params, task)
                check_by_val(record, task, tally.judged)
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
        complain_of_empty_domains(tally)
    write_json(OUT / "metrics.json", metrics(tally))


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


def checked_record(data: dict[str, Any], domain: str, params: Params, task: Task) -> tuple[Record, str]:
    """The line as a record whose files parse and whose reference plan works, and its digest without constraints.

    Raises:
        BadLine: it is not such a line; says why.
    """
    if isinstance(data.get("meta"), dict):
        data = {**data, "meta": {**data["meta"], "scenario": domain}}
    try:
        record = Record.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        raise BadLine(f"bad record: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    paths = (PROBLEMS / record.meta.domain_file, PROBLEMS / record.meta.problem_file)
    for path, name in zip(paths, (record.meta.domain_file, record.meta.problem_file), strict=True):
        try:
            inside, found = path.resolve().is_relative_to(PROBLEMS.resolve()), path.is_file()
        except (OSError, ValueError):  # too long, or characters that no file name may have
            inside, found = True, False
        if not inside:
            raise BadLine(f"missing file: {name!r} lies outside the data root")
        if not found:
            raise BadLine(f"missing file: {name!r}")
    if domain not in params.difficulty:
        raise BadLine(f"unknown domain: {domain!r} has no entry under `difficulty` in params.yaml")
    try:
        identity = identified(*paths)
        if not record.response:
            record = record.model_copy(update={"response": "\n".join(reference_plan(*paths, params.problems))})
        verdict = task.verify(record, record.response or "")
    except Unsupported as error:
        raise BadLine(f"no reference plan: {_inside(error)}") from None
    except (PddlError, InputError) as error:
        raise BadLine(f"bad PDDL: {_inside(error)}") from None
    except RecursionError:
        raise BadLine(f"bad PDDL: {record.meta.problem_file}: nested too deeply") from None
    except (Unsolvable, SearchLimit) as error:
        raise BadLine(f"no reference plan: {error}") from None
    if not verdict.success:
        raise BadLine(f"bad reference plan: {verdict.label}: {verdict.detail}")
    if not verdict.plan:
        raise BadLine("nothing to plan: the goal holds at the start")
    update = {"id": identity.digest[:16], "constrained": identity.constrained}
    return record.model_copy(update=update), identity.core[:16]


def check_by_val(record: Record, task: Task, judged: set[str]) -> None:
    """Have VAL judge the first reference plan of each domain file: it reads less than the parser; raises BadLine."""
    digest = hashlib.sha256((PROBLEMS / record.meta.domain_file).read_bytes()).hexdigest()
    if digest in judged:
        return
    try:
        verdict = task.judge([(record, record.response or "")])[0]
    except InputError as error:
        raise BadLine(f"bad PDDL: {_inside(error)}") from None
    if not verdict.success:
        raise BadLine(f"bad reference plan: VAL says {verdict.label}: {verdict.detail}")
    judged.add(digest)


def _inside(error: Exception) -> str:
    """The error's text with paths relative to the data root."""
    return str(error).replace(f"{PROBLEMS}/", "")


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


def complain_of_empty_domains(tally: Tally) -> None:
    if not tally.lines:
        raise ValueError(f"{PROBLEMS}: no problem lines found; check problems.source and problems.path in params.yaml")
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

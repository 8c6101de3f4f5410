"""Stage `split`: validate every line, quarantine bad ones, divide the rest by a hash that renaming does not change.

Problems of held-out domains are in no split, but in a file of their own.
"""

from __future__ import annotations

import errno
import json
import sqlite3
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.hashing import hash_fraction
from planward.core.lines import Line, iter_lines, parse_object
from planward.core.paths import HELD_OUT, SPLITS
from planward.core.registry import load_task
from planward.core.tasks import InvalidLine
from planward.params import Params, ParamsError

FILES = (*SPLITS, HELD_OUT)
MAX_REASON_LENGTH = 2000  # characters


@dataclass
class Counts:
    """Lines by domain and outcome: enough to say whether a domain is left with nothing."""

    lines: Counter[str] = field(default_factory=Counter)
    valid: dict[str, Counter[str]] = field(default_factory=lambda: {file: Counter() for file in FILES})
    constrained: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    first_reason: dict[str, str] = field(default_factory=dict)

    def count_valid(self, domain: str) -> int:
        return sum(counts[domain] for counts in self.valid.values())


def run(params: Params) -> None:
    """Write split/{train,validation,test,held_out,quarantine}.jsonl and metrics.json.

    Raises:
        ParamsError: a held-out domain has no problems, or no other domain has any.
        ValueError: there are no lines, or a domain has no valid line; the message shows the first reason.
        VerifierError: no verdict on a reference completion could be reached.
    """
    problems, folder = paths.results(params.task).problems, paths.results(params.task).split
    files = sorted(problems.rglob("*.jsonl"))
    task, counts = load_task(params), Counts()
    with ExitStack() as stack:
        outputs = {file: stack.enter_context(open_atomic(folder / f"{file}.jsonl")) for file in FILES}
        quarantine = stack.enter_context(open_atomic(folder / "quarantine.jsonl"))
        index = stack.enter_context(ProblemIndex())
        lines = ((file, line) for file in files for line in iter_lines(file) if line.raw.strip())
        for file, line in tqdm(lines, desc="splitting", unit="line"):
            name, number = file.relative_to(problems).as_posix(), line.number
            domain = file.stem if file.stem in task.domains else ""
            try:
                data = parse_object(line)
                scenario = get_scenario(data, domain)
                domain = scenario if scenario in task.domains else ""
                record, core = task.validate_line(data, scenario)
                check_text(data, line)
                if first := index.find_first(record.id, f"{name}:{number}"):
                    raise InvalidLine(f"duplicate: a renaming of {first}")
            except InvalidLine as error:
                reason, text = shorten(str(error)), line.raw.decode("utf-8", "backslashreplace")
                row = {"file": name, "line": number, "reason": reason, "text": text}
                quarantine.write(json.dumps(row, ensure_ascii=True) + "\n")
                counts.reasons[reason.partition(":")[0]] += 1
                counts.first_reason.setdefault(domain, f"{name}:{number}: {reason}")
            else:
                output = HELD_OUT if domain in params.split.held_out_domains else assign_split(core, params)
                counts.valid[output][domain] += 1
                counts.constrained[output] += record.constrained
                outputs[output].write(record.model_dump_json(exclude_none=True) + "\n")
            counts.lines[domain] += 1
        check_domains(counts, problems)
        check_held_out_domains(counts, params)
    write_json(folder / "metrics.json", compute_metrics(counts))


def check_text(data: dict[str, Any], line: Line) -> None:
    """Raise InvalidLine where a string of the line cannot be written as UTF-8: an escaped half of a surrogate pair."""
    if b"\\ud" in line.raw.lower():
        try:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidLine("bad JSON: half of a surrogate pair") from None


def shorten(reason: str) -> str:
    """Cut a reason that quotes much of a file."""
    return reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]} ..."


def get_scenario(data: dict[str, Any], default: str) -> str:
    """The domain that a line names in `meta.scenario`, else `default`: the one its file is named after."""
    meta = data.get("meta")
    scenario = meta.get("scenario") if isinstance(meta, dict) else None
    return scenario.lower() if isinstance(scenario, str) and scenario else default


def assign_split(core: str, params: Params) -> str:
    """The split of a problem: depends only on the problem without its constraints, and on the shares."""
    position = hash_fraction(core, "split")
    if position < params.split.test:
        return "test"
    return "validation" if position < params.split.test + params.split.validation else "train"


class ProblemIndex:
    """Ids of the problems read so far, on disk, so that memory stays flat."""

    def __enter__(self) -> ProblemIndex:
        self.folder = tempfile.TemporaryDirectory()
        self.database = sqlite3.connect(Path(self.folder.name) / "problems.sqlite")
        self._execute("PRAGMA synchronous = OFF")
        self._execute("CREATE TABLE problems (id TEXT PRIMARY KEY, line TEXT) WITHOUT ROWID")
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.folder.cleanup()

    def find_first(self, problem: str, line: str) -> str:
        """The line where the problem first occurred, or "" if this is it."""
        if self._execute("INSERT OR IGNORE INTO problems VALUES (?, ?)", problem, line).rowcount:
            return ""
        return str(self._execute("SELECT line FROM problems WHERE id = ?", problem).fetchone()[0])

    def _execute(self, statement: str, *values: str) -> sqlite3.Cursor:
        try:
            return self.database.execute(statement, values)
        except sqlite3.OperationalError as error:  # the disk of temporary files is full
            raise OSError(errno.EIO, str(error), self.folder.name) from None


def check_domains(counts: Counts, problems: Path) -> None:
    """Raise ValueError where there are no lines, or a domain has no valid one."""
    if not counts.lines:
        raise ValueError(f"{problems}: no problem lines found; check problems.source and problems.path in params.yaml")
    empty = [domain for domain in sorted(counts.lines) if not counts.count_valid(domain) and domain]
    if empty or not any(counts.count_valid(domain) for domain in counts.lines):
        reasons = "\n".join(f"  {domain or 'all'}: first, {counts.first_reason[domain]}" for domain in empty or [""])
        raise ValueError(f"every line is bad for {', '.join(empty) or 'every domain'}:\n{reasons}")


def check_held_out_domains(counts: Counts, params: Params) -> None:
    """Raise ParamsError where a held-out domain has no problems, or all problems are of held-out domains."""
    held_out, key = params.split.held_out_domains, f"{paths.params_file(params.task)}: split.held_out_domains"
    if missing := [domain for domain in held_out if not counts.lines[domain]]:
        known = ", ".join(sorted(filter(None, counts.lines)))
        raise ParamsError(f"{key}: {', '.join(missing)} is no domain of the problems ({known}); fix: take it out")
    if not any(counts.valid[split] for split in SPLITS):
        raise ParamsError(f"{key}: leaves no problem to train on; fix: take a domain out")


def compute_metrics(counts: Counts) -> dict[str, Any]:
    """Return the numbers of lines; raises RuntimeError where one was neither kept nor quarantined."""
    lines, kept = counts.lines.total(), sum(valid.total() for valid in counts.valid.values())
    if kept + counts.reasons.total() != lines:
        raise RuntimeError(f"{lines} lines read, but {kept} kept and {counts.reasons.total()} quarantined")
    return {
        "lines": lines,
        "kept": {split: valid.total() for split, valid in counts.valid.items()},
        "constrained": {file: counts.constrained[file] for file in FILES},
        "kept_by_domain": {split: dict(valid) for split, valid in counts.valid.items()},
        "quarantined": counts.reasons.total(),
        "quarantined_by_reason": dict(counts.reasons),
    }

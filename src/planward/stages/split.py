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
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.hashing import hash_fraction
from planward.core.line_validation import ChunkValidator, DomainChecks, ValidatedLine, iter_line_chunks
from planward.core.parallel import map_chunks
from planward.core.paths import HELD_OUT, SPLITS
from planward.core.tasks import InvalidLine
from planward.params import Params, ParamsError

FILES = (*SPLITS, HELD_OUT)
CHUNKS_ALONE = 20  # of lines: in a fraction of the time, more processes would only start


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
        WorkerKilled: one of the processes was killed.
    """
    problems, folder = paths.results(params.task).problems, paths.results(params.task).split
    counts, domains = Counts(), DomainChecks(params)
    with ExitStack() as stack:
        outputs = {file: stack.enter_context(open_atomic(folder / f"{file}.jsonl")) for file in FILES}
        quarantine = stack.enter_context(open_atomic(folder / "quarantine.jsonl"))
        index = stack.enter_context(ProblemIndex())
        chunks = map_chunks(
            partial(ChunkValidator, params), iter_line_chunks(problems), count_workers(params), CHUNKS_ALONE
        )
        for line in tqdm(chain.from_iterable(chunks), desc="splitting", unit="line"):
            domain = line.domain
            if not line.reason:
                line = check_first(line, domains, index)
            if line.reason:
                text = line.line.raw.decode("utf-8", "backslashreplace")
                row = {"file": line.file, "line": line.line.number, "reason": line.reason, "text": text}
                quarantine.write(json.dumps(row, ensure_ascii=True) + "\n")
                counts.reasons[line.reason.partition(":")[0]] += 1
                counts.first_reason.setdefault(domain, f"{line.place}: {line.reason}")
            else:
                output = HELD_OUT if domain in params.split.held_out_domains else assign_split(line.core, params)
                counts.valid[output][domain] += 1
                counts.constrained[output] += line.constrained
                outputs[output].write(line.record + "\n")
            counts.lines[domain] += 1
        check_domains(counts, problems)
        check_held_out_domains(counts, params)
    write_json(folder / "metrics.json", compute_metrics(counts))


def count_workers(params: Params) -> int:
    """The processes that validate lines: `val.workers`, for a task with that key."""
    val = getattr(params, "val", None)
    return int(val.workers) if val else 1


def check_first(line: ValidatedLine, domains: DomainChecks, index: ProblemIndex) -> ValidatedLine:
    """Reject a valid line whose domain fails, or whose problem an earlier line has."""
    try:
        domains.check(line)
        if first := index.find_first(line.id, line.place):
            raise InvalidLine(f"duplicate: a renaming of {first}")
    except InvalidLine as error:
        return line.reject(error)
    return line


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
        names = ", ".join(sorted(filter(None, counts.lines)))
        raise ParamsError(f"{key}: {', '.join(missing)} is no domain of the problems ({names}); fix: take it out")
    if not any(counts.valid[split] for split in SPLITS):
        raise ParamsError(f"{key}: leaves no problem to train on; fix: take a domain out")


def compute_metrics(counts: Counts) -> dict[str, Any]:
    """Return the numbers of lines; raises RuntimeError where one was neither kept nor quarantined."""
    lines, num_kept = counts.lines.total(), sum(valid.total() for valid in counts.valid.values())
    if num_kept + counts.reasons.total() != lines:
        raise RuntimeError(f"{lines} lines read, but {num_kept} kept and {counts.reasons.total()} quarantined")
    return {
        "lines": lines,
        "kept": {split: valid.total() for split, valid in counts.valid.items()},
        "constrained": {file: counts.constrained[file] for file in FILES},
        "kept_by_domain": {split: dict(valid) for split, valid in counts.valid.items()},
        "quarantined": counts.reasons.total(),
        "quarantined_by_reason": dict(counts.reasons),
    }

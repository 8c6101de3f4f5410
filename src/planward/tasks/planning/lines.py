"""Which lines of a problem file can be used: their files parse, and their reference plans work."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from planward.params import Params
from planward.pddl.expressions import PddlError, Unsupported
from planward.pddl.search import SearchLimit, Unsolvable
from planward.records import Record
from planward.tasks.base import BadLine, Task, claimed_record
from planward.tasks.planning.identity import identified
from planward.tasks.planning.references import reference_plan
from planward.val import InputError


class Lines:
    """Checks the lines of a folder of problems; VAL judges the first reference plan of each domain file."""

    def __init__(self, task: Task, params: Params, root: Path) -> None:
        self.task, self.params, self.root = task, params, root
        self.judged: set[str] = set()  # domain files that VAL is known to read, by content

    def admitted(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """As `Task.admitted`."""
        record = claimed_record(line, domain)
        paths = self._files(record)
        if domain not in self.params.difficulty:
            raise BadLine(f"unknown domain: {domain!r} has no entry under `difficulty` in params.yaml")
        try:
            identity = identified(*paths)
            if not record.response:
                plan = reference_plan(*paths, self.params.problems)
                record = record.model_copy(update={"response": "\n".join(plan)})
            verdict = self.task.verify(record, record.response or "")
        except Unsupported as error:
            raise BadLine(f"no reference plan: {self._inside(error)}") from None
        except (PddlError, InputError) as error:
            raise BadLine(f"bad PDDL: {self._inside(error)}") from None
        except RecursionError:
            raise BadLine(f"bad PDDL: {record.meta.problem_file}: nested too deeply") from None
        except (Unsolvable, SearchLimit) as error:
            raise BadLine(f"no reference plan: {error}") from None
        if not verdict.success:
            raise BadLine(f"bad reference plan: {verdict.label}: {verdict.detail}")
        if not verdict.plan:
            raise BadLine("nothing to plan: the goal holds at the start")
        update = {"id": identity.digest[:16], "constrained": identity.constrained}
        record = record.model_copy(update=update)
        self._check_by_val(record)
        return record, identity.core[:16]

    def _files(self, record: Record) -> tuple[Path, Path]:
        """The record's domain and problem file, known to be there; raises BadLine."""
        names = (record.meta.domain_file, record.meta.problem_file)
        for name in names:
            path = self.root / name
            try:
                inside, found = path.resolve().is_relative_to(self.root.resolve()), path.is_file()
            except (OSError, ValueError):  # too long, or characters that no file name may have
                inside, found = True, False
            if not inside:
                raise BadLine(f"missing file: {name!r} lies outside the data root")
            if not found:
                raise BadLine(f"missing file: {name!r}")
        return self.root / names[0], self.root / names[1]

    def _check_by_val(self, record: Record) -> None:
        """VAL reads less than the parser: raises BadLine where it refuses the domain."""
        digest = hashlib.sha256((self.root / record.meta.domain_file).read_bytes()).hexdigest()
        if digest in self.judged:
            return
        try:
            verdict = self.task.judge([(record, record.response or "")])[0]
        except InputError as error:
            raise BadLine(f"bad PDDL: {self._inside(error)}") from None
        if not verdict.success:
            raise BadLine(f"bad reference plan: VAL says {verdict.label}: {verdict.detail}")
        self.judged.add(digest)

    def _inside(self, error: Exception) -> str:
        """The error's text with paths relative to the data root."""
        return str(error).replace(f"{self.root}/", "")

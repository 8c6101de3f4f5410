"""Problems in PDDL files anywhere on disk, and worked examples for them."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from planward.core.records import Meta, Record, read_records
from planward.core.tasks import Task
from planward.params import ParamsError
from planward.selectors.pools import sample_pool

ExampleSelector = Callable[[Record], Sequence[Record]]  # from a problem to its worked examples, in the prompt's order
NAME_PATTERN = re.compile(r"\(\s*define\s*\(\s*domain\s+([^\s()]+)", re.IGNORECASE)
COMMENT_PATTERN = re.compile(r";.*")


def build_record(domain: Path, problem: Path) -> Record:
    """Return the record of a problem, with absolute paths."""
    meta = Meta(
        scenario=read_domain_name(domain), domain_file=str(domain.resolve()), problem_file=str(problem.resolve())
    )
    return Record(prompt=f"Solve {problem.name}.", meta=meta, id=str(problem))


def read_domain_name(domain: Path) -> str:
    """Return the domain's name, in lower case; that of the file where it has none."""
    text = COMMENT_PATTERN.sub("", domain.read_text(encoding="utf-8-sig", errors="replace"))
    match = NAME_PATTERN.search(text)
    return (match[1] if match else domain.stem).lower()


def read_examples(file: Path) -> list[Record]:
    """Read worked examples: JSON lines with `response`, as in results/score/train.jsonl.

    Their PDDL files are relative to the file's folder, or to a folder `problems` in it or beside it, as in results/.

    Raises:
        ParamsError: the file or one that it names is missing, a line is no record, or has no plan.
    """
    if not file.is_file():
        raise ParamsError(f"{file}: no such file of worked examples")
    folder = file.parent.resolve()
    roots = (folder, folder / "problems", folder.parent / "problems")
    try:
        records = list(read_records(file))
    except ValueError as error:
        raise ParamsError(f"{file}: a line is no record: {error}") from None
    return [_resolve_files(record, roots, f"{file}:{number}") for number, record in enumerate(records, 1)]


class IdentifiedSelector(Protocol):
    """An `ExampleSelector` that says by what it selects, so that a folder of plans holds those of one selector."""

    @property
    def identity(self) -> dict[str, Any]: ...

    def __call__(self, problem: Record, /) -> Sequence[Record]: ...


def hash_examples(examples: Sequence[Record]) -> str:
    """Hash worked examples by id and reference plan."""
    text = "\n".join(example.model_dump_json(include={"id", "response"}) for example in examples)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class RandomExamples:
    """Selects `count` random examples of the problem's domain (by its name) that do not solve the problem itself.

    Raises:
        ParamsError: the pool has no example of the domain.
    """

    pool: Sequence[Record]
    count: int
    seed: int
    task: Task

    def __call__(self, problem: Record) -> list[Record]:
        same = self._by_domain.get(problem.domain)
        if not same:
            raise ParamsError(f"the file of worked examples has none of the domain {problem.domain}")
        # Samples are seeded by the problem's content, so that a moved file gets the same ones.
        query = problem.model_copy(update={"id": self.task.core_digest(problem)})
        return sample_pool(query, same, self.task.core_digest, self.count, str(self.seed))

    @property
    def identity(self) -> dict[str, Any]:
        return {"examples": hash_examples(self.pool), "shots": self.count}

    @cached_property
    def _by_domain(self) -> dict[str, list[Record]]:
        by_domain = defaultdict[str, list[Record]](list)
        for record in self.pool:
            by_domain[read_domain_name(Path(record.meta.domain_file))].append(record)
        return dict(by_domain)


def _resolve_files(record: Record, roots: Sequence[Path], place: str) -> Record:
    """Return an example with absolute paths."""
    if not record.response:
        raise ParamsError(f"{place}: a worked example without `response`, its plan")
    files = {}
    for key, name in (("domain_file", record.meta.domain_file), ("problem_file", record.meta.problem_file)):
        path = next((root / name for root in roots if (root / name).is_file()), None)
        if path is None:
            raise ParamsError(f"{place}: meta.{key}: no file {name} in {' or '.join(map(str, roots))}")
        files[key] = str(path)
    meta = record.meta.model_copy(update=files)
    return record.model_copy(update={"meta": meta, "id": record.id or place})

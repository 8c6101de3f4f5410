"""The problems that lines refer to, by id or by their PDDL files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from planward.core.lines import find_file
from planward.core.records import read_records
from planward.core.tasks import InvalidLine
from planward.judgement.lines import Answer

_DOMAIN_NAME = re.compile(r"\(\s*domain\s+([^\s();]+)", re.IGNORECASE)
MAX_CACHED_FILES = 10_000
MAX_DOMAIN_CHARS = 1 << 20  # of a domain file, in which its name is looked for
Files = tuple[str, str]  # domain and problem file, relative to the root


@dataclass(frozen=True)
class Problem:
    """A problem of a line; `key` tells problems apart: the id if it has one, else its files."""

    key: str
    domain: str
    domain_file: Path
    problem_file: Path


class ProblemIndex:
    """Finds the problem of a line among problem files, or by the PDDL files that it names below `root`."""

    def __init__(self, problem_files: Iterable[Path], root: Path) -> None:
        """Read the problem files; those of `results/score` and others whose records have an `id`.

        Raises:
            ValueError: a line is no problem, or two problems have one id; the message names the file.
        """
        self.root = root
        self._by_id: dict[str, tuple[str, Files]] = {}  # domain and files
        self._ids: dict[Files, str] = {}
        for path in problem_files:
            for id, problem in _read_problems(path):
                if self._by_id.setdefault(id, problem) != problem:
                    raise ValueError(f"{path}: {id!r} is another problem elsewhere; fix: give one of both files only")
                self._ids[problem[1]] = id

    def find(self, answer: Answer) -> Problem:
        """Return the problem of a line; raises InvalidLine where there is none."""
        if answer.id is not None and answer.id in self._by_id:
            domain, files = self._by_id[answer.id]
            if answer.files is not None and _normalise(answer.files) != files:
                raise InvalidLine(f"contradiction: {answer.id!r} is {files[1]!r}, not {answer.files[1]!r}")
            return Problem(answer.id, domain, *_find_files(self.root, files))
        if answer.files is None:
            raise InvalidLine("unknown id: it is in no problem file; fix: --problems, or name the PDDL files")
        files = _normalise(answer.files)
        paths = _find_files(self.root, files)
        if files in self._ids:
            id = self._ids[files]
            return Problem(id, self._by_id[id][0], *paths)
        return Problem(" ".join(files), _read_domain_name(paths[0]), *paths)


def _read_problems(path: Path) -> Iterator[tuple[str, tuple[str, Files]]]:
    """Yield id, domain and files of each record; raises ValueError, which names the file."""
    try:
        for record in read_records(path):
            if not record.id:
                raise ValueError("a problem has no `id`; fix: name the PDDL files in the lines to judge instead")
            yield record.id, (record.domain, _normalise((record.meta.domain_file, record.meta.problem_file)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@lru_cache(maxsize=MAX_CACHED_FILES)
def _find_files(root: Path, files: Files) -> tuple[Path, Path]:
    return find_file(root, files[0]), find_file(root, files[1])


def _normalise(files: Files) -> Files:
    return str(PurePosixPath(files[0])), str(PurePosixPath(files[1]))


@lru_cache(maxsize=MAX_CACHED_FILES)
def _read_domain_name(path: Path) -> str:
    """The name inside a domain file, or the file's where it has none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        match = _DOMAIN_NAME.search(re.sub(r";.*", "", file.read(MAX_DOMAIN_CHARS)))
    return match[1].lower() if match else path.stem

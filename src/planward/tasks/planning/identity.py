"""Identity of a problem up to renaming of its objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planward.pddl.canonical import hash_problem, hash_without_constraints
from planward.pddl.expansion import check_files
from planward.pddl.expressions import LimitError, PddlError, UnsupportedError
from planward.pddl.language import Problem, load_domain, load_problem


@dataclass(frozen=True)
class ProblemIdentity:
    """Digests that are equal up to renaming of objects: with constraints (`digest`) and without them (`core`).

    `action_size` is an upper bound of the atoms in a ground action; 0 where the parser does not support the language.
    `is_plain` says that VAL surely reads the problem, or judges it anyway because the parser does not.
    """

    digest: str
    core: str
    constrained: bool
    action_size: int = 0
    is_plain: bool = True

    @property
    def id(self) -> str:
        """The id of a problem that has no other: 16 hexadecimal digits."""
        return self.digest[:16]


def identify_problem(
    domain_file: Path, problem_file: Path, load: Callable[[], Problem] | None = None
) -> ProblemIdentity:
    """Compute a problem's digests; those of its words where the parser does not support the language.

    Args:
        load: loads the problem of these files; by default it is parsed.

    Raises:
        PddlError: the files are unusable.
    """
    try:
        problem = load() if load else load_problem(problem_file, load_domain(domain_file))
    except UnsupportedError:
        check_files(domain_file, problem_file)
        words = _read_words(problem_file)
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()
        return ProblemIdentity(digest, digest, "(:constraints" in words)
    is_constrained = bool(problem.constraints)
    try:
        digest = hash_problem(problem)
        core = hash_without_constraints(problem) if is_constrained else digest
    except LimitError as error:
        raise LimitError(error.message, source=str(problem_file)) from None
    action_size = problem.domain.action_size + problem.expansion
    return ProblemIdentity(digest, core, is_constrained, action_size, problem.is_plain)


def _read_words(file: Path) -> list[str]:
    """Return the words of a file that only VAL supports; raises PddlError where it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8").lower().split()
    except UnicodeDecodeError as error:
        raise PddlError(f"not UTF-8 text (byte {error.start})", source=str(file)) from None

"""Identity of a problem up to renaming of its objects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from planward.pddl.canonical import hash_problem, hash_without_constraints
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import load_domain, load_problem


@dataclass(frozen=True)
class ProblemIdentity:
    """Digests that are equal up to renaming of objects: with constraints (`digest`) and without them (`core`)."""

    digest: str
    core: str
    constrained: bool


def identify_problem(domain_file: Path, problem_file: Path) -> ProblemIdentity:
    """Compute a problem's digests; those of its words where the parser does not support the language.

    Raises:
        PddlError: the files are unusable.
    """
    try:
        problem = load_problem(problem_file, load_domain(domain_file))
    except UnsupportedError:
        words = problem_file.read_text(encoding="utf-8").lower().split()
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()
        return ProblemIdentity(digest, digest, "(:constraints" in words)
    return ProblemIdentity(hash_problem(problem), hash_without_constraints(problem), bool(problem.constraints))

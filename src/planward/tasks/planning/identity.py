"""Which problems are the same: what is left of one when the names of its objects are forgotten."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from planward.pddl.canonical import canonical_hash, core_hash
from planward.pddl.expressions import Unsupported
from planward.pddl.language import load_domain, load_problem


@dataclass(frozen=True)
class Identity:
    """What a problem is up to renaming: with its constraints (`digest`) and without them (`core`)."""

    digest: str
    core: str
    constrained: bool


def identified(domain_file: Path, problem_file: Path) -> Identity:
    """A problem's digests; of the words themselves where the language is beyond the parser.

    Raises:
        PddlError: the files are unusable.
    """
    try:
        problem = load_problem(problem_file, load_domain(domain_file))
    except Unsupported:
        words = problem_file.read_text(encoding="utf-8").lower().split()
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()
        return Identity(digest, digest, "(:constraints" in words)
    return Identity(canonical_hash(problem), core_hash(problem), bool(problem.constraints))

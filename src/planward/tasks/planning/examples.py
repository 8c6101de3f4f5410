"""Worked examples of a problem, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from planward.records import Record


def drawn_shots(problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
    """Return up to `count` other problems of the same domain file, hence of the same dialect, from `pool`.

    `seed` and the problem's id decide which; a smaller count draws the first of a larger one's.
    """
    language = (problem.domain, problem.meta.domain_file)
    others = [r for r in pool if (r.domain, r.meta.domain_file) == language and r.id != problem.id]
    return Random(f"{seed}:{problem.id}").sample(others, len(others))[:count]

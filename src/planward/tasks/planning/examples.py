"""Random worked examples of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from planward.core.records import Record


def sample_examples(problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
    """Sample up to `count` other problems with the same domain file, hence the same dialect, from `pool`.

    The sample depends on `seed` and the problem's id; a smaller count gives the first ones of a larger count's.
    """
    language = (problem.domain, problem.meta.domain_file)
    others = [r for r in pool if (r.domain, r.meta.domain_file) == language and r.id != problem.id]
    return Random(f"{seed}:{problem.id}").sample(others, len(others))[:count]

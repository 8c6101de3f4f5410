"""Difficulty read from a problem file's name."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from planward.params import Difficulty


def difficulty_score(problem_file: str, difficulty: Difficulty) -> float | None:
    """The weighted sum of the numbers in the file's name; None where the name does not match."""
    match = re.fullmatch(difficulty.pattern, PurePosixPath(problem_file).stem, re.IGNORECASE)
    if match is None:
        return None
    return sum(weight * int(match[field]) for field, weight in difficulty.weights.items())

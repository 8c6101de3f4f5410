"""Difficulty of a problem, parsed from its file's name."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from planward.tasks.planning.config import DifficultyConfig


def parse_difficulty(problem_file: str, difficulty: DifficultyConfig) -> float | None:
    """Compute the weighted sum of the numbers in a file's name; None where the name does not match the pattern."""
    match = re.fullmatch(difficulty.pattern, PurePosixPath(problem_file).stem, re.IGNORECASE)
    if match is None:
        return None
    return sum(weight * int(match[field]) for field, weight in difficulty.weights.items())

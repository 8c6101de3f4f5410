"""Difficulty of a problem, from the numbers in its file's name and the length of its reference plan."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from planward.tasks.planning.config import REFERENCE_LENGTH, DifficultyConfig


def parse_difficulty(problem_file: str, difficulty: DifficultyConfig, reference_length: int = 0) -> float | None:
    """Compute the weighted sum of the numbers; None where the file's name does not match, or lacks one of them.

    Args:
        reference_length: number of actions of the reference plan.
    """
    match = re.fullmatch(difficulty.pattern, PurePosixPath(problem_file).stem, re.IGNORECASE)
    if match is None:
        return None
    numbers = match.groupdict() | {REFERENCE_LENGTH: reference_length}
    if any(numbers[name] is None for name in difficulty.weights):
        return None
    return sum(weight * int(numbers[name]) for name, weight in difficulty.weights.items())

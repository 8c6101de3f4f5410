"""What a task gives to `planward adapter`: completions to train its adapter on models/base on, and to measure it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]  # a compact prompt without worked examples, and its completion


@dataclass(frozen=True)
class AdapterSources:
    """Pairs of prompt and completion by source, such as a household; a prompt has examples of one source only.

    Attributes:
        training: sources to train on.
        held_out: other sources, to measure on.
        words: those of prompts and completions; words that the base model lacks get embeddings of their own.
        max_completion_tokens: of generated completions.
        measure: distances of a completion from the source's own, by name; None where it cannot be parsed.
    """

    training: Sequence[Sequence[Pair]]
    held_out: Sequence[Sequence[Pair]]
    words: Sequence[str]
    max_completion_tokens: int
    measure: Callable[[str, str], Mapping[str, float] | None]

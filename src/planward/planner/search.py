"""How many completions of a problem are drawn, in which rounds, and from which random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from planward.params import ParamsError


@dataclass(frozen=True)
class SearchConfig:
    """How plans are searched for.

    Attributes:
        samples: at most so many completions for each turn.
        temperature: of the samples; 0: one greedy completion.
        best: draw all samples and take the valid plan of the lowest cost; otherwise stop at the first valid one.
        repair: at most so many further turns, each with the verdict on the best completion of the turn before.
        seed: of the samples.

    Raises:
        ParamsError: a number is out of range, or the settings contradict each other.
    """

    samples: int = 1
    temperature: float = 0.0
    best: bool = False
    repair: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.temperature < 0 or self.repair < 0:
            raise ParamsError("samples must be 1 or more, temperature and repair not negative")
        if self.samples > 1 and self.temperature == 0:
            raise ParamsError("samples at temperature 0 are all the same; fix: a temperature above 0")
        if self.best and self.samples == 1:
            raise ParamsError("best of one sample; fix: more samples")

    def iter_rounds(self) -> Iterator[tuple[int, int]]:
        """Yield the number of samples and the seed of each round: 1, 1, 2, 4, 8, ... up to `samples` together.

        So at most twice as many are drawn as are needed, and the first samples are the same for more of them.
        """
        count = 0
        while count < self.samples:
            digest = hashlib.sha256(f"{self.seed}:{count}".encode()).digest()
            yield min(max(count, 1), self.samples - count), int.from_bytes(digest[:4]) if count else self.seed
            count = min(2 * count or 1, self.samples)

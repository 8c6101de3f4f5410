"""Draws training problems by bucket, without replacement until a bucket is exhausted."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from planward.core.records import Record
from planward.params import BUCKETS, Bucket, PhaseConfig

Key = TypeVar("Key", bound=str)
SkipRule = Callable[[Record], bool]  # whether to pass over a problem in this draw
ALL_DOMAINS = "all_domains"  # the pool of a run whose steps are not balanced

# Where an empty bucket is filled from, nearest first.
FALLBACKS: dict[Bucket, tuple[Bucket, ...]] = {
    "easy": ("easy", "medium", "hard"),
    "medium": ("medium", "easy", "hard"),
    "hard": ("hard", "medium", "easy"),
}


@dataclass(frozen=True)
class Slot:
    """One prompt of one optimizer step."""

    step: int
    slot: int
    id: str
    domain: str
    bucket: Bucket  # the problem's own bucket
    wanted_bucket: Bucket  # the bucket that the curriculum asked for


class ProblemPool:
    """The training problems of one domain, or of all domains, by bucket.

    Buckets follow a phase's shares by largest remainder, carried from prompt to prompt: from the start of a phase to
    any point of it, the shares hold to within one prompt. The problems of a bucket come in seeded random order, all of
    them before any is repeated. An empty bucket is filled from the nearest one, with one warning.

    Args:
        name: seeds the pool together with `seed`, and names it in warnings.
        records: at least one, with `bucket` set.
    """

    def __init__(self, name: str, records: Iterable[Record], seed: int) -> None:
        self.name, self.seed = name, seed
        self.problems: dict[Bucket, list[Record]] = {bucket: [] for bucket in BUCKETS}
        for record in records:
            self.problems[record.bucket].append(record)  # type: ignore[index]
        self.draws = {
            b: _iter_shuffled(problems, Random(f"{seed}:{name}:{b}")) for b, problems in self.problems.items()
        }
        self.phase: PhaseConfig | None = None
        self.remainders: dict[Bucket, float] = {}
        self.warned: set[Bucket] = set()

    def next_bucket(self, phase: PhaseConfig) -> tuple[Bucket, Bucket]:
        """Return the bucket to draw the next prompt from, and the one that `phase` asks for."""
        if phase is not self.phase:
            self.phase = phase
            self.remainders = _draw_remainders(Random(f"{self.seed}:{self.name}:{phase.until}"))
        wanted_bucket = allocate_next(self.remainders, phase.shares)
        bucket = next(bucket for bucket in FALLBACKS[wanted_bucket] if self.problems[bucket])
        if bucket != wanted_bucket and wanted_bucket not in self.warned:
            self.warned.add(wanted_bucket)
            warnings.warn(f"{self.name} has no {wanted_bucket} problem: {bucket} ones are used instead", stacklevel=4)
        return bucket, wanted_bucket

    def draw(self, bucket: Bucket, rules: Sequence[SkipRule] = ()) -> Record:
        """Return the next problem of a bucket that is not empty.

        Problems are passed over by the first of `rules`; if it passes over the whole bucket, by the second, and so on.
        """
        for skips in rules:
            for _ in self.problems[bucket]:
                record = next(self.draws[bucket])
                if not skips(record):
                    return record
        return next(self.draws[bucket])


def build_pools(records: Iterable[Record], seed: int, *, balanced: bool) -> dict[str, ProblemPool]:
    """Return one pool for each domain, by its name; if not `balanced`, a single one named `ALL_DOMAINS`."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.domain if balanced else ALL_DOMAINS].append(record)
    return {name: ProblemPool(name, group, seed) for name, group in sorted(groups.items())}


def assign_phases(
    names: Iterable[str], phases: Sequence[PhaseConfig], by_domain: Mapping[str, Sequence[PhaseConfig]]
) -> dict[str, Sequence[PhaseConfig]]:
    """Return the phases of each pool: its entry of `by_domain`, else `phases`.

    Raises:
        ValueError: `by_domain` names something else.
    """
    names = list(names)
    if unknown := sorted(set(by_domain) - set(names)):
        raise ValueError(
            f"curriculum_by_domain: no domain {', '.join(unknown)} in the training set; it has {', '.join(names)}"
        )
    return {name: by_domain.get(name, phases) for name in names}


def draw_step(
    step: int,
    pools: Mapping[str, ProblemPool],
    phases: Mapping[str, PhaseConfig],
    counts: Mapping[str, int],
    order: Random,
    rules: Sequence[SkipRule] = (),
) -> Iterator[Slot]:
    """Yield one step's prompts in random order: `counts[name]` of each pool, by its phase.

    Problems are drawn one at a time, so that a rule may depend on those before.
    """
    batch = [(pool, *pool.next_bucket(phases[name])) for name, pool in pools.items() for _ in range(counts[name])]
    order.shuffle(batch)
    for slot, (pool, bucket, wanted_bucket) in enumerate(batch):
        record = pool.draw(bucket, rules)
        yield Slot(step, slot, record.id, record.domain, bucket, wanted_bucket)


def allocate_next(remainders: dict[Key, float], shares: Mapping[Key, float]) -> Key:
    """Return the key of the next item by largest remainder, and carry `remainders`; shares sum to 1."""
    for key, share in shares.items():
        remainders[key] += share
    next_key = max(shares, key=lambda key: remainders[key])
    remainders[next_key] -= 1
    return next_key


def _iter_shuffled(records: list[Record], rng: Random) -> Iterator[Record]:
    while True:
        yield from rng.sample(records, len(records))


def _draw_remainders(rng: Random) -> dict[Bucket, float]:
    """Return small random remainders to start from, so that domains do not ask for a rare bucket in the same step.

    Remainders that start at 0, the largest reduced by 1 each time, stay in [-2/3, 5/6] for three buckets; a start of
    at most 1/6 keeps the counts within one prompt of the shares.
    """
    noise = [rng.random() / 4 for _ in BUCKETS]
    return {bucket: value - sum(noise) / len(noise) for bucket, value in zip(BUCKETS, noise, strict=True)}

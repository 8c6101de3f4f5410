"""The problems of a training set as decks of cards: dealt by bucket, each in its turn."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from planward.params import BUCKETS, Bucket, Phase
from planward.records import Record

Key = TypeVar("Key", bound=str)
Rule = Callable[[Record], bool]  # whether a problem loses its turn
ALL = "all_domains"  # the deck of a run whose steps are not balanced

# Where an empty bucket is filled from, nearest first.
NEAREST: dict[Bucket, tuple[Bucket, ...]] = {
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
    bucket: Bucket  # the bucket the problem is of
    wanted_bucket: Bucket  # the bucket the curriculum asked for


class Deck:
    """The problems of one domain, or of all of them, dealt by bucket.

    Buckets follow a phase's shares by largest remainder, carried from prompt to prompt, so that the shares hold from
    a phase's start to any point of it to within one prompt; problems of a bucket come in seeded random order, all
    of them before any comes again. An empty bucket is filled from the nearest one, with one warning.

    Args:
        name: tells decks of one run apart, and names this one in warnings.
        records: at least one, with `bucket` set.
    """

    def __init__(self, name: str, records: Iterable[Record], seed: int) -> None:
        self.name, self.seed = name, seed
        self.pools: dict[Bucket, list[Record]] = {bucket: [] for bucket in BUCKETS}
        for record in records:
            self.pools[record.bucket].append(record)  # type: ignore[index]
        self.turns = {b: _endless(pool, Random(f"{seed}:{name}:{b}")) for b, pool in self.pools.items()}
        self.phase: Phase | None = None
        self.credit: dict[Bucket, float] = {}
        self.warned: set[Bucket] = set()

    def buckets(self, phase: Phase) -> tuple[Bucket, Bucket]:
        """The bucket of the next prompt, and the one that `phase` asks for."""
        if phase is not self.phase:
            self.phase = phase
            self.credit = _start_credit(Random(f"{self.seed}:{self.name}:{phase.until}"))
        wanted = dealt(self.credit, phase.shares)
        drawn = next(bucket for bucket in NEAREST[wanted] if self.pools[bucket])
        if drawn != wanted and wanted not in self.warned:
            self.warned.add(wanted)
            taken = f"{drawn} ones are taken instead"
            warnings.warn(f"{self.name} has no {wanted} problem: {taken}", stacklevel=4)
        return drawn, wanted

    def draw(self, bucket: Bucket, rules: Sequence[Rule] = ()) -> Record:
        """The next problem, in its turn, of a bucket that is not empty.

        Problems lose their turn by the first rule; where all of the bucket lost theirs, by the second, and so on.
        """
        for loses in rules:
            for _ in self.pools[bucket]:
                record = next(self.turns[bucket])
                if not loses(record):
                    return record
        return next(self.turns[bucket])


def decks(records: Iterable[Record], seed: int, *, balanced: bool) -> dict[str, Deck]:
    """A deck for each domain by its name; if not `balanced`, one for all, named `ALL`."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.domain if balanced else ALL].append(record)
    return {name: Deck(name, group, seed) for name, group in sorted(groups.items())}


def phases_by_deck(
    names: Iterable[str], phases: Sequence[Phase], by_domain: Mapping[str, Sequence[Phase]]
) -> dict[str, Sequence[Phase]]:
    """Each deck's phases: its own in `by_domain`, else `phases`.

    Raises:
        ValueError: `by_domain` names something else.
    """
    names = list(names)
    if unknown := sorted(set(by_domain) - set(names)):
        raise ValueError(f"curriculum_by_domain names {', '.join(unknown)}; the training set has {', '.join(names)}")
    return {name: by_domain.get(name, phases) for name in names}


def dealt_step(
    step: int,
    dealers: Mapping[str, Deck],
    phases: Mapping[str, Phase],
    hands: Mapping[str, int],
    order: Random,
    rules: Sequence[Rule] = (),
) -> Iterator[Slot]:
    """One step's prompts, in random order: as many of each deck as `hands` says, by the deck's phase.

    Problems are drawn one by one, so that a rule may go by those before.
    """
    batch = [(deck, *deck.buckets(phases[name])) for name, deck in dealers.items() for _ in range(hands[name])]
    order.shuffle(batch)
    for slot, (deck, bucket, wanted) in enumerate(batch):
        record = deck.draw(bucket, rules)
        yield Slot(step, slot, record.id, record.domain, bucket, wanted)


def dealt(credit: dict[Key, float], shares: Mapping[Key, float]) -> Key:
    """Deal one item by largest remainder, and carry the remainders in `credit`; shares sum to 1."""
    for key, share in shares.items():
        credit[key] += share
    chosen = max(shares, key=lambda key: credit[key])
    credit[chosen] -= 1
    return chosen


def _endless(records: list[Record], rng: Random) -> Iterator[Record]:
    while True:
        yield from rng.sample(records, len(records))


def _start_credit(rng: Random) -> dict[Bucket, float]:
    """A small random head start, so that the domains do not ask for a rare bucket in the same step.

    Credit that starts at 0 and is always taken from the largest stays in [-2/3, 5/6] for three buckets;
    a head start of at most 1/6 keeps what was drawn within one prompt of the shares.
    """
    noise = [rng.random() / 4 for _ in BUCKETS]
    return {bucket: value - sum(noise) / len(noise) for bucket, value in zip(BUCKETS, noise, strict=True)}

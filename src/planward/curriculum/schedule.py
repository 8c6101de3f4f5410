"""The curriculum as data: which problem is trained on at which step."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from planward.params import BUCKETS, Bucket, Phase
from planward.records import Record

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


def phase_at(phases: Sequence[Phase], progress: float) -> Phase:
    """The phase for `progress` in [0, 1]; a phase ends just before its `until`, the last one at 1."""
    return next((phase for phase in phases if progress < phase.until), phases[-1])


def prompts_per_domain(batch_size: int, domains: int) -> int:
    """How many prompts of each domain a step holds.

    Raises:
        ValueError: `batch_size` is no multiple of `domains`; names the valid neighbours.
    """
    share, left_over = divmod(batch_size, domains)
    if left_over or not share:
        valid = [n * domains for n in (share, share + 1, share + 2) if n]
        raise ValueError(
            f"batch_size {batch_size} is not a multiple of the {domains} domains, so a step cannot be balanced; "
            f"use {', '.join(map(str, valid[:-1]))} or {valid[-1]}"
        )
    return share


def build_schedule(
    records: Sequence[Record], phases: Sequence[Phase], steps: int, batch_size: int, seed: int
) -> list[Slot]:
    """Every prompt of a training run, in the order of its consumption.

    Each step holds `batch_size / domains` prompts of each domain. Within a domain the buckets follow
    the phase's shares by largest remainder, carried from slot to slot, so that the shares hold from a
    phase's start to any point of it to within one prompt; problems of a bucket come in seeded random order,
    all of them before any comes again. An empty bucket is filled from the nearest one, with one warning.

    Args:
        records: the training set, with `bucket` set.
        steps: optimizer steps; progress is step / steps.
        batch_size: prompts an optimizer step.
    """
    pools: dict[str, dict[Bucket, list[str]]] = defaultdict(lambda: {bucket: [] for bucket in BUCKETS})
    for record in records:
        pools[record.domain][record.bucket].append(record.id)  # type: ignore[index]
    domains = sorted(pools)
    each = prompts_per_domain(batch_size, len(domains))
    streams = {
        (domain, bucket): _endless(ids, Random(f"{seed}:{domain}:{bucket}"))
        for domain, pool in pools.items()
        for bucket, ids in pool.items()
    }
    credit: dict[str, dict[Bucket, float]] = {}
    current: Phase | None = None
    order, schedule, warned = Random(f"{seed}:order"), list[Slot](), set[tuple[str, Bucket]]()
    for step in range(steps):
        phase = phase_at(phases, step / steps)
        if phase is not current:
            current, shares = phase, phase.shares
            credit = {domain: _start_credit(Random(f"{seed}:{domain}:{phase.until}")) for domain in domains}
        batch: list[tuple[str, Bucket, Bucket]] = []
        for domain in domains:
            for _ in range(each):
                for bucket in BUCKETS:
                    credit[domain][bucket] += shares[bucket]
                wanted = max(BUCKETS, key=lambda bucket: credit[domain][bucket])
                credit[domain][wanted] -= 1
                drawn = next(bucket for bucket in NEAREST[wanted] if pools[domain][bucket])
                if drawn != wanted and (domain, wanted) not in warned:
                    warned.add((domain, wanted))
                    warnings.warn(f"{domain} has no {wanted} problem: {drawn} ones are taken instead", stacklevel=2)
                batch.append((domain, drawn, wanted))
        order.shuffle(batch)
        schedule += [
            Slot(step, slot, next(streams[domain, drawn]), domain, drawn, wanted)
            for slot, (domain, drawn, wanted) in enumerate(batch)
        ]
    return schedule


def schedule_metrics(schedule: Sequence[Slot]) -> dict[str, Any]:
    """Small DVC metrics: size, how often a bucket had to be filled from another, distinct problems."""
    fallbacks = sum(slot.bucket != slot.wanted_bucket for slot in schedule)
    return {
        "prompts": len(schedule),
        "distinct_problems": len({slot.id for slot in schedule}),
        "fallback_rate": fallbacks / len(schedule),
        "share": {b: sum(slot.bucket == b for slot in schedule) / len(schedule) for b in BUCKETS},
    }


def schedule_columns(schedule: Sequence[Slot]) -> dict[str, list[Any]]:
    """The schedule as columns, ready for a table."""
    rows = [asdict(slot) for slot in schedule]
    return {name: [row[name] for row in rows] for name in Slot.__dataclass_fields__}


def _endless(ids: list[str], rng: Random) -> Iterator[str]:
    while True:
        yield from rng.sample(ids, len(ids))


def _start_credit(rng: Random) -> dict[Bucket, float]:
    """A small random head start, so that the domains do not ask for a rare bucket in the same step.

    Credit that starts at 0 and is always taken from the largest stays in [-2/3, 5/6] for three buckets;
    a head start of at most 1/6 keeps what was drawn within one prompt of the shares.
    """
    noise = [rng.random() / 4 for _ in BUCKETS]
    return {bucket: value - sum(noise) / len(noise) for bucket, value in zip(BUCKETS, noise, strict=True)}

"""The curriculum as data: which problem is trained on at which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from random import Random
from types import MappingProxyType
from typing import Any

from planward.curriculum.decks import Slot, dealt_step, decks, phases_by_deck
from planward.params import BUCKETS, Phase
from planward.records import Record


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
    records: Sequence[Record],
    phases: Sequence[Phase],
    steps: int,
    batch_size: int,
    seed: int,
    *,
    balanced: bool = True,
    by_domain: Mapping[str, Sequence[Phase]] = MappingProxyType({}),
) -> list[Slot]:
    """Every prompt of a training run, in the order of its consumption.

    Each step holds `batch_size / domains` prompts of each domain, or, if not `balanced`, prompts that are drawn over
    all domains; `decks.Deck` says how they follow the phases.

    Args:
        records: the training set, with `bucket` set.
        steps: optimizer steps; progress is step / steps.
        batch_size: prompts an optimizer step.
        by_domain: phases of single domains, in place of `phases`; needs `balanced`.

    Raises:
        ValueError: the step cannot be balanced, or `by_domain` names an unknown domain.
    """
    dealers = decks(records, seed, balanced=balanced)
    own = phases_by_deck(dealers, phases, by_domain)
    hands = dict.fromkeys(dealers, prompts_per_domain(batch_size, len(dealers)))
    order, schedule = Random(f"{seed}:order"), list[Slot]()
    for step in range(steps):
        now = {name: phase_at(own[name], step / steps) for name in dealers}
        schedule += dealt_step(step, dealers, now, hands, order)
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

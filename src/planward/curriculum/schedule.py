"""The curriculum as data: the problem of every prompt of every optimizer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from random import Random
from types import MappingProxyType
from typing import Any

from planward.core.records import Record
from planward.curriculum.draws import Slot, assign_phases, build_pools, draw_step
from planward.params import BUCKETS, PhaseConfig


def find_phase(phases: Sequence[PhaseConfig], progress: float) -> PhaseConfig:
    """Return the phase at `progress` in [0, 1]; a phase ends just before its `until`, the last one at 1."""
    return next((phase for phase in phases if progress < phase.until), phases[-1])


def compute_prompts_per_domain(batch_size: int, domains: int) -> int:
    """Return how many prompts of each domain a step holds.

    Raises:
        ValueError: `batch_size` is not a multiple of `domains`; the message names the nearest valid sizes.
    """
    share, remainder = divmod(batch_size, domains)
    if remainder or not share:
        valid = [n * domains for n in (share, share + 1, share + 2) if n]
        raise ValueError(
            f"batch_size {batch_size} is not a multiple of the {domains} domains, so a step cannot be balanced; "
            f"fix: use {', '.join(map(str, valid[:-1]))} or {valid[-1]}"
        )
    return share


def build_schedule(
    records: Sequence[Record],
    phases: Sequence[PhaseConfig],
    steps: int,
    batch_size: int,
    seed: int,
    *,
    balanced: bool = True,
    by_domain: Mapping[str, Sequence[PhaseConfig]] = MappingProxyType({}),
) -> list[Slot]:
    """Return every prompt of a training run, in order of consumption.

    Each step holds `batch_size / domains` prompts of each domain or, if not `balanced`, prompts drawn over all
    domains; see `draws.ProblemPool` for how they follow the phases.

    Args:
        records: the training set, with `bucket` set.
        steps: optimizer steps; progress is step / steps.
        batch_size: prompts per optimizer step.
        by_domain: phases of single domains, which replace `phases`; needs `balanced`.

    Raises:
        ValueError: a step cannot be balanced, or `by_domain` names an unknown domain.
    """
    pools = build_pools(records, seed, balanced=balanced)
    phases_by_pool = assign_phases(pools, phases, by_domain)
    counts = dict.fromkeys(pools, compute_prompts_per_domain(batch_size, len(pools)))
    order, schedule = Random(f"{seed}:order"), list[Slot]()
    for step in range(steps):
        current = {name: find_phase(phases_by_pool[name], step / steps) for name in pools}
        schedule += draw_step(step, pools, current, counts, order)
    return schedule


def compute_schedule_metrics(schedule: Sequence[Slot]) -> dict[str, Any]:
    """Return small DVC metrics: size, distinct problems, share of prompts from a fallback bucket, bucket shares."""
    fallbacks = sum(slot.bucket != slot.wanted_bucket for slot in schedule)
    return {
        "prompts": len(schedule),
        "distinct_problems": len({slot.id for slot in schedule}),
        "fallback_rate": fallbacks / len(schedule),
        "share": {b: sum(slot.bucket == b for slot in schedule) / len(schedule) for b in BUCKETS},
    }


def build_schedule_columns(schedule: Sequence[Slot]) -> dict[str, list[Any]]:
    """Return the schedule as table columns by name."""
    rows = [asdict(slot) for slot in schedule]
    return {name: [row[name] for row in rows] for name in Slot.__dataclass_fields__}

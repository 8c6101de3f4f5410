"""Difficulty, buckets, training sets and the schedule, against published values."""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.records import Meta, Record
from planward.curriculum.buckets import Thresholds, compute_distribution, compute_thresholds
from planward.curriculum.draws import Slot
from planward.curriculum.schedule import build_schedule, build_schedule_columns, compute_schedule_metrics, find_phase
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.params import BUCKETS, BucketsConfig, Params, PhaseConfig
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.difficulty import parse_difficulty

# By domain: number of problems by score, 500 in all; percentiles 40 and 80; bucket sizes.
PUBLISHED = {
    "blocksworld": ({15: 20, 20: 60, 25: 125, 30: 295}, (25, 30), (205, 295, 0)),
    "ferry": ({21: 60, 26: 90, 31: 100, 34: 77, 36: 90, 39: 50, 44: 33}, (31, 36), (250, 167, 83)),
    "grippers": ({15: 33, 20: 90, 25: 120, 28: 57, 30: 200}, (25, 30), (243, 257, 0)),
    "spanner": ({28: 98, 33: 300, 35: 102}, (33, 35), (398, 102, 0)),
}


def build_record(domain: str, bucket: str, number: int) -> Record:
    meta = Meta(scenario=domain, domain_file="domain.pddl", problem_file=f"{number}.pddl")
    return Record(prompt="", meta=meta, id=f"{domain}-{bucket}-{number:03}", bucket=bucket)


def build_records(sizes: dict[str, tuple[int, int, int]]) -> list[Record]:
    """Return records of each domain, by the numbers of easy, medium and hard ones."""
    return [
        build_record(domain, bucket, number)
        for domain, counts in sizes.items()
        for bucket, count in zip(BUCKETS, counts, strict=True)
        for number in range(count)
    ]


FOUR = dict.fromkeys(("blocksworld", "ferry", "grippers", "spanner"), (5, 5, 5))


@pytest.mark.parametrize("domain", PUBLISHED)
def test_distribution_equals_published_values(domain: str) -> None:
    counts, percentiles, buckets = PUBLISHED[domain]
    scores = [float(score) for score, count in counts.items() for _ in range(count)]
    Random(0).shuffle(scores)
    row = compute_distribution(scores, compute_thresholds(scores, BucketsConfig(easy=40, medium=80)))
    assert row["count"] == 500
    assert (row["p40"], row["p80"]) == percentiles
    assert tuple(row["buckets"].values()) == buckets
    assert (row["min"], row["max"]) == (min(counts), max(counts))
    assert row["mean"] == pytest.approx(sum(s * c for s, c in counts.items()) / 500)


def test_distribution_by_hand() -> None:
    assert compute_distribution([4, 1, 2, 10, 8, 5], Thresholds(easy=2, medium=8)) == {
        "count": 6,
        "min": 1,
        "max": 10,
        "mean": 5,
        "median": 4.5,
        "p40": 2,
        "p80": 8,
        "buckets": {"easy": 2, "medium": 3, "hard": 1},
    }


@pytest.mark.parametrize(
    ("domain", "name", "score"),
    [
        ("blocksworld", "bw_ops3_n4_seed200074.pddl", 20),
        ("ferry", "ferry-l4-c2-s122320450.pddl", 26),
        ("grippers", "grippers-n1-r4-o3-s299249445.pddl", 23),
        ("spanner", "spanner-s3-n2-l4-s1595284416.pddl", 28),
        ("delivery", "delivery-w3-h3-p2-s17.pddl", 25),
        ("ferry", "some/folder/ferry-l4-c2-s1.pddl", 26),
        ("ferry", "FERRY-L4-C2-S1.PDDL", 26),
        ("ferry", "ferry-l4-c2.pddl", None),
        ("ferry", "xferry-l4-c2-s1.pddl", None),
        ("ferry", "ferry-l4-c2-s1-old.pddl", None),
        ("ferry", "ferry-l-c2-s1.pddl", None),
        ("ferry", "p01.pddl", None),
        ("spanner", "ferry-l4-c2-s1.pddl", None),
    ],
)
def test_difficulty_is_parsed_from_the_name(
    shipped_params: PlanningParams, domain: str, name: str, score: float | None
) -> None:
    assert parse_difficulty(name, shipped_params.difficulty[domain]) == score


def test_thresholds_belong_to_the_easier_bucket() -> None:
    thresholds = compute_thresholds([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], BucketsConfig(easy=40, medium=80))
    assert [thresholds.classify(score) for score in (5, 5.5, 9, 9.5)] == ["easy", "medium", "medium", "hard"]
    single = compute_thresholds([7.0], BucketsConfig(easy=40, medium=80))
    assert [single.classify(score) for score in (6, 7, 8)] == ["easy", "easy", "hard"]


def test_training_sets_are_balanced_and_nested() -> None:
    records = build_records(FOUR)
    sets = [select_training_set(records, size) for size in (4, 8, 20, 60)]
    for size, training_set in zip((4, 8, 20, 60), sets, strict=True):
        assert Counter(r.domain for r in training_set) == dict.fromkeys(FOUR, size // 4)
        assert len({r.id for r in training_set}) == size
    for smaller, larger in pairwise(sets):
        assert {r.id for r in smaller} <= {r.id for r in larger}
    assert select_training_set(Random(1).sample(records, len(records)), 20) == sets[2]


def test_training_set_may_hold_a_whole_split() -> None:
    records = build_records({"ferry": (2, 1, 1)})
    assert [r.id for r in select_training_set(Random(2).sample(records, 4), 4)] == sorted(r.id for r in records)
    with pytest.raises(ValueError) as error:
        select_training_set([*records, *build_records({"spanner": (1, 0, 0)})], 8)
    assert str(error.value) == (
        "dataset size 8 needs 4 training problems of spanner, but the split has 1; "
        "fix: add problems of this domain or lower dataset_sizes"
    )


def test_balanced_selection_takes_the_domains_in_turn() -> None:
    records = build_records({"spanner": (0, 1, 0), "ferry": (2, 1, 0), "blocksworld": (3, 0, 0)})
    ids = [r.id for r in select_balanced(Random(3).sample(records, len(records)), 6)]
    first = ["blocksworld-easy-000", "ferry-easy-000", "spanner-medium-000"]
    assert ids == [*first, "blocksworld-easy-001", "ferry-easy-001", "blocksworld-easy-002"]
    assert [r.id for r in select_balanced(records, 2)] == first[:2]
    assert len(select_balanced(records, 99)) == len(records)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (10, "dataset size 10 cannot be balanced over 4 domains .*blocksworld, ferry.* such as 12"),
        (2, "dataset size 2 .* such as 4"),
        (0, "dataset size 0 .* such as 4"),
        (-8, "dataset size -8 .* such as 4"),
        (64, "dataset size 64 needs 16 training problems of blocksworld, but the split has 15"),
    ],
)
def test_impossible_size_is_rejected(size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_training_set(build_records(FOUR), size)


def test_empty_training_split_is_rejected() -> None:
    with pytest.raises(ValueError, match="training split is empty"):
        select_training_set([], 4)


@st.composite
def draw_runs(draw: st.DrawFn) -> tuple[list[Record], int, int, int]:
    """Draw records, steps, batch size and seed; every bucket of every domain has a problem."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    sizes = {name: draw(st.tuples(*[st.integers(1, 6)] * 3)) for name in names}
    return (
        build_records(sizes),
        draw(st.integers(1, 70)),
        len(names) * draw(st.integers(1, 4)),
        draw(st.integers(0, 99)),
    )


SHARES = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))


@st.composite
def draw_curricula(draw: st.DrawFn) -> list[PhaseConfig]:
    ends = sorted(draw(st.sets(st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 0.9]), max_size=3)))
    phases = []
    for until in [*ends, 1.0]:
        parts = draw(SHARES)
        easy, medium, hard = (part / sum(parts) for part in parts)
        phases.append(PhaseConfig(until=until, easy=easy, medium=medium, hard=hard))
    return phases


@settings(max_examples=150, deadline=None)
@given(draw_runs(), draw_curricula())
def test_schedule_is_balanced_follows_the_phases_and_draws_without_replacement(
    run: tuple[list[Record], int, int, int], phases: list[PhaseConfig]
) -> None:
    records, steps, batch_size, seed = run
    schedule = build_schedule(records, phases, steps, batch_size, seed)
    domains = sorted({r.domain for r in records})
    by_id = {r.id: r for r in records}

    # Every step is full, in order, and has equally many prompts of each domain.
    assert [(slot.step, slot.slot) for slot in schedule] == [(s, i) for s in range(steps) for i in range(batch_size)]
    for step in range(steps):
        batch = [slot for slot in schedule if slot.step == step]
        assert Counter(slot.domain for slot in batch) == dict.fromkeys(domains, batch_size // len(domains))
    assert all((by_id[s.id].domain, by_id[s.id].bucket) == (s.domain, s.bucket) for s in schedule)
    assert all(slot.bucket == slot.wanted_bucket for slot in schedule)

    # In each phase each domain has the phase's shares, to within one prompt.
    for phase in phases:
        rows = [slot for slot in schedule if find_phase(phases, slot.step / steps) is phase]
        for domain in domains:
            bucket_counts = Counter(slot.bucket for slot in rows if slot.domain == domain)
            for bucket, share in phase.shares.items():
                assert abs(bucket_counts[bucket] - share * bucket_counts.total()) <= 1 + 1e-9

    # All problems of a bucket are drawn before any is repeated.
    for domain in domains:
        for bucket in BUCKETS:
            size = sum(r.domain == domain and r.bucket == bucket for r in records)
            order = [slot.id for slot in schedule if (slot.domain, slot.bucket) == (domain, bucket)]
            for start in range(0, len(order), size):
                assert len(set(order[start : start + size])) == len(order[start : start + size])

    assert build_schedule(records, phases, steps, batch_size, seed) == schedule
    metrics = compute_schedule_metrics(schedule)
    assert (metrics["prompts"], metrics["fallback_rate"]) == (steps * batch_size, 0)
    assert build_schedule_columns(schedule)["id"] == [slot.id for slot in schedule]


def test_schedule_follows_the_shipped_phases(shipped_params: Params) -> None:
    schedule = build_schedule(build_records(FOUR), shipped_params.curriculum, 1000, 8, 3407)
    expected = [(0, 300, (0.70, 0.25, 0.05)), (300, 700, (0.40, 0.40, 0.20)), (700, 1000, (0.20, 0.40, 0.40))]
    for start, end, shares in expected:
        bucket_counts = Counter(slot.bucket for slot in schedule if start <= slot.step < end)
        for bucket, share in zip(BUCKETS, shares, strict=True):
            assert abs(bucket_counts[bucket] - share * bucket_counts.total()) <= 4  # one prompt per domain


def test_seeds_give_different_schedules_and_domains_draw_hard_problems_at_different_steps(
    shipped_params: Params,
) -> None:
    first, second = (build_schedule(build_records(FOUR), shipped_params.curriculum, 60, 4, seed) for seed in (1, 2))
    assert [s.id for s in first] != [s.id for s in second]
    steps = {d: {s.step for s in first if s.domain == d and s.bucket == "hard"} for d in FOUR}
    assert len({frozenset(hard_steps) for hard_steps in steps.values()}) > 1


@pytest.mark.parametrize(
    ("sizes", "fallbacks"),
    [
        ((3, 3, 0), {"hard": "medium"}),
        ((3, 0, 0), {"hard": "easy", "medium": "easy"}),
        ((0, 3, 3), {"easy": "medium"}),
        ((0, 0, 3), {"easy": "hard", "medium": "hard"}),
        ((3, 0, 3), {"medium": "easy"}),
    ],
)
def test_empty_bucket_is_filled_from_the_nearest_with_one_warning(
    shipped_params: Params, sizes: tuple[int, int, int], fallbacks: dict[str, str]
) -> None:
    records = build_records({"ferry": sizes, "spanner": (3, 3, 3)})
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        schedule = build_schedule(records, shipped_params.curriculum, 40, 4, 0)
    assert {str(w.message) for w in caught_warnings} == {
        f"ferry has no {bucket} problem: {fallback} ones are used instead" for bucket, fallback in fallbacks.items()
    }
    assert len(caught_warnings) == len(fallbacks)
    replacements = {(s.domain, s.wanted_bucket, s.bucket) for s in schedule if s.bucket != s.wanted_bucket}
    assert replacements == {("ferry", bucket, fallback) for bucket, fallback in fallbacks.items()}
    rate = sum(s.bucket != s.wanted_bucket for s in schedule) / len(schedule)
    assert compute_schedule_metrics(schedule)["fallback_rate"] == rate > 0
    assert all(s.wanted_bucket == s.bucket for s in schedule if s.domain == "spanner")
    assert compute_wanted_share("hard", schedule) == pytest.approx(0.05 * 0.3 + 0.2 * 0.4 + 0.4 * 0.3, abs=0.02)


def test_metrics_and_columns_of_a_schedule() -> None:
    slots = [
        Slot(0, 0, "a", "ferry", "easy", "easy"),
        Slot(0, 1, "b", "spanner", "medium", "hard"),
        Slot(1, 0, "a", "ferry", "easy", "medium"),
        Slot(1, 1, "c", "spanner", "easy", "easy"),
        Slot(2, 0, "d", "ferry", "hard", "hard"),
    ]
    assert compute_schedule_metrics(slots) == {
        "prompts": 5,
        "distinct_problems": 4,
        "fallback_rate": 0.4,
        "share": {"easy": 0.6, "medium": 0.2, "hard": 0.2},
    }
    assert build_schedule_columns(slots) == {
        "step": [0, 0, 1, 1, 2],
        "slot": [0, 1, 0, 1, 0],
        "id": ["a", "b", "a", "c", "d"],
        "domain": ["ferry", "spanner", "ferry", "spanner", "ferry"],
        "bucket": ["easy", "medium", "easy", "easy", "hard"],
        "wanted_bucket": ["easy", "hard", "medium", "easy", "hard"],
    }


def compute_wanted_share(bucket: str, schedule: list[Slot]) -> float:
    """Return the share of prompts for which the curriculum asked for a bucket."""
    return sum(s.wanted_bucket == bucket for s in schedule) / len(schedule)


@pytest.mark.parametrize("batch_size", [10, 6])
def test_batch_that_cannot_be_balanced_names_valid_sizes(shipped_params: Params, batch_size: int) -> None:
    with pytest.raises(ValueError, match=rf"batch_size {batch_size} .* 4 domains") as error:
        build_schedule(build_records(FOUR), shipped_params.curriculum, 10, batch_size, 0)
    assert {"8", "12"} <= set(str(error.value).replace(",", " ").split())


def test_batch_smaller_than_the_domains_names_valid_sizes(shipped_params: Params) -> None:
    with pytest.raises(ValueError, match="use 4 or 8"):
        build_schedule(build_records(FOUR), shipped_params.curriculum, 10, 3, 0)


@pytest.mark.parametrize(
    ("progress", "easy"), [(0, 0.7), (0.2999, 0.7), (0.3, 0.4), (0.6999, 0.4), (0.7, 0.2), (0.99, 0.2), (1, 0.2)]
)
def test_phase_ends_just_before_the_next(shipped_params: Params, progress: float, easy: float) -> None:
    assert find_phase(shipped_params.curriculum, progress).easy == easy

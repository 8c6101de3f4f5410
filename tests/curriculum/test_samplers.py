"""Adaptive sampling: phases by success, domain weights, dynamic sampling; and unbalanced or per-domain schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule import build_record, build_records

from planward.core.records import Record
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import AdaptiveSampler, FixedSampler, GroupResult, build_sampler
from planward.curriculum.schedule import build_schedule
from planward.params import BUCKETS, Params, ParamsError, PhaseConfig, validate_section
from planward.tasks.planning.config import PlanningParams
from support import merge_values

DOMAINS = ("blocksworld", "ferry", "spanner")
PHASES = [{"until": 0.5, "easy": 1, "medium": 0, "hard": 0}, {"until": 1.0, "easy": 0, "medium": 0.5, "hard": 0.5}]
Outcome = Callable[[Slot], tuple[int, bool]]  # successes of 4 completions, and whether the rewards differ


@pytest.fixture(scope="session")
def build_params(shipped_params: Params) -> Callable[..., Params]:
    def build(steps: int = 20, batch_size: int = 12, seed: int = 1, **adaptive: Any) -> Params:
        raw = shipped_params.model_dump(mode="json")
        raw["grpo"] |= {"steps": steps, "batch_size": batch_size, "adaptive": raw["grpo"]["adaptive"] | adaptive}
        raw |= {"seed": seed, "curriculum": PHASES, "ablations": raw["ablations"] | {"run": [], "variants": {}}}
        return PlanningParams.model_validate(raw)

    return build


def run_sampler(sampler: AdaptiveSampler, outcome: Outcome) -> Iterator[list[Slot]]:
    """Yield each step's slots, and update the sampler with their results."""
    while slots := sampler.slots:
        yield slots
        sampler.update(build_results(slots, outcome))


def build_results(slots: Sequence[Slot], outcome: Outcome) -> list[GroupResult]:
    return [
        GroupResult(slot.id, slot.domain, successes, 4, spread)
        for slot in slots
        for successes, spread in [outcome(slot)]
    ]


def build_random_outcome(seed: int) -> Outcome:
    rng = Random(seed)

    def outcome(_: Slot) -> tuple[int, bool]:
        successes = rng.choice([0, 0, 1, 2, 3, 4, 4])
        return successes, 0 < successes < 4

    return outcome


SETS = st.lists(st.tuples(*[st.integers(1, 5)] * 3), min_size=3, max_size=3)
SWITCHES = st.fixed_dictionaries({name: st.booleans() for name in ("curriculum", "domain_weights", "dynamic_sampling")})


@settings(max_examples=60)
@given(sizes=SETS, switches=SWITCHES, seed=st.integers(0, 99), cut_step=st.integers(0, 19))
def test_resumed_sampler_continues_exactly(
    build_params: Callable[..., Params],
    sizes: list[tuple[int, int, int]],
    switches: dict[str, bool],
    seed: int,
    cut_step: int,
) -> None:
    records = build_records(dict(zip(DOMAINS, sizes, strict=True)))
    params = build_params(seed=seed, window=2, target=0.3, **switches)
    log: list[list[GroupResult]] = []
    steps = []
    sampler = AdaptiveSampler(records, params)
    outcome = build_random_outcome(seed)
    while slots := sampler.slots:
        assert [(slot.step, slot.slot) for slot in slots] == [(len(steps), number) for number in range(12)]
        steps.append((slots, dict(sampler.compute_metrics())))
        log.append(build_results(slots, outcome))
        sampler.update(log[-1])
    assert len(steps) == 20
    resumed_sampler = AdaptiveSampler(records, params)
    for results in log[:cut_step]:
        resumed_sampler.update(results)
    for (slots, metrics), results in zip(steps[cut_step:], log[cut_step:], strict=True):
        assert (resumed_sampler.slots, dict(resumed_sampler.compute_metrics())) == (slots, metrics)
        resumed_sampler.update(results)


@settings(max_examples=30)
@given(sizes=SETS, seed=st.integers(0, 99))
def test_without_influence_of_success_the_schedule_is_drawn(
    build_params: Callable[..., Params], sizes: list[tuple[int, int, int]], seed: int
) -> None:
    records = build_records(dict(zip(DOMAINS, sizes, strict=True)))
    params = build_params(seed=seed, domain_weights=True, floor=1.0)
    schedule = build_schedule(records, params.curriculum, 20, 12, seed)
    sampler_slots = [
        slot for slots in run_sampler(AdaptiveSampler(records, params), build_random_outcome(seed)) for slot in slots
    ]
    assert sampler_slots == schedule


def test_domain_enters_the_next_phase_on_success_and_never_goes_back(build_params: Callable[..., Params]) -> None:
    records = build_records(dict.fromkeys(DOMAINS, (4, 4, 4)))
    params = build_params(curriculum=True, window=3, target=0.75)

    def outcome(slot: Slot) -> tuple[int, bool]:
        if slot.domain == "spanner":
            return 2, True  # never enough
        succeeds = slot.domain == "blocksworld" or slot.step >= 6
        return (3 if succeeds and slot.bucket == "easy" else 0), True

    buckets: dict[str, list[set[str]]] = {domain: [] for domain in DOMAINS}
    for slots in run_sampler(AdaptiveSampler(records, params), outcome):
        for domain in DOMAINS:
            buckets[domain].append({slot.wanted_bucket for slot in slots if slot.domain == domain})
    first = {domain: next((n for n, b in enumerate(steps) if b != {"easy"}), None) for domain, steps in buckets.items()}
    assert first == {"blocksworld": 3, "ferry": 9, "spanner": None}
    for domain, start in first.items():  # fails from then on, but stays in its phase
        assert all("easy" not in step for step in buckets[domain][start:]) or start is None


@settings(max_examples=30)
@given(floor=st.sampled_from([0.0, 0.3, 0.6, 1.0]), seed=st.integers(0, 9))
def test_domain_weights_follow_the_variance_of_success_above_the_floor(
    build_params: Callable[..., Params], floor: float, seed: int
) -> None:
    """Success is 0, 1/2 and 1; summed over the steps, the shares hold to within two prompts."""
    records = build_records(dict.fromkeys(DOMAINS, (4, 4, 4)))
    successes = {"blocksworld": 0, "ferry": 2, "spanner": 4}
    sampler = AdaptiveSampler(records, build_params(steps=60, domain_weights=True, floor=floor, window=50, seed=seed))
    expected_counts, counts = Counter[str](), Counter[str]()
    for slots in run_sampler(sampler, lambda slot: (successes[slot.domain], True)):
        assert len(slots) == 12
        shares = {domain: sampler.compute_metrics()[f"weight/{domain}"] for domain in DOMAINS}
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= floor / 3 - 1e-9
        expected_counts.update({domain: share * 12 for domain, share in shares.items()})
        counts.update(slot.domain for slot in slots)
        assert all(abs(expected_counts[domain] - counts[domain]) < 2 for domain in DOMAINS)
    if floor < 1:
        assert counts["ferry"] > counts["blocksworld"]
        assert counts["ferry"] > counts["spanner"]


def test_problems_without_spread_are_skipped_and_return(build_params: Callable[..., Params]) -> None:
    records = build_records({"blocksworld": (6, 1, 1)})
    flat = {slot.id for slot in build_schedule(records, [PhaseConfig(until=1, easy=1, medium=0, hard=0)], 1, 4, 1)}
    assert len(flat) == 4
    draws: dict[str, list[int]] = {record.id: [] for record in records}
    params = build_params(steps=40, batch_size=2, dynamic_sampling=True, missed_turns=3)
    params = params.model_copy(update={"curriculum": [PhaseConfig(until=1, easy=1, medium=0, hard=0)]})
    for slots in run_sampler(AdaptiveSampler(records, params), lambda slot: (4, slot.id not in flat)):
        assert len({slot.id for slot in slots}) == 2  # none twice in a step
        for slot in slots:
            draws[slot.id].append(slot.step)
    counts = {name: len(steps) for name, steps in draws.items() if "easy" in name}
    varied_ids = counts.keys() - flat
    assert min(counts[name] for name in varied_ids) > 2 * max(counts[name] for name in flat)
    assert min(counts.values()) >= 3
    # A flat problem is skipped three times between two draws; each pass over the bucket offers every problem once.
    assert all(
        later - earlier >= 4 for name in flat for earlier, later in zip(draws[name], draws[name][1:], strict=False)
    )


@settings(max_examples=40)
@given(
    counts=st.tuples(*[st.integers(1, 6)] * 3),
    flat=st.sets(st.integers(0, 17)),
    missed_turns=st.integers(1, 3),
    batch_size=st.integers(1, 6),
)
def test_every_problem_is_drawn_eventually(
    build_params: Callable[..., Params],
    counts: tuple[int, int, int],
    flat: set[int],
    missed_turns: int,
    batch_size: int,
) -> None:
    records = build_records({"ferry": counts})
    names = {records[number].id for number in flat if number < len(records)}
    params = build_params(steps=80, batch_size=batch_size, dynamic_sampling=True, missed_turns=missed_turns)
    params = params.model_copy(update={"curriculum": [PhaseConfig(until=1, easy=0.4, medium=0.3, hard=0.3)]})
    order: dict[str, list[str]] = {bucket: [] for bucket in BUCKETS}
    for slots in run_sampler(AdaptiveSampler(records, params), lambda slot: (0, slot.id not in names)):
        for slot in slots:
            order[slot.bucket].append(slot.id)
    for bucket, count in zip(BUCKETS, counts, strict=True):
        # Each pass offers a problem once. Between two draws it is skipped `missed_turns` times for want of spread, and
        # at most as often because it is in the step already or another problem was drawn in its place.
        longest = 2 * (missed_turns + 2) * count
        for start in range(0, len(order[bucket]) - longest, count):
            assert len(set(order[bucket][start : start + longest])) == count


def test_unbalanced_schedule_keeps_bucket_shares_only(build_params: Callable[..., Params]) -> None:
    records = [*build_records({"blocksworld": (9, 1, 0), "ferry": (0, 3, 3)}), build_record("spanner", "easy", 1)]
    params = build_params(batch_size=7)
    schedule = build_schedule(records, params.curriculum, 20, 7, 1, balanced=False)
    by_id = {record.id: record for record in records}
    assert all((by_id[s.id].domain, by_id[s.id].bucket) == (s.domain, s.bucket) for s in schedule)
    for start, end, shares in ((0, 10, (1, 0, 0)), (10, 20, (0, 0.5, 0.5))):
        buckets = [slot.wanted_bucket for slot in schedule if start <= slot.step < end]
        for bucket, share in zip(BUCKETS, shares, strict=True):
            assert abs(buckets.count(bucket) - share * len(buckets)) <= 1
    assert {slot.domain for slot in schedule if slot.step < 10} == {"blocksworld", "spanner"}
    assert len({slot.id for slot in schedule[:10]}) == 10  # all are drawn before any is repeated


def test_domain_may_have_its_own_phases(build_params: Callable[..., Params]) -> None:
    records = build_records(dict.fromkeys(DOMAINS, (4, 4, 4)))
    by_domain = {
        "ferry": [PhaseConfig(until=0.25, easy=0, medium=1, hard=0), PhaseConfig(until=1, easy=0, medium=0, hard=1)]
    }
    phases = build_params().curriculum
    schedule = build_schedule(records, phases, 20, 12, 1, by_domain=by_domain)
    ferry = [(slot.step, slot.bucket) for slot in schedule if slot.domain == "ferry"]
    assert ferry == [(step, "medium" if step < 5 else "hard") for step in range(20) for _ in range(4)]
    others = [slot for slot in schedule if slot.domain != "ferry"]
    plain = [slot for slot in build_schedule(records, phases, 20, 12, 1) if slot.domain != "ferry"]
    assert [slot.id for slot in others] == [slot.id for slot in plain]
    with pytest.raises(
        ValueError, match="curriculum_by_domain: no domain fery in the training set; it has blocksworld, ferry"
    ):
        build_schedule(records, phases, 20, 12, 1, by_domain={"fery": by_domain["ferry"]})


def test_no_problem_is_twice_in_a_step(build_params: Callable[..., Params]) -> None:
    records = build_records({"blocksworld": (5, 1, 1)})
    params = build_params(steps=30, batch_size=4, dynamic_sampling=True)
    params = params.model_copy(update={"curriculum": [PhaseConfig(until=1, easy=1, medium=0, hard=0)]})
    for slots in run_sampler(AdaptiveSampler(records, params), lambda _: (2, True)):
        assert len({slot.id for slot in slots}) == 4  # though five problems do not share out evenly


def test_skipped_problems_are_counted(build_params: Callable[..., Params]) -> None:
    """No group has spread. Two problems are drawn, then both skipped once, then both drawn again."""
    records = build_records({"blocksworld": (2, 1, 1)})
    params = build_params(steps=5, batch_size=1, dynamic_sampling=True, missed_turns=1)
    params = params.model_copy(update={"curriculum": [PhaseConfig(until=1, easy=1, medium=0, hard=0)]})
    sampler = AdaptiveSampler(records, params)
    lost_turns = [sampler.compute_metrics()["lost_turns"] for _ in run_sampler(sampler, lambda _: (4, False))]
    assert lost_turns == [0, 0, 2, 0, 2]


def test_problems_with_spread_are_skipped_no_more(build_params: Callable[..., Params]) -> None:
    """Both problems are skipped once; the first that is drawn again has spread, so only the other is skipped on."""
    records = build_records({"blocksworld": (2, 1, 1)})
    params = build_params(steps=20, batch_size=1, dynamic_sampling=True, missed_turns=3)
    params = params.model_copy(update={"curriculum": [PhaseConfig(until=1, easy=1, medium=0, hard=0)]})
    sampler = AdaptiveSampler(records, params)
    steps = run_sampler(sampler, lambda slot: (2, slot.step > 1))
    assert sum(sampler.compute_metrics()["lost_turns"] for _ in steps) == 1 + 3


def test_phases_follow_each_other(build_params: Callable[..., Params]) -> None:
    records = build_records({"blocksworld": (2, 2, 2)})
    shares = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    phases = [
        PhaseConfig(until=until, easy=easy, medium=medium, hard=hard)
        for until, (easy, medium, hard) in zip((0.2, 0.4, 1), shares, strict=True)
    ]
    params = build_params(steps=8, batch_size=1, curriculum=True, window=2, target=0.5)
    sampler = AdaptiveSampler(records, params.model_copy(update={"curriculum": phases}))
    buckets = [slots[0].bucket for slots in run_sampler(sampler, lambda _: (4, True))]
    assert buckets == ["easy"] * 2 + ["medium"] * 2 + ["hard"] * 4


def test_schedule_is_followed_step_by_step_to_its_end(build_params: Callable[..., Params]) -> None:
    records = build_records(dict.fromkeys(DOMAINS, (4, 4, 4)))
    params = build_params(steps=3)
    schedule = build_schedule(records, params.curriculum, 3, 12, 1)
    sampler = build_sampler(schedule, records, params)
    assert isinstance(sampler, FixedSampler)
    for step in range(3):
        assert sampler.slots == schedule[12 * step : 12 * step + 12]
        assert sampler.slots[0].step == step
        assert sampler.compute_metrics() == {}
        sampler.update([])
    assert sampler.slots == []
    assert isinstance(build_sampler(schedule, records, build_params(curriculum=True)), AdaptiveSampler)


def test_curves_are_those_of_the_rules_that_are_on(build_params: Callable[..., Params]) -> None:
    records = build_records({"blocksworld": (2, 1, 1), "ferry": (2, 1, 1)})
    params = build_params(batch_size=4, curriculum=True, domain_weights=True, dynamic_sampling=True)
    sampler = AdaptiveSampler(records, params)
    weights = {"weight/blocksworld": 0.5, "weight/ferry": 0.5}
    assert sampler.compute_metrics() == {"phase/blocksworld": 0, "phase/ferry": 0, **weights, "lost_turns": 0}
    only = AdaptiveSampler(records, build_params(batch_size=4, dynamic_sampling=True))
    assert only.compute_metrics() == {"lost_turns": 0}


def test_weights_by_hand(build_params: Callable[..., Params]) -> None:
    """Recent success is 4 of 4 and 2 of 4; p is (s + 1) / (n + 2), the weight p (1 - p)."""
    records = build_records({"blocksworld": (2, 1, 1), "ferry": (2, 1, 1)})
    params = build_params(batch_size=2, domain_weights=True, floor=0.2, window=1)
    sampler = AdaptiveSampler(records, params)
    assert sorted(slot.domain for slot in sampler.slots) == ["blocksworld", "ferry"]
    sampler.update(build_results(sampler.slots, lambda slot: (4 if slot.domain == "ferry" else 2, True)))
    ferry, blocksworld = 5 / 6 * 1 / 6, 1 / 2 * 1 / 2
    total = ferry + blocksworld
    metrics = sampler.compute_metrics()
    assert metrics["weight/ferry"] == pytest.approx(0.1 + 0.8 * ferry / total)
    assert metrics["weight/blocksworld"] == pytest.approx(0.1 + 0.8 * blocksworld / total)


def test_unbalanced_sampler_has_one_pool(build_params: Callable[..., Params]) -> None:
    records: list[Record] = build_records(dict.fromkeys(DOMAINS, (4, 4, 4)))
    raw = build_params(curriculum=True, window=2, target=0.5).model_dump(mode="json")
    raw["grpo"]["balanced"] = False
    sampler = AdaptiveSampler(records, PlanningParams.model_validate(raw))
    phases = []
    for _ in run_sampler(sampler, lambda _: (4, True)):
        phases.append(sampler.compute_metrics())
    assert phases[:3] == [{"phase/all_domains": 0}, {"phase/all_domains": 0}, {"phase/all_domains": 1}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": {"balanced": False, "adaptive": {"domain_weights": True}}}, "grpo.*so balanced must be true"),
        ({"grpo": {"balanced": False}, "curriculum_by_domain": {"ferry": PHASES}}, "needs grpo.balanced: true"),
        ({"curriculum_by_domain": {"ferry": PHASES[:1]}}, "curriculum_by_domain.*ferry: .*end at 1.0"),
        ({"curriculum_by_domain": {"ferry": []}}, "curriculum_by_domain.*ferry: .*end at 1.0"),
        ({"grpo": {"adaptive": {"window": 0}}}, "grpo.adaptive.window"),
        ({"grpo": {"temperatures": {"easy": 0.5, "medium": 0.5}}}, "grpo.temperatures.hard: missing"),
        ({"grpo": {"reward": "shaped"}}, "grpo.reward: .*'dense' or 'sparse'"),
    ],
)
def test_inconsistent_parameters_are_rejected(shipped_params: Params, changes: dict[str, Any], message: str) -> None:
    raw = shipped_params.model_dump(mode="json")
    raw["ablations"] |= {"run": [], "variants": {}}
    with pytest.raises(ParamsError, match=f"(?s){message}"):
        validate_section(PlanningParams, merge_values(raw, changes), "params.yaml")

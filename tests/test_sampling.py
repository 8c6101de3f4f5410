"""Problems chosen by how training goes: phases by success, prompts by domain, what teaches nothing passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import laid_over
from planward.curriculum.decks import Slot
from planward.curriculum.sampling import Adaptive, Result
from planward.curriculum.schedule import build_schedule
from planward.params import BUCKETS, Params, ParamsError, Phase, checked
from planward.records import Record
from test_curriculum import pool, record

DOMAINS = ("blocksworld", "ferry", "spanner")
PHASES = [{"until": 0.5, "easy": 1, "medium": 0, "hard": 0}, {"until": 1.0, "easy": 0, "medium": 0.5, "hard": 0.5}]
Outcome = Callable[[Slot], tuple[int, bool]]  # successes among 4, and whether the rewards differ


@pytest.fixture(scope="session")
def params(shipped: Params) -> Callable[..., Params]:
    def params(steps: int = 20, batch_size: int = 12, seed: int = 1, **adaptive: Any) -> Params:
        raw = shipped.model_dump(mode="json")
        raw["grpo"] |= {"steps": steps, "batch_size": batch_size, "adaptive": raw["grpo"]["adaptive"] | adaptive}
        raw |= {"seed": seed, "curriculum": PHASES, "ablations": raw["ablations"] | {"run": [], "variants": {}}}
        return Params.model_validate(raw)

    return params


def run(sampler: Adaptive, outcome: Outcome) -> Iterator[list[Slot]]:
    """Each step's slots; what came of them is told to the sampler before the next."""
    while due := sampler.due():
        yield due
        sampler.observe(results(due, outcome))


def results(due: Sequence[Slot], outcome: Outcome) -> list[Result]:
    return [Result(slot.id, slot.domain, successes, 4, spread) for slot in due for successes, spread in [outcome(slot)]]


def by_chance(seed: int) -> Outcome:
    rng = Random(seed)

    def outcome(_: Slot) -> tuple[int, bool]:
        successes = rng.choice([0, 0, 1, 2, 3, 4, 4])
        return successes, 0 < successes < 4

    return outcome


SETS = st.lists(st.tuples(*[st.integers(1, 5)] * 3), min_size=3, max_size=3)
SWITCHES = st.fixed_dictionaries({name: st.booleans() for name in ("curriculum", "domain_weights", "dynamic_sampling")})


@settings(max_examples=60)
@given(sizes=SETS, switches=SWITCHES, seed=st.integers(0, 99), cut=st.integers(0, 19))
def test_a_run_that_is_taken_up_goes_on_exactly(
    params: Callable[..., Params], sizes: list[tuple[int, int, int]], switches: dict[str, bool], seed: int, cut: int
) -> None:
    records = pool(dict(zip(DOMAINS, sizes, strict=True)))
    chosen = params(seed=seed, window=2, target=0.3, **switches)
    log: list[list[Result]] = []
    steps = []
    sampler = Adaptive(records, chosen)
    outcome = by_chance(seed)
    while due := sampler.due():
        assert [(slot.step, slot.slot) for slot in due] == [(len(steps), number) for number in range(12)]
        steps.append((due, dict(sampler.measured())))
        log.append(results(due, outcome))
        sampler.observe(log[-1])
    assert len(steps) == 20
    again = Adaptive(records, chosen)
    for told in log[:cut]:
        again.observe(told)
    for (due, measured), told in zip(steps[cut:], log[cut:], strict=True):
        assert (again.due(), dict(again.measured())) == (due, measured)
        again.observe(told)


@settings(max_examples=30)
@given(sizes=SETS, seed=st.integers(0, 99))
def test_where_success_says_nothing_the_schedule_is_drawn(
    params: Callable[..., Params], sizes: list[tuple[int, int, int]], seed: int
) -> None:
    records = pool(dict(zip(DOMAINS, sizes, strict=True)))
    chosen = params(seed=seed, domain_weights=True, floor=1.0)
    schedule = build_schedule(records, chosen.curriculum, 20, 12, seed)
    drawn = [slot for due in run(Adaptive(records, chosen), by_chance(seed)) for slot in due]
    assert drawn == schedule


def test_a_domain_enters_the_next_phase_when_it_succeeds_and_stays_there(params: Callable[..., Params]) -> None:
    records = pool(dict.fromkeys(DOMAINS, (4, 4, 4)))
    chosen = params(curriculum=True, window=3, target=0.75)

    def outcome(slot: Slot) -> tuple[int, bool]:
        if slot.domain == "spanner":
            return 2, True  # never enough
        good = slot.domain == "blocksworld" or slot.step >= 6
        return (3 if good and slot.bucket == "easy" else 0), True

    buckets: dict[str, list[set[str]]] = {domain: [] for domain in DOMAINS}
    for due in run(Adaptive(records, chosen), outcome):
        for domain in DOMAINS:
            buckets[domain].append({slot.wanted_bucket for slot in due if slot.domain == domain})
    first = {domain: next((n for n, b in enumerate(found) if b != {"easy"}), None) for domain, found in buckets.items()}
    assert first == {"blocksworld": 3, "ferry": 9, "spanner": None}
    for domain, start in first.items():  # fails from then on, and does not go back
        assert all("easy" not in found for found in buckets[domain][start:]) or start is None


@settings(max_examples=30)
@given(floor=st.sampled_from([0.0, 0.3, 0.6, 1.0]), seed=st.integers(0, 9))
def test_prompts_go_where_success_varies_most_and_none_below_the_floor(
    params: Callable[..., Params], floor: float, seed: int
) -> None:
    """Success is 0, 1/2 and 1; by what is asked for in the long run, the shares hold to within two prompts."""
    records = pool(dict.fromkeys(DOMAINS, (4, 4, 4)))
    always = {"blocksworld": 0, "ferry": 2, "spanner": 4}
    sampler = Adaptive(records, params(steps=60, domain_weights=True, floor=floor, window=50, seed=seed))
    asked, drawn = Counter[str](), Counter[str]()
    for due in run(sampler, lambda slot: (always[slot.domain], True)):
        assert len(due) == 12
        shares = {domain: sampler.measured()[f"weight/{domain}"] for domain in DOMAINS}
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= floor / 3 - 1e-9
        asked.update({domain: share * 12 for domain, share in shares.items()})
        drawn.update(slot.domain for slot in due)
        assert all(abs(asked[domain] - drawn[domain]) < 2 for domain in DOMAINS)
    if floor < 1:
        assert drawn["ferry"] > drawn["blocksworld"]
        assert drawn["ferry"] > drawn["spanner"]


def test_what_taught_nothing_is_passed_over_and_comes_back(params: Callable[..., Params]) -> None:
    records = pool({"blocksworld": (6, 1, 1)})
    dull = {slot.id for slot in build_schedule(records, [Phase(until=1, easy=1, medium=0, hard=0)], 1, 4, 1)}
    assert len(dull) == 4
    visits: dict[str, list[int]] = {one.id: [] for one in records}
    chosen = params(steps=40, batch_size=2, dynamic_sampling=True, missed_turns=3)
    chosen = chosen.model_copy(update={"curriculum": [Phase(until=1, easy=1, medium=0, hard=0)]})
    for due in run(Adaptive(records, chosen), lambda slot: (4, slot.id not in dull)):
        assert len({slot.id for slot in due}) == 2  # none twice in a step
        for slot in due:
            visits[slot.id].append(slot.step)
    counts = {name: len(steps) for name, steps in visits.items() if "easy" in name}
    keen = counts.keys() - dull
    assert min(counts[name] for name in keen) > 2 * max(counts[name] for name in dull)
    assert min(counts.values()) >= 3
    # Three turns of each are lost between two visits of a dull one; a pass gives each of six one turn.
    assert all(
        later - earlier >= 4 for name in dull for earlier, later in zip(visits[name], visits[name][1:], strict=False)
    )


@settings(max_examples=40)
@given(
    counts=st.tuples(*[st.integers(1, 6)] * 3),
    dull=st.sets(st.integers(0, 17)),
    missed=st.integers(1, 3),
    batch_size=st.integers(1, 6),
)
def test_no_problem_is_left_out_for_ever(
    params: Callable[..., Params], counts: tuple[int, int, int], dull: set[int], missed: int, batch_size: int
) -> None:
    records = pool({"ferry": counts})
    names = {records[number].id for number in dull if number < len(records)}
    chosen = params(steps=80, batch_size=batch_size, dynamic_sampling=True, missed_turns=missed)
    chosen = chosen.model_copy(update={"curriculum": [Phase(until=1, easy=0.4, medium=0.3, hard=0.3)]})
    order: dict[str, list[str]] = {bucket: [] for bucket in BUCKETS}
    for due in run(Adaptive(records, chosen), lambda slot: (0, slot.id not in names)):
        for slot in due:
            order[slot.bucket].append(slot.id)
    for bucket, count in zip(BUCKETS, counts, strict=True):
        # A problem's turn comes once in a pass; between two visits it loses `missed` turns for want of spread, and
        # at most as many again for standing in the step already, or because another kept its turn in place of it.
        longest = 2 * (missed + 2) * count
        for start in range(0, len(order[bucket]) - longest, count):
            assert len(set(order[bucket][start : start + longest])) == count


def test_without_regard_to_domains_the_buckets_hold_and_the_domains_do_not(params: Callable[..., Params]) -> None:
    records = [*pool({"blocksworld": (9, 1, 0), "ferry": (0, 3, 3)}), record("spanner", "easy", 1)]
    chosen = params(batch_size=7)
    schedule = build_schedule(records, chosen.curriculum, 20, 7, 1, balanced=False)
    known = {one.id: one for one in records}
    assert all((known[s.id].domain, known[s.id].bucket) == (s.domain, s.bucket) for s in schedule)
    for start, end, shares in ((0, 10, (1, 0, 0)), (10, 20, (0, 0.5, 0.5))):
        drawn = [slot.wanted_bucket for slot in schedule if start <= slot.step < end]
        for bucket, share in zip(BUCKETS, shares, strict=True):
            assert abs(drawn.count(bucket) - share * len(drawn)) <= 1
    assert {slot.domain for slot in schedule if slot.step < 10} == {"blocksworld", "spanner"}
    assert len({slot.id for slot in schedule[:10]}) == 10  # each before any comes again


def test_a_domain_may_have_phases_of_its_own(params: Callable[..., Params]) -> None:
    records = pool(dict.fromkeys(DOMAINS, (4, 4, 4)))
    own = {"ferry": [Phase(until=0.25, easy=0, medium=1, hard=0), Phase(until=1, easy=0, medium=0, hard=1)]}
    phases = params().curriculum
    schedule = build_schedule(records, phases, 20, 12, 1, by_domain=own)
    ferry = [(slot.step, slot.bucket) for slot in schedule if slot.domain == "ferry"]
    assert ferry == [(step, "medium" if step < 5 else "hard") for step in range(20) for _ in range(4)]
    others = [slot for slot in schedule if slot.domain != "ferry"]
    plain = [slot for slot in build_schedule(records, phases, 20, 12, 1) if slot.domain != "ferry"]
    assert [slot.id for slot in others] == [slot.id for slot in plain]
    with pytest.raises(ValueError, match="curriculum_by_domain names fery; the training set has blocksworld, ferry"):
        build_schedule(records, phases, 20, 12, 1, by_domain={"fery": own["ferry"]})


def test_records_and_results_of_all_domains_share_one_deck(params: Callable[..., Params]) -> None:
    records: list[Record] = pool(dict.fromkeys(DOMAINS, (4, 4, 4)))
    raw = params(curriculum=True, window=2, target=0.5).model_dump(mode="json")
    raw["grpo"]["balanced"] = False
    sampler = Adaptive(records, Params.model_validate(raw))
    phases = []
    for _ in run(sampler, lambda _: (4, True)):
        phases.append(sampler.measured())
    assert phases[:3] == [{"phase/all_domains": 0}, {"phase/all_domains": 0}, {"phase/all_domains": 1}]


@pytest.mark.parametrize(
    ("changes", "complaint"),
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
def test_what_does_not_go_together_is_named(shipped: Params, changes: dict[str, Any], complaint: str) -> None:
    raw = shipped.model_dump(mode="json")
    raw["ablations"] |= {"run": [], "variants": {}}
    with pytest.raises(ParamsError, match=f"(?s){complaint}"):
        checked(Params, laid_over(raw, changes), "params.yaml")

"""Intervals and tests against closed forms, published examples and statsmodels."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from planward.analysis.statistics import (
    Pairs,
    adjust_p_values,
    bootstrap_intervals,
    compute_detectable_difference,
    compute_detectable_mean,
    compute_paired_interval,
    compute_sign_flip_p,
    compute_wilson_interval,
)

counts = st.integers(0, 400)
tables = st.builds(Pairs, counts, counts, counts, counts).filter(lambda pairs: pairs.n > 0)
confidences = st.sampled_from([0.8, 0.9, 0.95, 0.99])


def swap(pairs: Pairs) -> Pairs:
    return Pairs(pairs.both, pairs.only_b, pairs.only_a, pairs.neither)


def test_pairs_count_each_cell() -> None:
    a = [True, True, True, False, False, False, False]
    b = [True, True, False, True, True, True, False]
    assert Pairs.count(a, b) == Pairs(both=2, only_a=1, only_b=3, neither=1)
    assert Pairs.count(a, b).difference == pytest.approx(2 / 7)
    with pytest.raises(ValueError, match="shorter"):
        Pairs.count(a, b[:-1])


def test_wilson_interval_equals_its_closed_form() -> None:
    z, k, n = 1.959963984540054, 8, 10
    centre, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    expected = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert compute_wilson_interval(k, n, 0.95) == pytest.approx(expected)
    assert compute_wilson_interval(k, n, 0.95) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), confidences)
def test_wilson_interval_contains_the_rate_and_stays_in_zero_to_one(sample: tuple[int, int], confidence: float) -> None:
    successes, n = sample
    low, high = compute_wilson_interval(successes, n, confidence)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1
    assert compute_wilson_interval(n - successes, n, confidence) == pytest.approx((1 - high, 1 - low))


@given(st.integers(1, 2000), confidences)
def test_wilson_interval_of_nothing_and_of_everything_ends_exactly_there(n: int, confidence: float) -> None:
    assert compute_wilson_interval(0, n, confidence)[0] == 0
    assert compute_wilson_interval(n, n, confidence)[1] == 1


def list_differences(pairs: Pairs) -> list[int]:
    return [-1] * pairs.only_a + [1] * pairs.only_b + [0] * (pairs.both + pairs.neither)


@given(tables)
def test_sign_flip_test_of_one_prediction_a_problem_equals_exact_mcnemar(pairs: Pairs) -> None:
    expected = mcnemar([[pairs.both, pairs.only_a], [pairs.only_b, pairs.neither]], exact=True).pvalue
    assert compute_sign_flip_p(list_differences(pairs)) == pytest.approx(min(expected, 1.0))


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
def test_sign_flip_test_equals_enumeration_of_all_flips(differences: list[int]) -> None:
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True))
            for signs in product((1, -1), repeat=len(differences))]  # fmt: skip
    expected = sum(abs(total) >= abs(sum(differences)) for total in sums) / len(sums)
    assert compute_sign_flip_p(differences) == pytest.approx(expected)
    assert compute_sign_flip_p([-d for d in differences]) == pytest.approx(expected)


def test_sign_flip_test_without_difference_and_in_the_normal_limit() -> None:
    assert compute_sign_flip_p([0, 0, 0]) == 1
    assert compute_sign_flip_p([-1] * 6) == pytest.approx(2 / 2**6)
    rng = np.random.default_rng(0)
    differences = rng.integers(-5, 6, 4000) + (rng.random(4000) < 0.08)
    z = (abs(differences.sum()) - 0.5) / math.sqrt((differences.astype(float) ** 2).sum())
    assert compute_sign_flip_p(differences) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.02)


def test_bootstrap_of_one_seed_equals_the_normal_approximation() -> None:
    n, rate = 2000, 0.3
    successes = np.zeros((1, 1, n), dtype=bool)
    successes[..., : int(n * rate)] = True
    ((low, high),) = bootstrap_intervals(successes, ["d"] * n, 0.95, 20000, 1)
    half = 1.959964 * math.sqrt(rate * (1 - rate) / n)
    assert (low, high) == pytest.approx((rate - half, rate + half), abs=0.0015)


def test_bootstrap_does_not_resample_differences_between_strata() -> None:
    successes = np.array([[[1] * 50 + [0] * 50]])
    assert bootstrap_intervals(successes, ["easy"] * 50 + ["hard"] * 50, 0.95, 500, 1) == pytest.approx(0.5)
    ((low, high),) = bootstrap_intervals(successes, ["one"] * 100, 0.95, 500, 1)
    assert low < 0.45 < 0.55 < high


def test_bootstrap_resamples_seeds() -> None:
    successes = np.zeros((1, 4, 30))
    successes[:, 2:] = 1  # two seeds solve everything, two nothing: only the draw of seeds matters
    ((low, high),) = bootstrap_intervals(successes, ["d"] * 30, 0.8, 4000, 1)
    assert (low, high) == pytest.approx((0.25, 0.75))  # binomial of 4 draws: 10 % lies at 0.25, 90 % at 0.75


@given(st.integers(1, 4), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_bootstrap_is_seeded_and_independent_of_other_cells(seeds: int, problems: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.random((3, seeds, problems)) < 0.5
    strata = ["ab"[i % 2] for i in range(problems)]
    bounds = bootstrap_intervals(cells, strata, 0.9, 600, seed)
    assert (bounds == bootstrap_intervals(cells, strata, 0.9, 600, seed)).all()
    assert bounds[1:2] == pytest.approx(bootstrap_intervals(cells[1:2], strata, 0.9, 600, seed))
    assert bootstrap_intervals(~cells, strata, 0.9, 600, seed) == pytest.approx(1 - bounds[:, ::-1])
    assert (bounds[:, 0] <= bounds[:, 1]).all()
    assert (bounds >= 0).all()
    assert (bounds <= 1).all()


def test_bootstrap_intervals_have_their_coverage() -> None:
    """400 cells of 5 seeds and 60 problems; problems and seeds both have random effects."""
    rng = np.random.default_rng(5)
    problem_effect, seed_effect, noise = (
        rng.normal(0, 1, (400, 1, 60)),
        rng.normal(0, 0.2, (400, 5, 1)),
        rng.normal(0, 1, (400, 5, 60)),
    )
    successes = problem_effect + seed_effect + noise > 0  # by symmetry, half of all predictions
    bounds = bootstrap_intervals(successes, ["d"] * 60, 0.9, 600, 1)
    coverage = ((bounds[:, 0] <= 0.5) & (bounds[:, 1] >= 0.5)).mean()
    assert 0.86 < coverage < 0.97


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_adjustment_raises_p_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted_p_values = adjust_p_values(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted_p_values, strict=True))
    in_order = [q for _, q in sorted(zip(p_values, adjusted_p_values, strict=True))]
    assert in_order == sorted(in_order)


@settings(max_examples=15)  # statsmodels collects garbage on every call
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_adjustment_is_that_of_statsmodels(p_values: list[float]) -> None:
    assert adjust_p_values(p_values) == list(multipletests(p_values, method="holm")[1])


def test_holm_adjustment_by_hand() -> None:
    assert adjust_p_values([]) == []
    assert adjust_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [(Pairs(36, 2, 12, 0), 0.0569, 0.3404), (Pairs(20, 2, 12, 16), 0.0562, 0.3292)],
)
def test_paired_interval_reproduces_published_examples(pairs: Pairs, low: float, high: float) -> None:
    assert compute_paired_interval(pairs, 0.95) == pytest.approx((low, high), abs=5e-5)


@given(tables, confidences)
def test_paired_interval_contains_the_difference(pairs: Pairs, confidence: float) -> None:
    low, high = compute_paired_interval(pairs, confidence)
    assert -1 <= low <= pairs.difference + 1e-12
    assert pairs.difference - 1e-12 <= high <= 1
    assert compute_paired_interval(swap(pairs), confidence) == pytest.approx((-high, -low))


@given(st.floats(0, 1), st.integers(4, 1600))
def test_detectable_difference_solves_its_equation(discordance: float, n: int) -> None:
    d = compute_detectable_difference(discordance, n, 0.95)
    spread = max(d, discordance)
    assert 0 < d <= 1
    sample_size = (1.959964 * math.sqrt(spread) + 0.841621 * math.sqrt(max(spread - d * d, 0))) ** 2 / d**2
    assert sample_size == pytest.approx(n, rel=1e-4)


def test_detectable_difference_shrinks_with_n_and_with_agreement() -> None:
    small_n_difference, large_n_difference = (compute_detectable_difference(0.5, n, 0.95) for n in (40, 4000))
    assert large_n_difference < small_n_difference / 5
    assert compute_detectable_difference(0.1, 400, 0.95) < compute_detectable_difference(0.4, 400, 0.95)
    assert compute_detectable_difference(0.6, 3, 0.95) == 1


def test_detectable_mean_is_found_with_80_percent_power() -> None:
    rng, n = np.random.default_rng(6), 60
    d = compute_detectable_mean(4.0, n, 0.95)
    samples = np.rint(rng.normal(d, 2.0, (600, n)) * 50).astype(np.int64)
    assert np.mean([compute_sign_flip_p(row) < 0.05 for row in samples]) == pytest.approx(0.8, abs=0.05)
    assert compute_detectable_mean(1.0, n, 0.95) == pytest.approx(d / 2)
    assert math.isnan(compute_detectable_mean(0.0, n, 0.95))
    assert compute_detectable_mean(1.0, 3, 0.95) == math.inf

"""Intervals and tests against closed forms, published examples and statsmodels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from planward.reporting.statistics import (
    Pairs,
    detectable_difference,
    holm,
    mcnemar_exact,
    paired_interval,
    wilson,
)

counts = st.integers(0, 400)
tables = st.builds(Pairs, counts, counts, counts, counts).filter(lambda pairs: pairs.n > 0)
confidences = st.sampled_from([0.8, 0.9, 0.95, 0.99])


def swapped(pairs: Pairs) -> Pairs:
    return Pairs(pairs.both, pairs.only_b, pairs.only_a, pairs.neither)


def test_pairs_count_each_cell() -> None:
    a = [True, True, True, False, False, False, False]
    b = [True, True, False, True, True, True, False]
    assert Pairs.count(a, b) == Pairs(both=2, only_a=1, only_b=3, neither=1)
    assert Pairs.count(a, b).difference == pytest.approx(2 / 7)
    with pytest.raises(ValueError, match="shorter"):
        Pairs.count(a, b[:-1])


def test_wilson_is_its_closed_form() -> None:
    z, k, n = 1.959963984540054, 8, 10
    centre, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    expected = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert wilson(k, n, 0.95) == pytest.approx(expected)
    assert wilson(k, n, 0.95) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), confidences)
def test_wilson_holds_the_rate_inside_zero_and_one(sample: tuple[int, int], confidence: float) -> None:
    successes, n = sample
    low, high = wilson(successes, n, confidence)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1
    assert wilson(n - successes, n, confidence) == pytest.approx((1 - high, 1 - low))


@given(tables)
def test_mcnemar_is_statsmodels_exact_test(pairs: Pairs) -> None:
    expected = mcnemar([[pairs.both, pairs.only_a], [pairs.only_b, pairs.neither]], exact=True).pvalue
    assert mcnemar_exact(pairs) == pytest.approx(min(expected, 1.0))
    assert mcnemar_exact(pairs) == pytest.approx(mcnemar_exact(swapped(pairs)))


def test_mcnemar_without_discordant_pairs_finds_nothing() -> None:
    assert mcnemar_exact(Pairs(40, 0, 0, 10)) == 1
    assert mcnemar_exact(Pairs(0, 0, 6, 0)) == pytest.approx(2 / 2**6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_raises_p_and_keeps_its_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    in_order = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert in_order == sorted(in_order)


def test_holm_is_statsmodels_adjustment() -> None:
    p_values = [0.2, 0.001, 0.04, 0.04, 0.5, 0.0, 1.0]
    assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [(Pairs(36, 2, 12, 0), 0.0569, 0.3404), (Pairs(20, 2, 12, 16), 0.0562, 0.3292)],
)
def test_paired_interval_gives_worked_examples(pairs: Pairs, low: float, high: float) -> None:
    assert paired_interval(pairs, 0.95) == pytest.approx((low, high), abs=5e-5)


@given(tables, confidences)
def test_paired_interval_holds_the_difference(pairs: Pairs, confidence: float) -> None:
    low, high = paired_interval(pairs, confidence)
    assert -1 <= low <= pairs.difference + 1e-12
    assert pairs.difference - 1e-12 <= high <= 1
    assert paired_interval(swapped(pairs), confidence) == pytest.approx((-high, -low))


@given(tables.filter(lambda pairs: pairs.n >= 4))
def test_detectable_difference_solves_its_equation(pairs: Pairs) -> None:
    d = detectable_difference(pairs, 0.95)
    discordant = max(d, (pairs.only_a + pairs.only_b) / pairs.n)
    assert 0 < d <= 1
    needed = (1.959964 * math.sqrt(discordant) + 0.841621 * math.sqrt(max(discordant - d * d, 0))) ** 2 / d**2
    assert needed == pytest.approx(pairs.n, rel=1e-4)


def test_detectable_difference_shrinks_with_n() -> None:
    few, many = (detectable_difference(Pairs(n, n, n, n), 0.95) for n in (10, 1000))
    assert many < few / 5
    assert detectable_difference(Pairs(1, 1, 1, 0), 0.95) == 1

"""Intervals of cells in which nothing varies: agreement is no certainty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planward.analysis.cells import Uncertainty, compute_differences, compute_rates
from planward.analysis.statistics import Pairs, compute_paired_interval, compute_wilson_interval

BY = Uncertainty(confidence=0.95, resamples=200, seed=1)
N = 30
STRATA = ["ferry"] * N


@pytest.mark.parametrize("success", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 2), (5, 3)])
def test_more_seeds_do_not_make_a_constant_rate_certain(shape: tuple[int, int], success: bool) -> None:
    [row] = compute_rates([np.full((*shape, N), success)], STRATA, BY)
    assert row["success_rate"] == success
    assert (row["ci_low"], row["ci_high"]) == compute_wilson_interval(N * success, N, 0.95)
    assert row["interval"] == "wilson"


def test_half_of_the_predictions_of_every_problem_is_half_of_the_problems() -> None:
    cell = np.stack([np.ones((1, N), dtype=bool), np.zeros((1, N), dtype=bool)], axis=1)  # with 0 and with 1 example
    [row] = compute_rates([cell], STRATA, BY)
    assert (row["successes"], row["success_rate"]) == (N, 0.5)
    assert (row["ci_low"], row["ci_high"]) == compute_wilson_interval(N / 2, N, 0.95)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [
        (False, False, Pairs(0, 0, 0, N)),
        (True, True, Pairs(N, 0, 0, 0)),
        (False, True, Pairs(0, 0, N, 0)),
        (True, False, Pairs(0, N, 0, 0)),
    ],
)
def test_more_seeds_do_not_make_a_constant_difference_certain(seeds: int, a: bool, b: bool, pairs: Pairs) -> None:
    [row] = compute_differences([(np.full((seeds, 1, N), a), np.full((seeds, 1, N), b))], STRATA, BY)
    low, high = compute_paired_interval(pairs, 0.95)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((100 * low, 100 * high))
    assert row["ci_low"] < row["ci_high"]
    assert row["interval"] == "newcombe"
    assert row["test"] == ("mcnemar" if seeds == 1 else "sign-flip")


def test_domains_that_are_all_solved_and_never_solved_are_no_certainty() -> None:
    solved = np.arange(N) < N // 3
    strata = np.where(solved, "ferry", "spanner").tolist()
    [row] = compute_rates([np.stack([solved[None]] * 2)], strata, BY)
    assert (row["ci_low"], row["ci_high"]) == compute_wilson_interval(N // 3, N, 0.95)


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_intervals_of_other_cells_stay_bootstrapped_and_in_order(seeds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = [rng.random((seeds, 1, N)) < share for share in (0.5, 0.4)]
    constant = np.zeros((seeds, 1, N), dtype=bool)
    first, zero, second = compute_rates([cells[0], constant, cells[1]], STRATA, BY)
    assert [first, second] == [compute_rates([cell], STRATA, BY)[0] for cell in cells]
    assert (first["interval"], zero["interval"], second["interval"]) == ("bootstrap", "wilson", "bootstrap")
    rows = compute_differences([(constant, cells[0]), (constant, constant), (constant, cells[1])], STRATA, BY)
    assert [row["interval"] for row in rows] == ["bootstrap", "newcombe", "bootstrap"]
    assert [rows[0], rows[2]] == [compute_differences([(constant, cell)], STRATA, BY)[0] for cell in cells]

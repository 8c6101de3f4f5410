"""The difficulty score's rank correlations: against scipy, by their properties, and where they are undefined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from planward.analysis.cells import Uncertainty
from planward.analysis.difficulty import COLUMNS, compute_difficulty_table, correlate_ranks, read_reference_lengths
from planward.analysis.success_arrays import SuccessArrays

BY = Uncertainty(confidence=0.95, resamples=200, seed=3407)
numbers = st.integers(-4, 4)
rows = st.lists(st.tuples(numbers, numbers, st.integers(0, 3)), min_size=3, max_size=30)  # x, y, how often drawn
MONOTONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "shift": lambda x: x - 7.5,
    "scale": lambda x: 0.25 * x,
    "exponential": np.exp,
    "cubic": lambda x: x**3 + x,
}


def correlate(x: Sequence[float], y: Sequence[float]) -> float:
    values = correlate_ranks(np.array(x, float), [np.array(y, float)], np.ones((1, len(x))))
    return float(values[0, 0])


def build_success(
    domains: Mapping[str, Sequence[tuple[float, bool, Sequence[bool]]]], shot_nums: Sequence[int] = (0,)
) -> SuccessArrays:
    """Success of base: of each domain's problems the score, whether it has constraints, and success by shot_num."""
    cells = [(domain, *cell) for domain, problems in domains.items() for cell in problems]
    problems = pd.DataFrame(
        {
            "id": [str(i) for i in range(len(cells))],
            "domain": [cell[0] for cell in cells],
            "score": [float(cell[1]) for cell in cells],
            "constrained": [cell[2] for cell in cells],
        }
    )
    successes = np.array([cell[3] for cell in cells], dtype=bool).T[None]
    return SuccessArrays(problems, list(shot_nums), {("base", 0): successes})


def find_row(table: pd.DataFrame, domain: str, measure: str, shot_num: str, problems: str = "all") -> pd.Series:
    keys = {"domain": domain, "measure": measure, "shot_num": shot_num, "problems": problems}
    part = table[np.logical_and.reduce([table[column] == value for column, value in keys.items()])]
    assert len(part) == 1
    return part.iloc[0]


@given(rows)
def test_correlation_of_a_draw_is_scipys_of_its_rows(cells: list[tuple[int, int, int]]) -> None:
    x, y, counts = (np.array(column, float) for column in zip(*cells, strict=True))
    actual = correlate_ranks(x, [y, x], counts[None])
    drawn_x, drawn_y = np.repeat(x, counts.astype(int)), np.repeat(y, counts.astype(int))
    if len(set(drawn_x)) < 2 or len(set(drawn_y)) < 2:
        assert math.isnan(actual[0, 0])
    else:
        assert actual[0, 0] == pytest.approx(spearmanr(drawn_x, drawn_y).statistic, abs=1e-12)
    assert math.isnan(actual[1, 0]) if len(set(drawn_x)) < 2 else actual[1, 0] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", MONOTONE)
@given(cells=rows)
def test_only_the_order_counts(name: str, cells: list[tuple[int, int, int]]) -> None:
    x, y = (np.array(column, float) for column in list(zip(*cells, strict=True))[:2])
    expected = correlate(x, y)
    assert correlate(MONOTONE[name](x), y) == pytest.approx(expected, nan_ok=True)
    assert correlate(x, MONOTONE[name](y)) == pytest.approx(expected, nan_ok=True)
    assert correlate(-x, y) == pytest.approx(-expected, nan_ok=True)


@given(st.lists(numbers, min_size=3, max_size=30).filter(lambda values: len(set(values)) > 1))
def test_perfect_order_is_one_with_ties_too(values: list[int]) -> None:
    assert correlate(values, [10 + 2 * value for value in values]) == pytest.approx(1)
    assert correlate(values, [-value for value in values]) == pytest.approx(-1)


def test_ties_within_one_of_the_two_lower_the_correlation() -> None:
    assert correlate([1, 2, 3, 4], [0, 0, 1, 1]) == pytest.approx(0.894427, abs=1e-6)  # 2 / sqrt(5), by hand


def test_domains_are_correlated_apart_and_averaged_by_their_problems() -> None:
    """Perfect order in each of two domains on different scales is perfect; lengths pool by the number of problems."""
    easy = [(score, False, [score < 25]) for score in (10, 20, 30, 40)]
    hard = [(score, False, [score < 2000]) for score in (1000, 1500, 3000)]
    success = build_success({"a": easy, "b": hard})
    lengths = {str(i): length for i, length in enumerate([5, 6, 7, 8, 3, 2, 1])}  # ascending in a, descending in b
    table = compute_difficulty_table(success, lengths, BY)
    assert list(table.columns) == COLUMNS
    values = [find_row(table, domain, "reference_length", "")["correlation"] for domain in ("a", "b", "all")]
    assert values == pytest.approx([1, -1, (4 - 3) / 7])
    row = find_row(table, "all", "base_success", "0")
    assert (row["n"], row["domains"], row["undefined"]) == (7, 2, "")
    expected = [spearmanr([c[0] for c in cells], [c[2][0] for c in cells]).statistic for cells in (easy, hard)]
    assert row["correlation"] == pytest.approx((4 * expected[0] + 3 * expected[1]) / 7)
    assert row["correlation"] < 0  # a higher score, less success


def test_share_over_all_numbers_of_examples_is_a_measure() -> None:
    problems = [(10, False, [True, True]), (20, False, [False, True]), (30, False, [False, False])]
    table = compute_difficulty_table(build_success({"a": problems}, shot_nums=(0, 4)), {}, BY)
    assert set(table["measure"]) == {"base_success"}
    assert find_row(table, "a", "base_success", "all")["correlation"] == pytest.approx(-1)
    assert find_row(table, "a", "base_success", "0")["correlation"] == pytest.approx(-math.sqrt(3) / 2)


@pytest.mark.parametrize(
    ("scores", "successes", "reason"),
    [
        ([1, 2, 3], [True, True, True], "base solves every problem"),
        ([1, 2, 3], [False, False, False], "base solves no problem"),
        ([5, 5, 5], [True, False, False], "all problems have one score"),
        ([1, 2], [True, False], "fewer than 3 problems"),
    ],
)
def test_undefined_correlations_say_why_and_are_left_out_of_the_mean(
    scores: list[int], successes: list[bool], reason: str
) -> None:
    regular = [(score, False, [score < 25]) for score in (10, 20, 30, 40)]
    odd = [(score, False, [success]) for score, success in zip(scores, successes, strict=True)]
    table = compute_difficulty_table(build_success({"odd": odd, "regular": regular}), {}, BY)
    row, all_row = (find_row(table, domain, "base_success", "0") for domain in ("odd", "all"))
    assert (row["undefined"], row["domains"], row["n"]) == (reason, 0, len(scores))
    assert row[["correlation", "ci_low", "ci_high"]].isna().all()
    assert (all_row["undefined"], all_row["domains"], all_row["n"]) == (f"odd: {reason}", 1, 4)
    assert all_row["correlation"] == find_row(table, "regular", "base_success", "0")["correlation"]
    odd_table = compute_difficulty_table(build_success({"odd": odd}), {}, BY)
    assert math.isnan(find_row(odd_table, "all", "base_success", "0")["correlation"])


def test_missing_or_equal_lengths_are_named() -> None:
    cells = [(score, False, [score < 25]) for score in (10, 20, 30)]
    success = build_success({"a": cells, "b": cells, "c": cells})
    table = compute_difficulty_table(success, {"0": 7, "1": 7, "2": 7, "3": 1, "5": 3}, BY)
    reasons = [find_row(table, domain, "reference_length", "")["undefined"] for domain in "abc"]
    assert reasons == ["all reference plans are equally long", "fewer than 3 problems", "no reference plans"]
    assert find_row(table, "b", "reference_length", "")["n"] == 2


def test_problems_with_and_without_constraints_are_told_apart() -> None:
    """Alone each kind is ordered perfectly, together they are not; a test set of one kind has no such rows."""
    plain = [(score, False, [score < 35]) for score in (10, 20, 30, 40)]
    with_constraints = [(score, True, [score < 15]) for score in (10, 20, 30, 40)]
    table = compute_difficulty_table(build_success({"a": [*plain, *with_constraints]}), {}, BY)
    values = {
        subset: find_row(table, "a", "base_success", "0", subset)["correlation"] for subset in set(table["problems"])
    }
    assert values.keys() == {"all", "constrained", "unconstrained"}
    assert values["constrained"] == pytest.approx(spearmanr([1, 2, 3, 4], [1, 0, 0, 0]).statistic)
    assert values["unconstrained"] == pytest.approx(spearmanr([1, 2, 3, 4], [1, 1, 1, 0]).statistic)
    columns = [cell[0] for cell in (*plain, *with_constraints)], [cell[2][0] for cell in (*plain, *with_constraints)]
    assert values["all"] == pytest.approx(spearmanr(*columns).statistic)
    only = compute_difficulty_table(build_success({"a": with_constraints}), {}, BY)
    assert set(only["problems"]) == {"all"}


def test_interval_is_that_of_resampled_problems() -> None:
    """Against scipy's own bootstrap of another seed; an interval of perfect order is a point."""
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 20, 60)
    lengths = scores + rng.integers(0, 20, 60)
    success = build_success({"a": [(int(score), False, [True]) for score in scores]})
    by = Uncertainty(confidence=0.9, resamples=2000, seed=7)
    row = find_row(
        compute_difficulty_table(success, {str(i): float(n) for i, n in enumerate(lengths)}, by),
        *("a", "reference_length", ""),
    )
    draws = rng.integers(0, 60, (2000, 60))
    expected = np.quantile([spearmanr(scores[d], lengths[d]).statistic for d in draws], [0.05, 0.95])
    assert [row["ci_low"], row["ci_high"]] == pytest.approx(expected, abs=0.03)
    perfect = compute_difficulty_table(success, {str(i): float(n) for i, n in enumerate(scores)}, by)
    assert find_row(perfect, "a", "reference_length", "")[["ci_low", "ci_high"]].tolist() == pytest.approx([1, 1])


def test_domains_are_resampled_independently() -> None:
    """The mean of four equal domains is twice as certain as one of them."""
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 20, 40).tolist()
    cells = [
        (score, False, [bool(noise + score < 20)]) for score, noise in zip(scores, rng.integers(0, 20, 40), strict=True)
    ]
    by = Uncertainty(confidence=0.95, resamples=2000, seed=7)
    table = compute_difficulty_table(build_success(dict.fromkeys("abcd", cells)), {}, by)
    one, mean = (find_row(table, domain, "base_success", "0") for domain in ("a", "all"))
    assert mean["correlation"] == pytest.approx(one["correlation"])
    ratio = (one["ci_high"] - one["ci_low"]) / (mean["ci_high"] - mean["ci_low"])
    assert ratio == pytest.approx(2, abs=0.25)


def test_reference_lengths_are_those_of_the_test_problems(tmp_path: Path) -> None:
    path = tmp_path / "difficulty.csv"
    assert read_reference_lengths(path) == {}
    path.write_text("id,split,score,reference_length\n0001,test,5,12\n0002,train,5,9\n0003,test,5,\n", encoding="utf-8")
    assert read_reference_lengths(path) == {"0001": 12}
    path.write_text("id,split,score\n0001,test,5\n", encoding="utf-8")  # of an earlier version
    assert read_reference_lengths(path) == {}

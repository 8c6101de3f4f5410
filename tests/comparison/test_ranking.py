"""Rankings and measures of experiments whose predictions are made up, against statsmodels and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from test_diff import build_experiment, build_prediction

from planward.analysis.cells import Uncertainty
from planward.analysis.clusters import ClusterBootstrap
from planward.analysis.outcomes import PredictionsError
from planward.analysis.statistics import compute_wilson_interval
from planward.analysis.tables import TIED
from planward.comparison.comparison import SAME, list_cells
from planward.comparison.experiment import Experiment, load_subject
from planward.comparison.measures import ClusterMeasure, SuccessMeasure, build_measures
from planward.comparison.overlap import Overlap, find_overlap
from planward.comparison.ranking import BASELINE, BEST, RANKED, WORSE, Ranking, rank_experiments
from planward.core.runs import Run

COUNT, SHOT_NUMS = 40, (0, 1)
GRPO, SFT = Run("grpo", 100, 1), Run("sft", 100, 1)
BY = Uncertainty(0.95, 400, 0)
Solves = Callable[[int, int], bool]  # whether the problem is solved with so many worked examples


def build(name: str, solves: Solves, runs: Sequence[Run] = (GRPO,), households: int = 0, **changes: Any) -> Experiment:
    rows = [
        build_prediction(run, i, k, solves(i, k), reward=float(solves(i, k)) - 0.1 * (i % 5), **changes)
        for run in runs
        for k in SHOT_NUMS
        for i in range(COUNT)
    ]
    return build_experiment(name, rows, households)


def solve_low(i: int, k: int) -> bool:
    return i % 8 < 2 + k


def solve_middle(i: int, _k: int) -> bool:
    return i % 8 < 7 and i > 2


def solve_high(i: int, k: int) -> bool:
    return i % 8 < 6 + k or i > 20


SOLVES = {"low": solve_low, "high": solve_high, "middle": solve_middle}


def rank(experiments: Sequence[Experiment], has_baseline: bool = False, shot_nums: Sequence[int] = ()) -> Ranking:
    return rank_experiments(experiments, load_subject("planning"), BY, shot_nums, has_baseline)


def compute_p(a: Solves, b: Solves, shot_num: int) -> float:
    table = [[sum(a(i, shot_num) == x and b(i, shot_num) == y for i in range(COUNT)) for y in (True, False)]
             for x in (True, False)]  # fmt: skip
    return float(mcnemar(table, exact=True).pvalue)


def compute_rate(solves: Solves, shot_num: int) -> float:
    return sum(solves(i, shot_num) for i in range(COUNT)) / COUNT


@pytest.mark.parametrize("reference", ["best", "baseline"])
def test_every_experiment_is_tested_against_the_reference(reference: str) -> None:
    experiments = [build(name, solves) for name, solves in SOLVES.items()]
    ranking = rank(experiments, reference == "baseline")
    assert (ranking.reference, ranking.quantity) == (reference, "success")
    assert ranking.experiments == experiments
    assert (ranking.subject.name, ranking.uncertainty) == ("planning", BY)
    assert (ranking.params, ranking.code, ranking.cost.empty, ranking.unfinished) == ([], [], True, [])
    cells = ranking.cells
    assert list(cells.columns) == RANKED
    assert list(cells["shot_num"]) == [0, 0, 0, 1, 1, 1]
    expected_p = []
    for shot_num in SHOT_NUMS:
        rows = cells[cells["shot_num"] == shot_num]
        rates = {name: compute_rate(solves, shot_num) for name, solves in SOLVES.items()}
        order = sorted(rates, key=lambda name: -rates[name])
        assert list(rows["experiment"]) == order == ["high", "middle", "low"]
        assert list(rows["rank"]) == [1, 2, 3]
        assert list(rows["value"]) == pytest.approx([rates[name] for name in order])
        assert set(rows["n"]) == {COUNT}
        assert set(rows["seeds"]) == {1}
        base = "low" if reference == "baseline" else "high"
        for row in rows.to_dict("records"):
            successes = round(rates[row["experiment"]] * COUNT)
            assert (row["ci_low"], row["ci_high"]) == pytest.approx(compute_wilson_interval(successes, COUNT, 0.95))
            test_values = [row[name] for name in ("difference", "p", "p_holm", "test", "detectable_difference")]
            if row["experiment"] == base:
                assert all(pd.isna(value) for value in test_values)
                assert row["result"] == (BASELINE if reference == "baseline" else BEST)
                continue
            expected_p.append(compute_p(SOLVES[base], SOLVES[row["experiment"]], shot_num))
            assert row["p"] == pytest.approx(expected_p[-1])
            assert row["difference"] == pytest.approx(100 * (rates[row["experiment"]] - rates[base]))
            assert row["difference_low"] < row["difference"] < row["difference_high"]
            assert row["detectable_difference"] > 5
            assert row["test"] == "mcnemar"
    tested_rows = cells[cells["p"].notna()]
    assert list(tested_rows["p_holm"]) == pytest.approx(list(multipletests(expected_p, method="holm")[1]))
    for row in tested_rows.to_dict("records"):
        significant_result = "better" if reference == "baseline" else WORSE
        assert row["result"] == (significant_result if row["p_holm"] < 0.05 else TIED)


def test_pooled_cells_hold_all_numbers_of_worked_examples() -> None:
    pooled_cells = rank([build(name, solves) for name, solves in SOLVES.items()]).pooled
    assert list(pooled_cells["shot_num"]) == ["all"] * 3
    assert list(pooled_cells["experiment"]) == ["high", "middle", "low"]
    means = [np.mean([compute_rate(SOLVES[name], k) for k in SHOT_NUMS]) for name in pooled_cells["experiment"]]
    assert list(pooled_cells["value"]) == pytest.approx(means)
    assert set(pooled_cells["test"].dropna()) == {"sign-flip"}


def test_shot_nums_choose_the_cells() -> None:
    experiments = [build(name, solves) for name, solves in SOLVES.items()]
    assert set(rank(experiments, shot_nums=[1]).cells["shot_num"]) == {1}
    with pytest.raises(PredictionsError, match="no such number"):
        rank(experiments, shot_nums=[3])


def test_worse_than_the_baseline() -> None:
    cells = rank([build("first", solve_high), build("second", solve_low)], has_baseline=True).cells
    assert list(cells["experiment"]) == ["first", "second"] * 2
    assert list(cells["result"]) == [BASELINE, "worse"] * 2


def test_equal_values_share_their_rank() -> None:
    mirror = build("mirrored", lambda i, k: solve_high(COUNT - 1 - i, k))
    cells = rank([build("low", solve_low), build("high", solve_high), mirror]).cells
    first = cells[cells["shot_num"] == 0]
    assert list(first["experiment"]) == ["high", "mirrored", "low"]
    assert list(first["rank"]) == [1, 1, 3]
    assert list(first["result"]) == [BEST, BEST, WORSE]
    assert first["p"].iloc[1] == 1.0  # it is tested against the first of them all the same


def test_answers_of_the_baseline_are_not_tested() -> None:
    experiments = [build("a", solve_low), build("b", solve_low), build("c", solve_high)]
    cells = rank(experiments, has_baseline=True, shot_nums=[0]).cells.set_index("experiment")
    assert dict(cells["result"]) == {"a": BASELINE, "b": SAME, "c": "better"}
    assert pd.isna(cells["p_holm"]["b"])
    assert cells["p_holm"]["c"] == cells["p"]["c"]  # a family of one
    best = rank(experiments, shot_nums=[0]).cells.set_index("experiment")
    assert dict(best["result"]) == {"c": BEST, "a": WORSE, "b": WORSE}
    variants = [build("a", solve_low), build("b", solve_low, detail="in other words")]
    assert set(rank(variants, has_baseline=True).cells["result"]) == {BASELINE, TIED}


@pytest.mark.parametrize("has_baseline", [False, True])
def test_identical_files_are_not_tested(has_baseline: bool) -> None:
    experiments = [build("a", solve_low, [SFT, GRPO]), build("b", solve_high, [SFT, GRPO])]
    experiments[1] = replace(experiments[1], digests=experiments[1].digests | {SFT: experiments[0].digests[SFT]})
    cells = rank(experiments, has_baseline).cells
    assert set(cells[cells["method"] == "sft"]["result"]) == {SAME}
    assert cells[cells["method"] == "sft"]["p_holm"].isna().all()
    assert SAME not in set(cells[cells["method"] == "grpo"]["result"])


def test_tasks_with_clusters_are_ranked_by_reward() -> None:
    """The best by success may not be the best by reward."""
    careful, daring = build("careful", solve_low, households=8), build("daring", solve_high, households=8)
    outcomes = daring.outcomes.assign(reward=lambda frame: frame["reward"] - 5)
    ranking = rank_experiments([replace(daring, outcomes=outcomes), careful], load_subject("economy"), BY)
    assert ranking.quantity == "reward"
    assert list(ranking.cells["experiment"]) == ["careful", "daring"] * 2
    assert set(ranking.cells["test"].dropna()) == {"sign-flip of households"}


def build_overlap(households: int = 0) -> Overlap:
    experiments = [build(name, solves, households=households) for name, solves in SOLVES.items()]
    return find_overlap(experiments, cluster="household" if households else None)


def test_success_of_cells() -> None:
    overlap = build_overlap()
    [measure] = build_measures(load_subject("planning"), overlap, BY)
    assert isinstance(measure, SuccessMeasure)
    assert (measure.quantity, measure.compute_rates([]), measure.compute_differences([])) == ("success", [], [])
    for is_pooled in (False, True):
        for key, frames in list_cells(overlap, is_pooled):
            shot_nums = SHOT_NUMS if is_pooled else [key["shot_num"]]
            rates = [np.mean([compute_rate(solves, k) for k in shot_nums]) for solves in SOLVES.values()]
            rows = measure.compute_rates(frames)
            assert [row["value"] for row in rows] == pytest.approx(rates)
            [difference] = measure.compute_differences([(frames[0], frames[1])])
            assert difference["difference"] == pytest.approx(100 * (rates[1] - rates[0]))
            assert {row["interval"] for row in [*rows]} == {"bootstrap" if is_pooled else "wilson"}


def test_problems_are_resampled_within_their_domains() -> None:
    """Every problem of one domain is solved, and all but one of the other fail, so that little is left to vary."""
    experiments = [build(name, lambda i, _k: i % 2 == 0 or i == 1) for name in "ab"]  # the domains alternate
    [(_, frames)] = list_cells(find_overlap(experiments), pooled=True)
    [row] = SuccessMeasure(BY).compute_rates(frames[:1])
    assert row["ci_low"] == 0.5 < row["value"] < row["ci_high"] < 0.75
    [difference] = SuccessMeasure(BY).compute_differences([(frames[0], frames[1])])  # of equal answers
    assert (difference["difference"], difference["interval"], difference["p"]) == (0, "newcombe", 1)
    assert difference["ci_low"] < 0 < difference["ci_high"]


@pytest.mark.parametrize(("number", "column", "scale"), [(0, "success", 100.0), (1, "reward", 1.0)])
def test_means_over_clusters(number: int, column: str, scale: float) -> None:
    overlap = build_overlap(households=8)
    measure = build_measures(load_subject("economy"), overlap, BY)[number]
    assert isinstance(measure, ClusterMeasure)
    assert measure.quantity == column
    [(_, (low, high, _middle))] = list_cells(overlap, pooled=True)
    bootstrap = ClusterBootstrap(low["household"], BY)
    [row] = measure.compute_rates([high])
    assert (row["seeds"], row["n"]) == (1, COUNT)
    assert (row["value"], row["ci_low"], row["ci_high"]) == pytest.approx(bootstrap.estimate_mean(high, column))
    assert row["value"] == pytest.approx(high[column].mean())
    [difference] = measure.compute_differences([(low, high)])
    assert (difference["seeds"], difference["n"]) == (1, COUNT)
    assert difference["difference"] == pytest.approx(scale * (high[column].mean() - low[column].mean()))
    assert difference["ci_low"] < difference["difference"] < difference["ci_high"]
    assert (difference["interval"], difference["test"]) == ("households", "sign-flip of households")
    sums = (high[column].astype(float) - low[column].astype(float)).groupby(low["household"]).sum()
    signs = np.array(np.meshgrid(*[[1, -1]] * 8)).reshape(8, -1)
    flipped_sums = np.abs(signs.T @ sums.to_numpy())
    assert difference["p"] == pytest.approx((flipped_sums >= abs(sums.sum()) - 1e-6).mean(), abs=0.01)
    mean_frames = [frame.groupby(["id", "household", "seed"], as_index=False)[column].mean() for frame in (low, high)]
    detectable_difference = scale * bootstrap.compute_detectable_difference(mean_frames, column)
    assert difference["detectable_difference"] == pytest.approx(detectable_difference)

"""Analysis of the economy on constructed answers: measures with known values, errors, and the section of the page."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from planward.analysis.cells import Uncertainty
from planward.analysis.clusters import ClusterBootstrap, pair_predictions
from planward.analysis.outcomes import PredictionsError
from planward.analysis.statistics import adjust_p_values
from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.records import Prediction, Record
from planward.core.runs import BASE, Run
from planward.params import ParamsError
from planward.report.sections.task import TaskSection
from planward.stages import analyse
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.economy.environment.states import State
from planward.tasks.economy.reporting.analysis import (
    build_answers,
    compute_against_reference,
    compute_baselines,
    compute_collapse,
    compute_decisions,
    compute_histograms,
    compute_paired_differences,
    compute_requirements,
    compute_tables,
)
from planward.tasks.economy.reporting.section import build_section
from planward.tasks.planning.config import PlanningParams

UNCERTAINTY = Uncertainty(confidence=0.95, resamples=200, seed=3407)
SIZES, SHOTS = (100, 200), (0, 2)
HOUSEHOLDS, MONTHS = 12, 4
TRAINING = range(100, 160)  # households of the training split
HOSTILE = "<script>alert(1)</script>"
PROSE = f'Well, "work": 0.4 and "consumption": 0.6 {HOSTILE}'  # accepted by the lenient parser only


def build_frame(
    values: Sequence[tuple[float, float]],
    method: str = "base",
    size: int = 0,
    seed: int = 1,
    months: int = 2,
    rewards: Sequence[float] | None = None,
    shot_num: int = 0,
) -> pd.DataFrame:
    """Answers with these decisions (work, consumption) and `months` per household; references increase evenly."""
    n = len(values)
    rows = {
        "id": [f"p{i:03}" for i in range(n)],
        "household": [f"h{i // months}" for i in range(n)],
        "method": method,
        "dataset_size": size,
        "seed": seed,
        "shot_num": shot_num,
        "reward": np.zeros(n) if rewards is None else np.asarray(rewards, dtype=float),
        "good": False,
        "strict": True,
        "lenient": True,
        **{name: [value[i] for value in values] for i, name in enumerate(("work", "consumption"))},
        **{f"reference_{name}": np.linspace(0, 1, n) for name in ("work", "consumption")},
    }
    return pd.DataFrame(rows)


def build_bootstrap(answers: pd.DataFrame, uncertainty: Uncertainty = UNCERTAINTY) -> ClusterBootstrap:
    return ClusterBootstrap(answers["household"], uncertainty)


def build_problem(household: int, month: int) -> dict[str, Any]:
    """A test problem, whose reference decision follows from household and month."""
    work, consumption = choose_reference(household, month)
    return {
        "id": f"i{household:02}{month}",
        "prompt": "",
        "response": json.dumps({"work": work, "consumption": consumption}),
        "score": 1.0,
        "bucket": "easy",
        "meta": {
            "scenario": choose_scenario(month),
            "domain_file": "economy",
            "problem_file": f"h{household:02}-m{month}",
            "household": household,
            "month": month,
            "threshold": 0.75,
            "state": asdict(build_state(household, month)),
        },
    }


def build_state(household: int, month: int) -> State:
    return State(
        employed=choose_scenario(month) == "employed",
        age=30.5 + household % 7,
        wage=3000.0 + 100 * (household % 11),
        income=2000.0,
        wealth=1000.0 + 500 * month,
        disposable=1800.0 + 10 * household,
        bracket=2,
        price=1.0,
        inflation=0.02,
        interest=0.03,
        unemployment=0.08,
        transfer=600.0,
        consumption=1500.0,
    )


def choose_reference(household: int, month: int) -> tuple[float, float]:
    return (7 * household + month) % 20 / 20, (3 * household + 5 * month) % 20 / 20


def choose_scenario(month: int) -> str:
    return "unemployed" if month == 3 else "employed"


def build_completion(run: Run, household: int, month: int) -> str:
    """Base: constant, but prose for the first month of every third household; SFT: 0.1 off; GRPO: the reference."""
    work, consumption = choose_reference(household, month)
    if run.method == "base":
        return PROSE if month == 0 and household % 3 == 0 else '{"work": 0.5, "consumption": 0.5}'
    offset = 0.1 if run.method == "sft" else 0.0
    return json.dumps({"work": round(abs(work - offset), 2), "consumption": consumption})


def build_prediction(run: Run, household: int, month: int, shot_num: int) -> dict[str, Any]:
    """The reward is 1 minus the distances from the reference decision."""
    text, (work, consumption) = build_completion(run, household, month), choose_reference(household, month)
    decision = None if text == PROSE else json.loads(text)
    reward = -1.0 if decision is None else 1 - abs(decision["work"] - work) - abs(decision["consumption"] - consumption)
    good = reward >= 0.95
    return {
        "id": f"i{household:02}{month}",
        "domain": choose_scenario(month),
        "bucket": "easy",
        "score": 1.0,
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed or 3407,
        "shot_num": shot_num,
        "shot_ids": [f"t{k}" for k in range(shot_num)],
        "prompt": f"(age 12) (wealth 17) {HOSTILE} decide",
        "completion": text,
        "plan": "" if decision is None else text,
        "label": "format_error" if decision is None else "good_decision" if good else "poor_decision",
        "success": good,
        "reward": reward,
        "detail": "",
        "plan_size": 0,
        **dict.fromkeys(["failing_step", "goals_satisfied", "goals_total"]),
    }


def write_results(root: Path, runs: Sequence[Run]) -> None:
    """Write problems, and the predictions of each run on those of the test split."""
    months = list(product(range(HOUSEHOLDS), range(MONTHS)))
    write_jsonl(root / "results/economy/score/test.jsonl", [build_problem(h, m) for h, m in months])
    training = [build_problem(h, m) for h, m in product(TRAINING, range(MONTHS))]
    write_jsonl(root / "results/economy/score/train.jsonl", training)
    for run in runs:
        rows = [build_prediction(run, h, m, k) for k in SHOTS for h, m in months]
        write_jsonl(root / f"results/economy/predictions/{run.name}.jsonl", rows)
        write_json(root / f"results/economy/predictions/{run.name}.json", {"run": run.as_dict("economy")})


def list_runs(seed: int = 3407) -> list[Run]:
    return [BASE, *(Run(method, n, seed) for method in ("sft", "grpo") for n in SIZES)]


@pytest.fixture(scope="module")
def params(shipped_economy: EconomyParams) -> EconomyParams:
    """The shipped parameters with few resamples and the dataset sizes of this file."""
    compare = shipped_economy.compare.model_copy(update={"resamples": 200})
    return shipped_economy.model_copy(update={"compare": compare, "dataset_sizes": list(SIZES)})


@pytest.fixture
def tree(project: Path) -> Path:
    """A project with the economy's predictions."""
    write_results(project, list_runs())
    return project


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory, params: EconomyParams) -> TaskSection:
    """The section of such a project."""
    root = tmp_path_factory.mktemp("economy")
    with contextlib.chdir(root):
        write_results(root, list_runs())
        return analyse_and_render(params)


def read_table(root: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(root / f"results/economy/analysis/{name}.csv")


def analyse_and_render(params: EconomyParams) -> TaskSection:
    analyse.run(params)
    section = build_section(params, paths.results("economy"))
    assert section is not None
    return section


def list_missing(html: str) -> list[str]:
    """What the section says is missing."""
    return re.findall(r'<p class="missing">No (.*?): ', html)


# Measures


def test_measures_of_four_answers() -> None:
    answers = build_frame([(0.2, 0.5), (0.4, 0.5), (0.6, 0.5), (np.nan, np.nan)], rewards=[0.2, 0.4, 0.4, -1.0])
    answers["good"] = [False, True, True, False]
    answers["strict"] = [True, True, True, False]
    [cell] = compute_decisions(answers, build_bootstrap(answers)).to_dict("records")
    assert (cell["n"], cell["households"], cell["seeds"]) == (4, 2, 1)
    assert (cell["parse_rate"], cell["lenient_parse_rate"], cell["minus_one_share"]) == (0.75, 1.0, 0.25)
    assert cell["reward"] == pytest.approx(0.0)
    assert cell["good"] == 0.5
    assert cell["work_mean"] == pytest.approx(0.4)
    assert cell["work_sd"] == pytest.approx((0.08 / 3) ** 0.5)
    assert (cell["consumption_mean"], cell["consumption_sd"]) == (0.5, 0.0)
    # of two households, a resample holds the first, the second, or both: rewards of 0.3, -0.3, 0
    assert (cell["reward_low"], cell["reward_high"]) == pytest.approx((-0.3, 0.3))


def test_repeated_months_do_not_narrow_an_interval() -> None:
    rewards = np.random.default_rng(0).normal(0, 0.3, 20)
    single = build_frame([(0.5, 0.5)] * 20, months=1, rewards=rewards)
    repeats = pd.concat([single.assign(id=single["id"] + f"-{k}") for k in range(10)])
    bootstrap = build_bootstrap(single)
    assert bootstrap.estimate_mean(repeats, "reward") == pytest.approx(bootstrap.estimate_mean(single, "reward"))
    strangers = repeats.assign(household=repeats["id"])
    wide, narrow = (
        bootstrap.estimate_mean(repeats, "reward"),
        build_bootstrap(strangers).estimate_mean(strangers, "reward"),
    )
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_interval_of_a_mean_is_close_to_the_normal_one() -> None:
    rewards = np.random.default_rng(1).normal(0.2, 0.3, 400)
    answers = build_frame([(0.5, 0.5)] * 400, months=1, rewards=rewards)
    estimate = build_bootstrap(answers, Uncertainty(0.95, 4000, 1)).estimate_mean(answers, "reward")
    half = 1.96 * rewards.std() / 20
    assert estimate.value == pytest.approx(rewards.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * half, rel=0.08)


def test_runs_with_one_decision_each_have_no_spread_together() -> None:
    runs = [build_frame([(value, 0.5)] * 8, "grpo", 100, seed) for seed, value in ((1, 0.2), (2, 0.9))]
    answers = pd.concat(runs)
    [cell] = compute_decisions(answers, build_bootstrap(answers)).to_dict("records")
    assert cell["work_mean"] == pytest.approx(0.55)
    assert (cell["work_sd"], cell["work_sd_low"], cell["work_sd_high"]) == (0, 0, 0)
    assert cell["work_mean_low"] == pytest.approx(0.2)  # both seeds of a resample may be the first
    assert list(compute_collapse(answers, 0.02, build_bootstrap(answers))["collapsed"]) == [True, True]


def test_correlation_with_the_reference_is_spearmans() -> None:
    work = np.random.default_rng(2).uniform(size=30).round(1)  # with ties
    values = [(float(w), 0.3) for w in work]
    values[4] = values[11] = (np.nan, np.nan)
    answers = build_frame(values)
    answers["strict"] = answers["work"].notna()
    [run] = compute_collapse(answers, 0.02, build_bootstrap(answers)).to_dict("records")
    rows = answers.dropna()
    assert run["work_correlation"] == pytest.approx(spearmanr(rows["work"], rows["reference_work"]).statistic)
    assert run["work_correlation_low"] < run["work_correlation"] < run["work_correlation_high"]
    assert np.isnan(run["consumption_correlation"])


def test_answers_are_parsed_strictly_and_leniently() -> None:
    runs = [Run("base", 0, 0), Run("grpo", 100, 1)]
    predictions = [Prediction.model_validate(build_prediction(run, 0, m, 0)) for run in runs for m in (0, 1)]
    problems = [Record.model_validate(build_problem(0, m)) for m in (0, 1)]
    answers = build_answers(predictions, {problem.id: problem for problem in problems})
    assert list(answers["strict"]) == [False, True, True, True]
    assert list(answers["lenient"]) == [True] * 4
    assert list(answers["work"][1:]) == [0.5, *(choose_reference(0, m)[0] for m in (0, 1))]
    assert np.isnan(answers["work"][0])
    assert list(answers["reference_consumption"]) == [choose_reference(0, m)[1] for m in (0, 1)] * 2
    assert set(answers["household"]) == {"0"}
    with pytest.raises(KeyError, match="i001"):
        build_answers(predictions, {problems[0].id: problems[0]})


# Collapse


@given(st.floats(0, 1), st.floats(0, 1), st.integers(4, 40))
def test_one_decision_for_all_states_is_collapse(work: float, consumption: float, n: int) -> None:
    answers = build_frame([(work, consumption)] * n)
    [run] = compute_collapse(answers, 1e-9, build_bootstrap(answers)).to_dict("records")
    assert run["collapsed"]
    assert (run["distinct"], run["most_frequent_share"], run["work_sd_high"]) == (1, 1.0, 0.0)


@given(st.integers(0, 1000), st.sampled_from([20, 60]))
def test_evenly_spread_decisions_are_not_collapse(seed: int, n: int) -> None:
    values = np.random.default_rng(seed).permuted(np.tile(np.linspace(0, 1, n), (2, 1)), axis=1).T
    answers = build_frame([(float(w), float(c)) for w, c in values])
    [run] = compute_collapse(answers, 0.02, build_bootstrap(answers)).to_dict("records")
    assert not run["collapsed"]
    assert run["work_sd"] == pytest.approx(np.std(np.linspace(0, 1, n)))


def test_one_constant_quantity_or_no_decision_is_collapse() -> None:
    half = build_frame([(i / 10, 0.5) for i in range(10)])
    none = build_frame([(np.nan, np.nan)] * 10).assign(strict=False, method="sft", dataset_size=100)
    answers = pd.concat([half, none])
    first, second = compute_collapse(answers, 0.02, build_bootstrap(answers)).to_dict("records")
    assert first["collapsed"]
    assert second["collapsed"]
    assert (second["n"], second["distinct"]) == (0, 0)
    assert np.isnan(second["most_frequent_share"])


# Paired differences


@given(st.data())
def test_answers_are_paired_by_problem_and_seed_in_any_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    reward = st.floats(-1, 1, allow_nan=False)
    base = build_frame([(0, 0)] * n, rewards=data.draw(st.lists(reward, min_size=n, max_size=n)))
    runs = [
        build_frame([(0, 0)] * n, "grpo", 100, seed, rewards=data.draw(st.lists(reward, min_size=n, max_size=n)))
        for seed in (1, 2)
    ]
    base_rewards = {row.id: row.reward for row in base.itertuples()}
    trained_rows = pd.concat(runs)
    expected = sorted((row.id, row.seed, row.reward - base_rewards[row.id]) for row in trained_rows.itertuples())
    shuffled_parts = [part.sample(frac=1, random_state=data.draw(st.integers(0, 99))) for part in (base, trained_rows)]
    pairs = pair_predictions(*shuffled_parts, "reward", "household")
    assert sorted(pairs[["id", "seed", "difference"]].itertuples(index=False, name=None)) == expected
    assert list(pairs["household"]) == [f"h{int(problem[1:]) // 2}" for problem in pairs["id"]]
    back = pair_predictions(*reversed(shuffled_parts), "reward", "household")
    assert sorted(back["difference"]) == sorted(-pairs["difference"])


def test_different_problems_cannot_be_paired() -> None:
    a, b = build_frame([(0, 0)] * 4), build_frame([(0, 0)] * 4, "grpo", 100)
    with pytest.raises(ValueError, match="different problems"):
        pair_predictions(a, b[1:], "reward", "household")
    with pytest.raises(ValueError, match="different problems"):
        pair_predictions(a, b.assign(id=["p000", "p001", "p002", "p009"]), "reward", "household")


@pytest.mark.parametrize("seed", range(4))
def test_p_value_enumerates_all_sign_flips_of_households(seed: int) -> None:
    gaps = np.random.default_rng(seed).normal(0.1 * seed, 0.2, 16)
    answers = build_frame([(0, 0)] * 16).assign(difference=gaps)
    sums = gaps.reshape(8, 2).sum(axis=1)
    flipped_sums = [abs(np.dot(signs, sums)) for signs in product((1, -1), repeat=8)]
    expected = np.mean(np.array(flipped_sums) >= abs(sums.sum()) - 1e-9)
    assert build_bootstrap(answers).compute_p_value(answers, "difference") == pytest.approx(expected, abs=2 / 256)


def test_p_value_of_equal_signs_and_of_no_difference() -> None:
    answers = build_frame([(0, 0)] * 16).assign(gain=np.linspace(0.01, 0.3, 16), none=0.0)
    assert build_bootstrap(answers).compute_p_value(answers, "gain") == pytest.approx(2 / 2**8)
    assert build_bootstrap(answers).compute_p_value(answers, "none") == 1.0


def test_detectable_differences_do_not_depend_on_repeated_months() -> None:
    rng = np.random.default_rng(7)
    a, b, c = (build_frame([(0, 0)] * 24, rewards=rng.random(24)) for _ in range(3))
    bootstrap = build_bootstrap(a)
    pairs = [bootstrap.compute_detectable_difference(pair, "reward") for pair in ([a, b], [a, c], [b, c])]
    assert bootstrap.compute_detectable_difference([a, b, c], "reward") == pytest.approx(max(pairs))
    doubled_cells = [pd.concat([cell, cell.assign(id=cell["id"] + "x")]) for cell in (a, b)]
    assert bootstrap.compute_detectable_difference(doubled_cells, "reward") == pytest.approx(pairs[0])
    assert np.isnan(bootstrap.compute_detectable_difference([a], "reward"))


def test_paired_table_has_every_pair_with_holm_correction_and_result() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.02, 40)
    rewards = {"base": np.zeros(40) + noise, "sft": np.full(40, 0.2), "grpo": 0.2 + rng.normal(0, 0.05, 40)}
    answers = pd.concat(
        build_frame([(0, 0)] * 40, method, 0 if method == "base" else 100, rewards=values)
        for method, values in rewards.items()
    )
    table = compute_paired_differences(answers, build_bootstrap(answers))
    assert list(zip(table["method_a"], table["method_b"], strict=True)) == [
        ("base", "sft"),
        ("base", "grpo"),
        ("sft", "grpo"),
    ]
    assert list(table["p_holm"]) == adjust_p_values(list(table["p"]))
    assert list(table["result"]) == ["better", "better", "statistically tied"]
    assert table["difference"][0] == pytest.approx(0.2 - noise.mean())
    assert table["ci_low"][0] < table["difference"][0] < table["ci_high"][0]
    assert (table["n"][0], table["households"][0]) == (40, 20)
    worse = pd.concat([answers[answers["method"] == "sft"].assign(dataset_size=0, method="base"),
                       answers[answers["method"] == "base"].assign(dataset_size=100, method="grpo")])  # fmt: skip
    assert list(compute_paired_differences(worse, build_bootstrap(worse))["result"]) == ["worse"]


def test_base_alone_has_no_comparisons_and_no_requirements() -> None:
    answers = build_frame([(0.1, 0.2), (0.3, 0.4)])
    tables = compute_tables(answers, build_naive([0.1, 0.2]), 0.02, UNCERTAINTY)
    assert tables["paired"].empty
    assert tables["requirements"].empty
    assert len(tables["decisions"]) == 1
    assert list(tables["baselines"]["reward"]) == pytest.approx([0.15])
    assert tables["baselines"]["grpo_minus"].isna().all()


# Baselines


def build_naive(rewards: Sequence[float], name: str = "constant", months: int = 2) -> pd.DataFrame:
    """A baseline's decisions on the states of `build_frame`, one each."""
    n = len(rewards)
    rows = {"baseline": name, "id": [f"p{i:03}" for i in range(n)], "household": [f"h{i // months}" for i in range(n)]}
    reward = np.asarray(rewards, dtype=float)
    return pd.DataFrame(rows | {"work": 0.3, "consumption": 0.7, "reward": reward, "good": reward >= 0.5})


def test_baselines_of_four_problems() -> None:
    runs = [build_frame([(0, 0)] * 4, "grpo", 100, rewards=[-1.0] * 4)]
    runs += [
        build_frame([(0, 0)] * 4, "grpo", 200, seed, rewards=[0.2, 0.4, 0.6, gain])
        for seed, gain in ((1, 0.8), (2, 0.4))
    ]
    runs += [build_frame([(0, 0)] * 4, "grpo", 200, seed, rewards=[1.0] * 4, shot_num=2) for seed in (1, 2)]
    answers = pd.concat(runs)
    twice = pd.concat([build_naive([0, 0, 0, 0], "random"), build_naive([0.4, 0, 0, 0.8], "random")])
    table = compute_baselines(pd.concat([twice, build_naive([0.1, 0.5, 0.5, 0.9])]), answers, build_bootstrap(answers))
    random, constant = table.to_dict("records")
    assert (random["baseline"], random["n"], random["households"]) == ("random", 4, 2)
    assert (random["reward"], random["good"]) == (pytest.approx(0.15), 1 / 8)
    # of the larger size without examples, 0.5 and 0.4 by seed, minus 0.05 and 0.2 by household
    assert random["grpo_minus"] == pytest.approx(0.45 - 0.15)
    assert (constant["reward"], constant["good"]) == (pytest.approx(0.5), 0.75)
    assert (constant["work_mean"], constant["work_sd"]) == (pytest.approx(0.3), 0)
    assert constant["grpo_minus"] == pytest.approx(-0.05)
    # households' gains are 0 and 0 in the first seed, 0 and -0.2 in the second
    assert (constant["grpo_minus_low"], constant["grpo_minus_high"]) == pytest.approx((-0.2, 0))
    # and the baseline's own are 0.3 and 0.7
    assert (constant["reward_low"], constant["reward_high"]) == pytest.approx((0.3, 0.7))


# Requirements


def compute_by_requirement(answers: pd.DataFrame, bound: float = 0.02) -> dict[str, dict[str, Any]]:
    bootstrap = build_bootstrap(answers)
    table = compute_requirements(
        answers,
        compute_paired_differences(answers, bootstrap),
        compute_collapse(answers, bound, bootstrap),
        bound,
        0.95,
    )
    return {row["requirement"]: row for row in table.to_dict("records")}


def list_spread_decisions(n: int) -> list[tuple[float, float]]:
    return [(i / n, 1 - i / n) for i in range(n)]


def test_requirements_hold_for_a_good_model() -> None:
    base_rows, trained_rows = (
        build_frame(list_spread_decisions(500)),
        build_frame(list_spread_decisions(500), "grpo", 100, rewards=np.full(500, 0.1)),
    )
    checks = compute_by_requirement(pd.concat([base_rows, trained_rows]))
    assert {name: row["holds"] for name, row in checks.items()} == dict.fromkeys(checks, "yes")
    assert list(checks) == ["answers", "parse_rate", "minus_one_share", "work_sd", "consumption_sd", "reward_gain"]
    assert checks["parse_rate"]["value"] == 1
    assert checks["parse_rate"]["ci_low"] == pytest.approx(1 / (1 + 1.959964**2 / 500))  # Wilson, where all are parsed
    assert checks["reward_gain"]["value"] == pytest.approx(0.1)


def test_requirements_fail_for_a_bad_model() -> None:
    base_rows = build_frame([(0.5, 0.5)] * 40)
    trained_rows = build_frame([(0.5, 0.5)] * 40, "grpo", 100, rewards=[-1.0, *[-0.1] * 39])
    trained_rows.loc[0, "strict"] = False
    checks = compute_by_requirement(pd.concat([base_rows, trained_rows]))
    assert {row["holds"] for row in checks.values()} == {"no"}
    assert checks["minus_one_share"]["value"] == pytest.approx(1 / 40)
    assert checks["parse_rate"]["value"] == pytest.approx(39 / 40)


def test_requirements_are_unclear_where_the_interval_contains_the_bound() -> None:
    gains = [0.3, -0.1, 0.1, -0.3] * 10
    values = [(0.5 + 0.01 * w, 0.5) for w in (-3, -2, -1, 0, 0, 1, 2, 3) * 5]  # standard deviation: 0.0187
    checks = compute_by_requirement(pd.concat([build_frame(values), build_frame(values, "grpo", 100, rewards=gains)]))
    for name in ("reward_gain", "work_sd"):
        assert checks[name]["holds"] == "unclear"
        assert checks[name]["ci_low"] < checks[name]["bound"] <= checks[name]["ci_high"]


def test_requirements_fail_where_one_seed_fails() -> None:
    good, flat = build_frame(list_spread_decisions(60), "grpo", 100, 1), build_frame([(0.5, 0.5)] * 60, "grpo", 100, 2)
    flat.loc[3, ["strict", "reward"]] = [False, -1.0]
    checks = compute_by_requirement(pd.concat([build_frame(list_spread_decisions(60)), good, flat]))
    assert checks["work_sd"]["value"] == 0
    assert [checks[name]["holds"] for name in ("work_sd", "parse_rate", "minus_one_share")] == ["no"] * 3
    assert checks["parse_rate"]["value"] == pytest.approx(59 / 60)
    assert (checks["parse_rate"]["seeds"], checks["parse_rate"]["n"]) == (2, 60)


# Histograms


def test_bins_include_their_lower_end() -> None:
    answers = build_frame([(k / 20, 1.0) for k in range(21)], rewards=[round(k / 10 - 1, 1) for k in range(21)])
    table = compute_histograms(answers)
    work = table[(table["quantity"] == "work") & (table["method"] == "base")]
    assert list(work["count"]) == [1] * 19 + [2]  # 0.95 and 1
    assert list(work["low"])[7] == 0.35
    consumption = table[(table["quantity"] == "consumption") & (table["method"] == "base")]
    assert list(consumption["count"]) == [0] * 19 + [21]
    reward = table[table["quantity"] == "reward"]
    assert (len(reward), reward["low"].iloc[0], reward["high"].iloc[-1]) == (40, -1, 1)
    assert list(reward["count"]) == [1, 0] * 19 + [1, 1]
    assert set(table["method"]) == {"base", "reference"}
    assert all(part["share"].sum() == pytest.approx(1) for _, part in table.groupby(["method", "quantity"]))


def test_histograms_are_for_the_largest_size_and_fewest_examples() -> None:
    runs = [build_frame([(0.1, 0.1)] * 4, "grpo", n, shot_num=k) for n in SIZES for k in SHOTS]
    table = compute_histograms(pd.concat(runs))
    grpo = table[table["method"] == "grpo"]
    assert set(grpo["dataset_size"]) == {200}
    assert set(grpo["shot_num"]) == {0}
    assert grpo[grpo["quantity"] == "work"]["count"].sum() == 4


def test_decisions_are_summarised_by_reference_decision() -> None:
    answers = build_frame([(w, 0.5) for w in (0.0, 0.1, 0.2, 0.6, 1.0)])  # references 0, 0.25, 0.5, 0.75, 1
    answers["reference_work"] = [0.1, 0.15, 0.19, 0.95, 1.0]
    table = compute_against_reference(answers)
    work = table[table["quantity"] == "work"].to_dict("records")
    assert [(row["low"], row["high"], row["n"]) for row in work] == [(0.1, 0.2, 3), (0.9, 1.0, 2)]
    assert [row["mean"] for row in work] == pytest.approx([0.1, 0.8])
    assert (work[0]["quartile_1"], work[0]["quartile_3"]) == pytest.approx((0.05, 0.15))


# The stage


def test_the_stage_is_reproducible(tree: Path, params: EconomyParams) -> None:
    analyse.run(params)
    folder = tree / "results/economy/analysis"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(first) == {
        *(f"{name}.csv" for name in ("decisions", "paired", "collapse", "requirements", "histograms")),
        "against-reference.csv",
        "baselines.csv",
        "metrics.json",
    }
    analyse.run(params)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    cells = read_table(tree, "decisions")
    assert list(zip(cells["method"], cells["dataset_size"], cells["shot_num"], strict=True)) == [
        (run.method, run.size, k) for run in list_runs() for k in SHOTS
    ]
    # base: four of twelve households' first months are in prose; sft is 0.1 off in work; grpo is the reference
    base, sft, grpo = (cells[cells["method"] == method].iloc[0] for method in ("base", "sft", "grpo"))
    assert (base["parse_rate"], base["lenient_parse_rate"]) == (pytest.approx(44 / 48, rel=1e-5), 1)
    assert base["minus_one_share"] == pytest.approx(4 / 48, rel=1e-5)
    assert (sft["reward"], sft["good"]) == (pytest.approx(0.9, abs=0.01), pytest.approx(0, abs=0.1))
    assert (grpo["reward"], grpo["reward_low"], grpo["good"]) == (1, 1, 1)
    spread = read_table(tree, "collapse")
    assert set(spread["method"][spread["collapsed"]]) == {"base"}
    assert set(spread["distinct"][spread["method"] == "base"]) == {1}
    gains = read_table(tree, "paired")
    assert len(gains) == 2 * 2 * 3
    assert set(gains["result"][gains["method_a"] == "base"]) == {"better"}
    marks = read_table(tree, "baselines").set_index("baseline")
    assert list(marks.index) == [
        *("random", "constant", "nearest", "nearest-100", "four-nearest-mean", "reference", "best"),
    ]
    assert set(marks["n"]) == {48}
    assert (marks["grpo_minus"] + marks["reward"]).to_numpy() == pytest.approx(1, abs=1e-5)


def test_metrics_have_the_requirements_of_the_last_model(tree: Path, params: EconomyParams) -> None:
    analyse.run(params)
    metrics = json.loads((tree / "results/economy/analysis/metrics.json").read_text(encoding="utf-8"))
    assert list(metrics["runs"]) == ["base-0", "grpo-100", "grpo-200", "sft-100", "sft-200"]
    assert metrics["runs"]["grpo-200"]["reward"] == 1
    assert (metrics["must_hold"]["hold"], metrics["must_hold"]["required"]) == (5, 6)  # 48 states are too few
    assert metrics["must_hold"]["answers"] == 48
    assert metrics["baselines"]["best"] == {"reward": 1, "good": 1}
    works = [choose_reference(h, m)[0] for h, m in product(range(HOUSEHOLDS), range(MONTHS))]
    assert metrics["reference"]["work_sd"] == pytest.approx(np.std(works), abs=1e-6)


def test_runs_outside_the_parameters_are_left_out(tree: Path, params: EconomyParams) -> None:
    write_results(tree, [Run("grpo", 800, 3407), Run("grpo", 200, 1)])
    analyse.run(params)
    cells = read_table(tree, "decisions")
    assert set(cells["method"]) == {"base", "sft", "grpo"}
    assert set(cells["dataset_size"]) == {0, *SIZES}
    assert set(cells["seeds"]) == {1}


def test_seeds_are_pooled(tree: Path, params: EconomyParams) -> None:
    write_results(tree, list_runs(seed=1)[1:])
    analyse.run(params.model_copy(update={"seeds": [3407, 1]}))
    cells = read_table(tree, "decisions")
    assert list(cells["seeds"]) == [1, 1, *[2] * 8]
    assert set(read_table(tree, "collapse")["seed"][2:]) == {1, 3407}


def test_predictions_on_unknown_problems_are_refused(tree: Path, params: EconomyParams) -> None:
    path = tree / "results/economy/score/test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[1:]), encoding="utf-8")
    with pytest.raises(PredictionsError, match=r"economy/score/test\.jsonl has no problem 'i000' of a household"):
        analyse.run(params)


def test_planning_has_no_analysis(shipped_params: PlanningParams) -> None:
    with pytest.raises(ParamsError, match="the task planning has no analysis"):
        analyse.run(shipped_params)


# The section of the page


def test_section_states_findings_requirements_and_baselines(section: TaskSection, params: EconomyParams) -> None:
    assert section.title == "Economy"
    first, tally, baseline_finding, requirement_finding, collapse_finding = section.findings
    run = "GRPO (N = 200, 0 shots)"
    assert first.startswith(
        f"In the economy, {run} has a mean reward of 1.000 on 48 states of 12 households: better than base, +"
    )
    assert "GRPO is better than base in all 4 cells" in tally
    assert baseline_finding == (
        f"Compared with baselines without a language model, the mean reward of {run} is above that of random, "
        "constant, nearest, nearest-100, four-nearest-mean, reference."
    )
    assert requirement_finding == "GRPO, N = 200: 5 of 6 requirements hold; not met: states answered."
    assert collapse_finding.startswith(
        "Collapsed to nearly one decision, or not shown otherwise: base, seed 3407, 0 shots; base"
    )
    assert "Models answered the 48 states of 12 households of the test split." in section.introduction
    baselines = section.html[section.html.index("Baselines without a language model (n = 48)") :].partition("</table>")[
        0
    ]
    assert f"mean reward of {run} minus the baseline&#39;s" in baselines
    assert re.findall(r'<th scope="row">(.*?)</th>', baselines)[-3:] == ["four-nearest-mean", "reference", "best"]
    assert baselines.count("+0.000 <small>[+0.000, +0.000]</small>") == 1  # minus the best
    caption = f"Requirements after {params.grpo.steps} steps of GRPO: GRPO, N = 200, 0 shots"
    table = section.html[section.html.index(caption) :].partition("</table>")[0]
    rows = re.findall(r'<th scope="row".*?>(.*?)</th>(.*?)</tr>', table, flags=re.DOTALL)
    cells = {name: re.findall(r"<td.*?>(.*?)</td>", rest) for name, rest in rows}
    assert cells["states answered"] == ["at least 500", "48", "", "no"]
    assert cells["states answered with valid JSON, percent"] == ["100", "100.0", "[92.6, 100.0]", "yes"]
    assert cells["mean reward, minus base&#39;s on the same states"][0] == "at least 0"
    assert cells["mean reward, minus base&#39;s on the same states"][-1] == "yes"
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', section.html)
    assert panels == [
        *("good decisions, N = 100", "good decisions, N = 200", "work", "consumption", "reward"),
        *("work, decided", "consumption, decided"),
    ]
    assert list_missing(section.html) == ["series of the economy", "learning curves of the economy"]


def test_section_draws_the_economy_and_its_learning_curves(tree: Path, params: EconomyParams) -> None:
    macro = tree / "results/economy/problems/macro.csv"
    macro.parent.mkdir(parents=True)
    macro.write_text("month,work,unemployment,price\n0,0.5,0.05,1\n1,0.6,0.06,1.1\n2,0.5,0.05,1.2\n", encoding="utf-8")
    for run in list_runs()[1:]:
        folder = tree / f"results/economy/training/{run.name}"
        write_json(folder / "metrics.json", {"run": run.as_dict("economy")})
        (folder / "curves").mkdir()
        for name in ("loss", "reward"):
            (folder / f"curves/{name}.tsv").write_text(f"step\t{name}\n0\t0.1\n1\t0.2\n", encoding="utf-8")
    html = analyse_and_render(params).html
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', html)
    assert panels[7:10] == ["price", "unemployment", "mean work"]
    assert panels[10:] == ["loss", "reward", "loss", "reward"]  # SFT's, GRPO's
    assert list_missing(html) == []


def test_section_escapes_completions_and_prompts(section: TaskSection) -> None:
    assert HOSTILE not in section.html
    assert "&lt;script&gt;" in section.html
    samples = section.html[section.html.index("<h3>Sample states</h3>") :]
    # every third household's first month is answered in prose: there rewards differ most among the employed
    assert "h00-m0 (employed), rewards: base: -1.000; SFT, N = 200: 0.900; GRPO, N = 200: 1.000" in samples
    assert re.search(r"h\d\d-m3 \(unemployed\)", samples)
    assert '<p class="note">age 30.5; wage 3' in samples
    assert "; bracket 2; price 1" in samples
    assert "format error</span>" in samples
    assert "a decision is good from a reward of 0.750" in samples


@pytest.mark.usefixtures("project")
def test_there_is_no_section_without_an_analysis(params: EconomyParams) -> None:
    assert build_section(params, paths.results("economy")) is None


def test_section_of_the_base_model_alone(tree: Path, params: EconomyParams) -> None:
    for path in (tree / "results/economy/predictions").iterdir():
        if path.stem != "base-0":
            path.unlink()
    section = analyse_and_render(params)
    assert "Requirements" not in section.html
    assert section.findings == []
    assert "Answers, 0 shots (n = 48)" in section.html
    baselines = section.html[section.html.index("Baselines without a language model") :].partition("</table>")[0]
    assert re.findall(r'<th scope="col">(.*?)</th>', baselines) == ["baseline", "mean reward", "good, percent"]


def test_section_of_two_seeds(tree: Path, params: EconomyParams) -> None:
    write_results(tree, list_runs(seed=1)[1:])
    section = analyse_and_render(params.model_copy(update={"seeds": [3407, 1]}))
    assert "48 states of 12 households, the mean of 2 seeds: better than base" in section.findings[0]
    assert "and over seeds; a measure is computed for each run and\naveraged over 2 seeds" in section.html


@pytest.mark.usefixtures("tree")
def test_section_is_reproducible_and_accessible(section: TaskSection, params: EconomyParams) -> None:
    assert analyse_and_render(params) == section
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(section.introduction + section.html)
    assert {attributes.get("scope") for tag, attributes in tags if tag == "th"} == {"row", "col", "colgroup"}
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "img", "form"}
    ids = re.findall(r'\bid="([^"]*)"', section.html)
    assert len(ids) == len(set(ids))

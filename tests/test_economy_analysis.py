"""Analysis of the economy on made answers: measures with known values, refusals, and what the page says of them."""

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

from planward.params import Params, ParamsError
from planward.records import BASE, Prediction, Record, Run, write_json, write_jsonl
from planward.reporting.comparison import Uncertainty
from planward.reporting.economy import (
    against_reference,
    analysis,
    answer_rows,
    baselines,
    collapse,
    decisions,
    differences,
    histograms,
    paired,
    requirements,
)
from planward.reporting.households import Households
from planward.reporting.statistics import holm
from planward.stages import analyse
from planward.stages.compare import PredictionsError
from planward.tasks.economy.states import State
from test_report import DOMAINS, HOSTILE, missing, page, section_of, write_run

BY = Uncertainty(confidence=0.95, resamples=200, seed=3407)
SIZES, SHOTS = (100, 200), (0, 2)
HOUSEHOLDS, MONTHS = 12, 4
TRAINING = range(100, 160)  # households of the training split
PROSE = f'Well, "work": 0.4 and "consumption": 0.6 {HOSTILE}'  # the lenient reader takes it, the strict one does not


def frame(
    values: Sequence[tuple[float, float]],
    method: str = "base",
    size: int = 0,
    seed: int = 1,
    months: int = 2,
    rewards: Sequence[float] | None = None,
    shot_num: int = 0,
) -> pd.DataFrame:
    """Answers with these decisions (work, consumption); so many months a household; the reference rises evenly."""
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
        **{name: [value[place] for value in values] for place, name in enumerate(("work", "consumption"))},
        **{f"reference_{name}": np.linspace(0, 1, n) for name in ("work", "consumption")},
    }
    return pd.DataFrame(rows)


def draws_of(answers: pd.DataFrame, by: Uncertainty = BY) -> Households:
    return Households(answers["household"], by)


def record(household: int, month: int) -> dict[str, Any]:
    """A test problem; its reference decision is told by household and month."""
    work, consumption = reference(household, month)
    return {
        "id": f"i{household:02}{month}",
        "prompt": "",
        "response": json.dumps({"work": work, "consumption": consumption}),
        "score": 1.0,
        "bucket": "easy",
        "meta": {"scenario": scenario(month), "domain_file": "economy", "problem_file": f"h{household:02}-m{month}"}
        | {"household": household, "month": month, "threshold": 0.75}
        | {"state": asdict(state(household, month))},
    }


def state(household: int, month: int) -> State:
    return State(
        employed=scenario(month) == "employed",
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


def reference(household: int, month: int) -> tuple[float, float]:
    return (7 * household + month) % 20 / 20, (3 * household + 5 * month) % 20 / 20


def scenario(month: int) -> str:
    return "unemployed" if month == 3 else "employed"


def completion(run: Run, household: int, month: int) -> str:
    """Base: always the same, or prose to every third household's first month; SFT: a bit off; GRPO: the reference."""
    work, consumption = reference(household, month)
    if run.method == "base":
        return PROSE if month == 0 and household % 3 == 0 else '{"work": 0.5, "consumption": 0.5}'
    bit = 0.1 if run.method == "sft" else 0.0
    return json.dumps({"work": round(abs(work - bit), 2), "consumption": consumption})


def prediction(run: Run, household: int, month: int, shot_num: int) -> dict[str, Any]:
    """Reward: 1 less the distances from the reference decision."""
    text, (work, consumption) = completion(run, household, month), reference(household, month)
    found = None if text == PROSE else json.loads(text)
    reward = -1.0 if found is None else 1 - abs(found["work"] - work) - abs(found["consumption"] - consumption)
    good = reward >= 0.95
    return {
        "id": f"i{household:02}{month}",
        "domain": scenario(month),
        "bucket": "easy",
        "score": 1.0,
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed or 3407,
        "shot_num": shot_num,
        "shot_ids": [f"t{k}" for k in range(shot_num)],
        "prompt": f"(age 12) (wealth 17) {HOSTILE} decide",
        "completion": text,
        "plan": "" if found is None else text,
        "label": "format_error" if found is None else "good_decision" if good else "poor_decision",
        "success": good,
        "reward": reward,
        "detail": "",
        "plan_size": 0,
        **dict.fromkeys(["failing_step", "goals_satisfied", "goals_total"]),
    }


def write_economy(root: Path, runs: Sequence[Run]) -> None:
    """Problems, and the answers of each run to those of the test split."""
    months = list(product(range(HOUSEHOLDS), range(MONTHS)))
    write_jsonl(root / "results/economy/score/test.jsonl", [record(h, m) for h, m in months])
    training = [record(h, m) for h, m in product(TRAINING, range(MONTHS))]
    write_jsonl(root / "results/economy/score/train.jsonl", training)
    for run in runs:
        rows = [prediction(run, h, m, k) for k in SHOTS for h, m in months]
        write_jsonl(root / f"results/economy/predictions/{run.name}.jsonl", rows)


def all_runs(seed: int = 3407) -> list[Run]:
    return [BASE, *(Run(method, n, seed) for method in ("sft", "grpo") for n in SIZES)]


@pytest.fixture(scope="module")
def params(shipped: Params) -> Params:
    """The shipped parameters with few resamples, and the economy at the sizes of this file."""
    own = shipped.economy.model_copy(update={"own": shipped.economy.own | {"dataset_sizes": list(SIZES)}})
    few = shipped.compare.model_copy(update={"resamples": 200})
    return shipped.model_copy(update={"compare": few, "economy": own})


@pytest.fixture
def tree(project: Path) -> Path:
    """A project with the planning base, which every page needs, and the economy's answers."""
    write_run(project, BASE, DOMAINS, 6, (0,))
    write_economy(project, all_runs())
    return project


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory, params: Params) -> str:
    """The page of such a project."""
    root = tmp_path_factory.mktemp("economy")
    with contextlib.chdir(root):
        write_run(root, BASE, DOMAINS, 6, (0,))
        write_economy(root, all_runs())
        return analysed_page(root, params)


def table(root: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(root / f"results/economy/analysis/{name}.csv")


def analysed_page(root: Path, params: Params) -> str:
    analyse.run(params.of("economy"))
    return page(root, params)


def section(html: str) -> str:
    return section_of(html, "economy")


# Measures


def test_measures_of_four_answers_by_hand() -> None:
    answers = frame([(0.2, 0.5), (0.4, 0.5), (0.6, 0.5), (np.nan, np.nan)], rewards=[0.2, 0.4, 0.4, -1.0])
    answers["good"] = [False, True, True, False]
    answers["strict"] = [True, True, True, False]
    [cell] = decisions(answers, draws_of(answers)).to_dict("records")
    assert (cell["n"], cell["households"], cell["seeds"]) == (4, 2, 1)
    assert (cell["parse_rate"], cell["lenient_parse_rate"], cell["minus_one_share"]) == (0.75, 1.0, 0.25)
    assert cell["reward"] == pytest.approx(0.0)
    assert cell["good"] == 0.5
    assert cell["work_mean"] == pytest.approx(0.4)
    assert cell["work_sd"] == pytest.approx((0.08 / 3) ** 0.5)
    assert (cell["consumption_mean"], cell["consumption_sd"]) == (0.5, 0.0)
    # of two households, a resample holds the first, the second, or both: rewards of 0.3, -0.3, 0
    assert (cell["reward_low"], cell["reward_high"]) == pytest.approx((-0.3, 0.3))


def test_more_of_the_same_months_do_not_make_an_interval_narrower() -> None:
    rewards = np.random.default_rng(0).normal(0, 0.3, 20)
    single = frame([(0.5, 0.5)] * 20, months=1, rewards=rewards)
    tenfold = pd.concat([single.assign(id=single["id"] + f"-{k}") for k in range(10)])
    draws = draws_of(single)
    assert draws.mean(tenfold, "reward") == pytest.approx(draws.mean(single, "reward"))
    strangers = tenfold.assign(household=tenfold["id"])
    wide, narrow = draws.mean(tenfold, "reward"), draws_of(strangers).mean(strangers, "reward")
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_interval_of_a_mean_is_about_that_of_the_normal() -> None:
    rewards = np.random.default_rng(1).normal(0.2, 0.3, 400)
    answers = frame([(0.5, 0.5)] * 400, months=1, rewards=rewards)
    found = draws_of(answers, Uncertainty(0.95, 4000, 1)).mean(answers, "reward")
    half = 1.96 * rewards.std() / 20
    assert found.value == pytest.approx(rewards.mean())
    assert found.high - found.low == pytest.approx(2 * half, rel=0.08)


def test_runs_that_each_have_one_decision_have_no_spread_together() -> None:
    runs = [frame([(value, 0.5)] * 8, "grpo", 100, seed) for seed, value in ((1, 0.2), (2, 0.9))]
    answers = pd.concat(runs)
    [cell] = decisions(answers, draws_of(answers)).to_dict("records")
    assert cell["work_mean"] == pytest.approx(0.55)
    assert (cell["work_sd"], cell["work_sd_low"], cell["work_sd_high"]) == (0, 0, 0)
    assert cell["work_mean_low"] == pytest.approx(0.2)  # both seeds of a resample may be the first
    assert list(collapse(answers, 0.02, draws_of(answers))["collapsed"]) == [True, True]


def test_correlation_with_the_reference_is_spearmans() -> None:
    work = np.random.default_rng(2).uniform(size=30).round(1)  # with ties
    values = [(float(w), 0.3) for w in work]
    values[4] = values[11] = (np.nan, np.nan)
    answers = frame(values)
    answers["strict"] = answers["work"].notna()
    [run] = collapse(answers, 0.02, draws_of(answers)).to_dict("records")
    read = answers.dropna()
    assert run["work_correlation"] == pytest.approx(spearmanr(read["work"], read["reference_work"]).statistic)
    assert run["work_correlation_low"] < run["work_correlation"] < run["work_correlation_high"]
    assert np.isnan(run["consumption_correlation"])


def test_answers_are_read_strictly_and_leniently() -> None:
    runs = [Run("base", 0, 0), Run("grpo", 100, 1)]
    made = [Prediction.model_validate(prediction(run, 0, m, 0)) for run in runs for m in (0, 1)]
    problems = [Record.model_validate(record(0, m)) for m in (0, 1)]
    answers = answer_rows(made, {problem.id: problem for problem in problems})
    assert list(answers["strict"]) == [False, True, True, True]
    assert list(answers["lenient"]) == [True] * 4
    assert list(answers["work"][1:]) == [0.5, *(reference(0, m)[0] for m in (0, 1))]
    assert np.isnan(answers["work"][0])
    assert list(answers["reference_consumption"]) == [reference(0, m)[1] for m in (0, 1)] * 2
    assert set(answers["household"]) == {"0"}
    with pytest.raises(KeyError, match="i001"):
        answer_rows(made, {problems[0].id: problems[0]})


# Collapse


@given(st.floats(0, 1), st.floats(0, 1), st.integers(4, 40))
def test_one_decision_for_all_states_is_a_collapse(work: float, consumption: float, n: int) -> None:
    answers = frame([(work, consumption)] * n)
    [run] = collapse(answers, 1e-9, draws_of(answers)).to_dict("records")
    assert run["collapsed"]
    assert (run["distinct"], run["most_frequent_share"], run["work_sd_high"]) == (1, 1.0, 0.0)


@given(st.integers(0, 1000), st.sampled_from([20, 60]))
def test_evenly_spread_decisions_are_no_collapse(seed: int, n: int) -> None:
    values = np.random.default_rng(seed).permuted(np.tile(np.linspace(0, 1, n), (2, 1)), axis=1).T
    answers = frame([(float(w), float(c)) for w, c in values])
    [run] = collapse(answers, 0.02, draws_of(answers)).to_dict("records")
    assert not run["collapsed"]
    assert run["work_sd"] == pytest.approx(np.std(np.linspace(0, 1, n)))


def test_one_quantity_without_spread_is_a_collapse_and_so_is_no_decision_at_all() -> None:
    half = frame([(i / 10, 0.5) for i in range(10)])
    none = frame([(np.nan, np.nan)] * 10).assign(strict=False, method="sft", dataset_size=100)
    answers = pd.concat([half, none])
    first, second = collapse(answers, 0.02, draws_of(answers)).to_dict("records")
    assert first["collapsed"]
    assert second["collapsed"]
    assert (second["n"], second["distinct"]) == (0, 0)
    assert np.isnan(second["most_frequent_share"])


# Paired differences


@given(st.data())
def test_answers_are_paired_by_problem_and_seed_in_any_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    reward = st.floats(-1, 1, allow_nan=False)
    base = frame([(0, 0)] * n, rewards=data.draw(st.lists(reward, min_size=n, max_size=n)))
    runs = [
        frame([(0, 0)] * n, "grpo", 100, seed, rewards=data.draw(st.lists(reward, min_size=n, max_size=n)))
        for seed in (1, 2)
    ]
    known = {row.id: row.reward for row in base.itertuples()}
    trained = pd.concat(runs)
    expected = sorted((row.id, row.seed, row.reward - known[row.id]) for row in trained.itertuples())
    shuffled = [part.sample(frac=1, random_state=data.draw(st.integers(0, 99))) for part in (base, trained)]
    found = differences(*shuffled)
    assert sorted(found[["id", "seed", "difference"]].itertuples(index=False, name=None)) == expected
    assert list(found["household"]) == [f"h{int(problem[1:]) // 2}" for problem in found["id"]]
    back = differences(*reversed(shuffled))
    assert sorted(back["difference"]) == sorted(-found["difference"])


def test_other_problems_cannot_be_paired() -> None:
    a, b = frame([(0, 0)] * 4), frame([(0, 0)] * 4, "grpo", 100)
    with pytest.raises(ValueError, match="different problems"):
        differences(a, b[1:])
    with pytest.raises(ValueError, match="different problems"):
        differences(a, b.assign(id=["p000", "p001", "p002", "p009"]))


@pytest.mark.parametrize("seed", range(4))
def test_p_value_is_that_of_all_ways_to_swap_methods_on_households(seed: int) -> None:
    gaps = np.random.default_rng(seed).normal(0.1 * seed, 0.2, 16)
    answers = frame([(0, 0)] * 16).assign(difference=gaps)
    sums = gaps.reshape(8, 2).sum(axis=1)
    swapped = [abs(np.dot(signs, sums)) for signs in product((1, -1), repeat=8)]
    expected = np.mean(np.array(swapped) >= abs(sums.sum()) - 1e-9)
    assert draws_of(answers).p_value(answers, "difference") == pytest.approx(expected, abs=2 / 256)


def test_p_value_of_one_sign_and_of_no_difference() -> None:
    answers = frame([(0, 0)] * 16).assign(gain=np.linspace(0.01, 0.3, 16), none=0.0)
    assert draws_of(answers).p_value(answers, "gain") == pytest.approx(2 / 2**8)
    assert draws_of(answers).p_value(answers, "none") == 1.0


def test_what_is_detectable_is_of_households_and_the_same_with_each_month_told_twice() -> None:
    rng = np.random.default_rng(7)
    a, b, c = (frame([(0, 0)] * 24, rewards=rng.random(24)) for _ in range(3))
    draws = draws_of(a)
    pairs = [draws.detectable(pair, "reward") for pair in ([a, b], [a, c], [b, c])]
    assert draws.detectable([a, b, c], "reward") == pytest.approx(max(pairs))
    doubled = [pd.concat([cell, cell.assign(id=cell["id"] + "x")]) for cell in (a, b)]
    assert draws.detectable(doubled, "reward") == pytest.approx(pairs[0])
    assert np.isnan(draws.detectable([a], "reward"))


def test_paired_table_has_every_pair_with_holm_and_a_verdict() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.02, 40)
    rewards = {"base": np.zeros(40) + noise, "sft": np.full(40, 0.2), "grpo": 0.2 + rng.normal(0, 0.05, 40)}
    answers = pd.concat(
        frame([(0, 0)] * 40, method, 0 if method == "base" else 100, rewards=values)
        for method, values in rewards.items()
    )
    found = paired(answers, draws_of(answers))
    assert list(zip(found["method_a"], found["method_b"], strict=True)) == [
        ("base", "sft"),
        ("base", "grpo"),
        ("sft", "grpo"),
    ]
    assert list(found["p_holm"]) == holm(list(found["p"]))
    assert list(found["result"]) == ["better", "better", "statistically tied"]
    assert found["difference"][0] == pytest.approx(0.2 - noise.mean())
    assert found["ci_low"][0] < found["difference"][0] < found["ci_high"][0]
    assert (found["n"][0], found["households"][0]) == (40, 20)
    worse = pd.concat([answers[answers["method"] == "sft"].assign(dataset_size=0, method="base"),
                       answers[answers["method"] == "base"].assign(dataset_size=100, method="grpo")])  # fmt: skip
    assert list(paired(worse, draws_of(worse))["result"]) == ["worse"]


def test_base_alone_has_nothing_to_compare_and_no_requirements() -> None:
    answers = frame([(0.1, 0.2), (0.3, 0.4)])
    tables = analysis(answers, naive([0.1, 0.2]), 0.02, BY)
    assert tables["paired"].empty
    assert tables["requirements"].empty
    assert len(tables["decisions"]) == 1
    assert list(tables["baselines"]["reward"]) == pytest.approx([0.15])
    assert tables["baselines"]["grpo_minus"].isna().all()


# Baselines


def naive(rewards: Sequence[float], name: str = "constant", months: int = 2) -> pd.DataFrame:
    """A baseline's decisions in the states of `frame`, one each."""
    n = len(rewards)
    rows = {"baseline": name, "id": [f"p{i:03}" for i in range(n)], "household": [f"h{i // months}" for i in range(n)]}
    reward = np.asarray(rewards, dtype=float)
    return pd.DataFrame(rows | {"work": 0.3, "consumption": 0.7, "reward": reward, "good": reward >= 0.5})


def test_baselines_by_hand() -> None:
    runs = [frame([(0, 0)] * 4, "grpo", 100, rewards=[-1.0] * 4)]
    runs += [
        frame([(0, 0)] * 4, "grpo", 200, seed, rewards=[0.2, 0.4, 0.6, gain]) for seed, gain in ((1, 0.8), (2, 0.4))
    ]
    runs += [frame([(0, 0)] * 4, "grpo", 200, seed, rewards=[1.0] * 4, shot_num=2) for seed in (1, 2)]
    answers = pd.concat(runs)
    twice = pd.concat([naive([0, 0, 0, 0], "random"), naive([0.4, 0, 0, 0.8], "random")])
    found = baselines(pd.concat([twice, naive([0.1, 0.5, 0.5, 0.9])]), answers, draws_of(answers))
    random, constant = found.to_dict("records")
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


def must_hold(answers: pd.DataFrame, bound: float = 0.02) -> dict[str, dict[str, Any]]:
    draws = draws_of(answers)
    table = requirements(answers, paired(answers, draws), collapse(answers, bound, draws), bound, 0.95)
    return {row["requirement"]: row for row in table.to_dict("records")}


def spread_values(n: int) -> list[tuple[float, float]]:
    return [(i / n, 1 - i / n) for i in range(n)]


def test_requirements_hold_of_a_good_model() -> None:
    base, trained = frame(spread_values(500)), frame(spread_values(500), "grpo", 100, rewards=np.full(500, 0.1))
    found = must_hold(pd.concat([base, trained]))
    assert {name: row["holds"] for name, row in found.items()} == dict.fromkeys(found, "yes")
    assert list(found) == ["answers", "parse_rate", "minus_one_share", "work_sd", "consumption_sd", "reward_gain"]
    assert found["parse_rate"]["value"] == 1
    assert found["parse_rate"]["ci_low"] == pytest.approx(1 / (1 + 1.959964**2 / 500))  # Wilson, where all are read
    assert found["reward_gain"]["value"] == pytest.approx(0.1)


def test_requirements_fail_of_a_bad_one() -> None:
    base = frame([(0.5, 0.5)] * 40)
    trained = frame([(0.5, 0.5)] * 40, "grpo", 100, rewards=[-1.0, *[-0.1] * 39])
    trained.loc[0, "strict"] = False
    found = must_hold(pd.concat([base, trained]))
    assert {row["holds"] for row in found.values()} == {"no"}
    assert found["minus_one_share"]["value"] == pytest.approx(1 / 40)
    assert found["parse_rate"]["value"] == pytest.approx(39 / 40)


def test_what_an_interval_does_not_tell_is_unclear() -> None:
    gains = [0.3, -0.1, 0.1, -0.3] * 10
    values = [(0.5 + 0.01 * w, 0.5) for w in (-3, -2, -1, 0, 0, 1, 2, 3) * 5]  # standard deviation: 0.0187
    found = must_hold(pd.concat([frame(values), frame(values, "grpo", 100, rewards=gains)]))
    for name in ("reward_gain", "work_sd"):
        assert found[name]["holds"] == "unclear"
        assert found[name]["ci_low"] < found[name]["bound"] <= found[name]["ci_high"]


def test_one_seed_that_fails_is_a_failure() -> None:
    good, flat = frame(spread_values(60), "grpo", 100, 1), frame([(0.5, 0.5)] * 60, "grpo", 100, 2)
    flat.loc[3, ["strict", "reward"]] = [False, -1.0]
    found = must_hold(pd.concat([frame(spread_values(60)), good, flat]))
    assert found["work_sd"]["value"] == 0
    assert [found[name]["holds"] for name in ("work_sd", "parse_rate", "minus_one_share")] == ["no"] * 3
    assert found["parse_rate"]["value"] == pytest.approx(59 / 60)
    assert (found["parse_rate"]["seeds"], found["parse_rate"]["n"]) == (2, 60)


# Histograms


def test_a_bin_holds_its_lower_end() -> None:
    answers = frame([(k / 20, 1.0) for k in range(21)], rewards=[round(k / 10 - 1, 1) for k in range(21)])
    found = histograms(answers)
    work = found[(found["quantity"] == "work") & (found["method"] == "base")]
    assert list(work["count"]) == [1] * 19 + [2]  # 0.95 and 1
    assert list(work["low"])[7] == 0.35
    consumption = found[(found["quantity"] == "consumption") & (found["method"] == "base")]
    assert list(consumption["count"]) == [0] * 19 + [21]
    reward = found[found["quantity"] == "reward"]
    assert (len(reward), reward["low"].iloc[0], reward["high"].iloc[-1]) == (40, -1, 1)
    assert list(reward["count"]) == [1, 0] * 19 + [1, 1]
    assert set(found["method"]) == {"base", "reference"}
    assert all(part["share"].sum() == pytest.approx(1) for _, part in found.groupby(["method", "quantity"]))


def test_histograms_are_of_the_largest_size_and_fewest_examples() -> None:
    runs = [frame([(0.1, 0.1)] * 4, "grpo", n, shot_num=k) for n in SIZES for k in SHOTS]
    found = histograms(pd.concat(runs))
    grpo = found[found["method"] == "grpo"]
    assert set(grpo["dataset_size"]) == {200}
    assert set(grpo["shot_num"]) == {0}
    assert grpo[grpo["quantity"] == "work"]["count"].sum() == 4


def test_decisions_by_the_reference_decision() -> None:
    answers = frame([(w, 0.5) for w in (0.0, 0.1, 0.2, 0.6, 1.0)])  # references 0, 0.25, 0.5, 0.75, 1
    answers["reference_work"] = [0.1, 0.15, 0.19, 0.95, 1.0]
    found = against_reference(answers)
    work = found[found["quantity"] == "work"].to_dict("records")
    assert [(row["low"], row["high"], row["n"]) for row in work] == [(0.1, 0.2, 3), (0.9, 1.0, 2)]
    assert [row["mean"] for row in work] == pytest.approx([0.1, 0.8])
    assert (work[0]["quartile_1"], work[0]["quartile_3"]) == pytest.approx((0.05, 0.15))


# The stage


def test_stage_writes_every_table_the_same_each_time(tree: Path, params: Params) -> None:
    economy = params.of("economy")
    analyse.run(economy)
    folder = tree / "results/economy/analysis"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(first) == {
        *(f"{name}.csv" for name in ("decisions", "paired", "collapse", "requirements", "histograms")),
        "against-reference.csv",
        "baselines.csv",
        "metrics.json",
    }
    analyse.run(economy)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    cells = table(tree, "decisions")
    assert list(zip(cells["method"], cells["dataset_size"], cells["shot_num"], strict=True)) == [
        (run.method, run.size, k) for run in all_runs() for k in SHOTS
    ]
    # base: four of twelve households' first months are in prose; sft is 0.1 off in work; grpo is the reference
    base, sft, grpo = (cells[cells["method"] == method].iloc[0] for method in ("base", "sft", "grpo"))
    assert (base["parse_rate"], base["lenient_parse_rate"]) == (pytest.approx(44 / 48, rel=1e-5), 1)
    assert base["minus_one_share"] == pytest.approx(4 / 48, rel=1e-5)
    assert (sft["reward"], sft["good"]) == (pytest.approx(0.9, abs=0.01), pytest.approx(0, abs=0.1))
    assert (grpo["reward"], grpo["reward_low"], grpo["good"]) == (1, 1, 1)
    spread = table(tree, "collapse")
    assert set(spread["method"][spread["collapsed"]]) == {"base"}
    assert set(spread["distinct"][spread["method"] == "base"]) == {1}
    gains = table(tree, "paired")
    assert len(gains) == 2 * 2 * 3
    assert set(gains["result"][gains["method_a"] == "base"]) == {"better"}
    marks = table(tree, "baselines").set_index("baseline")
    assert list(marks.index) == [
        *("random", "constant", "nearest", "nearest-100", "four-nearest-mean", "reference", "best"),
    ]
    assert set(marks["n"]) == {48}
    assert (marks["grpo_minus"] + marks["reward"]).to_numpy() == pytest.approx(1, abs=1e-5)


def test_metrics_hold_the_requirements_of_the_last_model(tree: Path, params: Params) -> None:
    analyse.run(params.of("economy"))
    metrics = json.loads((tree / "results/economy/analysis/metrics.json").read_text(encoding="utf-8"))
    assert list(metrics["runs"]) == ["base-0", "grpo-100", "grpo-200", "sft-100", "sft-200"]
    assert metrics["runs"]["grpo-200"]["reward"] == 1
    assert (metrics["must_hold"]["hold"], metrics["must_hold"]["required"]) == (5, 6)  # 48 states are too few
    assert metrics["must_hold"]["answers"] == 48
    assert metrics["baselines"]["best"] == {"reward": 1, "good": 1}
    works = [reference(h, m)[0] for h, m in product(range(HOUSEHOLDS), range(MONTHS))]
    assert metrics["reference"]["work_sd"] == pytest.approx(np.std(works), abs=1e-6)


def test_sizes_and_seeds_no_longer_asked_for_are_left_out(tree: Path, params: Params) -> None:
    write_economy(tree, [Run("grpo", 800, 3407), Run("grpo", 200, 1)])
    analyse.run(params.of("economy"))
    cells = table(tree, "decisions")
    assert set(cells["method"]) == {"base", "sft", "grpo"}
    assert set(cells["dataset_size"]) == {0, *SIZES}
    assert set(cells["seeds"]) == {1}


def test_seeds_are_pooled(tree: Path, params: Params) -> None:
    write_economy(tree, all_runs(seed=1)[1:])
    analyse.run(params.model_copy(update={"seeds": [3407, 1]}).of("economy"))
    cells = table(tree, "decisions")
    assert list(cells["seeds"]) == [1, 1, *[2] * 8]
    assert set(table(tree, "collapse")["seed"][2:]) == {1, 3407}


def test_answers_to_unknown_problems_are_refused(tree: Path, params: Params) -> None:
    path = tree / "results/economy/score/test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[1:]), encoding="utf-8")
    with pytest.raises(PredictionsError, match=r"economy/score/test\.jsonl has no problem 'i000' of a household"):
        analyse.run(params.of("economy"))


def test_planning_has_no_decisions(params: Params) -> None:
    with pytest.raises(ParamsError, match="ask for --task economy"):
        analyse.run(params)


# The page


def test_page_says_what_was_decided_and_whether_it_is_enough(html: str, params: Params) -> None:
    found = section(html)
    steps = params.of("economy").grpo.steps
    sentence = "In the economy, GRPO (N = 200, 0 shots) has a mean reward of 1.000 on 48 states of 12 households: "
    assert sentence + "better than base, +" in found
    assert "GRPO is better than base in all 4 cells" in found
    assert "GRPO, N = 200: 5 of 6 requirements hold; not met: states asked." in found
    assert "Collapsed to nearly one decision, or not shown to be above it: base, seed 3407, 0 shots; base" in found
    assert (
        "Against baselines without a language model, the mean reward of GRPO (N = 200, 0 shots) is above that of "
        "random, constant, nearest, nearest-100, four-nearest-mean, reference."
    ) in found
    marks = found[found.index("Baselines without a language model (n = 48)") :].partition("</table>")[0]
    assert "mean reward of GRPO (N = 200, 0 shots) minus the baseline&#39;s" in marks
    assert re.findall(r'<th scope="row">(.*?)</th>', marks)[-3:] == ["four-nearest-mean", "reference", "best"]
    assert marks.count("+0.000 <small>[+0.000, +0.000]</small>") == 1  # minus the best
    required = found[found.index(f"What must hold after {steps} steps of GRPO: GRPO, N = 200, 0 shots") :]
    rows = re.findall(r'<th scope="row".*?>(.*?)</th>(.*?)</tr>', required.partition("</table>")[0], flags=re.DOTALL)
    cells = {name: re.findall(r"<td.*?>(.*?)</td>", rest) for name, rest in rows}
    assert cells["states asked"] == ["at least 500", "48", "", "no"]
    assert cells["states whose answer is the JSON asked for, percent"] == ["100", "100.0", "[92.6, 100.0]", "yes"]
    assert cells["mean reward, minus base&#39;s on the same states"][0] == "at least 0"
    assert cells["mean reward, minus base&#39;s on the same states"][-1] == "yes"
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', found)
    assert panels == [
        *("good decisions, N = 100", "good decisions, N = 200", "work", "consumption", "reward"),
        *("work, decided", "consumption, decided"),
    ]
    assert missing(found) == ["series of the economy", "learning curves of the economy"]


def test_page_draws_the_economy_and_its_learning(tree: Path, params: Params) -> None:
    macro = tree / "results/economy/problems/macro.csv"
    macro.parent.mkdir(parents=True)
    macro.write_text("month,work,unemployment,price\n0,0.5,0.05,1\n1,0.6,0.06,1.1\n2,0.5,0.05,1.2\n", encoding="utf-8")
    for run in all_runs()[1:]:
        folder = tree / f"results/economy/training/{run.name}/curves"
        folder.mkdir(parents=True)
        for name in ("loss", "reward"):
            (folder / f"{name}.tsv").write_text(f"step\t{name}\n0\t0.1\n1\t0.2\n", encoding="utf-8")
    found = section(analysed_page(tree, params))
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', found)
    assert panels[7:10] == ["price", "unemployment", "mean work"]
    assert panels[10:] == ["loss", "reward", "loss", "reward"]  # SFT's, GRPO's
    assert missing(found) == []


def test_completions_and_prompts_stay_text(html: str) -> None:
    found = section(html)
    assert HOSTILE not in found
    assert "&lt;script&gt;" in found
    examples = found[found.index("<h3>Some months</h3>") :]
    # a first month of every third household is in prose: there rewards differ most among the employed
    assert "h00-m0 (employed), rewards: base: -1.000; SFT, N = 200: 0.900; GRPO, N = 200: 1.000" in examples
    assert re.search(r"h\d\d-m3 \(unemployed\)", examples)
    assert '<p class="note">age 30.5; wage 3' in examples
    assert "; bracket 2; price 1" in examples
    assert "format error</span>" in examples
    assert "a decision is good from a reward of 0.750" in examples


def test_page_without_the_economy_names_it(project: Path, params: Params) -> None:
    write_run(project, BASE, DOMAINS, 6, (0,))
    html = page(project, params)
    assert "No economy: results/economy/analysis/decisions.csv has not been written." in html
    assert "In the economy" not in html


def test_one_model_alone_makes_a_section(tree: Path, params: Params) -> None:
    for path in (tree / "results/economy/predictions").glob("*.jsonl"):
        if path.stem != "base-0":
            path.unlink()
    found = section(analysed_page(tree, params))
    assert "What must hold" not in found
    assert "finding" not in found.partition("<h3>")[0]
    assert "Answers, 0 shots (n = 48)" in found
    marks = found[found.index("Baselines without a language model") :].partition("</table>")[0]
    assert re.findall(r'<th scope="col">(.*?)</th>', marks) == ["baseline", "mean reward", "good, percent"]


def test_two_seeds_on_the_page(tree: Path, params: Params) -> None:
    write_economy(tree, all_runs(seed=1)[1:])
    found = section(analysed_page(tree, params.model_copy(update={"seeds": [3407, 1]})))
    assert "48 states of 12 households, the mean of 2 seeds: better than base" in found
    assert "the months of one are alike, and over seeds; a measure is that of one run,\naveraged over 2 seeds" in found


def test_section_is_read_by_machines_and_is_the_same_each_time(html: str, tree: Path, params: Params) -> None:
    assert section(analysed_page(tree, params)) == section(html)
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(section(html))
    assert {a.get("scope") for tag, a in tags if tag == "th"} == {"row", "col", "colgroup"}
    assert all(a.get("aria-label") for tag, a in tags if tag == "svg")
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "img", "form"}
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def test_troubles_of_the_economy_stand_first(tree: Path, params: Params) -> None:
    write_jsonl(tree / "results/economy/split/quarantine.jsonl", [{"reason": "bad state: age is negative"}] * 2)
    write_json(tree / "results/economy/training/grpo-200-3407/metrics.json", {"shots_dropped": 3})
    html = analysed_page(tree, params)
    trouble = section_of(html, "failures")
    assert "<strong>States set apart: bad state</strong>" in trouble
    assert re.search(r"<li>2 <span[^>]*>\(results/economy/split/quarantine.jsonl\)", trouble)
    assert "shots_dropped = 3" in trouble
    assert "results/economy/training/grpo-200-3407/metrics.json" in trouble

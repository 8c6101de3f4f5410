"""The table of success on transfer problems: counts, paired differences, results by the interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from planward.analysis.cells import Uncertainty
from planward.analysis.transfer import COLUMNS, classify_difference, compute_transfer_table

BY = Uncertainty(confidence=0.95, resamples=200, seed=1)
RUNS = (("base", 0), ("grpo", 400))
NO_PROBLEMS = pd.DataFrame(columns=["id", "kind", "known_to_base"])


def build_outcomes(successes: dict[tuple[str, int, str, int], bool], domains: dict[str, str]) -> pd.DataFrame:
    """Outcomes by method, seed, problem and number of worked examples."""
    rows = [
        {"id": id, "domain": domains[id], "bucket": "easy", "constrained": False, "score": 1.0, "method": method}
        | {"dataset_size": dict(RUNS)[method], "seed": seed, "shot_num": shot_num, "success": success}
        for (method, seed, id, shot_num), success in successes.items()
    ]
    return pd.DataFrame(rows)


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """What two runs solved of renamed problems and their originals, with 0 and 4 shots, and of unseen ones with 0."""
    count, unseen_num = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    domains = {f"r{i}": ("ferry", "spanner")[i % 2] for i in range(count)} | {
        f"u{i}": "lift" for i in range(unseen_num)
    }
    seeds = {"base": [7], "grpo": list(range(draw(st.integers(1, 2))))}
    prompts = [(id, k) for id in domains for k in (0, 4) if k == 0 or id[0] == "r"]
    cells = [(method, seed, *prompt) for method, _ in RUNS for seed in seeds[method] for prompt in prompts]
    flags = draw(st.lists(st.booleans(), min_size=2 * len(cells), max_size=2 * len(cells)))
    successes = dict(zip(cells, flags, strict=False))
    original = {cell: flag for cell, flag in zip(cells, flags[len(cells) :], strict=True) if cell[2][0] == "r"}
    return {"domains": domains, "solved": successes, "original": original, "seeds": seeds}


@settings(max_examples=12)
@given(answers())
def test_rows_are_counts_of_the_predictions(case: dict[str, Any]) -> None:
    domains, successes, original = case["domains"], case["solved"], case["original"]
    kinds = {"r": "renamed", "u": "unseen"}
    problems = pd.DataFrame([(id, kinds[id[0]], id[0] == "r") for id in domains], columns=list(NO_PROBLEMS))
    others = {(method, seed, "x", k): True for method, _ in RUNS for seed in case["seeds"][method] for k in (0, 4)}
    originals = build_outcomes(original | others, domains | {"x": "ferry"})  # x: a test problem without a copy
    table = compute_transfer_table(problems, build_outcomes(successes, domains), originals, BY, margin=2)
    assert list(table) == COLUMNS
    table_cells = {(row.kind, row.domain, row.method, row.shot_num) for row in table.itertuples()}
    renamed_domains = {domain for id, domain in domains.items() if id[0] == "r"} | {"all"}
    assert table_cells == {
        ("renamed", domain, method, k) for domain in renamed_domains for method, _ in RUNS for k in (0, 4)
    } | {("unseen", domain, method, 0) for domain in ("lift", "all") for method, _ in RUNS}
    for row in table.itertuples():
        cells = [
            (method, seed, id, k)
            for method, seed, id, k in successes
            if method == row.method and k == row.shot_num and kinds[id[0]] == row.kind
            if row.domain in ("all", domains[id])
        ]
        assert row.known_to_base == (row.kind == "renamed")
        assert row.seeds == len(case["seeds"][row.method])
        assert row.n * row.seeds == len(cells)
        assert row.successes == sum(successes[cell] for cell in cells)
        assert row.success_rate == pytest.approx(np.mean([successes[cell] for cell in cells]))
        if row.interval == "wilson":
            low, high = proportion_confint(row.successes / row.seeds, row.n, method="wilson")
            assert (row.ci_low, row.ci_high) == pytest.approx((low, high), abs=1e-9)
        if row.kind == "unseen":
            assert np.isnan(row.difference)
            continue
        before = np.array([original[cell] for cell in cells])
        after = np.array([successes[cell] for cell in cells])
        assert row.original_success_rate == pytest.approx(before.mean())
        assert row.difference == pytest.approx(100 * (after.mean() - before.mean()))
        counts = (before & after).sum(), (before & ~after).sum(), (~before & after).sum()
        assert (row.both, row.only_original, row.only_renamed) == counts
        assert row.difference_low - 1e-9 <= row.difference <= row.difference_high + 1e-9
        assert row.result == classify_difference(row.difference_low, row.difference_high, 2)
        if row.test == "mcnemar":
            expected = mcnemar([[counts[0], counts[1]], [counts[2], 0]], exact=True).pvalue
            assert row.p == pytest.approx(expected)
    for rows in (table[table["domain"] == "all"], table[table["domain"] != "all"]):
        rows = rows.dropna(subset="p")
        assert list(rows["p_holm"]) == pytest.approx(list(multipletests(rows["p"], method="holm")[1]))


@pytest.mark.parametrize(
    ("low", "high", "result"),
    [
        (-1.9, 1.9, "equivalent"),
        (-2.0, 1.0, "undecided"),
        (-1.0, 2.0, "undecided"),
        (0.1, 1.9, "equivalent"),
        (0.1, 2.1, "higher"),
        (-5.0, -0.1, "lower"),
        (-5.0, 0.0, "undecided"),
    ],
)
def test_result_follows_the_interval(low: float, high: float, result: str) -> None:
    assert classify_difference(low, high, 2.0) == result


def test_without_problems_the_table_has_no_rows() -> None:
    table = compute_transfer_table(NO_PROBLEMS, pd.DataFrame(), pd.DataFrame(), BY, margin=2)
    assert list(table) == COLUMNS
    assert table.empty

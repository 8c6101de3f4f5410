"""pass@k and its tokens against all orders of a few samples; the table, and files that do not belong together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planward.analysis.cells import Uncertainty
from planward.analysis.pass_at_k import (
    SamplesError,
    compute_pass_at_k,
    compute_pass_at_k_table,
    compute_tokens_at_k,
    read_samples,
)
from planward.core.files import write_json, write_jsonl
from planward.core.records import SampledAnswer
from planward.core.registry import load_params
from planward.core.runs import BASE, Run
from planward.params import Params
from support import ROOT

BY = Uncertainty(0.95, 500, 1)


def build_answer(
    successes: Sequence[bool], tokens: Sequence[int] | None = None, id: str = "p", domain: str = "ferry"
) -> SampledAnswer:
    n = len(successes)
    return SampledAnswer(
        id=id,
        domain=domain,
        bucket="easy",
        constrained=False,
        method="base",
        dataset_size=0,
        seed=1,
        shot_num=0,
        shot_ids=[],
        completions=[""] * n,
        tokens=list(tokens or range(1, n + 1)),
        labels=["success_plans" if success else "goal_not_satisfied" for success in successes],
        successes=list(successes),
        plan_sizes=[0] * n,
    )


@st.composite
def answers(draw: st.DrawFn) -> tuple[SampledAnswer, int]:
    n = draw(st.integers(1, 6))
    successes = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    tokens = draw(st.lists(st.integers(1, 90), min_size=n, max_size=n))
    return build_answer(successes, tokens), draw(st.integers(1, n))


@given(answers())
def test_pass_at_k_is_the_share_of_sets_with_a_success(sample: tuple[SampledAnswer, int]) -> None:
    answer, k = sample
    sets = list(combinations(answer.successes, k))
    assert compute_pass_at_k([answer], k)[0] == pytest.approx(sum(map(any, sets)) / len(sets))


@given(answers())
def test_tokens_are_those_up_to_the_first_success_over_all_orders(sample: tuple[SampledAnswer, int]) -> None:
    answer, k = sample
    orders = list(permutations(zip(answer.tokens, answer.successes, strict=True)))
    total = 0
    for order in orders:
        for tokens, success in order[:k]:
            total += tokens
            if success:
                break
    assert compute_tokens_at_k([answer], k)[0] == pytest.approx(total / len(orders))


def test_more_samples_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="problem p: pass@3 needs at least 3 samples"):
        compute_pass_at_k([build_answer([True, False])], 3)
    with pytest.raises(ValueError, match="problem p: 3 samples are needed"):
        compute_tokens_at_k([build_answer([True, False])], 3)


def test_table_has_each_domain_and_k() -> None:
    rows = [build_answer([True, False, False, False], id=f"f{i}") for i in range(8)]
    rows += [build_answer([False] * 4, id=f"b{i}", domain="blocksworld") for i in range(8)]
    table = compute_pass_at_k_table({("base", 0): [rows]}, [1, 4], BY)
    assert list(table["domain"]) == ["all", "all", "blocksworld", "blocksworld", "ferry", "ferry"]
    assert list(table["pass_at_k"]) == [0.125, 0.5, 0, 0, 0.25, 1]
    assert list(table["n"]) == [16, 16, 8, 8, 8, 8]
    assert list(table["tokens"])[3:] == [10, 2.5, pytest.approx(sum([1, 3, 4.5, 5.5]) / 4 + 0.5, abs=2)]
    all_rows = table[table["domain"] == "all"]
    assert (all_rows["ci_low"] <= all_rows["pass_at_k"]).all()
    assert (all_rows["ci_high"] >= all_rows["pass_at_k"]).all()
    no_success, all_success = table.iloc[3], table.iloc[5]
    assert no_success["ci_low"] == 0 < no_success["ci_high"]  # eight failures do not prove that nothing can succeed
    assert all_success["ci_low"] < 1 == all_success["ci_high"]


def test_table_names_run_and_samples() -> None:
    runs = {("sft", 200): [[build_answer([True, False, False])], [build_answer([True, True, False])]]}
    row, ferry = compute_pass_at_k_table(runs, [1], BY).to_dict("records")
    assert ferry == row | {"domain": "ferry"}
    low, high = row.pop("ci_low"), row.pop("ci_high")
    assert 0 <= low < 0.5 < high <= 1
    assert row == {
        "method": "sft",
        "dataset_size": 200,
        "shot_num": 0,
        "domain": "all",
        "k": 1,
        "seeds": 2,
        "n": 1,
        "samples": 3,
        "pass_at_k": pytest.approx(0.5),
        "tokens": pytest.approx(2),
    }


@pytest.fixture
def params() -> Params:
    samples = {"count": 2, "methods": ["sft"], "dataset_size": 200}
    params = load_params(root=ROOT)
    return params.model_copy(
        update={"evaluate": params.evaluate.model_copy(update={"samples": type(params.evaluate.samples)(**samples)})}
    )


def write_samples(folder: Path, run: Run, rows: Sequence[SampledAnswer]) -> None:
    write_jsonl(folder / f"{run.name}.jsonl", (row.model_dump() for row in rows))
    write_json(folder / f"{run.name}.json", {"run": run.as_dict("planning")})


def test_files_of_runs_that_were_not_asked_for_are_left_out(tmp_path: Path, params: Params) -> None:
    rows = [build_answer([True, False])]
    for run in (BASE, Run("sft", 200, 3407), Run("sft", 400, 3407), Run("grpo", 200, 3407)):
        write_samples(tmp_path, run, rows)
    assert read_samples(tmp_path, params) == {("base", 0): [rows], ("sft", 200): [rows]}


def test_seeds_of_a_run_are_read_together(tmp_path: Path, params: Params) -> None:
    params = params.model_copy(update={"seeds": [1, 2]})
    by_seed = {seed: [build_answer([seed == 2, False])] for seed in (1, 2)}
    for seed, rows in by_seed.items():
        write_samples(tmp_path, Run("sft", 200, seed), rows)
    assert read_samples(tmp_path, params) == {("sft", 200): [by_seed[1], by_seed[2]]}


def test_files_of_other_problems_are_named(tmp_path: Path, params: Params) -> None:
    write_samples(tmp_path, BASE, [build_answer([True, False])])
    write_samples(tmp_path, Run("sft", 200, 3407), [build_answer([True, False, True])])
    with pytest.raises(SamplesError, match=r"sft-200-3407\.json: other problems or numbers of samples"):
        read_samples(tmp_path, params)


def test_no_samples_give_an_empty_table(tmp_path: Path, params: Params) -> None:
    write_samples(tmp_path, BASE, [])
    table = compute_pass_at_k_table(read_samples(tmp_path, params), params.evaluate.samples.ks, BY)
    assert table.empty
    assert {"k", "pass_at_k", "tokens"} <= set(table.columns)


@pytest.mark.parametrize(("count", "ks"), [(0, []), (1, [1]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])])
def test_ks_are_powers_of_two_and_the_count(params: Params, count: int, ks: list[int]) -> None:
    assert params.evaluate.samples.model_copy(update={"count": count}).ks == ks

"""Endpoints in the tables and on the page, beside the run's own methods."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from planward.core.registry import load_params
from planward.core.runs import Run
from planward.stages import compare
from result_trees import (
    DOMAINS,
    find_missing,
    render_page,
    select_section,
    write_other_results,
    write_params,
    write_predictions,
    write_run,
)

SIZES, SHOTS = (100, 200), (0, 1)
ENDPOINT = {"url": "https://example.org/v1", "model": "m", "api": "completions"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with base, sft, grpo and the endpoint gpt-x; and old predictions of another endpoint."""
    write_params(tmp_path, planning={"tracks": [], "endpoints": {"run": ["gpt-x"], "models": {"gpt-x": ENDPOINT}}})
    write_predictions(tmp_path, SIZES, DOMAINS, 10, SHOTS)
    write_run(tmp_path, Run("gpt-x", 0, 0), DOMAINS, 10, SHOTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_endpoint_is_compared_with_every_method_on_the_same_problems(tree: Path) -> None:
    compare.run(load_params(root=tree))
    success = pd.read_csv(tree / "results/tables/success.csv")
    rows = success[(success["method"] == "gpt-x") & (success["domain"] == "all")]
    assert list(rows["shot_num"]) == list(SHOTS)
    assert set(rows["dataset_size"]) == {0}
    assert (rows["ci_low"] < rows["success_rate"]).all()
    assert (rows["success_rate"] < rows["ci_high"]).all()
    paired_rows = pd.read_csv(tree / "results/tables/paired.csv")
    rows = paired_rows[(paired_rows["method_b"] == "gpt-x") & (paired_rows["shot_num"] == 0)]
    pairs = list(rows[["dataset_size", "method_a"]].itertuples(index=False, name=None))
    assert pairs == [(0, "base"), *((size, method) for size in SIZES for method in ("sft", "grpo"))]


def test_endpoint_that_params_do_not_ask_for_changes_no_table(tree: Path) -> None:
    params = load_params(root=tree)
    compare.run(params.model_copy(update={"endpoints": params.endpoints.model_copy(update={"run": []})}))
    assert "gpt-x" not in (tree / "results/tables/paired.csv").read_text()
    before = {path.name: path.read_bytes() for path in (tree / "results/tables").glob("*.csv")}
    (tree / "results/predictions/gpt-x-0.json").unlink()
    (tree / "results/predictions/gpt-x-0.jsonl").unlink()
    compare.run(params)
    assert {path.name: path.read_bytes() for path in (tree / "results/tables").glob("*.csv")} == before


def test_page_shows_the_endpoint_and_speaks_of_grpo_first(tree: Path) -> None:
    write_other_results(tree, SIZES, DOMAINS)
    html = render_page(tree, load_params(root=tree))
    assert not [name for name in find_missing(html) if "transfer" not in name.lower()]
    assert "gpt-x against GRPO" in select_section(html, "methods")
    assert "gpt-x against base" in select_section(html, "methods")
    assert html.index("N = 200, GRPO solves") < html.index("worked examples, gpt-x solves")
    assert "gpt-x (m)" in html

"""What tables and page say about the difficulty score: correlations, buckets with and without constraints."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from planward.core.registry import load_params
from planward.core.runs import Run
from planward.params import Params
from planward.report import reading
from planward.report.sections.difficulty import (
    build_constrained_buckets_table,
    build_correlation_table,
    build_kinds_table,
    build_length_table,
    list_difficulty_findings,
)
from planward.stages import compare
from result_trees import (
    DOMAINS,
    build_prediction,
    render_page,
    rewrite_rows,
    select_section,
    write_params,
    write_prediction_file,
    write_predictions,
)
from support import ROOT


@pytest.fixture
def params() -> Params:
    params = load_params(root=ROOT)
    return params.model_copy(update={"compare": params.compare.model_copy(update={"resamples": 200})})


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project (the current folder) with predictions of base, sft and grpo at N = 100."""
    write_params(tmp_path)
    write_predictions(tmp_path, (100,), DOMAINS, 10, (0, 4))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lengths(root: Path) -> None:
    """Reference plans that get longer with the score in blocksworld, shorter in ferry."""
    lengths = {(domain, i): 5 + i if domain == "blocksworld" else 25 - i for domain in DOMAINS for i in range(10)}
    rows = [f"{domain}-{i:03},test,{length}" for (domain, i), length in lengths.items()]
    (root / "results/score").mkdir()
    (root / "results/score/difficulty.csv").write_text("\n".join(["id,split,reference_length", *rows]) + "\n")


def find_rows(section: str, caption: str) -> dict[str, list[str]]:
    """The cells of the table with this caption by the first of the row; intervals are left out."""
    table = section[section.index(f"<caption><span>{caption}</span>") :].partition("</table>")[0]
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', table, flags=re.DOTALL)
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL) for name, row in rows}
    return {name: [cell.partition(" <small>")[0] for cell in row] for name, row in cells.items()}


def test_page_shows_what_the_score_predicts(tree: Path, params: Params) -> None:
    write_lengths(tree)
    path = tree / "results/predictions/base-0.jsonl"
    # base solves blocksworld's four easiest problems without examples, and everything of ferry
    rewrite_rows(
        path,
        lambda rows: [row | {"success": row["domain"] == "ferry" or row["score"] < 14} for row in rows],
    )
    section = select_section(render_page(tree, params), "where")
    assert (
        "The score ranks problems by the length of the reference plan in 1 of 2 domains (1 with the whole interval "
        "above 0), and by failures of base (0 shots) in 1 of 1 domains (1 with the whole interval below 0)."
    ) in section
    rows = find_rows(section, "Rank correlation of the difficulty score")
    assert rows["all, within domains"] == ["20", "+0.00", "-0.85", "-0.85"]
    assert rows["blocksworld"] == ["10", "+1.00", "-0.85", "-0.85"]
    assert rows["ferry"] == ["10", "-1.00", *["undefined: base solves every problem"] * 2]
    assert "Left out of the first row: success of base, 0 shots (ferry: base solves every problem)" in section
    constraint_rows = find_rows(section, "Rank correlation of the difficulty score by constraints")
    # scores 10 to 14 have constraints: base solves all but the last; it solves nothing of the rest of blocksworld
    assert constraint_rows["blocksworld"] == ["5", "+1.00", "undefined: base solves no problem", "5", "+1.00", "-0.71"]
    findings = "Within domains, its correlation with the success of base is undefined without constraints and -0.71 ["
    assert findings in section


def test_page_shows_buckets_with_and_without_constraints(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    rows = find_rows(html, "Success in percent by bucket, without and with constraints, 0 shots")
    # base solves 0, 3, 6 of blocksworld and 1, 4, 7 of ferry; problems 0 to 4 have constraints
    assert rows["base"] == ["25.0", "50.0", "0.0", "50.0", "50.0", "0.0"]
    assert list(rows) == ["base", "SFT, N = 100", "GRPO, N = 100"]
    table = pd.read_csv(tree / "results/tables/constrained-buckets.csv")
    cells = table[(table["method"] == "base") & (table["shot_num"] == 0) & (table["domain"] == "all")]
    keys = ["constrained", "bucket", "n", "successes"]
    assert cells[keys].to_numpy().tolist() == [
        *([False, "easy", 4, 1], [False, "medium", 2, 1], [False, "hard", 4, 0]),
        *([True, "easy", 4, 2], [True, "medium", 4, 2], [True, "hard", 2, 0]),
    ]


def test_without_reference_plans_or_constraints_the_page_shows_the_rest(tree: Path, params: Params) -> None:
    for path in (tree / "results/predictions").glob("*.jsonl"):
        rewrite_rows(path, lambda rows: [row | {"constrained": False} for row in rows])
    section = select_section(render_page(tree, params), "where")
    rows = find_rows(section, "Rank correlation of the difficulty score")
    assert [len(row) for row in rows.values()] == [3, 3, 3]  # n and two measures of success
    assert "by constraints" not in section
    assert "without and with constraints" not in section
    assert "The score ranks problems by failures of base (0 shots) in " in section
    assert "Within domains, its correlation" not in section


def test_without_base_and_plans_there_is_nothing_to_correlate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Params
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [build_prediction("sft", 100, "ferry", i, 0) for i in range(4)]
    write_prediction_file(tmp_path / "results/predictions", Run("sft", 100, 3407), rows)
    compare.run(params)
    tables = tmp_path / "results/tables"
    difficulty, buckets = (reading.read_table(tables / f"{name}.csv") for name in ("difficulty", "constrained-buckets"))
    assert difficulty.empty
    assert build_correlation_table(difficulty, 0) is None
    assert build_kinds_table(difficulty, 0) is None
    assert list_difficulty_findings(difficulty, 0) == []
    assert build_constrained_buckets_table(buckets, 0) is None  # all of these problems have constraints


def test_lengths_of_reference_plans_by_bucket() -> None:
    lengths = {"easy": {"median": 6.5, "max": 9}, "hard": {"median": 20, "max": 31}}
    table = build_length_table({"domains": {"ferry": {"reference_length": lengths}}})
    assert table is not None
    assert [name for name, _ in table.groups] == ["", "easy", "medium", "hard"]
    assert table.rows == [["ferry", "6.5", "9", "", "", "20", "31"]]
    assert build_length_table({"domains": {"employed": {"reference_length": {}}}}) is None
    assert build_length_table({"domains": {"ferry": {"count": 1}}}) is None  # of an earlier version

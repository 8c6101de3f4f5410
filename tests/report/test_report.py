"""Stages `compare`, `report` and `track` on a small results tree: tables, errors, and a safe and stable page."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from planward.analysis.formats import escape_latex
from planward.analysis.outcomes import PredictionsError
from planward.core.files import write_json, write_jsonl
from planward.core.registry import load_params, task_spec
from planward.core.runs import BASE, Run
from planward.params import Params, ParamsError, PhaseConfig
from planward.report.sections.breakdown import build_domain_bucket_table, parse_constraints
from planward.report.sections.curriculum import draw_curriculum_panels
from planward.report.sections.elements import Table
from planward.report.sections.learning import compute_mean_curve, downsample_curve
from planward.report.sections.run_summary import build_cost_table
from planward.stages import compare, report, track
from result_trees import (
    BUCKETS,
    DOMAINS,
    build_prediction,
    find_missing,
    remove_prediction_file,
    render_page,
    rewrite_rows,
    select_section,
    write_other_results,
    write_params,
    write_prediction_file,
    write_predictions,
    write_run,
)
from support import ROOT, read_rows


@pytest.fixture
def params() -> Params:
    return load_params(root=ROOT)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project (the current folder) with predictions of base, sft and grpo at N = 100 and 200."""
    write_params(tmp_path)
    write_predictions(tmp_path, (100, 200), DOMAINS, 10, (0, 1, 4))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_second_seed(tree: Path, params: Params) -> Params:
    """Add a second seed of every trained run; returns parameters that request it."""
    for run in [Run(method, n, 1) for method in ("sft", "grpo") for n in (100, 200)]:
        write_run(tree, run, DOMAINS, 10, (0, 1, 4))
    return params.model_copy(update={"seeds": [3407, 1]})


def add_variants(tree: Path, params: Params) -> Params:
    """Add two variants at N = 200; returns parameters that request them."""
    for run in (Run("dense", 200, 3407), Run("uniform", 200, 3407)):
        write_run(tree, run, DOMAINS, 10, (0, 1, 4))
    request = {"dataset_size": 200, "run": ["uniform", "dense"]}
    return params.model_copy(update={"ablations": params.ablations.model_copy(update=request)})


def read_csv(root: Path, name: str) -> list[dict[str, str]]:
    with (root / f"results/tables/{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_success_table_has_its_columns_order_and_wilson_intervals(tree: Path, params: Params) -> None:
    compare.run(params)
    rows = read_csv(tree, "success")
    columns = "method,dataset_size,shot_num,domain,seeds,n,successes,success_rate,ci_low,ci_high,interval"
    assert ",".join(rows[0]) == f"{columns},detectable_difference"
    runs = dict.fromkeys((row["method"], row["dataset_size"]) for row in rows)
    assert list(runs) == [("base", "0"), ("sft", "100"), ("sft", "200"), ("grpo", "100"), ("grpo", "200")]
    assert [row["domain"] for row in rows[:3]] == ["all", "blocksworld", "ferry"]
    assert len(rows) == 5 * 3 * 3
    # base solves 3 of 10 problems in each domain, 4 of 10 with four examples; Wilson by hand for 6 of 20
    assert [rows[0][c] for c in ("n", "successes", "success_rate")] == ["20", "6", "0.3"]
    assert float(rows[0]["ci_low"]) == pytest.approx(0.14547, abs=1e-5)
    assert float(rows[0]["ci_high"]) == pytest.approx(0.51897, abs=1e-5)
    buckets = [row for row in read_csv(tree, "buckets") if row["domain"] == "all" and row["method"] == "base"]
    assert [row["bucket"] for row in buckets[:3]] == list(BUCKETS)
    assert sum(int(row["successes"]) for row in buckets) == 6 + 6 + 8


def test_paired_table_is_statsmodels_test_on_the_same_problems(tree: Path, params: Params) -> None:
    compare.run(params)
    rows = read_csv(tree, "paired")
    assert len(rows) == 3 * 2 * 3
    expected = [mcnemar([[int(r["both"]), int(r["only_a"])], [int(r["only_b"]), 0]], exact=True).pvalue for r in rows]
    assert [float(r["p"]) for r in rows] == pytest.approx(expected, abs=1e-6)
    assert [float(r["p_holm"]) for r in rows] == pytest.approx(multipletests(expected, method="holm")[1], abs=1e-6)
    first = rows[1]  # base against grpo, N = 100, no examples: 6 of 20 against 16 of 20
    assert (first["method_a"], first["method_b"], first["both"], first["only_b"]) == ("base", "grpo", "6", "10")
    assert float(first["difference"]) == 50
    assert float(first["ci_low"]) < 50 < float(first["ci_high"])


def test_shots_table_marks_the_best_and_what_is_tied_with_it(tree: Path, params: Params) -> None:
    compare.run(params)
    lines = (tree / "results/tables/shots.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "| method | N | 0 shots | 1 shot | 4 shots |"
    base, grpo = lines[2], lines[-3]
    assert "†" not in base
    assert "**" not in base
    assert grpo.startswith("| GRPO | 200 | **90.0 [69.9, 97.2]**")
    assert "80.0 [58.4, 91.9] †" in lines[5]  # 16 of 20: two problems fewer is no difference
    tex = (tree / "results/tables/shots.tex").read_text(encoding="utf-8")
    assert r"\textbf{90.0 [69.9, 97.2]}" in tex
    assert r"\toprule" in tex
    assert all(line.count("&") == 4 for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line)
    assert lines[-1].startswith("Smallest detectable difference between two rows: ")
    assert escape_latex(lines[-1]) in tex
    assert escape_latex("50 % of a_b & {c}\\") == r"50 \% of a\_b \& \{c\}\textbackslash{}"


def test_every_table_of_rates_has_its_detectable_difference(tree: Path, params: Params) -> None:
    """That of a cell is at least as large as in any comparison of two rows; fewer problems detect less."""
    compare.run(add_second_seed(tree, params))
    differences = {
        name: [r["shot_num"] == "0" and float(r["detectable_difference"]) for r in read_csv(tree, name)]
        for name in ("shots", "success", "buckets", "seeds", "constraints", "labels", "paired")
    }
    largest = {name: max(values) for name, values in differences.items()}
    assert len({value for value in differences["shots"] if value}) == 1
    assert largest["shots"] >= largest["paired"] > 0
    assert largest["seeds"] > largest["shots"]  # the mean of two seeds varies less than either
    assert largest["buckets"] > largest["success"] > largest["shots"]
    assert 0 < largest["labels"] <= 100 >= largest["constraints"] > largest["shots"]


def test_several_seeds_are_pooled(tree: Path, params: Params) -> None:
    compare.run(add_second_seed(tree, params))
    cells = {(r["method"], r["dataset_size"], r["shot_num"], r["domain"]): r for r in read_csv(tree, "success")}
    base, grpo = cells["base", "0", "0", "all"], cells["grpo", "100", "0", "all"]
    assert [base[c] for c in ("seeds", "n", "successes", "success_rate", "interval")] == [
        "1",
        "20",
        "6",
        "0.3",
        "wilson",
    ]
    # 8 of 10 with one seed, 9 of 10 with the other
    assert [grpo[c] for c in ("seeds", "n", "successes", "success_rate")] == ["2", "20", "34", "0.85"]
    assert grpo["interval"] == "bootstrap"
    assert 0.6 < float(grpo["ci_low"]) < 0.85 < float(grpo["ci_high"]) <= 1
    by_seed = [row for row in read_csv(tree, "seeds") if (row["method"], row["dataset_size"]) == ("grpo", "100")]
    assert [(r["seed"], r["successes"]) for r in by_seed if r["shot_num"] == "0"] == [("1", "18"), ("3407", "16")]
    rows_by_pair = {(r["method_a"], r["method_b"]): r for r in read_csv(tree, "paired")[:3]}
    row = rows_by_pair["sft", "grpo"]
    assert (row["seeds"], row["n"], row["test"], row["interval"]) == ("2", "20", "sign-flip", "bootstrap")
    assert int(row["both"]) + int(row["only_b"]) == 34
    assert float(row["difference"]) == 100 * (int(row["only_b"]) - int(row["only_a"])) / 40 == 30
    assert float(row["ci_low"]) < 30 < float(row["ci_high"])
    assert float(row["p"]) < 0.01
    assert float(rows_by_pair["base", "grpo"]["difference"]) == 55  # one base against both
    tex = (tree / "results/tables/shots.tex").read_text(encoding="utf-8")
    assert "stratified bootstrap over problems and 2 seeds; Wilson for one seed and where all problems agree" in tex
    assert "exact sign-flip permutation test" in tex


def test_a_seed_that_one_method_lacks_is_named(tree: Path, params: Params) -> None:
    both = add_second_seed(tree, params)
    remove_prediction_file(tree / "results/predictions/sft-200-1.jsonl")
    with pytest.raises(PredictionsError, match=r"no sft-200-1\.jsonl, but others have this seed"):
        compare.run(both)
    compare.run(params)  # requests the first seed only
    assert {row["seeds"] for row in read_csv(tree, "success")} == {"1"}


def test_domains_table_compares_grpo_with_sft_in_each_domain(tree: Path, params: Params) -> None:
    compare.run(params)
    rows = read_csv(tree, "domains")
    assert [(r["shot_num"], r["dataset_size"], r["domain"]) for r in rows[:3]] == [
        ("0", "100", "blocksworld"),
        ("0", "100", "ferry"),
        ("0", "200", "blocksworld"),
    ]
    assert len(rows) == 3 * 2 * 2
    assert {(r["method_a"], r["method_b"], r["n"], r["difference"]) for r in rows} == {("sft", "grpo", "10", "30")}
    adjusted_p_values = multipletests([float(r["p"]) for r in rows], method="holm")[1]
    assert [float(r["p_holm"]) for r in rows] == pytest.approx(adjusted_p_values)
    report.run(params)
    html = (tree / "results/report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert "GRPO is significantly below SFT in 0 (with Holm's correction over all of them; 0 without it" in html


def test_ablations_compare_each_variant_with_grpo_and_are_in_no_other_table(tree: Path, params: Params) -> None:
    html = render_page(tree, add_variants(tree, params))
    rows = read_csv(tree, "ablations")
    order = product(["all", "0", "1", "4"], ["uniform", "dense"])
    assert [(r["shot_num"], r["variant"]) for r in rows] == list(order)
    uniform, dense = rows[:2]
    assert (uniform["result"], uniform["difference"], uniform["p"]) == ("statistically tied", "0", "1")
    assert dense["result"] == "worse"
    # 18, 18, 20 of 20 against 6, 6, 8 of 20
    assert float(dense["default_success_rate"]) == pytest.approx(56 / 60, abs=1e-6)
    assert float(dense["success_rate"]) == pytest.approx(20 / 60, abs=1e-6)
    assert float(dense["difference"]) == pytest.approx(-60, abs=1e-4)
    assert float(dense["difference_low"]) < -60 < float(dense["difference_high"]) < 0
    assert (dense["interval"], dense["test"], dense["n"]) == ("bootstrap", "sign-flip", "20")
    assert {row["method"] for name in ("success", "shots", "labels", "seeds") for row in read_csv(tree, name)} == {
        "base",
        "sft",
        "grpo",
    }
    section = select_section(html, "ablations")
    tie = re.search(r"uniform: statistically tied with GRPO, \+0\.0 \[-(.+), \+(.+)\] points, p = 1\.000\.", section)
    assert tie is not None
    assert all(5 < float(bound) < 25 for bound in tie.groups())  # equal answers to 20 problems are no certainty
    assert "dense: worse than GRPO, -60.0 [" in section
    assert "{&#34;grpo&#34;: {&#34;reward&#34;: &#34;dense&#34;}}" in section


def test_without_ablations_the_page_says_how_to_request_them(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    header, *rows = (tree / "results/tables/ablations.csv").read_text(encoding="utf-8").splitlines()
    assert header.startswith("variant,dataset_size,shot_num,seeds,n,successes,success_rate")
    assert rows == []
    assert "dvc exp run -S &#39;ablations.run=[uniform]&#39;" in html.replace("'", "&#39;")


def test_learning_curves_are_means_over_seeds_with_each_seed_behind(tree: Path, params: Params) -> None:
    both = add_second_seed(tree, params)
    write_other_results(tree, (100, 200), DOMAINS, (3407, 1))
    html = render_page(tree, both)
    section = select_section(html, "learning")
    success = section[section.index('aria-label="success"') :].partition("</svg>")[0]
    assert success.count("stroke-opacity:0.35") == 4  # two seeds at each of two sizes
    assert 'aria-label="success on validation"' in section
    assert "success in training" not in section
    assert "Every model was trained 2 times" in html
    assert "<summary>Each seed</summary>" in html
    assert find_missing(html) == ["selectors", "economy"]


def test_labels_and_metrics_add_up(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    rows = [row for row in read_csv(tree, "labels") if (row["method"], row["shot_num"]) == ("base", "0")]
    assert sum(int(row["count"]) for row in rows) == 20
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    metrics = json.loads((tree / "results/tables/metrics.json").read_text(encoding="utf-8"))
    panel = select_section(html, "labels").partition("</svg>")[0]
    assert re.findall(r">(\d+%)<", panel) == [f"{percent}%" for percent in range(0, 101, 20)]
    assert metrics["base-0"] == {"success_0_shot": 0.3, "success_mean": pytest.approx(1 / 3, abs=1e-6), "n": 20}


def test_constraints_table_separates_problems_with_and_without_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Params
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = []
    for i, (has_constraints, label) in enumerate(
        [
            (True, "success_plans"),
            (True, "safety_constraints_violation"),
            (True, "safety_constraints_violation"),
            (True, "goal_not_satisfied"),  # violates no constraint, and is no success either
            (True, "precondition_violation"),
            (False, "success_plans"),
            (False, "success_plans"),
            (False, "goal_not_satisfied"),
        ]
    ):
        values = {"constrained": has_constraints, "label": label, "success": label == "success_plans"}
        rows += [build_prediction("sft", 100, "ferry", i, shot_num) | values for shot_num in (0, 2)]
    rows[1] |= {"label": "safety_constraints_violation", "success": False}  # with two shots, problem 0 as well
    write_prediction_file(tmp_path / "results/predictions", Run("sft", 100, 3407), rows)
    compare.run(params)
    table = read_csv(tmp_path, "constraints")
    keys = ["method", "dataset_size", "shot_num", "constrained"]
    columns = [*keys, "seeds", "n", "successes", "success_rate", "ci_low", "ci_high", "interval"]
    columns += ["detectable_difference", "safety_violations", "safety_share"]
    assert list(table[0]) == columns
    numbers = [[row[c] for c in (*keys, "n", "successes", "safety_violations", "safety_share")] for row in table]
    assert numbers == [
        ["sft", "100", "0", "False", "3", "2", "0", "0"],
        ["sft", "100", "0", "True", "5", "1", "2", "0.4"],
        ["sft", "100", "2", "False", "3", "2", "0", "0"],
        ["sft", "100", "2", "True", "5", "0", "3", "0.6"],
    ]
    low, high = proportion_confint(1, 5, method="wilson")
    assert [float(table[1][c]) for c in ("success_rate", "ci_low", "ci_high")] == pytest.approx([0.2, low, high])


def test_page_shows_success_with_and_without_constraints(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    section = select_section(html, "constraints")
    assert "10 of the 20 test problems have safety constraints" in section
    assert "reaches the goal but violates a\nconstraint is not a success" in section
    assert re.findall(r"<caption><span>(.*?)</span>", section) == [
        f"Success in percent with and without constraints, {shots}" for shots in ("0 shots", "4 shots")
    ]
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', section)
    assert panels == ["with constraints, N = 200", "without constraints, N = 200"]
    # base, no examples: solves 0, 3, 6 of blocksworld and 1, 4, 7 of ferry; violates constraints of ferry 0 and 3
    row = section[section.index('<th scope="row">base</th>') :].partition("</tr>")[0]
    cells = re.findall(r"<td>(.*?)</td>", row, flags=re.DOTALL)
    assert [cell.partition(" <small>[")[0] for cell in cells] == ["40.0", "20.0", "2 (20.0 %)"]


def test_a_run_without_constraints_says_so(tree: Path, params: Params) -> None:
    for path in (tree / "results/predictions").glob("*.jsonl"):
        rewrite_rows(path, lambda rows: [row | {"constrained": False} for row in rows])
    html = render_page(tree, params)
    assert "No test problem of this run has safety constraints." in html
    assert "with safety constraints" not in html.partition("<script")[0]
    assert "must also keep" not in html
    assert {row["constrained"] for row in read_csv(tree, "constraints")} == {"False"}


def test_a_run_of_constrained_problems_only_makes_a_page(tree: Path, params: Params) -> None:
    for path in (tree / "results/predictions").glob("*.jsonl"):
        rewrite_rows(path, lambda rows: [row | {"constrained": True} for row in rows])
    html = render_page(tree, params)
    assert "20 of the 20 test problems have safety constraints" in html
    assert "with constraints (n = 20)" in html
    assert "without constraints (n" not in html


def test_samples_show_the_constraints_of_their_problem(tree: Path, params: Params) -> None:
    for path in (tree / "results/predictions").glob("*.jsonl"):
        rewrite_rows(path, lambda rows: [row | {"constrained": row["domain"] == "ferry"} for row in rows])
    html = render_page(tree, params)
    samples = select_section(html, "samples").split('<details class="sample">')[1:]
    assert len(samples) == 2 * report.SAMPLES_PER_DOMAIN
    for sample in samples:
        with_constraints = "<summary>ferry" in sample
        assert (", with safety constraints:" in sample) == with_constraints
        assert ("must also keep these safety constraints" in sample) == with_constraints
    assert "<code>(sometime-before (on b1 b2) (on b3 b1))</code>" in samples[-1]


@pytest.mark.parametrize(
    ("prompt", "constraints"),
    [
        ("ferry\nobjects a b\ninit (at a)\ngoal (on a)\nplan\n", ""),
        ("goal (on a)\nconstraints (always (not (p a))) (sometime (q))\nplan\n", "(always (not (p a))) (sometime (q))"),
        (
            "constraints (sometime (p))\nplan\n(a)\n<end>\ngoal (q)\nconstraints (sometime (q))\nplan\n",
            "(sometime (q))",
        ),
        # as the tokenizer of models/base decodes it: without the brackets around other brackets
        ("goal\n(on a)constraintssometime-before\n(p a)\n(q b)plan", "sometime-before (p a) (q b)"),
        (
            "(define (problem p) (:goal (q))\n (:constraints\n  (and (always (p))\n (sometime (q)))))\n\nPlan:",
            "(and (always (p)) (sometime (q)))",
        ),
    ],
)
def test_constraints_are_parsed_from_either_prompt_style(prompt: str, constraints: str) -> None:
    assert parse_constraints(prompt) == constraints


def test_intervals_have_the_requested_confidence(tree: Path, params: Params) -> None:
    narrow = params.model_copy(update={"compare": params.compare.model_copy(update={"confidence": 0.5})})
    compare.run(narrow)
    row = read_csv(tree, "success")[0]
    low, high = proportion_confint(6, 20, alpha=0.5, method="wilson")
    assert (float(row["ci_low"]), float(row["ci_high"])) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[4]], r"sft-100-3407\.jsonl: 1 duplicated rows .*blocksworld-004"),
        (lambda rows: rows[1:], r"base-0\.jsonl and .*sft-100-3407\.jsonl do not answer the same .*blocksworld-000"),
        (lambda rows: [row | {"dataset_size": 400} for row in rows], r"sft-100-3407\.jsonl: .* of sft-400-3407,"),
        (lambda rows: [*rows, {"id": "half a row"}], r"sft-100-3407\.jsonl: line 61 is no prediction"),
        (lambda rows: [*rows[:-1], rows[-1] | {"seed": 1}], r"sft-100-3407\.jsonl: .* of sft-100-1, sft-100-3407,"),
        (lambda _: [], r"sft-100-3407\.jsonl: holds no predictions"),
        (lambda rows: [rows[0] | {"constrained": False}, *rows[1:]], r"do not agree on whether .*blocksworld-000"),
    ],
)
def test_predictions_that_cannot_be_compared_are_rejected(
    tree: Path, params: Params, change: Any, message: str
) -> None:
    rewrite_rows(tree / "results/predictions/sft-100-3407.jsonl", change)
    with pytest.raises(PredictionsError, match=message):
        compare.run(params)
    assert not (tree / "results/tables").exists()


def test_missing_predictions_or_tables_name_the_stage_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Params
) -> None:
    write_params(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PredictionsError, match="run `evaluate` first"):
        compare.run(params)
    with pytest.raises(FileNotFoundError, match="run `compare` first"):
        report.run(params)


def test_page_shows_results_and_unexplained_failures(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), DOMAINS)
    rewrite_rows(
        tree / "results/predictions/sft-200-3407.jsonl", lambda rows: [*rows[:-1], rows[-1] | {"shot_ids": []}]
    )
    html = render_page(tree, params)
    assert "GRPO solves 90.0 % of 20 test problems" in html
    assert "60.0 points more than base" in html
    assert "statistically tied with SFT" in html
    assert "<strong>90.0</strong> <small>[69.9, 97.2]</small>" in html
    errors = select_section(html, "failures")
    assert "<strong>Rejected input lines: bad JSON</strong>" in errors
    assert re.search(r"<li>1 <span[^>]*>\(results/split/quarantine.jsonl\)", errors)
    assert "unmatched_names = 1" in errors
    assert "sft-200-3407.jsonl" in errors
    assert "fallback" not in errors
    assert "shots_dropped" not in errors
    assert find_missing(html) == ["selectors", "economy"]
    marks = [html.count("← fails here"), html.count("← violates a constraint")]
    assert all(marks)
    assert sum(marks) == html.count('<li class="failing">(stack b1 b2)')


def test_first_screen_shows_what_was_run_and_two_findings(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    first = html[html.index("<h1") : html.index('<h2 id="failures">')]
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", first))
    assert facts["domains"] == "blocksworld, ferry"
    assert facts["N, training problems"] == "100, 200"
    assert facts["test problems"] == "20, 10 with safety constraints"
    assert facts["worked examples"] == "0, 1, 4"
    sentences = re.findall(r"<p>(.*?)</p>", first.partition("<table>")[0])
    assert [sentence.count("Holm-adjusted p") for sentence in sentences] == [2, 0]
    assert sentences[1].startswith("Tested at every N and number of worked examples, GRPO is better than base in ")
    assert "Smallest detectable difference between two rows: " in first
    # one link per section
    assert re.findall(r'<li><a href="#(.*?)">', html) == ["results", *re.findall(r'<h2 id="(.*?)">', html)]


def test_headings_tables_and_figures_are_accessible(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), DOMAINS)
    html = render_page(tree, add_variants(tree, params))
    levels = [int(level) for level in re.findall(r"<h([1-6])", html)]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    tables = re.findall(r"<table.*?</table>", html, flags=re.DOTALL)
    assert all("<caption>" in table or " aria-label=" in table.partition(">")[0] for table in tables)
    cells = [cell for table in tables for cell in re.findall(r"<th(\s[^>]*|)>([^<]*)", table)]
    assert cells
    assert all("scope=" in attributes and text for attributes, text in cells)
    captions = re.findall(r"<caption><span>(.*?)</span>", html)
    assert len(set(captions)) == len(captions)  # a screen reader may list them without context


def test_csv_of_a_table_has_intervals_in_columns() -> None:
    table = Table("Two, rates", ["method", "1 shot", "note"], [["a, b", "50.0 [40.1, 59.9]", "x [1]"], ["c", "", "y"]])
    assert table.file == "two-rates.csv"
    assert table.csv == 'method,1 shot,"1 shot, low","1 shot, high",note\n"a, b",50.0,40.1,59.9,x [1]\nc,,,,y\n'
    grouped_table = Table("t", ["m", "1", "1"], [["a", "1", "2"]], groups=[("", 1), ("plain", 1), ("dialects", 1)])
    assert grouped_table.csv.startswith("m,plain: 1,dialects: 1\n")


def test_domain_by_bucket_shows_base_and_best(tree: Path, params: Params) -> None:
    compare.run(params)
    tables = [pd.read_csv(tree / f"results/tables/{name}.csv") for name in ("buckets", "shots")]
    table = build_domain_bucket_table(*tables)
    assert table is not None
    assert [name for name, _ in table.groups] == ["", "base", "GRPO, N = 200", "test problems"]
    assert [row[0] for row in table.rows] == list(DOMAINS)
    assert table.rows[0][-3:] == [4, 3, 3]  # easy, medium, hard problems of blocksworld
    # problems 0, 3, 6 and 9 are easy; the base solves 0, 3 and 6 (test_page_shows_success_with_and_without_constraints)
    assert str(table.rows[0][1]).startswith("75.0 [")
    assert table.heat[0, 1] == 0.75


def test_fallback_of_the_schedule_is_shown_with_its_cause(tree: Path, params: Params) -> None:
    write_other_results(tree, (100,), DOMAINS)
    path = tree / "results/schedules/grpo-100-3407.parquet"
    frame = pd.read_parquet(path)
    frame.loc[frame["domain"] == "ferry", "wanted_bucket"] = "hard"
    frame.to_parquet(path)
    run = Run("grpo", 100, 3407).as_dict("planning")
    write_json(path.with_suffix(".json"), {"run": run, "fallback_rate": 0.25})
    failures = select_section(render_page(tree, params), "failures")
    assert "drew from the nearest one</strong>: no hard problem to draw in ferry." in failures
    assert "fallback_rate = 0.25" in failures


def test_target_of_the_curriculum_is_the_mean_over_the_domains(params: Params) -> None:
    """Blocksworld has a curriculum of its own, ferry that of all; spanner is not in the schedule."""
    easy, medium, hard = ({name: float(name == bucket) for name in BUCKETS} for bucket in BUCKETS)
    curriculum = [PhaseConfig(until=0.5, **easy), PhaseConfig(until=1.0, **medium)]
    by_domain = {name: [PhaseConfig(until=1.0, **hard)] for name in ("blocksworld", "spanner")}
    params = params.model_copy(update={"curriculum": curriculum, "curriculum_by_domain": by_domain})
    rows = [{"step": step, "domain": domain, "bucket": "easy"} for step in range(4) for domain in DOMAINS]
    data: Any = SimpleNamespace(schedules={Run("grpo", 100, 3407): pd.DataFrame(rows)}, consumed={})
    (panel,) = draw_curriculum_panels(data, params)
    targets = {(label, x): y for label, x, y in panel.rows}
    for x, shares in ((0.0, (0.5, 0.0, 0.5)), (0.49, (0.5, 0.0, 0.5)), (0.5, (0.0, 0.5, 0.5)), (1.0, (0.0, 0.5, 0.5))):
        assert tuple(targets[f"{bucket}, target", x] for bucket in BUCKETS) == shares


def test_time_is_summed_over_the_stages_of_a_kind() -> None:
    stages = [
        ("planning", "sft@100-1", Run("sft", 100, 1), 30),
        ("planning", "sft@200-1", Run("sft", 200, 1), 50),
        ("economy", "sft@100-1", Run("sft", 100, 1), 10),
        ("planning", "grpo-ablation@x-100-1", Run("x", 100, 1), 9),
    ]
    rows: list[dict[str, Any]] = [
        {"stage": stage, "task": task, "run": run.as_dict(task), "cpu_s": s, "wall_s": 2 * s, "peak_rss_mb": s}
        for task, stage, run, s in stages
    ]
    rows += [
        {"stage": "embed", "task": "selectors", "cpu_s": 0.4, "wall_s": 0.8, "peak_rss_mb": 0.4},
        {"stage": "split", "task": "planning", "cpu_s": 0.6, "wall_s": 1, "peak_rss_mb": 7},
    ]
    table = build_cost_table(rows)
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ["sft", 2, "80", "80.0"],
        ["sft, economy", 1, "10", "10.0"],
        ["ablations", 1, "9", "9.0"],
        ["2 others", 2, "1", "1.0"],
        ["all", 6, "100", "100"],
    ]
    assert build_cost_table([]) is None


def test_page_shows_where_training_departed_from_the_schedule(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), DOMAINS)
    path = tree / "results/training/grpo-200-3407/consumed.parquet"
    frame = pd.read_parquet(path)
    frame.loc[5, "id"] = "another"
    frame.iloc[:-2].to_parquet(path)
    html = render_page(tree, params)
    assert "<strong>Training consumed other problems than scheduled</strong>" in html
    assert re.search(r"<li>3 rows differ <span[^>]*>\(GRPO, N = 200, seed 3407\)", html)


def test_page_shows_no_departure_where_validation_stopped_training(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), DOMAINS)
    folder = tree / "results/training/grpo-200-3407"
    frame = pd.read_parquet(folder / "consumed.parquet")
    frame[frame["step"] < 2].to_parquet(folder / "consumed.parquet")
    assert "Training consumed other problems than scheduled" in render_page(tree, params)
    metrics = json.loads((folder / "metrics.json").read_text())
    write_json(folder / "metrics.json", metrics | {"stop_step": 2})
    assert "Training consumed other problems than scheduled" not in render_page(tree, params)


def test_model_output_stays_text_and_nothing_is_loaded(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), (*DOMAINS, "<img src=x onerror=alert(1)>", "$\\frac"))
    html = render_page(tree, params)
    assert "&lt;script&gt;alert(&#39;plan&#39;)&lt;/script&gt;" in html
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(html)
    assert not {tag for tag, _ in tags} & {"link", "iframe", "object", "embed", "base", "form"}
    scripts = [attributes for tag, attributes in tags if tag == "script"]
    assert scripts == [{"type": "text/plain", "id": "browser-payload"}, {}]  # the plan browser's data and code
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    addresses = [a[key] or "" for _, a in tags for key in ("src", "href", "xlink:href") if key in a]
    assert addresses
    assert all(
        address.startswith(("#", "data:image/svg+xml;base64,", "data:text/csv;base64,")) for address in addresses
    )
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_same_results_give_the_same_bytes(tree: Path, params: Params) -> None:
    write_other_results(tree, (100, 200), DOMAINS)
    render_page(tree, params)
    files = [*sorted((tree / "results/tables").iterdir()), tree / "results/report.html"]
    first = [path.read_bytes() for path in files]
    lock = tree / "dvc.lock"  # DVC adds this stage after it ran, which must not change the page
    lock.write_text(lock.read_text(encoding="utf-8") + "  report: {cmd: planward report}\n", encoding="utf-8")
    render_page(tree, params)
    assert [path.read_bytes() for path in files] == first
    assert str(tree).encode() not in b"".join(first)


def test_missing_optional_inputs_are_named(tree: Path, params: Params) -> None:
    html = render_page(tree, params)
    for name in ("learning curves", "training metrics", "split metrics", "difficulty table", "difficulty figure"):
        assert f"No {name}: " in html
    for name in ("schedules", "records of consumed problems", "selectors", "economy", "timings"):
        assert f"No {name}: " in html
    assert "no dvc.lock yet" in html
    assert "not run from a Git checkout" in html
    assert "None: no verifier error, no rejected input line" in select_section(html, "failures")


def test_base_alone_makes_a_page(tree: Path, params: Params) -> None:
    for path in (tree / "results/predictions").glob("[sg]*.jsonl"):
        remove_prediction_file(path)
    assert "there is nothing to compare" in render_page(tree, params)


def test_mean_curves_have_every_step_of_any_seed() -> None:
    assert compute_mean_curve([[(0, 1.0), (1, 2.0)], [(1, 4.0), (2, 5.0)]]) == [(0, 1.0), (1, 3.0), (2, 5.0)]


def test_long_curves_are_averaged() -> None:
    points = [(float(step), float(step % 2)) for step in range(1001)]
    short = downsample_curve(points, max_points=100)
    assert len(short) <= 100
    assert short[-1][0] == 1000
    assert all(0.3 < y < 0.7 for _, y in short[:-1])
    assert downsample_curve(points[:5], max_points=100) == points[:5]


def test_a_track_that_is_left_out_does_not_appear(tree: Path, params: Params) -> None:
    html = render_page(tree, params.model_copy(update={"tracks": ["economy"]}))
    assert find_missing(html)[-1] == "timings"
    assert 'href="#economy"' in html
    assert "selectors" not in html.partition('<h2 id="provenance">')[0].partition("</style>")[2]
    with pytest.raises(ParamsError, match="task houses: unknown"):
        report.run(params.model_copy(update={"tracks": ["houses"]}))


def test_a_task_without_a_section_gets_the_generic_one(
    tree: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(task_spec("economy"), load_section=None)
    monkeypatch.setattr("planward.report.sections.task.task_spec", lambda _: spec)
    write_params(tree, economy={"dataset_sizes": [100, 200]})
    results = tree / "results/economy"
    for run in [BASE, *(Run(method, size, 3407) for method in ("sft", "grpo") for size in (100, 200))]:
        rows = read_rows(tree / f"results/predictions/{run.name}.jsonl")
        write_prediction_file(results / "predictions", run, rows, "economy")
    compare.run(load_params("economy"))
    write_jsonl(results / "split/quarantine.jsonl", [{"line": 1, "reason": "no threshold"}])
    html = render_page(tree, params)
    section = select_section(html, "economy")
    assert "Economy: success in percent of 20 test problems, by method" in section
    assert '<p class="finding">With 0 worked examples and N = 200, GRPO solves 90.0 % of 20 test problems' in section
    assert "<dt>tasks</dt><dd>planning, economy</dd>" in html
    assert "Rejected input lines: no threshold" in html
    assert "All 600 completions" in html


def test_track_lists_results_by_content_without_models_and_timings(tree: Path) -> None:
    hidden_file = "dialects/.snakemake_timestamp"
    for name in (
        "predictions/base-0.jsonl",
        "models/base-0/x",
        "timing/sft.json",
        "embeddings.safetensors",
        hidden_file,
    ):
        (tree / "results/selectors" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "results/selectors" / name).write_text("abc", encoding="utf-8")
    track.run("selectors")
    track.run("economy")
    document = json.loads((tree / "results/tables/tracks/selectors.json").read_text(encoding="utf-8"))
    digest = "900150983cd24fb0d6963f7d28e17f72"  # of `abc`, RFC 1321
    assert document["track"] == "selectors"
    names = ("embeddings.safetensors", "predictions/base-0.jsonl")
    assert document["files"] == {f"results/selectors/{name}": digest for name in names}
    empty = json.loads((tree / "results/tables/tracks/economy.json").read_text(encoding="utf-8"))
    assert empty == {"track": "economy", "files": {}}


def test_disagreement_of_a_stopped_run_is_a_failure(tree: Path, params: Params) -> None:
    write_json(tree / "results/training/grpo-100-3407/disagreement.json", {"problem": "ferry-001"})
    failures = select_section(render_page(tree, params), "failures")
    assert "<strong>The two verifiers disagree on a training completion; the case is kept</strong>" in failures
    assert "(results/training/grpo-100-3407/disagreement.json)" in failures

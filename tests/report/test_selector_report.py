"""Tables and page section of the selectors track on a small results tree."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from planward.analysis.outcomes import PredictionsError
from planward.analysis.selectors import ProblemDialect, compute_choices
from planward.analysis.statistics import adjust_p_values
from planward.core.files import write_json, write_jsonl
from planward.core.records import Prediction
from planward.core.runs import BASE, POINTERS, RULES, SELECTORS, Run
from planward.params import Params
from planward.report.sections.selector_examples import build_selection_samples
from planward.report.sections.selector_training import build_beam_quality_table
from planward.stages.selectors import compare as compare_selectors
from result_trees import (
    DOMAINS,
    HOSTILE,
    build_prediction,
    find_missing,
    remove_prediction_file,
    render_page,
    rewrite_rows,
    select_section,
    write_other_results,
    write_params,
    write_prediction_file,
    write_run,
)
from support import read_rows

SIZES, SHOTS, PROBLEMS = (100, 200), (1, 2), 16  # problems per domain; a fourth of them plain
SKILL = {"random": 2, "similarity": 7, "pointer-sft": 6, "pointer-rce": 7, "pointer-grpo": 11, "oracle": 15}
STALE = Run("pointer-grpo", 800, 3407)  # of a size that params.yaml does not request
PREDICTIONS, DIALECTS = Path("results/selectors/predictions"), Path("results/selectors/dialects")


def get_dialect(i: int) -> int:
    return i % 4


def name_example(domain: str, number: int, k: int) -> str:
    """The id of a training problem of a dialect."""
    return f"{domain}-d{number}-{k}"


def choose_examples(selector: str, domain: str, i: int) -> list[str]:
    """Two examples: random takes another domain, similarity the plain domain, the others the right dialect.

    The first is the same for every problem, the second depends on the problem.
    """
    other = {"blocksworld": "ferry", "ferry": "blocksworld"}[domain]
    dialect = {"random": (other, 1), "similarity": (domain, 0)}.get(selector, (domain, get_dialect(i)))
    return [name_example(*dialect, 0), name_example(*dialect, 1 + i // 8)]


def build_row(run: Run, domain: str, i: int, shot_num: int) -> dict[str, Any]:
    """The prediction on problem i, right where a fixed shuffle of the problems puts it below the selector's skill."""
    position = (5 * i + 3 * (domain == "ferry") + 4 * (run.seed == 1)) % PROBLEMS
    success = position < SKILL[run.method] + (run.size > 100) + (shot_num > 1)
    ids = choose_examples(run.method, domain, i)[:shot_num]
    examples = "".join(f"objects of {id} {HOSTILE} plan (a)\n<end>\n" for id in ids)
    return build_prediction("base", 0, domain, i, shot_num) | {
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed or 3407,
        "shot_ids": ids,
        "prompt": f"{examples}objects of the query {domain}-{i:03} plan",
        "label": "success_plans" if success else "goal_not_satisfied",
        "success": success,
    }


def write_selector(root: Path, run: Run, shots: tuple[int, ...] = SHOTS) -> None:
    rows = [build_row(run, domain, i, k) for k in shots for domain in DOMAINS for i in range(PROBLEMS)]
    write_prediction_file(root / PREDICTIONS, run, rows, "selectors")


def build_record(problem: str, domain: str, number: int) -> dict[str, Any]:
    meta = {"scenario": domain, "domain_file": "d.pddl", "problem_file": "p.pddl", "dialect": number}
    return {"id": problem, "prompt": "", "meta": meta}


def write_track(root: Path) -> None:
    """Write problems in their dialects, and the predictions with each selector's examples."""
    test = [build_record(f"{domain}-{i:03}", domain, get_dialect(i)) for domain in DOMAINS for i in range(PROBLEMS)]
    train = [build_record(name_example(d, n, k), d, n) for d, n, k in product(DOMAINS, range(4), range(3))]
    write_jsonl(root / DIALECTS / "test.jsonl", test)
    write_jsonl(root / DIALECTS / "train.jsonl", train)
    runs = [Run(rule, 0, 0) for rule in RULES] + [Run(m, n, 3407) for m in POINTERS for n in SIZES]
    for run in runs:
        write_selector(root, run)


def write_training(root: Path, seeds: tuple[int, ...] = (3407,)) -> None:
    """Write the logs of the three phases, and measures of the beams."""
    for run in (Run(*values) for values in product(POINTERS, SIZES, seeds)):
        folder = root / f"results/selectors/training/{run.name}"
        folder.mkdir(parents=True, exist_ok=True)
        column = {"pointer-rce": "temperature", "pointer-grpo": "kl,beta"}.get(run.method, "share_of_luck")
        numbers = {"pointer-grpo": "0.05,0.1"}.get(run.method, "1.5")
        steps = "".join(f"{s},{1 / (s + run.size)},{numbers}\n" for s in range(6))
        (folder / "steps.csv").write_text(f"step,loss,{column}\n{steps}", encoding="utf-8")
        epochs = "0,,0.25,False\n1,2.5,0.25,False\n2,2.0,0.5,True\n3,1.5,0.25,False\n"
        (folder / "epochs.csv").write_text(f"epoch,loss,validation_success,kept\n{epochs}", encoding="utf-8")
        write_json(folder / "metrics.json", {"run": run.as_dict("selectors"), "epochs": 3, "best": 2})
    quality = {"queries": 200, "correct": 0.625, "luck": 0.5}
    domains = {domain: {"queries": 100, "correct": 0.5} for domain in DOMAINS}
    path = root / "results/selectors/beams/train-metrics.json"
    sizes = {str(size): {"queries": size} for size in SIZES}
    write_json(path, {"all": quality, "domains": domains, "sizes": sizes, "search": {"sequences": 512}})
    path.with_name("train.json").write_text("not read", encoding="utf-8")


@pytest.fixture(scope="module")
def params(shipped_params: Params) -> Params:
    return shipped_params.model_copy(update={"compare": shipped_params.compare.model_copy(update={"resamples": 200})})


@pytest.fixture
def tree(project: Path) -> Path:
    """A project with the predictions of base, which every page needs, and of the selectors at N = 100 and 200."""
    write_params(project)
    write_run(project, BASE, DOMAINS, 6, (0,))
    write_track(project)
    return project


@pytest.fixture(scope="module")
def rendered_root(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """Such a project with tables and page; read-only."""
    root = tmp_path_factory.mktemp("rendered")
    with contextlib.chdir(root):
        write_params(root)
        write_run(root, BASE, DOMAINS, 6, (0,))
        write_track(root)
        render_page(root, params)
    return root


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """Such a project with the results of all other stages, and stale ones of another size; read-only."""
    root = tmp_path_factory.mktemp("complete")
    with contextlib.chdir(root):
        write_params(root)
        write_run(root, BASE, DOMAINS, 6, (0,))
        write_track(root)
        write_selector(root, STALE)
        write_other_results(root, SIZES, DOMAINS)
        write_training(root)
        training = root / "results/selectors/training"
        shutil.copytree(training / "pointer-grpo-200-3407", training / STALE.name)
        write_json(training / STALE.name / "metrics.json", {"run": STALE.as_dict("selectors"), "epochs": 3})
        for run in (replace(STALE, size=200), STALE):
            stage = f"grpo@{run.size}-3407"
            timing = {"stage": stage, "task": "selectors", "run": run.as_dict("selectors"), "wall_s": 3.5}
            write_json(root / f"results/selectors/timing/{stage}.json", timing)
        render_page(root, params)
    return root


def read_table(root: Path, name: str) -> list[dict[str, str]]:
    with (root / f"results/selectors/tables/{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def read_page(root: Path) -> str:
    return (root / "results/report.html").read_text(encoding="utf-8")


def test_success_table_has_each_run_by_domain(rendered_root: Path) -> None:
    rows = read_table(rendered_root, "success")
    columns = "selector,dataset_size,seed,shot_num,domain,n,successes,success_rate,ci_low,ci_high"
    assert ",".join(rows[0]) == f"{columns},detectable_difference"
    assert list(dict.fromkeys(row["selector"] for row in rows)) == list(SELECTORS)
    assert len(rows) == (3 + 3 * 2) * 2 * 3
    assert [row["domain"] for row in rows[:3]] == ["all", *DOMAINS]
    assert {(r["dataset_size"], r["seed"]) for r in rows if r["selector"] in RULES} == {("0", "3407")}
    # pointer-grpo at N = 200 with one example solves 12 of 16 in each domain
    [row] = [r for r in rows if (r["selector"], r["dataset_size"], r["shot_num"], r["domain"]) == GRPO]
    assert (row["n"], row["successes"], row["success_rate"]) == ("32", "24", "0.75")
    low, high = proportion_confint(24, 32, method="wilson")
    assert (float(row["ci_low"]), float(row["ci_high"])) == pytest.approx((low, high), abs=1e-6)


GRPO = ("pointer-grpo", "200", "1", "all")


def test_plain_problems_and_dialects_add_up_to_all_problems(rendered_root: Path) -> None:
    rows, success_rows = read_table(rendered_root, "groups"), read_table(rendered_root, "success")
    columns = "selector,dataset_size,seed,shot_num,dialect,n,successes,success_rate,ci_low,ci_high"
    assert ",".join(rows[0]) == f"{columns},detectable_difference"
    assert [(row["dialect"], row["n"]) for row in rows[:2]] == [("plain", "8"), ("dialects", "24")]
    success_counts = [int(row["successes"]) for row in success_rows if row["domain"] == "all"]
    assert [
        int(a["successes"]) + int(b["successes"]) for a, b in zip(rows[::2], rows[1::2], strict=True)
    ] == success_counts


def test_paired_table_tests_each_pair_on_the_same_problems(rendered_root: Path) -> None:
    table = pd.read_csv(rendered_root / "results/selectors/tables/paired.csv", dtype={"shot_num": str})
    # three kinds of problems; all numbers of shots together, one, two; six pairs at each N, and that of the two rules
    assert len(table) == 3 * 3 * (6 * 2 + 1)
    rules = table[(table["method_a"] == "random") & (table["method_b"] == "similarity")]
    assert set(rules["dataset_size"]) == {0}
    single = table[table["shot_num"] != "all"]
    tests = [mcnemar([[r.both, r.only_a], [r.only_b, 0]], exact=True).pvalue for r in single.itertuples()]
    assert list(single["p"]) == pytest.approx(tests, rel=1e-5)
    assert set(single["test"]) == {"mcnemar"}
    all_rows = table[table["shot_num"] == "all"]
    assert set(all_rows["test"]) == {"sign-flip"}
    families = table.groupby(["method_a", "method_b", "dialect", table["shot_num"] == "all"])
    assert sorted(len(family) for _, family in families)[-1] == 4  # two N, two numbers of shots
    for _, family in families:
        assert list(family["p_holm"]) == pytest.approx(adjust_p_values(list(family["p"])), rel=1e-5)
    success = read_table(rendered_root, "success")
    rate = {(r["selector"], int(r["dataset_size"]), r["shot_num"]): r for r in success if r["domain"] == "all"}
    for row in single[single["dialect"] == "all"].itertuples():
        a, b = (
            float(rate[m, 0 if m in RULES else row.dataset_size, row.shot_num]["success_rate"])
            for m in (row.method_a, row.method_b)
        )
        assert row.difference == pytest.approx(100 * (b - a), abs=1e-3)
        assert row.ci_low <= row.difference <= row.ci_high
    words = ["statistically tied" if p >= 0.05 else "better" if d > 0 else "worse"
             for p, d in zip(table["p_holm"], table["difference"], strict=True)]  # fmt: skip
    assert list(table["result"]) == words
    assert set(words) == {"better", "worse", "statistically tied"}


def test_cells_mark_the_best_selector_without_the_oracle(rendered_root: Path) -> None:
    table = pd.read_csv(rendered_root / "results/selectors/tables/cells.csv")
    assert not table[table["selector"] == "oracle"][["best", "tied"]].any(axis=None)
    best = table[table["best"] & (table["dialect"] == "all")]
    assert list(best["selector"] + "-" + best["dataset_size"].astype(str)) == ["pointer-grpo-200"] * 2
    random = table[(table["selector"] == "random") & (table["dialect"] == "all")]
    assert not random["tied"].any()
    assert list(table["selector"].drop_duplicates()) == list(SELECTORS)


def test_choices_are_counted(rendered_root: Path) -> None:
    rows = {(r["selector"], r["dataset_size"], r["shot_num"]): r for r in read_table(rendered_root, "shots")}
    random, similarity, grpo = (rows[key, size, "2"] for key, size in
                                (("random", "0"), ("similarity", "0"), ("pointer-grpo", "200")))  # fmt: skip
    assert [float(r["own_domain"]) for r in (random, similarity, grpo)] == [0, 1, 1]
    assert [float(r["own_dialect"]) for r in (random, similarity, grpo)] == [0, 0.25, 1]  # a fourth is plain
    assert (random["shots"], random["distinct_examples"]) == ("64", "6")
    # in each domain one example takes half of the uses, two others a fourth: 2 x 2^(1/2 + 2/4)
    assert float(random["effective_examples"]) == pytest.approx(2 * 2**1.5)
    one = rows["pointer-grpo", "200", "1"]
    assert float(one["effective_examples"]) == pytest.approx(int(one["distinct_examples"]))  # eight, used alike
    assert int(one["distinct_examples"]) == 8


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True), min_size=1, max_size=8))
def test_effective_examples_are_between_one_and_the_distinct_ones(shots: list[list[str]]) -> None:
    run = {"method": "random", "dataset_size": 0, "seed": 1, "shot_num": 4, "domain": "ferry", "dialect_number": 0}
    frame = pd.DataFrame([run | {"id": str(i), "shot_ids": shot_ids} for i, shot_ids in enumerate(shots)])
    choices = compute_choices(frame, dict.fromkeys("abcdef", ProblemDialect("ferry", 0))).iloc[0]
    assert choices["distinct_examples"] == len({shot for shot_ids in shots for shot in shot_ids})
    assert 1 - 1e-9 <= choices["effective_examples"] <= choices["distinct_examples"] + 1e-9
    assert choices["own_dialect"] == 1


def test_metrics_hold_success_of_each_selector_at_its_largest_size(rendered_root: Path) -> None:
    metrics = json.loads((rendered_root / "results/selectors/tables/metrics.json").read_text(encoding="utf-8"))
    assert metrics["pointer-grpo"] == pytest.approx((12 + 13) / 32)
    assert metrics["random"] == pytest.approx((2 + 3) / 32, abs=1e-6)
    assert set(metrics) == set(SELECTORS)


def test_page_names_the_track_where_it_has_not_run(project: Path, params: Params) -> None:
    write_params(project)
    write_run(project, BASE, DOMAINS, 6, (0,))
    html = render_page(project, params)
    assert "No selectors: results/selectors/predictions/*.jsonl has not been written." in html
    assert "Examples chosen" not in html


def test_seeds_are_pooled_in_comparisons_only(tree: Path, params: Params) -> None:
    for method, size in product(POINTERS, SIZES):
        write_selector(tree, Run(method, size, 1))
    both = params.model_copy(update={"seeds": [3407, 1]})
    html = render_page(tree, both)
    rows = [row for row in read_table(tree, "success") if row["domain"] == "all" and row["shot_num"] == "1"]
    assert [(r["selector"], r["dataset_size"], r["seed"]) for r in rows[2:4]] == [
        ("pointer-sft", "100", "1"),
        ("pointer-sft", "100", "3407"),
    ]
    rows_by_pair = {(r["method_a"], r["method_b"], r["dataset_size"], r["shot_num"], r["dialect"]): r
              for r in read_table(tree, "paired")}  # fmt: skip
    row = rows_by_pair["similarity", "pointer-grpo", "200", "1", "all"]
    assert (row["seeds"], row["n"], row["test"], row["interval"]) == ("2", "32", "sign-flip", "bootstrap")
    cells = [r for r in read_table(tree, "cells") if r["dialect"] == "all"]
    assert {(r["selector"], r["seeds"]) for r in cells} == {
        *((rule, "1") for rule in RULES),
        *((pointer, "2") for pointer in POINTERS),
    }
    note = "stratified bootstrap over problems and 2 seeds; Wilson for one seed and where all problems agree"
    assert note in select_selectors(html)
    compare_selectors.run(params)  # does not request the other seed
    assert {row["seed"] for row in read_table(tree, "success")} == {"3407"}


def test_sizes_no_longer_requested_are_left_out(complete: Path) -> None:
    assert {row["dataset_size"] for row in read_table(complete, "success")} == {"0", "100", "200"}
    html = read_page(complete)
    assert "N = 800" not in html
    assert '<th scope="row">grpo@200-3407, selectors</th>' in html
    assert "grpo@800-3407" not in html


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[4]], r"pointer-sft-100-3407\.jsonl: 1 duplicated rows .*blocksworld-004"),
        (lambda rows: rows[1:], r"rce-200-3407\.jsonl and|pointer-sft-100-3407\.jsonl do not .*blocksworld-000"),
        (lambda rows: [row | {"dataset_size": 400} for row in rows], r"100-3407\.jsonl: .* of pointer-sft-400-3407,"),
        (
            lambda rows: [rows[0] | {"shot_ids": ["lost"]}, *rows[1:]],
            r"sft-100-3407\.jsonl: problem 'lost' .*train\.json",
        ),
        (lambda rows: [row | {"seed": 1} for row in rows], r"pointer-sft-100-3407\.jsonl: .* of pointer-sft-100-1,"),
    ],
)
def test_predictions_that_cannot_be_compared_are_rejected(
    tree: Path, params: Params, change: Any, message: str
) -> None:
    rewrite_rows(tree / PREDICTIONS / "pointer-sft-100-3407.jsonl", change)
    with pytest.raises(PredictionsError, match=message):
        compare_selectors.run(params)


def test_a_seed_that_one_selector_lacks_is_named(tree: Path, params: Params) -> None:
    write_selector(tree, Run("pointer-grpo", 100, 1))
    with pytest.raises(PredictionsError, match=r"no pointer-grpo-200-1\.jsonl, but others have this seed"):
        compare_selectors.run(params.model_copy(update={"seeds": [3407, 1]}))


def test_problems_and_examples_must_be_known(tree: Path, params: Params) -> None:
    path = tree / DIALECTS / "test.jsonl"
    write_jsonl(path, read_rows(path)[1:])
    with pytest.raises(PredictionsError, match=r"problem 'blocksworld-000' is not in results/selectors/dialects/test"):
        compare_selectors.run(params)
    path.unlink()
    with pytest.raises(PredictionsError, match=r"test\.jsonl: no such file; fix: run `planward selectors dialects`"):
        compare_selectors.run(params)


def select_selectors(html: str) -> str:
    return select_section(html, "selectors")


def test_page_compares_the_selectors(rendered_root: Path) -> None:
    html = read_page(rendered_root)
    section = select_selectors(html)
    sentence = (
        "With worked examples chosen by pointer-grpo (N = 200), the frozen model solves 78.1 % of 32 test problems "
        "(8 plain, 24 in dialects), over all numbers of examples"
    )
    assert sentence in section
    assert "better than random in all 4 cells" in section
    assert re.search(r"similarity, 46.9 %: better, \+31\.2 \[\+\d", section)
    assert "worse than another selector in 0 of 16 comparisons" in section
    assert "statistically tied" in section
    assert "The oracle, which sees the reference plan, solves 96.9 %; against it, pointer-grpo at N = 200 is" in section
    assert "That is 77 % of the way from random choice to the oracle." in section
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', section)
    assert panels == ["all problems, N = 200", "plain problems, N = 200", "problems in dialects, N = 200"]
    assert "No curves of the selectors: " in section
    assert "No measures of the beams: " in section


def test_heat_table_is_shaded_by_success_and_marked(rendered_root: Path) -> None:
    section = select_selectors(read_page(rendered_root))
    caption = "<caption><span>Success in percent of a frozen model, by selector"
    table = section[section.index(caption) :].partition("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table, flags=re.DOTALL)
    names = [name for name, _ in rows]
    assert names == ["random", "similarity", *(f"{p}, N = {n}" for p in POINTERS for n in SIZES), "oracle"]
    shades = {name: [int(shade) for shade in re.findall(r"--heat: (\d+)%", cells)] for name, cells in rows}
    assert shades["random"][0] == 0
    assert max(shades["oracle"]) == max(shade for row in shades.values() for shade in row)
    assert all(row == sorted(row) for row in shades.values())
    cells = dict(rows)
    assert "<strong>75.0</strong> <small>[57.9, 86.7]</small>" in cells["pointer-grpo, N = 200"]
    assert "<strong>" not in cells["oracle"]
    assert "†" not in cells["oracle"] + cells["random"]
    assert "†" in cells["pointer-grpo, N = 100"]


def test_samples_show_what_each_selector_chose_and_escape_it(tree: Path, params: Params) -> None:
    rewrite_rows(
        tree / PREDICTIONS / "oracle-0.jsonl",
        lambda rows: [row | {"label": "<b>label</b>", "success": False} for row in rows],
    )
    section = select_selectors(render_page(tree, params))
    assert "Solved with pointer-grpo, not with similarity: " in section
    assert "Solved with oracle, not with pointer-grpo" not in section
    sample = section[section.index("Solved with pointer-grpo, not with similarity: ") :].partition("</details>")[0]
    assert sample.count("same dialect<small>") == 2 * 4  # three pointers and the oracle, two examples each
    assert "other domain<small>" in sample
    assert "&lt;b&gt;label&lt;/b&gt;" in sample
    assert "&lt;script&gt;" in sample
    assert HOSTILE not in section
    assert re.search(r"<p class=\"note\">The query</p>\s*<pre>objects of the query (\w+)-\d+ plan</pre>", sample)
    assert re.search(r"chosen by pointer-sft, pointer-rce, pointer-grpo, oracle</p>", sample)


def test_samples_prefer_other_domains_and_show_whole_chat_prompts() -> None:
    def build_predictions(selector: str, solved_ids: set[str]) -> list[Any]:
        run = Run(selector, 0 if selector in RULES else 200, 3407)
        rows = [build_row(run, d, i, 2) | {"prompt": "a chat", "success": f"{d}-{i:03}" in solved_ids}
                for d in DOMAINS for i in range(4)]  # fmt: skip
        return [Prediction.model_validate(row) for row in rows]

    first, second, other = "blocksworld-000", "blocksworld-001", "ferry-003"
    dialects = {f"{d}-{i:03}": ProblemDialect(d, get_dialect(i)) for d in DOMAINS for i in range(4)}
    dialects |= {name_example(d, n, k): ProblemDialect(d, n) for d, n, k in product(DOMAINS, range(4), range(3))}
    samples = build_selection_samples(
        {
            "similarity": build_predictions("similarity", {second, other}),
            "pointer-grpo": build_predictions("pointer-grpo", {first}),
        },
        dialects,
    )
    assert [(s.problem, s.dialect, s.count, s.n) for s in samples] == [
        (first, "blocksworld, plain", 1, 8),
        (other, "ferry, dialect 3", 2, 8),  # another domain than the first
    ]
    assert [choice.success for choice in samples[0].choices] == [False, True]
    assert {example.match for choice in samples[1].choices for example in choice.examples} == {
        "same domain",
        "same dialect",
    }
    assert samples[0].texts == [("The whole prompt, with the examples that similarity chose", "a chat")]


def test_page_shows_the_training_of_the_selectors(complete: Path) -> None:
    section = select_selectors(read_page(complete))
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', section)[3:]
    assert panels[:6] == [f"{p}: {c}" for c in ("loss", "success on validation") for p in ("SFT", "RCE", "GRPO")]
    assert panels[6:9] == ["RCE: temperature", "GRPO: KL", "GRPO: β"]
    assert panels[9:] == ["SFT: loss", "SFT: share of luck", "RCE: loss", "GRPO: loss"]
    epochs = section[section.index("<caption><span>Epochs of each phase") :].partition("</table>")[0]
    row = re.search(r'<th scope="row">GRPO, N = 200</th>(.*?)</tr>', epochs, flags=re.DOTALL)
    assert row
    assert re.findall(r"<td>(.*?)</td>", row[1]) == ["3407", "3", "2", "50"]
    assert "has not been written" not in section
    beams = section[section.index("<caption><span>Beams of the training queries") :].partition("</table>")[0]
    assert re.findall(r'<th scope="col">(.*?)</th>', beams) == ["measure", "all", *DOMAINS, "N = 100", "N = 200"]
    assert "of these, share with a valid plan" in beams
    assert re.search(r'<th scope="row">search\.sequences</th>\s*<td>512</td>', section)


def test_unknown_measures_of_beams_are_shown_by_name() -> None:
    table = build_beam_quality_table({"all": {"new_thing": None, "beams": 3}, "domains": {"ferry": {"beams": 2}}})
    assert table is not None
    assert table.head == ["measure", "all", "ferry"]
    assert table.rows == [["beams", "3", "2"], ["new thing", "", ""]]
    assert build_beam_quality_table({}) is None


def test_rules_alone_make_a_section(tree: Path, params: Params) -> None:
    for path in (tree / PREDICTIONS).glob("pointer-*.jsonl"):
        remove_prediction_file(path)
    section = select_selectors(render_page(tree, params))
    assert "similarity against random" in section
    assert "pointer-grpo (N" not in section
    assert "N = 0" not in section


def test_one_selector_alone_makes_a_section(tree: Path, params: Params) -> None:
    for path in (tree / PREDICTIONS).glob("*.jsonl"):
        if path.stem != "random-0":
            remove_prediction_file(path)
    section = select_selectors(render_page(tree, params))
    assert "<h3>Paired tests</h3>" not in section
    assert "Examples chosen" in section


def test_plain_problems_alone_have_one_table(tree: Path, params: Params) -> None:
    for side in ("train", "test"):
        path = tree / DIALECTS / f"{side}.jsonl"
        plain = [row | {"meta": {k: v for k, v in row["meta"].items() if k != "dialect"}} for row in read_rows(path)]
        write_jsonl(path, plain)
    section = select_selectors(render_page(tree, params))
    assert "problems in dialects" not in section
    assert "<h3>Plain problems and dialects</h3>" not in section
    assert {row["dialect"] for row in read_table(tree, "groups")} == {"plain"}


def test_section_is_accessible_and_deterministic(
    complete: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(complete)
    html = read_page(complete)
    assert render_page(complete, params) == html
    assert find_missing(html) == ["economy"]
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(select_selectors(html))
    assert {a.get("scope") for tag, a in tags if tag == "th"} == {"row", "col", "colgroup"}
    assert all(a.get("aria-label") for tag, a in tags if tag == "svg")
    assert all(a.get("aria-label") for tag, a in tags if a.get("role") == "region")
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "img", "form"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def test_prompts_with_dropped_examples_are_failures(tree: Path, params: Params) -> None:
    rewrite_rows(
        tree / PREDICTIONS / "similarity-0.jsonl",
        lambda rows: [*rows[:-1], rows[-1] | {"shot_ids": rows[-1]["shot_ids"][1:]}],
    )
    html = render_page(tree, params)
    failures = select_section(html, "failures")
    assert "<strong>Prompts with fewer worked examples than requested, to fit</strong>" in failures
    assert re.search(r"<li>1 <span[^>]*>\(results/selectors/predictions/similarity-0.jsonl\)", failures)


def test_page_names_phases_that_kept_their_initial_weights(tree: Path, params: Params) -> None:
    write_training(tree)
    assert "No epoch of" not in select_selectors(render_page(tree, params))
    for size in SIZES:
        path = tree / f"results/selectors/training/pointer-rce-{size}-3407/epochs.csv"
        path.write_text("epoch,loss,validation_success,kept\n0,,0.5,True\n1,0.1,0.4,False\n", encoding="utf-8")
    sizes = ", ".join(map(str, SIZES))
    assert f"No epoch of RCE at N = {sizes} did better on validation" in select_selectors(render_page(tree, params))

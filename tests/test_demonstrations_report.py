"""Tables and section of the demonstrations track on a small one: numbers, refusals, and what the page says of it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
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

from conftest import rows as json_lines
from planward.params import Params
from planward.records import BASE, POINTERS, RULES, SELECTORS, Run, write_json, write_jsonl
from planward.reporting.demonstrations import Language, choices
from planward.reporting.sections.examples import samples
from planward.reporting.sections.selectors import quality_table
from planward.reporting.statistics import holm
from planward.stages import compare, report
from test_report import (
    DOMAINS,
    HOSTILE,
    missing,
    page,
    prediction,
    read_csv,
    rewrite,
    section_of,
    write_everything_else,
    write_run,
)

SIZES, SHOTS, PROBLEMS = (100, 200), (1, 2), 16  # problems a domain; a fourth of them plain
SKILL = {"random": 2, "similarity": 7, "pointer-sft": 6, "pointer-rce": 7, "pointer-grpo": 11, "oracle": 15}
OLD = Run("pointer-grpo", 800, 3407)  # of a size that params.yaml does not name
FOLDER = Path("results/demonstrations/predictions")


def dialect(i: int) -> int:
    return i % 4


def example(domain: str, number: int, k: int) -> str:
    """The id of a training problem of a dialect."""
    return f"{domain}-d{number}-{k}"


def chosen(selector: str, domain: str, i: int) -> list[str]:
    """Two examples: random takes another domain's, similarity the domain's plain ones, the others the right dialect's;
    the first of them is everyone's, the second depends on the problem."""
    other = {"blocksworld": "ferry", "ferry": "blocksworld"}[domain]
    language = {"random": (other, 1), "similarity": (domain, 0)}.get(selector, (domain, dialect(i)))
    return [example(*language, 0), example(*language, 1 + i // 8)]


def answer(run: Run, domain: str, i: int, shot_num: int) -> dict[str, Any]:
    """The answer to problem i: right where a fixed shuffle of the problems puts it below the selector's skill."""
    place = (5 * i + 3 * (domain == "ferry") + 4 * (run.seed == 1)) % PROBLEMS
    solved = place < SKILL[run.method] + (run.size > 100) + (shot_num > 1)
    shots = chosen(run.method, domain, i)[:shot_num]
    told = "".join(f"objects of {shot} {HOSTILE} plan (a)\n<end>\n" for shot in shots)
    return prediction("base", 0, domain, i, shot_num) | {
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed or 3407,
        "shot_ids": shots,
        "prompt": f"{told}objects of the query {domain}-{i:03} plan",
        "label": "success_plans" if solved else "goal_not_satisfied",
        "success": solved,
    }


def write_selector(root: Path, run: Run, shots: tuple[int, ...] = SHOTS) -> None:
    rows = [answer(run, domain, i, k) for k in shots for domain in DOMAINS for i in range(PROBLEMS)]
    write_jsonl(root / FOLDER / f"{run.name}.jsonl", rows)


def record(problem: str, domain: str, number: int) -> dict[str, Any]:
    meta = {"scenario": domain, "domain_file": "d.pddl", "problem_file": "p.pddl", "dialect": number}
    return {"id": problem, "prompt": "", "meta": meta}


def write_track(root: Path) -> None:
    """The problems in their dialects, and the answers under each selector's examples."""
    test = [record(f"{domain}-{i:03}", domain, dialect(i)) for domain in DOMAINS for i in range(PROBLEMS)]
    train = [record(example(d, n, k), d, n) for d, n, k in product(DOMAINS, range(4), range(3))]
    write_jsonl(root / "results/dialects/test.jsonl", test)
    write_jsonl(root / "results/dialects/train.jsonl", train)
    runs = [Run(rule, 0, 0) for rule in RULES] + [Run(m, n, 3407) for m in POINTERS for n in SIZES]
    for run in runs:
        write_selector(root, run)


def write_training(root: Path, seeds: tuple[int, ...] = (3407,)) -> None:
    """Logs of the three phases, and measures of the beams."""
    for method, size, seed in product(POINTERS, SIZES, seeds):
        folder = root / f"results/demonstrations/training/{method}-{size}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        extra = {"pointer-rce": "temperature", "pointer-grpo": "kl,beta"}.get(method, "share_of_luck")
        numbers = {"pointer-grpo": "0.05,0.1"}.get(method, "1.5")
        steps = "".join(f"{s},{1 / (s + size)},{numbers}\n" for s in range(6))
        (folder / "steps.csv").write_text(f"step,loss,{extra}\n{steps}", encoding="utf-8")
        epochs = "0,,0.25,False\n1,2.5,0.25,False\n2,2.0,0.5,True\n3,1.5,0.25,False\n"
        (folder / "epochs.csv").write_text(f"epoch,loss,validation_success,kept\n{epochs}", encoding="utf-8")
        write_json(folder / "metrics.json", {"epochs": 3, "best": 2})
    quality = {"queries": 200, "correct": 0.625, "luck": 0.5}
    domains = {domain: {"queries": 100, "correct": 0.5} for domain in DOMAINS}
    path = root / "results/demonstrations/beams/train-metrics.json"
    sizes = {str(size): {"queries": size} for size in SIZES}
    write_json(path, {"all": quality, "domains": domains, "sizes": sizes, "search": {"sequences": 512}})
    path.with_name("train.json").write_text("not read", encoding="utf-8")


@pytest.fixture(scope="module")
def params(shipped: Params) -> Params:
    return shipped.model_copy(update={"compare": shipped.compare.model_copy(update={"resamples": 200})})


@pytest.fixture
def tree(project: Path) -> Path:
    """A project with the predictions of the base, which every page needs, and of the selectors at N = 100 and 200."""
    write_run(project, BASE, DOMAINS, 6, (0,))
    write_track(project)
    return project


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """Such a project, with tables and page; to be read only."""
    root = tmp_path_factory.mktemp("done")
    with contextlib.chdir(root):
        write_run(root, BASE, DOMAINS, 6, (0,))
        write_track(root)
        page(root, params)
    return root


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """Such a project with everything that the other stages write, and with what is left of a size of old."""
    root = tmp_path_factory.mktemp("learnt")
    with contextlib.chdir(root):
        write_run(root, BASE, DOMAINS, 6, (0,))
        write_track(root)
        write_selector(root, OLD)
        write_everything_else(root, SIZES, DOMAINS)
        write_training(root)
        training = root / "results/demonstrations/training"
        shutil.copytree(training / "pointer-grpo-200-3407", training / OLD.name)
        for size in (200, OLD.size):
            stage = f"selector-grpo@{size}-3407"
            write_json(root / f"results/timing/{stage}.json", {"stage": stage, "wall_s": 3.5})
        page(root, params)
    return root


def html_of(root: Path) -> str:
    return (root / "results/report.html").read_text(encoding="utf-8")


def test_success_of_each_run_by_domain(done: Path) -> None:
    rows = read_csv(done, "demonstrations")
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


def test_plain_problems_and_dialects_side_by_side_are_all_problems(done: Path) -> None:
    rows, everything = read_csv(done, "demonstrations-groups"), read_csv(done, "demonstrations")
    columns = "selector,dataset_size,seed,shot_num,dialect,n,successes,success_rate,ci_low,ci_high"
    assert ",".join(rows[0]) == f"{columns},detectable_difference"
    assert [(row["dialect"], row["n"]) for row in rows[:2]] == [("plain", "8"), ("dialects", "24")]
    whole = [int(row["successes"]) for row in everything if row["domain"] == "all"]
    assert [int(a["successes"]) + int(b["successes"]) for a, b in zip(rows[::2], rows[1::2], strict=True)] == whole


def test_paired_table_tests_each_pair_on_the_same_problems(done: Path) -> None:
    table = pd.read_csv(done / "results/tables/demonstrations-paired.csv", dtype={"shot_num": str})
    # three kinds of problems; all numbers of shots together, one, two; six pairs at each N, and that of the two rules
    assert len(table) == 3 * 3 * (6 * 2 + 1)
    rules = table[(table["method_a"] == "random") & (table["method_b"] == "similarity")]
    assert set(rules["dataset_size"]) == {0}
    single = table[table["shot_num"] != "all"]
    tests = [mcnemar([[r.both, r.only_a], [r.only_b, 0]], exact=True).pvalue for r in single.itertuples()]
    assert list(single["p"]) == pytest.approx(tests, rel=1e-5)
    assert set(single["test"]) == {"mcnemar"}
    pooled = table[table["shot_num"] == "all"]
    assert set(pooled["test"]) == {"sign-flip"}
    families = table.groupby(["method_a", "method_b", "dialect", table["shot_num"] == "all"])
    assert sorted(len(family) for _, family in families)[-1] == 4  # two N, two numbers of shots
    for _, family in families:
        assert list(family["p_holm"]) == pytest.approx(holm(list(family["p"])), rel=1e-5)
    success = read_csv(done, "demonstrations")
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


def test_cells_mark_the_best_selector_and_leave_the_oracle_out(done: Path) -> None:
    table = pd.read_csv(done / "results/tables/demonstrations-cells.csv")
    assert not table[table["selector"] == "oracle"][["best", "tied"]].any(axis=None)
    best = table[table["best"] & (table["dialect"] == "all")]
    assert list(best["selector"] + "-" + best["dataset_size"].astype(str)) == ["pointer-grpo-200"] * 2
    random = table[(table["selector"] == "random") & (table["dialect"] == "all")]
    assert not random["tied"].any()
    assert list(table["selector"].drop_duplicates()) == list(SELECTORS)


def test_what_was_chosen_is_counted(done: Path) -> None:
    rows = {(r["selector"], r["dataset_size"], r["shot_num"]): r for r in read_csv(done, "demonstrations-shots")}
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
def test_effective_examples_lie_between_one_and_the_different_ones(shots: list[list[str]]) -> None:
    run = {"method": "random", "dataset_size": 0, "seed": 1, "shot_num": 4, "domain": "ferry", "number": 0}
    frame = pd.DataFrame([run | {"id": str(i), "shot_ids": own} for i, own in enumerate(shots)])
    found = choices(frame, dict.fromkeys("abcdef", Language("ferry", 0))).iloc[0]
    assert found["distinct_examples"] == len({shot for own in shots for shot in own})
    assert 1 - 1e-9 <= found["effective_examples"] <= found["distinct_examples"] + 1e-9
    assert found["own_dialect"] == 1


def test_metrics_hold_success_of_each_selector_at_its_largest_size(done: Path) -> None:
    metrics = json.loads((done / "results/tables/metrics.json").read_text(encoding="utf-8"))
    assert metrics["demonstrations"]["pointer-grpo"] == pytest.approx((12 + 13) / 32)
    assert metrics["demonstrations"]["random"] == pytest.approx((2 + 3) / 32, abs=1e-6)
    assert set(metrics["demonstrations"]) == set(SELECTORS)


def test_without_the_track_its_tables_are_headers_and_the_page_names_it(project: Path, params: Params) -> None:
    write_run(project, BASE, DOMAINS, 6, (0,))
    html = page(project, params)
    for name in ("demonstrations", "demonstrations-groups", "demonstrations-paired"):
        header, *rest = (project / f"results/tables/{name}.csv").read_text(encoding="utf-8").splitlines()
        assert "dataset_size" in header
        assert rest == []
    metrics = json.loads((project / "results/tables/metrics.json").read_text(encoding="utf-8"))
    assert "demonstrations" not in metrics
    assert "No demonstrations: results/demonstrations/predictions/*.jsonl has not been written." in html
    assert "What was chosen" not in html


def test_seeds_stand_by_themselves_and_are_pooled_where_selectors_are_compared(tree: Path, params: Params) -> None:
    for method, size in product(POINTERS, SIZES):
        write_selector(tree, Run(method, size, 1))
    both = params.model_copy(update={"seeds": [3407, 1]})
    html = page(tree, both)
    rows = [row for row in read_csv(tree, "demonstrations") if row["domain"] == "all" and row["shot_num"] == "1"]
    assert [(r["selector"], r["dataset_size"], r["seed"]) for r in rows[2:4]] == [
        ("pointer-sft", "100", "1"),
        ("pointer-sft", "100", "3407"),
    ]
    paired = {(r["method_a"], r["method_b"], r["dataset_size"], r["shot_num"], r["dialect"]): r
              for r in read_csv(tree, "demonstrations-paired")}  # fmt: skip
    row = paired["similarity", "pointer-grpo", "200", "1", "all"]
    assert (row["seeds"], row["n"], row["test"], row["interval"]) == ("2", "32", "sign-flip", "bootstrap")
    cells = [r for r in read_csv(tree, "demonstrations-cells") if r["dialect"] == "all"]
    assert {(r["selector"], r["seeds"]) for r in cells} == {
        *((rule, "1") for rule in RULES),
        *((pointer, "2") for pointer in POINTERS),
    }
    assert "stratified bootstrap over problems and 2 seeds; Wilson where there is one" in section(html)
    compare.run(params)  # of the other seed, what is left is no concern of a run that does not ask for it
    assert {row["seed"] for row in read_csv(tree, "demonstrations")} == {"3407"}


def test_sizes_no_longer_asked_for_are_left_out(learnt: Path) -> None:
    assert {row["dataset_size"] for row in read_csv(learnt, "demonstrations")} == {"0", "100", "200"}
    html = html_of(learnt)
    assert "N = 800" not in html
    assert '<th scope="row">selector-grpo@200-3407</th>' in html
    assert "selector-grpo@800-3407" not in html


@pytest.mark.parametrize(
    ("change", "said"),
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
def test_predictions_that_cannot_be_compared_are_refused(tree: Path, params: Params, change: Any, said: str) -> None:
    rewrite(tree / FOLDER / "pointer-sft-100-3407.jsonl", change)
    with pytest.raises(compare.PredictionsError, match=said):
        compare.run(params)


def test_a_seed_that_one_selector_lacks_is_named(tree: Path, params: Params) -> None:
    write_selector(tree, Run("pointer-grpo", 100, 1))
    with pytest.raises(compare.PredictionsError, match=r"no pointer-grpo-200-1\.jsonl, but others have this seed"):
        compare.run(params.model_copy(update={"seeds": [3407, 1]}))


def test_problems_and_examples_must_be_known(tree: Path, params: Params) -> None:
    path = tree / "results/dialects/test.jsonl"
    write_jsonl(path, json_lines(path)[1:])
    with pytest.raises(compare.PredictionsError, match=r"problem 'blocksworld-000' is not in results/dialects/test"):
        compare.run(params)
    path.unlink()
    with pytest.raises(compare.PredictionsError, match=r"test\.jsonl: no such file; run `dialects` first"):
        compare.run(params)


def test_what_is_no_selector_is_refused(tree: Path, params: Params) -> None:
    write_jsonl(tree / FOLDER / "base-0.jsonl", [answer(Run("random", 0, 0), d, i, k) | {"method": "base"}
                                                 for k in SHOTS for d in DOMAINS for i in range(PROBLEMS)])  # fmt: skip
    with pytest.raises(compare.PredictionsError, match="holds predictions of base; selectors are random, similarity"):
        compare.run(params)


def section(html: str) -> str:
    return section_of(html, "demonstrations")


def test_page_says_how_the_selectors_compare(done: Path) -> None:
    html = html_of(done)
    found = section(html)
    sentence = (
        "With worked examples chosen by pointer-grpo (N = 200), the frozen model solves 78.1 % of 32 test problems "
        "(8 plain, 24 in dialects), over all numbers of examples"
    )
    assert sentence in found
    assert "better than random in all 4 cells" in found
    assert re.search(r"similarity, 46.9 %: better, \+31\.2 \[\+\d", found)
    assert "worse than another selector in 0 of 16 comparisons" in found
    assert "statistically tied" in found
    assert "The oracle, which sees the reference answer, solves 96.9 %; against it, pointer-grpo at N = 200 is" in found
    assert "It goes 77 % of the way from random choice to the oracle." in found
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', found)
    assert panels == ["all problems, N = 200", "plain problems, N = 200", "problems in dialects, N = 200"]
    assert "No curves of the selectors: " in found
    assert "No measures of the beams: " in found


def test_heat_table_is_shaded_by_success_and_marked(done: Path) -> None:
    found = section(html_of(done))
    caption = "<caption><span>Success in percent of a frozen model, by selector"
    table = found[found.index(caption) :].partition("</table>")[0]
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
    rewrite(
        tree / FOLDER / "oracle-0.jsonl",
        lambda rows: [row | {"label": "<b>label</b>", "success": False} for row in rows],
    )
    found = section(page(tree, params))
    assert "Solved with pointer-grpo, not with similarity: " in found
    assert "Solved with oracle, not with pointer-grpo" not in found
    sample = found[found.index("Solved with pointer-grpo, not with similarity: ") :].partition("</details>")[0]
    assert sample.count("own dialect") == 2 * 4  # three pointers and the oracle, two examples each
    assert "other domain<small>" in sample
    assert "&lt;b&gt;label&lt;/b&gt;" in sample
    assert "&lt;script&gt;" in sample
    assert HOSTILE not in found
    assert re.search(r"<p class=\"note\">The query</p>\s*<pre>objects of the query (\w+)-\d+ plan</pre>", sample)
    assert re.search(r"chosen by pointer-sft, pointer-rce, pointer-grpo, oracle</p>", sample)


def test_samples_take_other_domains_and_whole_prompts_in_another_style() -> None:
    def answers(selector: str, solved: set[str]) -> list[Any]:
        run = Run(selector, 0 if selector in RULES else 200, 3407)
        rows = [answer(run, d, i, 2) | {"prompt": "a chat", "success": f"{d}-{i:03}" in solved}
                for d in DOMAINS for i in range(4)]  # fmt: skip
        return [report.Prediction.model_validate(row) for row in rows]

    first, second, other = "blocksworld-000", "blocksworld-001", "ferry-003"
    languages = {f"{d}-{i:03}": Language(d, dialect(i)) for d in DOMAINS for i in range(4)}
    languages |= {example(d, n, k): Language(d, n) for d, n, k in product(DOMAINS, range(4), range(3))}
    found = samples(
        {"similarity": answers("similarity", {second, other}), "pointer-grpo": answers("pointer-grpo", {first})},
        languages,
    )
    assert [(s.problem, s.language, s.count, s.n) for s in found] == [
        (first, "blocksworld, plain", 1, 8),
        (other, "ferry, dialect 3", 2, 8),  # blocksworld has been shown
    ]
    assert [choice.success for choice in found[0].choices] == [False, True]
    assert {shot.match for choice in found[1].choices for shot in choice.shots} == {"own domain", "own dialect"}
    assert found[0].texts == [("The whole prompt, with the examples that similarity chose", "a chat")]


def test_page_draws_how_selectors_learnt_and_what_from(learnt: Path) -> None:
    found = section(html_of(learnt))
    panels = re.findall(r'<svg role="img" aria-label="([^"]*)"', found)[3:]
    assert panels[:6] == [f"{p}: {c}" for c in ("loss", "success on validation") for p in ("SFT", "RCE", "GRPO")]
    assert panels[6:9] == ["RCE: temperature", "GRPO: KL", "GRPO: β"]
    assert panels[9:] == ["SFT: loss", "SFT: share of luck", "RCE: loss", "GRPO: loss"]
    epochs = found[found.index("<caption><span>Epochs of each phase") :].partition("</table>")[0]
    row = re.search(r'<th scope="row">GRPO, N = 200</th>(.*?)</tr>', epochs, flags=re.DOTALL)
    assert row
    assert re.findall(r"<td>(.*?)</td>", row[1]) == ["3407", "3", "2", "50"]
    assert "has not been written" not in found
    beams = found[found.index("<caption><span>Beams of the training queries") :].partition("</table>")[0]
    assert re.findall(r'<th scope="col">(.*?)</th>', beams) == ["measure", "all", *DOMAINS, "N = 100", "N = 200"]
    assert "share under which the model&#39;s plan works" in beams
    assert re.search(r'<th scope="row">search\.sequences</th>\s*<td>512</td>', found)


def test_measures_of_beams_that_are_not_known_go_by_their_names() -> None:
    table = quality_table({"all": {"new_thing": None, "beams": 3}, "domains": {"ferry": {"beams": 2}}})
    assert table is not None
    assert table.head == ["measure", "all", "ferry"]
    assert table.rows == [["beams", "3", "2"], ["new thing", "", ""]]
    assert quality_table({}) is None


def test_rules_alone_make_a_section(tree: Path, params: Params) -> None:
    for path in (tree / FOLDER).glob("pointer-*"):
        path.unlink()
    found = section(page(tree, params))
    assert "similarity against random" in found
    assert "pointer-grpo (N" not in found
    assert "N = 0" not in found


def test_one_selector_alone_makes_a_section(tree: Path, params: Params) -> None:
    for path in (tree / FOLDER).glob("*.jsonl"):
        if path.stem != "random-0":
            path.unlink()
    found = section(page(tree, params))
    assert "<h3>Paired tests</h3>" not in found
    assert "What was chosen" in found


def test_problems_that_are_all_plain_stand_in_one_table(tree: Path, params: Params) -> None:
    for side in ("train", "test"):
        path = tree / f"results/dialects/{side}.jsonl"
        plain = [row | {"meta": {k: v for k, v in row["meta"].items() if k != "dialect"}} for row in json_lines(path)]
        write_jsonl(path, plain)
    found = section(page(tree, params))
    assert "problems in dialects" not in found
    assert "<h3>Plain problems and dialects</h3>" not in found
    assert {row["dialect"] for row in read_csv(tree, "demonstrations-groups")} == {"plain"}


def test_section_is_read_by_machines_and_is_the_same_each_time(
    learnt: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(learnt)
    html = html_of(learnt)
    assert page(learnt, params) == html
    assert missing(html) == ["economy"]
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(section(html))
    assert {a.get("scope") for tag, a in tags if tag == "th"} == {"row", "col", "colgroup"}
    assert all(a.get("aria-label") for tag, a in tags if tag == "svg")
    assert all(a.get("aria-label") for tag, a in tags if a.get("role") == "region")
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "img", "form"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def test_prompts_that_lost_an_example_are_told(tree: Path, params: Params) -> None:
    rewrite(
        tree / FOLDER / "similarity-0.jsonl",
        lambda rows: [*rows[:-1], rows[-1] | {"shot_ids": rows[-1]["shot_ids"][1:]}],
    )
    html = page(tree, params)
    failures = section_of(html, "failures")
    assert "<strong>Prompts with fewer worked examples than asked for, to fit</strong>" in failures
    assert re.search(r"<li>1 <span[^>]*>\(results/demonstrations/predictions/similarity-0.jsonl\)", failures)


def test_page_says_which_phases_kept_the_weights_they_had_started_from(tree: Path, params: Params) -> None:
    write_training(tree)
    assert "No epoch of" not in section(page(tree, params))
    for size in SIZES:
        path = tree / f"results/demonstrations/training/pointer-rce-{size}-3407/epochs.csv"
        path.write_text("epoch,loss,validation_success,kept\n0,,0.5,True\n1,0.1,0.4,False\n", encoding="utf-8")
    sizes = ", ".join(map(str, SIZES))
    assert f"No epoch of RCE at N = {sizes} did better on validation" in section(page(tree, params))

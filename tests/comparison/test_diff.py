"""`planward diff` on a Git and DVC repository: its numbers, what is compared with what, and its error messages."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from typer.testing import CliRunner

from planward.analysis.cells import Uncertainty
from planward.analysis.tables import TIED
from planward.cli import app
from planward.comparison.comparison import SAME, compare
from planward.comparison.experiment import Experiment, load_subject
from planward.comparison.revisions import Revision
from planward.core.records import Record
from planward.core.runs import Run
from support import read_rows, write_lines

PROBLEM_COUNT, SHOT_NUMS, SEED = 24, (0, 1), 3407
HOSTILE_TEXT = "<script>alert('plan')</script>\x1b[2J"
BETAS = {"first": 0.0, "warm": 0.05, "hot": 0.5, "other": 0.1, "twice": 0.2}  # the setting of each revision
SOLVED = {"first": 4, "warm": 20, "hot": 5, "other": 12, "twice": 4}  # by grpo, of PROBLEM_COUNT
PARAMS = """\
seed: 3407
seeds: [3407]
grpo:
  beta: 0.0
  learning_rate: 1.0e-5
compare: {confidence: 0.95, resamples: 200}
"""
STAGES = """\
stages:
  score:
    cmd: mkdir -p results/score && cp made/${grpo.beta}/test.jsonl results/score/test.jsonl
    deps: ["made/${grpo.beta}/test.jsonl"]
    outs: [results/score/test.jsonl]
  grpo:
    cmd: >-
      mkdir -p results/models results/timing && cp made/${grpo.beta}/model results/models/grpo-100-3407
      && cp made/${grpo.beta}/timing.json results/timing/grpo@100-3407.json
    deps: [src/trainer.py, results/score/test.jsonl]
    params: [grpo]
    outs: [results/models/grpo-100-3407]
    metrics: [results/timing/grpo@100-3407.json]
  evaluate:
    matrix: {run: [sft-100-3407, grpo-100-3407]}
    cmd: mkdir -p results/predictions && cp made/${grpo.beta}/${item.run}.jsonl results/predictions/${item.run}.jsonl
    deps: [results/models/grpo-100-3407, results/score/test.jsonl]
    outs: ["results/predictions/${item.run}.jsonl"]
"""


def build_prediction(run: Run, i: int, shot_num: int, success: bool, **changes: Any) -> dict[str, Any]:
    plan = "(pick-up b1)\n(stack b1 b2)" if success else ""
    return {
        "id": f"p{i:02}",
        "domain": ("blocksworld", "ferry")[i % 2],
        "bucket": "easy",
        "score": 1.0,
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed,
        "shot_num": shot_num,
        "shot_ids": [f"t{k}" for k in range(shot_num)],
        "prompt": f"problem {i}",
        "completion": plan or HOSTILE_TEXT,
        "plan": plan,
        "label": "success_plans" if success else "plan_format_error",
        "success": success,
        "reward": 1.0 if success else -1.0,
        "detail": "",
        "plan_size": 2,
        "failing_step": None,
        "goals_satisfied": None,
        "goals_total": 1,
    } | changes


def build_problem(i: int, text: str = "") -> dict[str, Any]:
    meta = {"scenario": "ferry", "domain_file": "d", "problem_file": f"{i}"}
    return {"prompt": text or f"problem {i}", "meta": meta, "id": f"p{i:02}"}


def write_results(folder: Path, name: str) -> None:
    """Write what training and evaluation produce under the settings of a revision."""
    sft, grpo = Run("sft", 100, SEED), Run("grpo", 100, SEED)
    ids = range(4, 20) if name == "other" else range(PROBLEM_COUNT)  # of which one is another problem
    shots = (0,) if name == "other" else SHOT_NUMS
    order = random.Random(name).sample(range(PROBLEM_COUNT), PROBLEM_COUNT)
    texts = {9: "another problem 9"} if name == "other" else {}
    write_lines(folder / "test.jsonl", [build_problem(i, texts.get(i, "")) for i in ids])
    answers = [build_prediction(grpo, i, k, order[i] < SOLVED[name] + k) for k in shots for i in ids]
    write_lines(folder / f"{grpo.name}.jsonl", answers + answers[:1] * (name == "twice"))
    write_lines(folder / f"{sft.name}.jsonl", [build_prediction(sft, i, k, i < 6) for k in shots for i in ids])
    (folder / "model").write_text(name, encoding="utf-8")
    timing = {"stage": "grpo@100-3407", "wall_s": 10 * BETAS[name], "cpu_s": 5.0, "peak_rss_mb": 300}
    (folder / "timing.json").write_text(json.dumps(timing), encoding="utf-8")


def run_git(*command: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *identity, *command], check=True, capture_output=True, text=True).stdout


def run_dvc(*command: str) -> None:
    from dvc.cli import main

    assert main([*command, "--quiet"]) == 0


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository whose HEAD is `first`, with the tag `empty` before it and the others as DVC experiments."""
    root = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
            patch.setenv(f"{name}_NAME", "a")
            patch.setenv(f"{name}_EMAIL", "a@example.com")
        run_git("init", "--quiet", "--initial-branch", "main")
        run_dvc("init")
        (root / ".gitignore").write_text("/results/\n", encoding="utf-8")
        (root / "params.yaml").write_text(PARAMS, encoding="utf-8")
        (root / "dvc.yaml").write_text(STAGES, encoding="utf-8")
        (root / "src").mkdir()
        (root / "src/trainer.py").write_text("pass\n", encoding="utf-8")
        for name, beta in BETAS.items():
            write_results(root / f"made/{beta}", name)
        run_git("add", ".")
        run_git("commit", "--quiet", "-m", "Nothing has run")
        run_git("tag", "empty")
        run_dvc("repro")
        run_git("add", ".")
        run_git("commit", "--quiet", "-m", "The first run")
        for name, beta in BETAS.items():
            if name != "first":
                run_dvc("exp", "run", "--name", name, "-S", f"grpo.beta={beta}")
        run_git("checkout", "--quiet", "--force", "HEAD")
        run_dvc("checkout", "--force")
        yield root


@pytest.fixture
def diff(experiments: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command in the repository and return its output; with `fails`, the error that it must end with."""
    monkeypatch.chdir(experiments)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, fails: bool = False) -> str:
        result = CliRunner().invoke(app, ["diff", *arguments])
        assert result.exit_code == (2 if fails else 0), result.output
        return " ".join(result.stderr.split()) if fails else result.stdout

    return run


def read_success(name: str, run: str, shot_num: int) -> dict[str, bool]:
    """Success by problem id, as `write_results` wrote it."""
    rows = read_rows(Path(f"made/{BETAS[name]}/{run}.jsonl"))
    return {row["id"]: row["success"] for row in rows if row["shot_num"] == shot_num}


def test_every_cell_is_tested_as_statsmodels_would(diff: Callable[..., str]) -> None:
    document = json.loads(diff("HEAD", "warm", "--json"))
    assert [revision["name"] for revision in document["revisions"]] == ["HEAD", "warm"]
    assert [revision["experiment"] for revision in document["revisions"]] == [None, "warm"]
    assert document["common"]["problems"] == PROBLEM_COUNT
    assert document["params"] == [{"key": "grpo.beta", "values": [0.0, 0.05], "stages": ["grpo"]}]
    cells = {(row["method"], row["shot_num"]): row for row in document["cells"]}
    assert {key for key, row in cells.items() if row["result"] == SAME} == {("sft", 0), ("sft", 1)}
    expected = []
    for k in SHOT_NUMS:
        a, b = (read_success(name, "grpo-100-3407", k) for name in ("first", "warm"))
        table = [[sum(a[i] == x and b[i] == y for i in a) for y in (True, False)] for x in (True, False)]
        row = cells["grpo", k]
        assert (row["lost"], row["gained"]) == (table[0][1], table[1][0])
        assert row["difference"] == pytest.approx(100 * (sum(b.values()) - sum(a.values())) / PROBLEM_COUNT)
        assert row["ci_low"] < row["difference"] < row["ci_high"]
        expected.append(float(mcnemar(table, exact=True).pvalue))
        assert row["p"] == pytest.approx(expected[-1])
    adjusted_p_values = multipletests(expected, method="holm")[1]
    assert [cells["grpo", k]["p_holm"] for k in SHOT_NUMS] == pytest.approx(list(adjusted_p_values))
    assert {cells["grpo", k]["result"] for k in SHOT_NUMS} == {"better"}
    assert len(document["flips"]) == sum(cells["grpo", k]["lost"] + cells["grpo", k]["gained"] for k in SHOT_NUMS)
    assert document["flips"][0]["b" if document["flips"][0]["kind"] == "gained" else "a"]["plan"].startswith(
        "(pick-up b1)"
    )
    transitions = {(row["label_a"], row["label_b"]): row["count"] for row in document["transitions"]}
    assert sum(transitions.values()) == PROBLEM_COUNT * len(SHOT_NUMS)
    cost = {row["kind"]: row for row in document["cost"]}["grpo"]
    assert (cost["wall_s_a"], cost["wall_s_b"], cost["anew"]) == (0.0, 0.5, 1)
    findings = " ".join(document["findings"])
    assert "2 of 2 cells (2 cells with the same answers in both set aside) differ after Holm's correction" in findings
    assert "another training seed may move results as much" in findings


def test_no_file_is_changed_and_the_dvc_lock_is_not_needed(diff: Callable[..., str], tmp_path: Path) -> None:
    from dvc.repo import Repo

    def read_state() -> tuple[str, dict[str, int]]:
        files = [path for path in Path().rglob("*") if path.is_file() and not {".git", "tmp"} & set(path.parts)]
        return run_git("status", "--porcelain"), {str(path): path.stat().st_mtime_ns for path in files}

    before = read_state()
    assert len(before[1]) > 20
    diff("HEAD", "warm", "--html", str(tmp_path / "page.html"))
    with Repo() as repo, repo.lock:  # as `dvc repro` holds it
        diff("workspace", "warm", "hot")
    assert read_state() == before


def test_only_common_problems_and_shot_nums_are_compared(diff: Callable[..., str]) -> None:
    document = json.loads(diff("HEAD", "other", "--json"))
    text = " ".join(document["common"]["notes"])
    assert "HEAD has 24, other has 16, 16 are in common; only those are compared" in text
    assert "Same id but another text, so another problem and left out: p09 (1 in all)." in text
    assert "HEAD has 0, 1; other has 0; only 0 are compared" in text
    assert document["common"]["problems"] == 15
    cell = next(row for row in document["cells"] if row["method"] == "grpo")
    first, other = (read_success(name, "grpo-100-3407", 0) for name in ("first", "other"))
    assert cell["n"] == 15
    assert cell["gained"] == sum(success and not first[key] for key, success in other.items() if key != "p09")
    assert document["pooled"] == []
    selection = json.loads(diff("HEAD", "warm", "--json", "--method", "grpo", "--size", "100", "--shots", "1"))
    assert [(row["method"], row["shot_num"]) for row in selection["cells"]] == [("grpo", 1)]
    assert selection["cells"][0]["p_holm"] == selection["cells"][0]["p"]  # a family of one


def test_model_output_is_escaped(diff: Callable[..., str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    output = diff("HEAD", "warm", "--flips", "1", "--html", str(page))
    assert "\x1b[2J" not in output
    assert r"<script>alert('plan')</script>\x1b[2J" in output
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;plan&#39;)&lt;/script&gt;" in html
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    for text in ("grpo.beta", "GRPO, N = 100", "p, Holm", "another training seed"):
        assert text in html


def test_ranking_orders_by_success_and_marks_ties(diff: Callable[..., str], tmp_path: Path) -> None:
    document = json.loads(diff("HEAD", "warm", "hot", "--json", "--html", str(tmp_path / "page.html")))
    assert document["params"] == [{"key": "grpo.beta", "values": [0.0, 0.05, 0.5], "stages": ["grpo"]}]
    cell = [row for row in document["cells"] if row["method"] == "grpo" and row["shot_num"] == 0]
    assert [row["experiment"] for row in cell] == ["warm", "hot", "HEAD"]
    assert [row["rank"] for row in cell] == [1, 2, 3]
    assert [row["value"] for row in cell] == pytest.approx([20 / 24, 5 / 24, 4 / 24])
    assert [row["result"] for row in cell] == ["best", "worse", "worse"]
    assert {row["result"] for row in document["cells"] if row["method"] == "sft"} == {SAME}
    pooled_rows = [row for row in document["pooled"] if row["method"] == "grpo"]
    assert [(row["experiment"], row["shot_num"]) for row in pooled_rows] == [
        ("warm", "all"),
        ("hot", "all"),
        ("HEAD", "all"),
    ]
    close = json.loads(diff("HEAD", "hot", "other", "--json", "--method", "grpo", "--shots", "0"))["cells"]
    assert [row["result"] for row in close if row["experiment"] in ("HEAD", "hot")].count(TIED) >= 1
    assert "Experiments ranked" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_all_experiments_of_a_commit_are_ranked_against_it(diff: Callable[..., str], tmp_path: Path) -> None:
    document = json.loads(diff("--experiments", "--shots", "0", "--json", "--html", str(tmp_path / "page.html")))
    assert [revision["name"] for revision in document["revisions"]] == ["HEAD", "hot", "other", "warm"]
    assert [(task["name"], task["status"]) for task in document["unfinished"]] == [("twice", "unreadable")]
    assert "1 duplicated rows" in document["unfinished"][0]["reason"]
    assert document["reference"] == "baseline"
    rows = {row["experiment"]: row for row in document["pooled"] if row["method"] == "grpo"}
    ids = [key for key in read_success("other", "grpo-100-3407", 0) if key != "p09"]  # what all of them hold
    successes = {
        name: {key: read_success(name, "grpo-100-3407", 0)[key] for key in ids} for name in BETAS if name != "twice"
    }
    successes["HEAD"] = successes.pop("first")
    order = sorted(rows, key=lambda name: rows[name]["rank"])
    assert [rows[name]["value"] for name in order] == sorted(
        (sum(success.values()) / 15 for success in successes.values()), reverse=True
    )
    expected = {}
    for name in ("hot", "other", "warm"):
        a, b = successes["HEAD"], successes[name]
        table = [[sum(a[i] == x and b[i] == y for i in ids) for y in (True, False)] for x in (True, False)]
        expected[name] = float(mcnemar(table, exact=True).pvalue)
        assert rows[name]["p"] == pytest.approx(expected[name])
        assert rows[name]["difference"] == pytest.approx(100 * (sum(b.values()) - sum(a.values())) / 15)
        assert rows[name]["difference_low"] <= rows[name]["difference"] <= rows[name]["difference_high"]
    adjusted_p_values = multipletests(list(expected.values()), method="holm")[1]
    assert [rows[name]["p_holm"] for name in expected] == pytest.approx(list(adjusted_p_values))
    assert rows["HEAD"]["result"] == "baseline"
    assert rows["warm"]["result"] == ("better" if rows["warm"]["p_holm"] < 0.05 else TIED)

    output = diff("--experiments", "HEAD", "--method", "grpo")
    assert re.search(r"^1 +warm +0.05 +\d", output, re.M)
    assert re.search(r"^twice +unreadable", output, re.M)
    assert "minus baseline" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_unfinished_experiments_are_listed_with_their_state(
    diff: Callable[..., str], experiments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dvc.repo import Repo

    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")  # the queue's workers call `dvc`
    monkeypatch.chdir(shutil.copytree(experiments, tmp_path / "copy", symlinks=True))
    run_dvc("exp", "remove", "--all-commits")
    assert "none of its experiments has finished (there are none)" in diff("--experiments", fails=True)
    run_dvc("exp", "run", "--queue", "--name", "queued", "-S", "grpo.beta=0.05")
    run_dvc("exp", "run", "--queue", "--name", "failing", "-S", "grpo.beta=0.3")  # no such file in made/
    assert "failing: queued, dvc queue start" in diff("--experiments", fails=True)
    run_dvc("queue", "start", "--jobs", "2")
    with Repo() as repo:
        deadline = time.monotonic() + 120
        while len(list(repo.experiments.celery_queue.iter_done())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    run_dvc("exp", "run", "--name", "partial", "-S", "grpo.beta=0.5", "grpo")  # a target before the evaluation
    run_git("checkout", "--quiet", "--force", "HEAD")
    document = json.loads(diff("--experiments", "--json"))
    assert [revision["name"] for revision in document["revisions"]] == ["HEAD", "queued"]
    states = {task["name"]: (task["status"], task["reason"]) for task in document["unfinished"]}
    assert states.keys() == {"failing", "partial"}
    assert states["failing"] == ("failed", "dvc queue logs failing")
    assert states["partial"][0] == "incomplete"
    assert "results/models/grpo-100-3407 has changed since" in states["partial"][1]


def test_changes_since_the_last_run_are_noted(diff: Callable[..., str], experiments: Path) -> None:
    predictions = experiments / "results/predictions/grpo-100-3407.jsonl"
    original, params = predictions.read_bytes(), experiments / "params.yaml"
    try:
        params.write_text(PARAMS.replace("1.0e-5", "2.0e-5"), encoding="utf-8")
        predictions.unlink()  # it may be a link into the cache
        predictions.write_bytes(original.replace(b'"(pick-up b1)', b'"(pick-up b2)'))
        notes = json.loads(diff("HEAD", "workspace", "--json"))["revisions"][1]["notes"]
        assert "results/predictions/grpo-100-3407.jsonl is not the file that dvc.lock records" in notes
        assert "grpo.learning_rate was 1e-05 and is 2e-05 in params.yaml (when grpo ran)" in notes
    finally:
        params.write_text(PARAMS, encoding="utf-8")
        predictions.write_bytes(original)
    assert json.loads(diff("HEAD", "workspace", "--json"))["revisions"][1]["notes"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["HEAD", "nope"], r"nope: no such commit, branch, tag or experiment; experiments are hot, other, twice, warm"),
        (["HEAD", "empty"], "empty: has no dvc.lock, so no stage has run there"),
        (["HEAD", "twice"], "twice: results/predictions/grpo-100-3407.jsonl: 1 duplicated rows"),
        (["HEAD", "warm", "--task", "economy"], "HEAD: its dvc.lock has no predictions in results/economy/predictions"),
        (["HEAD", "warm", "--task", "selectors"], "no predictions in results/selectors/predictions"),
        (
            ["HEAD", "warm", "--method", "base"],
            "HEAD: holds no predictions of method base; its runs are sft-100-3407",
        ),
        (["HEAD", "warm", "--size", "40"], "HEAD: holds no predictions of N 40; its runs are sft-100-3407"),
        (["HEAD", "warm", "--shots", "0", "--shots", "7"], "no such number of worked examples is in all of them"),
        (["HEAD", "warm", "--shots", "7"], "no such number of worked examples is in all of them (HEAD has 0, 1; warm"),
        (["HEAD"], "name two revisions"),
        (["HEAD", "HEAD"], "HEAD: named twice"),
    ],
)
def test_what_cannot_be_compared_is_an_error_with_its_reason(
    diff: Callable[..., str], arguments: list[str], error: str
) -> None:
    assert error in diff(*arguments, fails=True)


@pytest.fixture
def missing_md5(experiments: Path) -> Iterator[str]:
    """MD5 of the predictions of `warm`, which the cache lacks during the test."""
    commit = next(line.split()[0] for line in run_git("for-each-ref").splitlines() if line.endswith("/warm"))
    lock = run_git("show", f"{commit}:dvc.lock")
    line = lock[lock.index("path: results/predictions/grpo-100-3407.jsonl") :]
    md5 = line[line.index("md5: ") + 5 :].split()[0]
    file = experiments / f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
    data = file.read_bytes()
    file.chmod(0o644)
    file.unlink()
    yield md5
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def test_a_file_missing_from_the_cache_is_named_with_its_fix(diff: Callable[..., str], missing_md5: str) -> None:
    error = diff("HEAD", "warm", fails=True)
    assert f"warm: results/predictions/grpo-100-3407.jsonl (MD5 {missing_md5}) is not in DVC's cache" in error
    assert "fix: `planward diff --pull` fetches it" in error
    assert "dvc exp apply warm" in error


def test_a_file_missing_from_the_cache_is_pulled(
    diff: Callable[..., str], missing_md5: str, experiments: Path, tmp_path: Path
) -> None:
    error = diff("HEAD", "warm", "--pull", fails=True)
    assert "warm: cannot pull from DVC's remote: config file error: no remote specified" in error
    run_dvc("remote", "add", "--local", "--default", "store", str(tmp_path))
    try:
        assert f"MD5 {missing_md5}) is not in DVC's cache" in diff("HEAD", "warm", "--pull", fails=True)
        file = tmp_path / f"files/md5/{missing_md5[:2]}/{missing_md5[2:]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((experiments / "made/0.05/grpo-100-3407.jsonl").read_bytes())
        cells = json.loads(diff("HEAD", "warm", "--pull", "--json"))["cells"]
    finally:
        run_dvc("remote", "remove", "--local", "store")
    assert {row["result"] for row in cells if row["method"] == "grpo"} == {"better"}


def test_changed_code_is_listed_with_its_stages(diff: Callable[..., str], experiments: Path) -> None:
    trainer = experiments / "src/trainer.py"
    try:
        trainer.write_text("raise SystemExit\n", encoding="utf-8")
        run_dvc("repro")
        document = json.loads(diff("HEAD", "workspace", "--json"))
    finally:
        trainer.write_text("pass\n", encoding="utf-8")
        run_git("checkout", "--quiet", "dvc.lock")
        run_dvc("checkout", "--force")
    assert document["code"] == [{"path": "src/trainer.py", "stages": ["grpo"]}]
    assert document["params"] == []
    assert {row["result"] for row in document["cells"]} == {SAME}


def build_experiment(name: str, predictions: list[dict[str, Any]], households: int = 0) -> Experiment:
    """An experiment of these predictions, whose problems are shared out over households."""
    frame = pd.DataFrame(predictions)
    ids = list(dict.fromkeys(frame["id"]))
    meta = build_problem(0)["meta"]
    records = [
        Record.model_validate(build_problem(0) | {"id": key, "meta": meta | {"household": i % households}})
        for i, key in enumerate(ids if households else [])
    ]
    runs = frame[["method", "dataset_size", "seed"]].drop_duplicates().itertuples(index=False)
    digests = {Run(str(m), int(n), int(s) if n else 0): f"{name}-{m}-{n}-{s}" for m, n, s in runs}
    revision = Revision(name, None, None, {}, {}, lambda _path, _md5: None)
    return Experiment(revision, frame, digests, {record.id: record for record in records}, {}, {}, [])


def test_equal_seeds_are_paired() -> None:
    rng, uncertainty, planning = np.random.default_rng(0), Uncertainty(0.95, 200, 0), load_subject("planning")

    def draw_predictions(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        runs = [Run("grpo", 100, seed) for seed in seeds]
        return [build_prediction(run, i, 0, bool(rng.random() < 0.5)) for run in runs for i in range(30)]

    a, b = draw_predictions((1, 2, 5)), draw_predictions((2, 3, 5))
    comparison = compare(build_experiment("a", a), build_experiment("b", b), planning, uncertainty)
    assert comparison.overlap.seeds["grpo", 100] == [[2, 5], [2, 5]]
    assert "Different seeds (a has 1, 2, 5; b has 2, 3, 5): only 2, 5 are compared." in comparison.overlap.notes
    row = comparison.cells.iloc[0]
    common = [[prediction for prediction in side if prediction["seed"] in (2, 5)] for side in (a, b)]
    assert row["gained"] == sum(y["success"] and not x["success"] for x, y in zip(*common, strict=True))
    assert (row["seeds"], row["interval"], row["test"]) == (2, "bootstrap", "sign-flip")
    two, one = build_experiment("a", draw_predictions((1, 2))), build_experiment("b", draw_predictions((7,)))
    comparison = compare(two, one, planning, uncertainty)
    assert comparison.overlap.seeds["grpo", 100] == [[1], [7]]
    assert comparison.cells.iloc[0]["test"] == "mcnemar"


def test_clusters_are_resampled_as_a_whole() -> None:
    """Months of a household that change together are one observation, not many."""
    uncertainty, run = Uncertainty(0.95, 2000, 0), Run("grpo", 100, 1)
    better = {i: i % 6 < 4 for i in range(60)}  # 60 months of 6 households: four gain in every month, two lose
    before = [build_prediction(run, i, 0, not better[i], reward=0.0) for i in range(60)]
    after = [build_prediction(run, i, 0, better[i], reward=0.5 if better[i] else -0.5) for i in range(60)]
    a, b = build_experiment("a", before, households=6), build_experiment("b", after, households=6)
    comparison = compare(a, b, load_subject("economy"), uncertainty)
    reward = comparison.rewards.iloc[0]
    assert reward["difference"] == pytest.approx((40 * 0.5 - 20 * 0.5) / 60)
    assert reward["ci_low"] < 0 < reward["ci_high"]
    assert reward["test"] == "sign-flip of households"
    assert reward["p"] == pytest.approx(44 / 64)  # of 2^6 sign flips, those at least as far: 2, 1 or 0 of a sign
    a, b = build_experiment("a", before), build_experiment("b", after)
    single = compare(a, b, load_subject("planning"), uncertainty).cells.iloc[0]
    assert comparison.cells.iloc[0]["difference"] == pytest.approx(single["difference"])
    assert single["p"] < 0.05 < comparison.cells.iloc[0]["p"]


TRACK_STAGE = """\
  evaluate{suffix}:
    {wdir}cmd: >-
      mkdir -p {results}/predictions {timing}
      && cp made/${{{key}}}.jsonl {results}/predictions/grpo-100-3407.jsonl
      && cp made/timing.json {timing}/evaluate{suffix}.json
    params: [{params}]
    outs: [{results}/predictions/grpo-100-3407.jsonl]
    metrics: [{timing}/evaluate{suffix}.json]
"""


def test_revisions_with_one_pipeline_and_with_one_for_each_track_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selectors were once the stages and the section `demonstrations` of the root's dvc.yaml and params.yaml."""
    monkeypatch.chdir(tmp_path)
    run_git("init", "--quiet", "--initial-branch", "main")
    run_dvc("init")
    Path(".gitignore").write_text("/results/\n/made/\n", encoding="utf-8")
    run = Run("pointer-grpo", 100, SEED)
    for epochs, solved_count in (("1", 3), ("2", 20)):
        rows = [build_prediction(run, i, 1, i < solved_count) for i in range(PROBLEM_COUNT)]
        write_lines(Path(f"made/{epochs}.jsonl"), rows)
    Path("made/timing.json").write_text('{"wall_s": 1.5, "cpu_s": 1.0, "peak_rss_mb": 10}', encoding="utf-8")

    old = {"suffix": "-rules", "wdir": "", "results": "results/demonstrations", "timing": "results/timing"}
    old |= {"key": "demonstrations.epochs", "params": "demonstrations.epochs"}
    Path("dvc.yaml").write_text("stages:\n" + TRACK_STAGE.format(**old), encoding="utf-8")
    compare_section = "compare: {confidence: 0.95, resamples: 200}\n"
    Path("params.yaml").write_text(f"{compare_section}demonstrations: {{epochs: 1}}\n", encoding="utf-8")
    run_dvc("repro")
    run_git("add", ".")
    run_git("commit", "--quiet", "-m", "One pipeline")
    run_git("tag", "old")

    new = {"suffix": "-rules", "wdir": "wdir: ../..\n    ", "results": "results/selectors"}
    new |= {"timing": "results/selectors/timing", "key": "epochs"}
    new |= {"params": "{workflow/selectors/params.yaml: [epochs]}"}
    Path("workflow/selectors").mkdir(parents=True)
    Path("workflow/selectors/dvc.yaml").write_text("stages:\n" + TRACK_STAGE.format(**new), encoding="utf-8")
    Path("workflow/selectors/params.yaml").write_text("epochs: 2\n", encoding="utf-8")
    Path("dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    Path("params.yaml").write_text(compare_section, encoding="utf-8")
    run_dvc("repro", "--all-pipelines")
    run_git("add", ".")
    run_git("commit", "--quiet", "-m", "A pipeline for each track")

    result = CliRunner().invoke(app, ["diff", "old", "HEAD", "--task", "selectors", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    key = "workflow/selectors/params.yaml:epochs"
    assert document["params"] == [
        {"key": "demonstrations.epochs", "values": [1, None], "stages": ["evaluate-rules"]},
        {"key": key, "values": [None, 2], "stages": ["selectors:evaluate-rules"]},
    ]
    assert [row["kind"] for row in document["cost"]] == ["evaluate-rules", "selectors:evaluate-rules"]
    [cell] = document["cells"]
    assert (cell["method"], cell["dataset_size"], cell["gained"]) == ("pointer-grpo", 100, 17)  # not of the file's name
    assert [revision["notes"] for revision in document["revisions"]] == [[], []]

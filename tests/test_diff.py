"""planward diff on a real Git and DVC repository: the numbers, what is compared with what, and the refusals."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from typer.testing import CliRunner

from conftest import rows, write_lines
from planward.cli import app
from planward.experiments.comparison import SAME, compared
from planward.experiments.experiment import Experiment
from planward.experiments.revisions import Revision
from planward.records import Record, Run
from planward.reporting.comparison import Uncertainty
from planward.reporting.tables import TIED

PROBLEMS, SHOTS, SEED = 24, (0, 1), 3407
HOSTILE = "<script>alert('plan')</script>\x1b[2J"
BETAS = {"first": 0.0, "warm": 0.05, "hot": 0.5, "other": 0.1, "twice": 0.2}  # the settings, by revision
SKILL = {"first": 4, "warm": 20, "hot": 5, "other": 12, "twice": 4}  # of grpo, of PROBLEMS
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


def prediction(run: Run, i: int, shot_num: int, solved: bool, **changes: Any) -> dict[str, Any]:
    plan = "(pick-up b1)\n(stack b1 b2)" if solved else ""
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
        "completion": plan or HOSTILE,
        "plan": plan,
        "label": "success_plans" if solved else "plan_format_error",
        "success": solved,
        "reward": 1.0 if solved else -1.0,
        "detail": "",
        "plan_size": 2,
        "failing_step": None,
        "goals_satisfied": None,
        "goals_total": 1,
    } | changes


def problem(i: int, text: str = "") -> dict[str, Any]:
    meta = {"scenario": "ferry", "domain_file": "d", "problem_file": f"{i}"}
    return {"prompt": text or f"problem {i}", "meta": meta, "id": f"p{i:02}"}


def write_results(folder: Path, name: str) -> None:
    """What a training and evaluation would find under the settings of a revision."""
    sft, grpo = Run("sft", 100, SEED), Run("grpo", 100, SEED)
    ids = range(4, 20) if name == "other" else range(PROBLEMS)  # one of which is another problem
    shots = (0,) if name == "other" else SHOTS
    place = random.Random(name).sample(range(PROBLEMS), PROBLEMS)
    texts = {9: "another problem 9"} if name == "other" else {}
    write_lines(folder / "test.jsonl", [problem(i, texts.get(i, "")) for i in ids])
    answers = [prediction(grpo, i, k, place[i] < SKILL[name] + k) for k in shots for i in ids]
    write_lines(folder / f"{grpo.name}.jsonl", answers + answers[:1] * (name == "twice"))
    write_lines(folder / f"{sft.name}.jsonl", [prediction(sft, i, k, i < 6) for k in shots for i in ids])
    (folder / "model").write_text(name, encoding="utf-8")
    timing = {"stage": "grpo@100-3407", "wall_s": 10 * BETAS[name], "cpu_s": 5.0, "peak_rss_mb": 300}
    (folder / "timing.json").write_text(json.dumps(timing), encoding="utf-8")


def git(*command: str) -> str:
    ours = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *ours, *command], check=True, capture_output=True, text=True).stdout


def dvc(*command: str) -> None:
    from dvc.cli import main

    assert main([*command, "--quiet"]) == 0


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository whose HEAD is `first`, with the tag `empty` before it and the others as DVC's experiments."""
    root = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
            patch.setenv(f"{name}_NAME", "a")
            patch.setenv(f"{name}_EMAIL", "a@example.com")
        git("init", "--quiet", "--initial-branch", "main")
        dvc("init")
        (root / ".gitignore").write_text("/results/\n", encoding="utf-8")
        (root / "params.yaml").write_text(PARAMS, encoding="utf-8")
        (root / "dvc.yaml").write_text(STAGES, encoding="utf-8")
        (root / "src").mkdir()
        (root / "src/trainer.py").write_text("pass\n", encoding="utf-8")
        for name, beta in BETAS.items():
            write_results(root / f"made/{beta}", name)
        git("add", ".")
        git("commit", "--quiet", "-m", "Nothing has run")
        git("tag", "empty")
        dvc("repro")
        git("add", ".")
        git("commit", "--quiet", "-m", "The first run")
        for name, beta in BETAS.items():
            if name != "first":
                dvc("exp", "run", "--name", name, "-S", f"grpo.beta={beta}")
        git("checkout", "--quiet", "--force", "HEAD")
        dvc("checkout", "--force")
        yield root


@pytest.fixture
def diff(experiments: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command in the repository; `fails`: it must, and its complaint is returned."""
    monkeypatch.chdir(experiments)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, fails: bool = False) -> str:
        found = CliRunner().invoke(app, ["diff", *arguments])
        assert found.exit_code == (2 if fails else 0), found.output
        return " ".join(found.stderr.split()) if fails else found.stdout

    return run


def solved(name: str, run: str, shot_num: int) -> dict[str, bool]:
    found = rows(Path(f"made/{BETAS[name]}/{run}.jsonl"))
    return {row["id"]: row["success"] for row in found if row["shot_num"] == shot_num}


def test_every_cell_is_tested_as_statsmodels_would(diff: Callable[..., str]) -> None:
    found = json.loads(diff("HEAD", "warm", "--json"))
    assert [own["name"] for own in found["revisions"]] == ["HEAD", "warm"]
    assert [own["experiment"] for own in found["revisions"]] == [None, "warm"]
    assert found["common"]["problems"] == PROBLEMS
    assert found["params"] == [{"key": "grpo.beta", "values": [0.0, 0.05], "stages": ["grpo"]}]
    cells = {(row["method"], row["shot_num"]): row for row in found["cells"]}
    assert {key for key, row in cells.items() if row["result"] == SAME} == {("sft", 0), ("sft", 1)}
    expected = []
    for k in SHOTS:
        a, b = (solved(name, "grpo-100-3407", k) for name in ("first", "warm"))
        table = [[sum(a[i] == x and b[i] == y for i in a) for y in (True, False)] for x in (True, False)]
        row = cells["grpo", k]
        assert (row["lost"], row["gained"]) == (table[0][1], table[1][0])
        assert row["difference"] == pytest.approx(100 * (sum(b.values()) - sum(a.values())) / PROBLEMS)
        assert row["ci_low"] < row["difference"] < row["ci_high"]
        expected.append(float(mcnemar(table, exact=True).pvalue))
        assert row["p"] == pytest.approx(expected[-1])
    adjusted = multipletests(expected, method="holm")[1]
    assert [cells["grpo", k]["p_holm"] for k in SHOTS] == pytest.approx(list(adjusted))
    assert {cells["grpo", k]["result"] for k in SHOTS} == {"better"}
    assert len(found["flips"]) == sum(cells["grpo", k]["lost"] + cells["grpo", k]["gained"] for k in SHOTS)
    assert found["flips"][0]["b" if found["flips"][0]["kind"] == "gained" else "a"]["plan"].startswith("(pick-up b1)")
    moved = {(row["label_a"], row["label_b"]): row["count"] for row in found["transitions"]}
    assert sum(moved.values()) == PROBLEMS * len(SHOTS)
    cost = {row["kind"]: row for row in found["cost"]}["grpo"]
    assert (cost["wall_s_a"], cost["wall_s_b"], cost["anew"]) == (0.0, 0.5, 1)
    said = " ".join(found["findings"])
    assert "2 of 2 cells (2 cells with the same answers in both set aside) differ after Holm's correction" in said
    assert "another training seed may move results as much" in said


def test_nothing_is_touched_and_a_run_may_go_on(diff: Callable[..., str], tmp_path: Path) -> None:
    from dvc.repo import Repo

    def state() -> tuple[str, dict[str, int]]:
        files = [path for path in Path().rglob("*") if path.is_file() and not {".git", "tmp"} & set(path.parts)]
        return git("status", "--porcelain"), {str(path): path.stat().st_mtime_ns for path in files}

    before = state()
    assert len(before[1]) > 20
    diff("HEAD", "warm", "--html", str(tmp_path / "page.html"))
    with Repo() as repo, repo.lock:  # as `dvc repro` holds it
        diff("workspace", "warm", "hot")
    assert state() == before


def test_only_what_both_hold_is_compared(diff: Callable[..., str]) -> None:
    found = json.loads(diff("HEAD", "other", "--json"))
    text = " ".join(found["common"]["notes"])
    assert "HEAD has 24, other has 16, 16 are in common; only those are compared" in text
    assert "Same id but another text, so another problem and left out: p09 (1 in all)." in text
    assert "HEAD has 0, 1; other has 0; only 0 are compared" in text
    assert found["common"]["problems"] == 15
    cell = next(row for row in found["cells"] if row["method"] == "grpo")
    both = [
        (i, solved("first", "grpo-100-3407", 0)[i], right) for i, right in solved("other", "grpo-100-3407", 0).items()
    ]
    assert cell["n"] == 15
    assert cell["gained"] == sum(i != "p09" and right and not was for i, was, right in both)
    assert found["pooled"] == []
    narrowed = json.loads(diff("HEAD", "warm", "--json", "--method", "grpo", "--size", "100", "--shots", "1"))
    assert [(row["method"], row["shot_num"]) for row in narrowed["cells"]] == [("grpo", 1)]
    assert narrowed["cells"][0]["p_holm"] == narrowed["cells"][0]["p"]  # a family of one


def test_what_a_model_wrote_stays_text(diff: Callable[..., str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    printed = diff("HEAD", "warm", "--flips", "1", "--html", str(page))
    assert "\x1b[2J" not in printed
    assert r"<script>alert('plan')</script>\x1b[2J" in printed
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;plan&#39;)&lt;/script&gt;" in html
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    for found in ("grpo.beta", "GRPO, N = 100", "p, Holm", "another training seed"):
        assert found in html


def test_ranking_goes_by_success_and_says_what_is_tied(diff: Callable[..., str], tmp_path: Path) -> None:
    found = json.loads(diff("HEAD", "warm", "hot", "--json", "--html", str(tmp_path / "page.html")))
    assert found["params"] == [{"key": "grpo.beta", "values": [0.0, 0.05, 0.5], "stages": ["grpo"]}]
    cell = [row for row in found["cells"] if row["method"] == "grpo" and row["shot_num"] == 0]
    assert [row["experiment"] for row in cell] == ["warm", "hot", "HEAD"]
    assert [row["rank"] for row in cell] == [1, 2, 3]
    assert [row["value"] for row in cell] == pytest.approx([20 / 24, 5 / 24, 4 / 24])
    assert [row["result"] for row in cell] == ["best", "worse", "worse"]
    assert {row["result"] for row in found["cells"] if row["method"] == "sft"} == {SAME}
    pooled = [row for row in found["pooled"] if row["method"] == "grpo"]
    assert [(row["experiment"], row["shot_num"]) for row in pooled] == [
        ("warm", "all"),
        ("hot", "all"),
        ("HEAD", "all"),
    ]
    close = json.loads(diff("HEAD", "hot", "other", "--json", "--method", "grpo", "--shots", "0"))["cells"]
    assert [row["result"] for row in close if row["experiment"] in ("HEAD", "hot")].count(TIED) >= 1
    assert "Experiments ranked" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_workspace_that_was_changed_and_not_run_is_told(diff: Callable[..., str], experiments: Path) -> None:
    predictions = experiments / "results/predictions/grpo-100-3407.jsonl"
    kept, params = predictions.read_bytes(), experiments / "params.yaml"
    try:
        params.write_text(PARAMS.replace("1.0e-5", "2.0e-5"), encoding="utf-8")
        predictions.unlink()  # it may be a link into the cache
        predictions.write_bytes(kept.replace(b'"(pick-up b1)', b'"(pick-up b2)'))
        notes = json.loads(diff("HEAD", "workspace", "--json"))["revisions"][1]["notes"]
        assert "results/predictions/grpo-100-3407.jsonl is not the file that dvc.lock records" in notes
        assert "grpo.learning_rate was 1e-05 and is 2e-05 in params.yaml (when grpo ran)" in notes
    finally:
        params.write_text(PARAMS, encoding="utf-8")
        predictions.write_bytes(kept)
    assert json.loads(diff("HEAD", "workspace", "--json"))["revisions"][1]["notes"] == []


@pytest.mark.parametrize(
    ("revisions", "complaint"),
    [
        (["HEAD", "nope"], r"nope: no such commit, branch, tag or experiment; experiments are hot, other, twice, warm"),
        (["HEAD", "empty"], "empty: has no dvc.lock, so no stage has run there"),
        (["HEAD", "twice"], "twice: results/predictions/grpo-100-3407.jsonl: 1 duplicated rows"),
        (["HEAD", "warm", "--task", "economy"], "HEAD: its dvc.lock has no predictions in results/economy/predictions"),
        (["HEAD", "warm", "--method", "base"], "HEAD: holds no predictions of what is asked for, but of sft-100-3407"),
        (["HEAD", "warm", "--shots", "7"], "no such number of worked examples is in all of them (HEAD has 0, 1; warm"),
        (["HEAD"], "name two revisions"),
        (["HEAD", "HEAD"], "HEAD: named twice"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_reason(
    diff: Callable[..., str], revisions: list[str], complaint: str
) -> None:
    assert complaint in diff(*revisions, fails=True)


def test_a_file_that_the_cache_lacks_is_named_with_what_brings_it(diff: Callable[..., str], experiments: Path) -> None:
    commit = next(line.split()[0] for line in git("for-each-ref").splitlines() if line.endswith("/warm"))
    lock = git("show", f"{commit}:dvc.lock")
    line = lock[lock.index("path: results/predictions/grpo-100-3407.jsonl") :]
    md5 = line[line.index("md5: ") + 5 :].split()[0]
    cached = experiments / f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
    data = cached.read_bytes()
    cached.chmod(0o644)
    cached.unlink()
    try:
        said = diff("HEAD", "warm", fails=True)
    finally:
        cached.write_bytes(data)
    assert f"warm: results/predictions/grpo-100-3407.jsonl (MD5 {md5}) is not in DVC's cache" in said
    assert "dvc exp apply warm" in said
    assert "dvc pull results/predictions/grpo-100-3407.jsonl" in said


def test_code_that_differs_is_named_with_its_stages(diff: Callable[..., str], experiments: Path) -> None:
    trainer = experiments / "src/trainer.py"
    try:
        trainer.write_text("raise SystemExit\n", encoding="utf-8")
        dvc("repro")
        found = json.loads(diff("HEAD", "workspace", "--json"))
    finally:
        trainer.write_text("pass\n", encoding="utf-8")
        git("checkout", "--quiet", "dvc.lock")
        dvc("checkout", "--force")
    assert found["code"] == [{"path": "src/trainer.py", "stages": ["grpo"]}]
    assert found["params"] == []
    assert {row["result"] for row in found["cells"]} == {SAME}


def in_memory(name: str, answers: list[dict[str, Any]], households: int = 0) -> Experiment:
    """An experiment of these predictions, each household with as many problems."""
    frame = pd.DataFrame(answers)
    ids = list(dict.fromkeys(frame["id"]))
    records = [
        Record.model_validate(problem(0) | {"id": key, "meta": problem(0)["meta"] | {"household": i % households}})
        for i, key in enumerate(ids if households else [])
    ]
    runs = frame[["method", "dataset_size", "seed"]].drop_duplicates().itertuples(index=False)
    digests = {Run(str(m), int(n), int(s)): f"{name}-{m}-{n}-{s}" for m, n, s in runs}
    revision = Revision(name, None, None, {}, {}, lambda _path, _md5: None)
    return Experiment(revision, frame, digests, {record.id: record for record in records}, {}, {}, [])


def test_the_same_seeds_stand_against_each_other() -> None:
    rng, by = np.random.default_rng(0), Uncertainty(0.95, 200, 0)

    def answers(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
        own = [Run("grpo", 100, seed) for seed in seeds]
        return [prediction(run, i, 0, bool(rng.random() < 0.5)) for run in own for i in range(30)]

    a, b = answers((1, 2, 5)), answers((2, 3, 5))
    found = compared(in_memory("a", a), in_memory("b", b), "planning", by)
    assert found.overlap.seeds["grpo", 100] == [[2, 5], [2, 5]]
    assert "Different seeds (a has 1, 2, 5; b has 2, 3, 5): only 2, 5 are compared." in found.overlap.notes
    row = found.cells.iloc[0]
    kept = [[r for r in own if r["seed"] in (2, 5)] for own in (a, b)]
    assert row["gained"] == sum(y["success"] and not x["success"] for x, y in zip(*kept, strict=True))
    assert (row["seeds"], row["interval"], row["test"]) == (2, "bootstrap", "sign-flip")
    apart = compared(in_memory("a", answers((1, 2))), in_memory("b", answers((7,))), "planning", by)
    assert apart.overlap.seeds["grpo", 100] == [[1], [7]]
    assert apart.cells.iloc[0]["test"] == "mcnemar"


def test_the_economy_resamples_whole_households() -> None:
    """Months of a household that move together are one finding, not many."""
    by, run = Uncertainty(0.95, 2000, 0), Run("grpo", 100, 1)
    better = {i: i % 6 < 4 for i in range(60)}  # 60 months of 6 households: four gain in every month, two lose
    before = [prediction(run, i, 0, not better[i], reward=0.0) for i in range(60)]
    after = [prediction(run, i, 0, better[i], reward=0.5 if better[i] else -0.5) for i in range(60)]
    a, b = in_memory("a", before, households=6), in_memory("b", after, households=6)
    found = compared(a, b, "economy", by)
    reward = found.rewards.iloc[0]
    assert reward["difference"] == pytest.approx((40 * 0.5 - 20 * 0.5) / 60)
    assert reward["ci_low"] < 0 < reward["ci_high"]
    assert reward["test"] == "sign-flip of households"
    assert reward["p"] == pytest.approx(44 / 64)  # of 2^6 ways to flip, those at least as far: 2, 1 or 0 of a sign
    single = compared(in_memory("a", before), in_memory("b", after), "planning", by).cells.iloc[0]
    assert found.cells.iloc[0]["difference"] == pytest.approx(single["difference"])
    assert single["p"] < 0.05 < found.cells.iloc[0]["p"]

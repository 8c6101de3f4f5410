"""The whole pipeline, small, through the real Snakemake and the real DVC."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

from letters import write_model
from project import Project, tutorial
from support import ROOT

SMALL = """
dataset_sizes: [10]
problems:
  generated:
    blocksworld: {count: 16, blocks: [3, 4]}
    ferry: {count: 16, locations: [3, 4], cars: [2, 3]}
    grippers: {count: 16, robots: [1, 1], rooms: [2, 3], objects: [2, 4]}
    spanner: {count: 16, spanners: [2, 4], nuts: [1, 3], locations: [3, 5]}
    delivery: {count: 16, width: [2, 3], height: [2, 2], packages: [1, 2]}
    elevator: {count: 4, floors: [2, 3], passengers: [1, 2]}
sft: {epochs: 1}
grpo: {steps: 2, batch_size: 5, num_generations: 2, reward: dense}
evaluate: {samples: {dataset_size: 10}}
transfer: {dataset_size: 10}
ablations: {dataset_size: 10, run: [uniform]}
economy: {dataset_sizes: [10], grpo: {steps: 2}}
"""  # laid over workflow/recipes/quick.yaml
METHODS = ["random", "similarity", "pointer-sft", "pointer-rce", "pointer-grpo", "oracle"]
FIRST_RUN = tutorial("first-run")
SELECTORS, ECONOMY = "workflow/selectors/dvc.yaml:", "workflow/economy/dvc.yaml:"
PARAMS = ("params.yaml", "workflow/economy/params.yaml", "workflow/selectors/params.yaml")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """What the first tutorial's reader has before the first change, smaller still."""
    project = Project(tmp_path_factory.mktemp("project"))
    for block in FIRST_RUN:
        if block.section == "Change one thing":
            break
        project.follow(block)
        if "recipes/quick.yaml" in block.text:
            (project.folder / "small.yaml").write_text(SMALL)
            project.run("planward", "params", "small.yaml")
    return project


@pytest.fixture(autouse=True)
def restore_params(project: Project) -> Iterator[None]:
    """Every test finds the committed parameters."""
    yield
    project.run("git", "checkout", "--quiet", "HEAD", "--", *PARAMS)


def test_snakemake_makes_the_report_and_dvc_has_nothing_to_do(project: Project) -> None:
    table = pd.read_csv(project.folder / "results/tables/success.csv")
    columns = ["method", "dataset_size", "shot_num", "domain", "seeds", "n", "successes", "success_rate"]
    assert list(table.columns) == [*columns, "ci_low", "ci_high", "interval", "detectable_difference"]
    assert set(table["method"]) == {"base", "sft", "grpo"}
    assert set(pd.read_csv(project.folder / "results/tables/ablations.csv")["variant"]) == {"uniform"}
    assert "</html>" in (project.folder / "results/report.html").read_text()
    assert project.stale() == set()
    before = project.locked()
    project.run("dvc", "repro")
    assert project.locked() == before


def test_rules_are_stage_families(project: Project) -> None:
    rules = set(project.run("snakemake", "--list-rules").split())
    assert {"all", "grpo", "evaluate_base", "economy_grpo", "selectors_beams", "report"} <= rules
    assert not any("@" in rule or "3407" in rule for rule in rules)
    rerun_grpo = ["snakemake", "--cores", "2", "--dry-run", "--until", "grpo", "-R", "grpo", "--quiet", "host"]
    assert re.search(r"^rule grpo:(\n .*)*mem_mb=6000,", project.run(*rerun_grpo), re.M)  # of dvc.yaml's meta
    larger = project.run(*rerun_grpo, "--set-resources", "grpo:mem_mb=64000")
    assert re.search(r"^rule grpo:(\n .*)*mem_mb=64000,", larger, re.M)
    only = project.run("snakemake", "--cores", "2", "--dry-run", "--until", "schedule", "-R", "problems")
    assert re.search(r"^problems +1$", only, re.M)
    assert not re.search(r"^grpo +", only, re.M)
    plan = project.run("snakemake", "--cores", "2", "--until", "score", "-R", "score")
    assert re.search(r"^score +1$", plan, re.M)
    assert "planward score" in (project.folder / "logs/score.log").read_text()
    assert project.stale() == {"report"}  # which shows how long stages took
    project.run("dvc", "repro")


def test_every_selector_is_in_the_tables_and_on_the_page(project: Project) -> None:
    tables = project.folder / "results/selectors/tables"
    table = pd.read_csv(tables / "success.csv")
    columns = ["selector", "dataset_size", "seed", "shot_num", "domain", "n", "successes", "success_rate"]
    assert list(table.columns) == [*columns, "ci_low", "ci_high", "detectable_difference"]
    assert set(table["selector"]) == set(METHODS)
    sizes = table.groupby("selector")["dataset_size"].unique().map(list).to_dict()
    assert sizes == {name: [10 if name.startswith("pointer") else 0] for name in METHODS}
    for name in ("groups", "cells", "shots"):
        assert set(pd.read_csv(tables / f"{name}.csv")["selector"]) == set(METHODS)
    cells = pd.read_csv(tables / "cells.csv")
    assert set(cells["dialect"]) == {"all", "plain", "dialects"}
    paired_rows = pd.read_csv(tables / "paired.csv")
    assert set(paired_rows["method_a"]) | set(paired_rows["method_b"]) == set(METHODS)

    predictions = project.folder / "results/selectors/predictions"
    rows = {path.stem: pd.read_json(path, lines=True, dtype=False) for path in predictions.glob("*.jsonl")}
    runs = [f"{name}-10-3407" if name.startswith("pointer") else f"{name}-0" for name in METHODS]
    assert set(rows) == set(runs)
    prompts = [set(zip(frame["id"], frame["shot_num"], strict=True)) for frame in rows.values()]
    assert all(pairs == prompts[0] for pairs in prompts)
    counts = {
        (shot_num, len(ids))
        for frame in rows.values()
        for shot_num, ids in zip(frame["shot_num"], frame["shot_ids"], strict=True)
    }
    assert counts == {(1, 1), (2, 2)}
    page = (project.folder / "results/report.html").read_text()
    assert 'id="selectors"' in page
    assert set(METHODS) <= set(re.findall(r"[a-z]+(?:-[a-z]+)?", page.partition('id="selectors"')[2]))


def test_a_changed_parameter_reruns_exactly_what_depends_on_it(project: Project) -> None:
    before = project.locked()
    project.edit("confidence: 0.95", "confidence: 0.9")
    plan = project.run("dvc", "repro", "--dry")
    stages = [line.split("'")[1] for line in plan.splitlines() if line.startswith("Running stage")]
    tables = {"compare", "transfer-compare", f"{SELECTORS}compare", f"{ECONOMY}compare", f"{ECONOMY}analyse"}
    assert set(stages) == tables | {"report"}
    assert stages[-1] == "report"
    project.snakemake()
    changed_stages = {name for name, stage in project.locked().items() if stage != before[name]}
    assert changed_stages == tables | {"track@selectors", "track@economy", "report"}
    assert project.stale() == set()
    project.commit()

    # and the other way round: after `dvc repro`, Snakemake has nothing to do
    project.edit("confidence: 0.9", "confidence: 0.95")
    project.run("dvc", "repro")
    assert "Nothing to be done" in project.snakemake()
    project.commit()


def test_weights_are_a_dependency_and_what_is_written_about_them_is_none(project: Project) -> None:
    base = project.folder / "models/base"
    card = base / "README.md"
    card.write_text(card.read_text() + "More.\n")
    assert project.stale() == set()
    shutil.copytree(base, project.folder / "models/other")
    config = project.folder / "models/other/config.json"
    config.write_text(config.read_text() + "\n")
    project.edit("path: models/base ", "path: models/other ")
    base.rename(project.folder / "models/away")
    try:
        plan = project.run("dvc", "repro", "--dry", "--single-item", "sft@10-3407", "evaluate-base")
        assert "planward sft" in plan
        assert "planward evaluate --method base" in plan
        project.run("snakemake", "--cores", "2", "--dry-run", "--until", "sft", "evaluate_base")
    finally:
        (project.folder / "models/away").rename(base)
    project.run("git", "checkout", "--quiet", "HEAD", "--", *PARAMS)
    (base / "config.json").write_text(config.read_text())
    first = {"sft@10-3407", "evaluate-base", "sample-base", "transfer-evaluate-base"}
    assert first | {f"{ECONOMY}sft@10-3407", f"{SELECTORS}embed"} <= project.stale()
    project.run("git", "checkout", "--quiet", "HEAD", "--", "models")


def test_another_seed_or_variant_adds_its_runs_and_no_other(project: Project) -> None:
    tables = {"compare", "report"}
    tracks = {"track@selectors", "track@economy"}
    project.lay_over("seeds: [3407, 1]")
    training_stages = {
        "schedule@10-1",
        "sft@10-1",
        "start@10-1-from0",
        "grpo@10-1",
        "evaluate@sft-10-1",
        "evaluate@grpo-10-1",
    }
    training_stages |= {"transfer-evaluate@sft-10-1", "transfer-evaluate@grpo-10-1", "transfer-compare"}
    training_stages |= {"sample@sft-10-1", "sample@grpo-10-1"}
    variant = {f"{stage}-ablation@uniform-10-1" for stage in ("schedule", "grpo", "evaluate")}
    selectors = {f"{SELECTORS}{stage}" for stage in ("sft@10-1", "rce@10-1", "grpo@10-1", "evaluate@10-1", "compare")}
    economy = {f"{ECONOMY}{stage}@10-1" for stage in ("schedule", "sft", "grpo")}
    economy |= {f"{ECONOMY}start@10-1-from0"}
    economy |= {f"{ECONOMY}{stage}" for stage in ("evaluate@sft-10-1", "evaluate@grpo-10-1", "compare", "analyse")}
    assert project.stale() - tracks == training_stages | variant | selectors | economy | tables

    project.lay_over("seeds: [3407]\nablations: {run: [uniform, cooler]}")
    variant = {f"{stage}-ablation@cooler-10-3407" for stage in ("schedule", "grpo", "evaluate")}
    assert project.stale() == variant | tables
    project.lay_over("ablations: {run: []}")
    assert project.stale() == tables

    project.lay_over("grpo: {from: base}\nsft: {epochs: 3}")
    plan = project.run("dvc", "repro", "--dry", "grpo@10-3407")
    stages = [line.split("'")[1] for line in plan.splitlines() if line.startswith("Running stage")]
    assert stages == ["start@10-3407-from0", "grpo@10-3407"]
    project.run("git", "checkout", *PARAMS)

    uniform = "ablations: {run: [uniform], variants: {uniform: {curriculum: [{until: 1.0, easy: %s, hard: 0.33}]}}}"
    project.lay_over(uniform % "0.33, medium: 0.34")
    stale_stages = {f"{stage}-ablation@uniform-10-3407" for stage in ("schedule", "grpo")}
    assert project.stale() == stale_stages | {"report"}
    project.run("git", "checkout", *PARAMS)
    assert project.stale() == set()

    project.lay_over("selectors: {grpo: {beta: 0.1}}")  # of the selectors, only the last phase reads it
    assert project.stale() == {f"{SELECTORS}grpo@10-3407"}
    project.run("git", "checkout", *PARAMS)


def test_a_track_that_is_off_is_neither_run_nor_shown(project: Project) -> None:
    project.edit("tracks: [selectors, economy]", "tracks: [selectors]")
    project.edit("confidence: 0.95", "confidence: 0.9")
    plan = project.run("dvc", "repro", "--dry")
    stages = {line.split("'")[1] for line in plan.splitlines() if line.startswith("Running stage")}
    assert stages == {"compare", "transfer-compare", f"{SELECTORS}compare", "report"}
    project.edit("confidence: 0.9", "confidence: 0.95")
    project.run("dvc", "repro")
    page = (project.folder / "results/report.html").read_text()
    assert 'id="selectors"' in page
    assert 'id="economy"' not in page
    assert "Nothing to be done" in project.snakemake()
    project.run("git", "checkout", *PARAMS)
    project.run("dvc", "repro")
    assert project.stale() == set()


def test_an_experiment_reruns_what_its_parameter_reaches(project: Project) -> None:
    before = project.locked()
    change, *after = (block for block in FIRST_RUN if block.section in ("Change one thing", "What did it do?"))
    project.follow(change)  # a learning rate so high that the predictions, and with them the tables, change too
    changed_stages = {name for name, stage in project.locked().items() if stage != before[name]}
    training_stages = {"grpo@10-3407", "evaluate@grpo-10-3407", "sample@grpo-10-3407"}
    training_stages |= {"transfer-evaluate@grpo-10-3407", "transfer-compare"}
    variant = {"grpo-ablation@uniform-10-3407", "evaluate-ablation@uniform-10-3407"}
    assert changed_stages == training_stages | variant | {"compare", "report"}
    for block in after:
        project.follow(block)
    assert project.locked() == before


def test_a_third_task_runs_from_problems_to_the_report(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CONTRIBUTING.md says: a package, one registration, a copy of a workflow with another name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/arithmetic_task"))
    workflow = project.folder / "workflow/arithmetic"
    workflow.mkdir()
    copy_pipeline(project.folder / "workflow/economy/dvc.yaml", workflow / "dvc.yaml")
    params = yaml.safe_load((project.folder / "workflow/economy/params.yaml").read_text())
    del params["economy"]
    params["dataset_sizes"] = [8]
    params["model"] |= {"path": "models/arithmetic", "lora": None}
    params["sft"] |= {"epochs": 1, "batch_size": 8, "micro_batch_size": 8, "shots": [0, 1]}
    params["grpo"] |= {"steps": 2, "batch_size": 4}
    (workflow / "params.yaml").write_text(yaml.safe_dump(params))
    symbols = [*map(str, range(19)), "+", "-", "=", ";"]
    write_model(project.folder / "models/arithmetic", symbols)
    project.edit("tracks: [selectors, economy]", "tracks: [selectors, economy, arithmetic]")

    project.snakemake()
    cells = pd.read_csv(project.folder / "results/arithmetic/tables/shots.csv")
    assert set(cells["method"]) == {"base", "sft", "grpo"}
    assert set(pd.read_csv(project.folder / "results/arithmetic/tables/domains.csv")["domain"]) == {"sum", "difference"}
    page = (project.folder / "results/report.html").read_text()
    assert 'id="arithmetic"' in page
    assert "Arithmetic" in page
    assert project.stale() == set()
    assert "workflow/arithmetic/params.yaml: valid" in project.run("planward", "params")


def copy_pipeline(source: Path, target: Path) -> None:
    """The pipeline of another task, for this one: without what only that task has."""
    pipeline = yaml.safe_load(source.read_text().replace("economy", "arithmetic"))
    del pipeline["stages"]["analyse"]
    for stage in pipeline["stages"].values():
        stage["deps"] = [dep for dep in stage.get("deps", []) if not dep.startswith(("src/", "models/"))]
        for entry in stage.get("params", []):
            for file, keys in entry.items() if isinstance(entry, dict) else ():
                entry[file] = [key for key in keys if not key.startswith("arithmetic")]
        stage["params"] = [
            entry for entry in stage.get("params", []) if not isinstance(entry, dict) or all(entry.values())
        ]
    target.write_text(yaml.safe_dump(pipeline, sort_keys=False))

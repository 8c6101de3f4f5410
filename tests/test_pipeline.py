"""The whole pipeline, small, through the real Snakemake and the real DVC."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from project import Project, tutorial

SMALL = """
dataset_sizes: [10]
problems:
  generated:
    blocksworld: {count: 16, blocks: [3, 4]}
    ferry: {count: 16, locations: [3, 4], cars: [2, 3]}
    grippers: {count: 16, robots: [1, 1], rooms: [2, 3], objects: [2, 4]}
    spanner: {count: 16, spanners: [2, 4], nuts: [1, 3], locations: [3, 5]}
    delivery: {count: 16, width: [2, 3], height: [2, 2], packages: [1, 2]}
sft: {epochs: 1}
grpo: {steps: 2, batch_size: 5, num_generations: 2, reward: dense}
ablations: {dataset_size: 10, run: [uniform]}
economy: {own: {dataset_sizes: [10], grpo: {steps: 2}}}
"""  # laid over profiles/quick.yaml
SELECTORS = ["random", "similarity", "pointer-sft", "pointer-rce", "pointer-grpo", "oracle"]
FIRST_RUN = tutorial("first-run")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """What the first tutorial's reader has before the first change, smaller still."""
    project = Project(tmp_path_factory.mktemp("project"))
    for block in FIRST_RUN:
        if block.section == "Change one thing":
            break
        project.follow(block)
        if "profiles/quick.yaml" in block.text:
            (project.folder / "small.yaml").write_text(SMALL)
            project.run("planward", "params", "small.yaml")
    return project


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


def test_every_selector_of_worked_examples_is_in_the_tables_and_on_the_page(project: Project) -> None:
    tables = project.folder / "results/tables"
    table = pd.read_csv(tables / "demonstrations.csv")
    columns = ["selector", "dataset_size", "seed", "shot_num", "domain", "n", "successes", "success_rate"]
    assert list(table.columns) == [*columns, "ci_low", "ci_high", "detectable_difference"]
    assert set(table["selector"]) == set(SELECTORS)
    sizes = table.groupby("selector")["dataset_size"].unique().map(list).to_dict()
    assert sizes == {name: [10 if name.startswith("pointer") else 0] for name in SELECTORS}
    for name in ("groups", "cells", "shots"):
        assert set(pd.read_csv(tables / f"demonstrations-{name}.csv")["selector"]) == set(SELECTORS)
    cells = pd.read_csv(tables / "demonstrations-cells.csv")
    assert set(cells["dialect"]) == {"all", "plain", "dialects"}
    paired = pd.read_csv(tables / "demonstrations-paired.csv")
    assert set(paired["method_a"]) | set(paired["method_b"]) == set(SELECTORS)

    stored = project.folder / "results/demonstrations/predictions"
    asked = {path.stem: pd.read_json(path, lines=True, dtype=False) for path in stored.glob("*.jsonl")}
    runs = [f"{name}-10-3407" if name.startswith("pointer") else f"{name}-0" for name in SELECTORS]
    assert set(asked) == set(runs)
    questions = [set(zip(rows["id"], rows["shot_num"], strict=True)) for rows in asked.values()]
    assert all(own == questions[0] for own in questions)
    assert {
        (k, len(shots)) for rows in asked.values() for k, shots in zip(rows["shot_num"], rows["shot_ids"], strict=True)
    } == {(1, 1), (2, 2)}
    page = (project.folder / "results/report.html").read_text()
    assert 'id="demonstrations"' in page
    assert set(SELECTORS) <= set(re.findall(r"[a-z]+(?:-[a-z]+)?", page.partition('id="demonstrations"')[2]))


def test_a_changed_parameter_reruns_exactly_what_lies_below_it(project: Project) -> None:
    before = project.locked()
    project.edit("confidence: 0.95", "confidence: 0.9")
    plan = project.run("dvc", "repro", "--dry")
    stages = [line.split("'")[1] for line in plan.splitlines() if line.startswith("Running stage")]
    assert set(stages) == {"compare", "compare-economy", "analyse-economy", "report"}
    assert stages[-1] == "report"
    project.snakemake()
    changed = {name for name, stage in project.locked().items() if stage != before[name]}
    assert changed == set(stages)
    assert project.stale() == set()
    project.commit()

    # and the other way round: after `dvc repro`, Snakemake has nothing to do
    project.edit("confidence: 0.9", "confidence: 0.95")
    project.run("dvc", "repro")
    assert "Nothing to be done" in project.snakemake()
    project.commit()


def test_another_seed_or_variant_adds_its_own_runs_and_no_other(project: Project) -> None:
    after = {"compare", "report"}
    economy = {f"{stage}-economy@10-1" for stage in ("schedule", "sft", "grpo")} | {
        "compare-economy",
        "analyse-economy",
    }
    economy |= {f"evaluate-economy@{method}-10-1" for method in ("sft", "grpo")}
    project.lay_over("seeds: [3407, 1]")
    trained = {"schedule@10-1", "sft@10-1", "grpo@10-1", "evaluate@sft-10-1", "evaluate@grpo-10-1"}
    variant = {f"{stage}-ablation@uniform-10-1" for stage in ("schedule", "grpo", "evaluate")}
    selectors = {f"{stage}@10-1" for stage in ("selector-sft", "selector-rce", "selector-grpo", "demonstrate")}
    assert project.stale() == trained | variant | selectors | economy | after

    project.lay_over("seeds: [3407]\nablations: {run: [uniform, cooler]}")
    variant = {f"{stage}-ablation@cooler-10-3407" for stage in ("schedule", "grpo", "evaluate")}
    assert project.stale() == variant | after
    project.lay_over("ablations: {run: []}")
    assert project.stale() == after

    uniform = "ablations: {run: [uniform], variants: {uniform: {curriculum: [{until: 1.0, easy: %s, hard: 0.33}]}}}"
    project.lay_over(uniform % "0.33, medium: 0.34")
    own = {f"{stage}-ablation@uniform-10-3407" for stage in ("schedule", "grpo")}
    assert project.stale() == own | {"report"}
    project.run("git", "checkout", "params.yaml")
    assert project.stale() == set()

    project.lay_over("demonstrations: {grpo: {beta: 0.1}}")  # of the selectors, only the last phase reads it
    assert project.stale() == {"selector-grpo@10-3407", "report"}
    project.run("git", "checkout", "params.yaml")


def test_an_experiment_reruns_what_its_parameter_reaches(project: Project) -> None:
    before = project.locked()
    change, *after = (block for block in FIRST_RUN if block.section in ("Change one thing", "What did it do?"))
    project.follow(change)  # a learning rate so high that the predictions, and with them the tables, change too
    changed = {name for name, stage in project.locked().items() if stage != before[name]}
    trained = {"grpo@10-3407", "evaluate@grpo-10-3407"}
    variant = {"grpo-ablation@uniform-10-3407", "evaluate-ablation@uniform-10-3407"}
    assert changed == trained | variant | {"compare", "report"}
    for block in after:
        project.follow(block)
    assert project.locked() == before

"""Stages on transfer problems: what they build, that prompts are paired with the originals', and the table and page."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pandas as pd
import pytest
import torch

from planward.core.records import Meta, Record, TransferProblem, read_records, read_transfer_problems
from planward.core.registry import load_task
from planward.core.runs import BASE, Run
from planward.curriculum.training_sets import select_training_set
from planward.params import ParamsError
from planward.pddl.canonical import hash_problem, hash_without_constraints
from planward.pddl.language import load_domain, load_problem
from planward.stages import evaluate, problems, score, split
from planward.stages.transfer import compare as transfer_compare
from planward.stages.transfer import evaluate as transfer_evaluate
from planward.stages.transfer import problems as transfer_problems
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_domain_text, render_problem
from planward.tasks.planning.sources import generate_instances, generate_larger_records
from planward.tasks.planning.transfer import TransferSource
from support import ROOT, read_rows

Small = Callable[..., PlanningParams]
ROOT_FOLDER = Path("results/transfer/problems")
GENERATED = {
    "blocksworld": {"count": 18, "blocks": [3, 4]},
    "ferry": {"count": 18, "locations": [3, 4], "cars": [1, 2]},
    "elevator": {"count": 12, "floors": [2, 4], "passengers": [1, 3]},
}


@pytest.fixture(scope="module")
def params(small: Small) -> PlanningParams:
    return small(
        dataset_sizes=[8],
        problems={"generated": GENERATED},
        split={"held_out_domains": ["elevator"]},
        evaluate={"shots": [0, 2], "batch_size": 16},
        model={"path": str(ROOT / "models/base")},
        prompt={"max_completion_tokens": 12},
        transfer={
            "methods": ["sft"],
            "dataset_size": 8,
            "renamed": 5,
            "unseen": 7,
            "shots": {"renamed": [0, 2], "larger": [0, 1], "unseen": [0, 2]},
            "larger": {
                "blocksworld": {"count": 3, "blocks": [5, 6]},
                "ferry": {"count": 3, "locations": [3, 4], "cars": [1, 3]},  # also sizes of training problems
                "spanner": {"count": 3, "spanners": [2, 3], "nuts": [1, 2], "locations": [1, 2]},  # not trained on
            },
        },
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, params: PlanningParams) -> Path:
    """A folder with the transfer problems."""
    folder = tmp_path_factory.mktemp("transfer")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for stage in (problems, split, score, transfer_problems):
            stage.run(params)
    return folder


@pytest.fixture
def built_problems(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[TransferProblem]:
    """The problems, in the current folder."""
    monkeypatch.chdir(folder)
    return list(read_transfer_problems(Path("results/transfer/problems.jsonl")))


def hash_core(file: Path) -> str:
    return hash_without_constraints(load_problem(file, load_domain(file.with_name("domain.pddl"))))


def test_each_kind_has_its_problems(built_problems: list[TransferProblem], params: PlanningParams) -> None:
    counts = Counter((problem.kind, problem.domain) for problem in built_problems)
    assert counts == {
        ("renamed", "blocksworld"): 3,
        ("renamed", "ferry"): 2,
        ("larger", "blocksworld"): 3,
        ("larger", "ferry"): 3,
        ("unseen", "elevator"): 7,
    }
    assert {problem.kind for problem in built_problems if not problem.known_to_base} == {"unseen"}
    assert len({problem.id for problem in built_problems}) == len(built_problems)
    task = load_task(params, ROOT_FOLDER)
    verdicts = task.judge([(problem, problem.response or "") for problem in built_problems])
    assert all(verdict.success for verdict in verdicts)  # by VAL
    metrics = json.loads(Path("results/transfer/metrics.json").read_text())
    assert metrics["not_copied"] == 0
    assert metrics["problems"]["larger"] == {"blocksworld": 3, "ferry": 3}


def test_larger_and_unseen_problems_are_none_of_the_splits(built_problems: list[TransferProblem]) -> None:
    ids = {name: {row["id"] for row in read_rows(Path(f"results/score/{name}.jsonl"))} for name in
           ("train", "validation", "test", "held_out")}  # fmt: skip
    split_ids = ids["train"] | ids["validation"] | ids["test"]
    for problem in built_problems:
        assert (problem.id in ids["test"]) == (problem.kind == "renamed")
        assert (problem.id in ids["held_out"]) == (problem.kind == "unseen")
        assert problem.kind == "renamed" or problem.id not in split_ids
    larger = [problem for problem in built_problems if problem.kind == "larger"]
    cores = {hash_core(ROOT_FOLDER / problem.meta.problem_file) for problem in larger}
    generated_files = [
        file for domain in ("ferry", "blocksworld") for file in Path(f"results/problems/{domain}").iterdir()
    ]
    assert len(cores) == len(larger)
    assert cores.isdisjoint(hash_core(file) for file in generated_files if file.name != "domain.pddl")
    names = [Path(problem.meta.problem_file).name for problem in larger if problem.domain == "blocksworld"]
    assert {re.findall(r"_n(\d)_", name)[0] for name in names} <= {"5", "6"}
    assert {problem.bucket for problem in larger if problem.domain == "blocksworld"} == {"hard"}


def test_examples_are_those_of_evaluation_and_never_the_problem(
    built_problems: list[TransferProblem], params: PlanningParams
) -> None:
    task = load_task(params)
    pool = select_training_set(read_records(Path("results/score/train.jsonl")), 8)
    test = {record.id: record for record in read_records(Path("results/score/test.jsonl"))}
    held_out = {record.id for record in read_records(Path("results/score/held_out.jsonl"))}
    for problem in built_problems:
        ids = [example.id for example in problem.examples]
        if problem.kind == "renamed":
            expected = task.select_examples(test[problem.id], pool, 2, str(params.seed))
            assert ids == [example.id for example in expected]
            assert {example.meta.domain_file for example in problem.examples} == {problem.meta.domain_file}
        elif problem.kind == "larger":
            assert len(ids) == 1
            assert set(ids) <= {record.id for record in pool if record.domain == problem.domain}
        else:
            assert len(ids) == 2
            assert set(ids) <= held_out - {problem.id}


def test_examples_of_an_unseen_problem_are_no_twins_of_it(tmp_path: Path, small: Small) -> None:
    params = small(transfer={"unseen": 4, "shots": {"renamed": [0], "larger": [0], "unseen": [4]}})
    source = tmp_path / "problems"
    (source / "ferry").mkdir(parents=True)
    (source / "ferry/domain.pddl").write_text(load_domain_text("ferry"))
    records = []
    constraint = "(:constraints (sometime (empty-ferry)))"
    for number, (seed, addition) in enumerate([(1, ""), (1, constraint), (2, ""), (3, "")]):
        text = render_problem("ferry", GENERATED_DOMAINS["ferry"].generate(Random(seed), {"locations": 4, "cars": 3}))
        (source / f"ferry/p{number}.pddl").write_text(f"{text.rstrip().removesuffix(')')}\n{addition})")
        meta = Meta(scenario="ferry", domain_file="ferry/domain.pddl", problem_file=f"ferry/p{number}.pddl")
        records.append(Record(id=str(number), prompt="Plan.", response="(a)", meta=meta, score=1.0, bucket="easy"))
    tasks = load_task(params, source), load_task(params, tmp_path / "copy")
    transfer = TransferSource(params, *tasks, source, tmp_path / "copy")
    examples = {problem.id: {example.id for example in problem.examples} for problem in transfer.iter_unseen(records)}
    assert examples == {"0": {"2", "3"}, "1": {"2", "3"}, "2": {"0", "1", "3"}, "3": {"0", "1", "2"}}


def test_renamed_problems_share_no_word_with_their_originals(built_problems: list[TransferProblem]) -> None:
    test = {record.id: record for record in read_records(Path("results/score/test.jsonl"))}
    for problem in (problem for problem in built_problems if problem.kind == "renamed"):
        original = test[problem.id]
        words = [
            set(re.findall(r"[a-z][\w-]*", (root / record.meta.problem_file).read_text().partition("(:objects")[2]))
            for root, record in ((ROOT_FOLDER, problem), (Path("results/problems"), original))
        ]
        keywords = {"init", "goal", "and", "or", "not", "constraints", "always", "sometime-before"}
        assert words[0] & words[1] <= keywords
        assert len((problem.response or "").split()) == len((original.response or "").split())


def test_every_model_is_judged_on_the_same_prompts(
    built_problems: list[TransferProblem], params: PlanningParams
) -> None:
    run = Run("sft", 8, 3407)
    shutil.copytree(ROOT / "models/base", "results/models/sft-8-3407", dirs_exist_ok=True)
    for each in (BASE, run):
        evaluate.run(params, each)
        transfer_evaluate.run(params, each)
    rows = {name: read_rows(Path(f"results/transfer/predictions/{name}.jsonl")) for name in ("base-0", "sft-8-3407")}
    keys = {"method", "dataset_size", "seed"}
    first, second = ([{k: v for k, v in row.items() if k not in keys} for row in part] for part in rows.values())
    assert first == second  # the same weights
    shots = {"renamed": {0, 2}, "larger": {0, 1}, "unseen": {0, 2}}
    expected = {(problem.id, shot_num) for problem in built_problems for shot_num in shots[problem.kind]}
    assert {(row["id"], row["shot_num"]) for row in first} == expected
    assert all(len(row["shot_ids"]) == row["shot_num"] for row in first)
    metrics = json.loads(Path("results/transfer/predictions/sft-8-3407.json").read_text())
    assert metrics["run"] == {"task": "planning", "method": "sft", "size": 8, "seed": 3407}
    assert metrics["unseen"]["problems"] == 7

    transfer_compare.run(params)
    table = pd.read_csv("results/tables/transfer.csv")
    originals = pd.DataFrame(read_rows(Path("results/predictions/base-0.jsonl")))
    for row in table[(table["kind"] == "renamed") & (table["domain"] == "all")].itertuples():
        ids = {problem.id for problem in built_problems if problem.kind == "renamed"}
        part = originals[originals["id"].isin(ids) & (originals["shot_num"] == row.shot_num)]
        assert row.original_success_rate == pytest.approx(part["success"].mean())
    assert set(table["method"]) == {"base", "sft"}
    unseen_rows = table[table["kind"] == "unseen"]
    assert not unseen_rows["known_to_base"].any()
    assert set(unseen_rows["shot_num"]) == {0, 2}


def test_a_known_domain_can_be_held_out(small: Small, project: Path) -> None:
    params = small(
        split={"held_out_domains": ["ferry"]},
        transfer={"unseen": 5, "larger": {"ferry": {"count": 2, "locations": [3, 4], "cars": [3, 4]}}},
    )
    for stage in (problems, split, score, transfer_problems):
        stage.run(params)
    built_problems = list(read_transfer_problems(project / "results/transfer/problems.jsonl"))
    assert Counter((problem.kind, problem.domain, problem.known_to_base) for problem in built_problems) == {
        ("unseen", "ferry", True): 5  # and no larger ones: there is no training size
    }


def test_nothing_to_build_gives_an_empty_table(small: Small, project: Path) -> None:
    params = small(model={"path": str(ROOT / "models/base")})
    for stage in (problems, split, score, transfer_problems):
        stage.run(params)
    assert read_rows(project / "results/transfer/problems.jsonl") == []
    assert list((project / "results/transfer/problems").iterdir()) == []
    transfer_evaluate.run(params, BASE)
    transfer_compare.run(params)
    assert pd.read_csv("results/tables/transfer.csv").empty


@pytest.mark.usefixtures("built_problems")
def test_stages_write_the_same_bytes_again(params: PlanningParams) -> None:
    files = {path: path.read_bytes() for path in Path("results/transfer").rglob("*.pddl")}
    before = Path("results/transfer/problems.jsonl").read_bytes()
    transfer_problems.run(params)
    assert Path("results/transfer/problems.jsonl").read_bytes() == before
    assert {path: path.read_bytes() for path in Path("results/transfer").rglob("*.pddl")} == files


def test_larger_problems_are_distinct_even_where_sizes_overlap(small: Small, project: Path) -> None:
    sizes = {"blocksworld": {"count": 10, "blocks": [3, 3]}}  # of 22 different problems
    params = small(problems={"generated": sizes, "base_share": 0.0}, transfer={"larger": sizes})
    training_digests = {
        hash_problem(build_problem("blocksworld", i)) for i in generate_instances(params, "blocksworld")
    }
    records = list(generate_larger_records(params, "blocksworld", project / "larger"))
    assert len(records) == len(training_digests) == 10
    assert training_digests.isdisjoint(hash_core(project / "larger" / record.meta.problem_file) for record in records)
    too_many = {"blocksworld": {"count": 500, "blocks": [3, 3]}}
    with pytest.raises(ParamsError, match=r"transfer\.larger\.blocksworld: only \d+ distinct problems found"):
        list(generate_larger_records(small(transfer={"larger": too_many}), "blocksworld", project / "more"))

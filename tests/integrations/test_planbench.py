"""Answers to and from the result files of PlanBench."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from checkouts import write_checkout
from planward.cli import app
from planward.core.files import write_jsonl
from planward.core.records import Prediction
from planward.core.verdicts import Label
from planward.pddl.language import load_domain, load_problem
from planward.pddl.simulation import PlanVerifier
from planward.stages import problems, score, split
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.config import PlanningParams
from support import read_rows

Small = Callable[..., PlanningParams]
DOMAINS = ("blocksworld", "mystery_blocksworld")
ZERO_SHOT, ONE_SHOT = "task_1_plan_generation_zero_shot_pddl", "task_1_plan_generation_pddl"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def predict(row: dict[str, Any], shot_num: int, shot_ids: list[str], answer: str) -> Prediction:
    plan = extract_plan(answer)
    return Prediction(
        id=row["id"],
        domain=row["meta"]["scenario"],
        bucket=row["bucket"],
        score=row["score"],
        method="base",
        dataset_size=0,
        seed=1,
        shot_num=shot_num,
        shot_ids=shot_ids,
        prompt="Plan.",
        completion=answer,
        plan="\n".join(plan or []),
        label=str(Label.SUCCESS if plan else Label.FORMAT),
        success=bool(plan),
        reward=1.0 if plan else -1.0,
        detail="",
        plan_size=len(plan or []),
        failing_step=None,
        goals_satisfied=None,
        goals_total=None,
    )


@pytest.fixture
def rows(project: Path, small: Small) -> list[dict[str, Any]]:
    """Scored problems of a checkout, of which base solves all but the first, in results/predictions/base-0.jsonl."""
    write_checkout(project / "plan-bench")
    params = small(
        problems={"source": "planbench", "path": "plan-bench"},
        difficulty={domain: {} for domain in DOMAINS},
        split={"validation": 0, "test": 0.1},
    )
    for stage in (problems, split, score):
        stage.run(params)
    rows = [row for name in ("train", "test") for row in read_rows(project / f"results/score/{name}.jsonl")]
    answers = ["I give up.", *(row["response"] for row in rows[1:])]
    predictions = [
        predict(row, shots, [rows[1]["id"]][:shots], answer).model_dump()
        for shots in (0, 1)
        for row, answer in zip(rows, answers, strict=True)
    ]
    write_jsonl(project / "results/predictions/base-0.jsonl", predictions)
    return rows


def test_exported_answers_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    for shots in ("0", "1"):
        result = run("export", "planbench", "base-0", "--shots", shots, "--out", "plan-bench/results")
        assert result.exit_code == 0, result.output
    files = {
        (domain, task): Path(f"plan-bench/results/{domain}/base-0/{task}.json")
        for domain in DOMAINS
        for task in (ZERO_SHOT, ONE_SHOT)
    }
    for (domain, task), file in files.items():
        document = json.loads(file.read_text())
        assert (document["domain"], document["task"], document["engine"]) == (domain, task, "base-0")
        of_domain = {row["meta"]["instance_id"]: row for row in rows if row["meta"]["scenario"] == domain}
        assert [instance["instance_id"] for instance in document["instances"]] == sorted(of_domain)
        for instance in document["instances"]:
            row = of_domain[instance["instance_id"]]
            assert instance["ground_truth_plan"].split() == row["response"].split()
            assert instance["llm_correct"] is (row is not rows[0])
            examples = [] if task == ZERO_SHOT else [rows[1]["meta"]["instance_id"]]
            assert instance["example_instance_ids"] == examples

    result = run("import", "planbench", *map(str, files.values()))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 2 * len(rows)
    assert {line["shot_num"] for line in lines} == {0, 1}
    assert {line["model"] for line in lines} == {"base-0"}
    verdicts = []
    for line in lines:
        problem = load_problem(Path(line["problem_file"]), load_domain(Path(line["domain_file"])))
        plan = extract_plan(line["completion"])
        verdicts.append(plan is not None and PlanVerifier(problem).verify(plan).label == Label.SUCCESS)
    assert verdicts.count(False) == 2  # the problem that base gives up, at both numbers of examples


def test_a_run_on_other_problems_is_not_exported(project: Path, rows: list[dict[str, Any]]) -> None:
    result = run("export", "planbench", "base-0", "--shots", "3")
    assert result.exit_code == 2
    assert "no predictions with 3 worked examples" in result.output
    for name in ("train", "test"):
        file = project / f"results/score/{name}.jsonl"
        file.write_text(file.read_text().replace('"instance_id"', '"number"'))
    result = run("export", "planbench", "base-0")
    assert result.exit_code == 2
    assert "is not numbered as an instance of PlanBench; fix: export a run on problems read with" in result.output
    assert rows


def write_result(root: Path, **changes: Any) -> Path:
    """Write recorded answers in words to a checkout: one evaluated, one that is yet to come."""
    instances = [
        {"instance_id": 1, "llm_raw_response": "pick up the red block", "extracted_llm_plan": "(pick-up b1)\n"},
        {"instance_id": 2, "llm_raw_response": ""},
    ]
    document = {"task": "task_1_plan_generation", "domain": "blocksworld", "instances": instances} | changes
    file = root / "results/blocksworld/gpt-4_chat/answers.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    return file


def test_answers_in_words_are_imported_by_their_extracted_plans(project: Path) -> None:
    write_checkout(project / "plan-bench")
    file = write_result(project / "elsewhere")
    result = run("import", "planbench", str(file), "--root", "plan-bench")
    assert result.exit_code == 0, result.output
    (line,) = map(json.loads, result.stdout.splitlines())
    instances = project / "plan-bench/instances/blocksworld"
    assert line == {
        "id": "blocksworld/1",
        "domain_file": str(instances / "generated_domain.pddl"),
        "problem_file": str(instances / "generated_basic/instance-1.pddl"),
        "model": "gpt-4_chat",
        "shot_num": 1,
        "plan": "(pick-up b1)\n",
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"task": "task_3_plan_verification"}, "task 'task_3_plan_verification' is not task_1_plan_generation"),
        ({"domain": "depots"}, "no config has domain_name depots; fix: --root"),
        ({"instances": [{"instance_id": 7, "llm_raw_response": "stack them"}]}, "instance 7 has an answer in words"),
    ],
)
def test_results_that_cannot_be_judged_are_refused(project: Path, changes: dict[str, Any], complaint: str) -> None:
    write_checkout(project / "plan-bench")
    file = write_result(project / "plan-bench", **changes)
    result = run("import", "planbench", str(file))
    assert result.exit_code == 2
    assert complaint in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no JSON", "the whole: Invalid JSON"),
        ("[]", "the whole: Input should be an object"),
        ('{"task": "task_1_plan_generation", "instances": []}', "domain: Field required"),
        ('{"task": "t", "domain": "d", "instances": [{"llm_raw_response": ""}]}', "instances.0.instance_id: Field"),
    ],
)
def test_files_that_are_no_results_are_named(project: Path, text: str, complaint: str) -> None:
    (project / "notes.json").write_text(text)
    result = run("import", "planbench", "notes.json")
    assert result.exit_code == 2
    output = " ".join(result.output.split())
    assert f"notes.json: no result file of PlanBench: {complaint}" in output
    assert "fix: name files" in output


def test_results_without_a_checkout_need_its_root(project: Path) -> None:
    result = run("import", "planbench", str(write_result(project / "elsewhere")))
    assert result.exit_code == 2
    assert "answers.json: is not results/DOMAIN/ENGINE/TASK.json of a checkout; fix: --root" in result.output


def test_imported_answers_are_judged_below_the_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = project / "plan-bench"
    write_checkout(checkout)
    file = write_result(checkout)
    (project / "work").mkdir()
    monkeypatch.chdir(project / "work")
    Path("answers.jsonl").write_text(run("import", "planbench", str(file)).stdout)
    result = run("judge", "answers.jsonl", "--root", str(checkout), "--workers", "1")
    assert result.exit_code == 0, result.output
    (row,) = read_rows(Path("answers-judged/verdicts.jsonl"))
    assert (row["domain"], row["model"], row["plan"]) == ("blocksworld", "gpt-4_chat", "(pick-up b1)")

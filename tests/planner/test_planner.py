"""Plans by trained models: the shipped base on problems written by others' generators, and a tiny chat model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import chat_runs
import planward
from foreign_problems import write_problems
from planward.cli import app
from planward.core.prompt_templates import PromptTemplate
from planward.core.records import Record
from planward.core.runs import Run
from planward.core.verdicts import Verdict, VerifierError
from planward.params import ParamsError
from planward.planner import Planner, SearchConfig
from planward.planner.costs import measure_cost
from planward.planner.feedback import TEMPLATE, FailureVariables, describe_reason
from planward.planner.folders import plan_folder
from planward.planner.problems import RandomExamples, build_record, read_examples
from planward.planner.settings import find_model, load_settings
from planward.tasks.planning.judgement import judge_text
from support import ROOT, read_rows, write_lines

BASE = ROOT / "models/base"
UNKNOWN = ROOT / "tests/domains/elevator"  # models/base has never seen this domain
RAILYARD = ROOT / "tests/domains/railyard"
RAILYARD_PLAN = """(drive e1 platform s1)\n(couple e1 w1)\n(drive e1 s1 platform)\n(uncouple e1 w1)
(drive e1 platform s2)\n(couple e1 w2)\n(drive e1 s2 platform)\n(uncouple e1 w2)\n(drive e1 platform s1)"""


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three problems each, in others' PDDL."""
    folder = tmp_path_factory.mktemp("problems")
    write_problems(folder, 3)
    return folder


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory without params.yaml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        yield Path.cwd()


@pytest.fixture(scope="module")
def planner(empty: Path) -> Planner:
    assert not list(empty.iterdir())
    torch.set_num_threads(1)
    return Planner(BASE)


@pytest.fixture(scope="module")
def chat(empty: Path) -> Planner:
    """A chat model that has learnt two plans by heart, whatever it is asked."""
    torch.set_num_threads(1)
    chat_runs.write_chat_model(
        empty / "chat", ["Problem: (define (domain elevator))"], ["(up f0 f1)\n(board p0 f0)", "(board p0 f1)"]
    )
    return Planner("chat")


@pytest.mark.parametrize("style", ["blocksworld", "ferry", "grippers"])
def test_shipped_model_plans_in_pddl_of_others(planner: Planner, problems: Path, style: str) -> None:
    domain, problem = problems / style / "domain.pddl", problems / style / "1.pddl"
    result = planner.plan(domain, problem)
    assert result.success
    assert result.plan
    assert result.cost == len(result.plan)
    assert result.num_samples == 1
    assert 0 < result.num_tokens <= planner.prompt_config.max_completion_tokens
    assert judge_text(domain, problem, result.format_plan(), 10).success


def test_samples_stop_at_the_first_valid_plan(planner: Planner, problems: Path) -> None:
    files = problems / "ferry/domain.pddl", problems / "ferry/1.pddl"
    result = planner.plan(*files, samples=16, temperature=3.0)
    successes = [attempt.verdict.success for attempt in result.attempts]
    assert len(successes) in (1, 2, 4, 8, 16)
    assert not any(successes[: len(successes) // 2])
    more = planner.plan(*files, samples=8, temperature=3.0, best=True)
    assert [a.completion for a in more.attempts][: len(successes)] == [a.completion for a in result.attempts][:8]


def test_best_of_samples_has_the_lowest_cost(planner: Planner, problems: Path) -> None:
    files = problems / "ferry/domain.pddl", problems / "ferry/0.pddl"
    result = planner.plan(*files, samples=12, temperature=2.0, best=True)
    assert result.num_samples == 12
    costs = {attempt.cost.value for attempt in result.attempts if attempt.cost}
    assert len({attempt.completion for attempt in result.attempts}) > 1
    assert result.cost == min(costs)


def test_valid_plan_is_returned_where_val_fails_on_another_sample(
    planner: Planner, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, calls = planner.task.judge, count()

    def judge_first(plans: list[tuple[Record, str]]) -> list[Verdict]:
        if next(calls):
            raise VerifierError("killed")
        return list(judge(plans))

    monkeypatch.setattr(planner.task, "judge", judge_first)
    files = problems / "ferry/domain.pddl", problems / "ferry/1.pddl"
    result = planner.plan(*files, samples=2, temperature=0.1, best=True)
    assert next(calls) > 1
    assert result.success
    assert result.num_samples == 1


def test_cost_is_the_value_of_the_metric() -> None:
    cost = measure_cost(RAILYARD / "domain.pddl", RAILYARD / "p1.pddl", RAILYARD_PLAN, 10)
    assert (cost.value, cost.unit) == (21, False)


def test_maximised_metric_ranks_the_other_way(tmp_path: Path) -> None:
    text = (RAILYARD / "p1.pddl").read_text().replace("minimize", "maximize")
    (tmp_path / "p.pddl").write_text(text)
    assert measure_cost(RAILYARD / "domain.pddl", tmp_path / "p.pddl", RAILYARD_PLAN, 10).rank == -21


def test_failure_has_the_verdict_and_no_plan(planner: Planner) -> None:
    result = planner.plan(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl", samples=4)
    assert (result.plan, result.cost, result.success, result.format_plan()) == (None, None, False, "")
    assert result.num_samples == 4
    assert result.verdict.reward == max(attempt.verdict.reward for attempt in result.attempts)


def test_repair_tells_the_model_what_failed(chat: Planner) -> None:
    conversation = chat.start(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl")
    chat.solve([conversation], SearchConfig(repair=2))
    attempts = conversation.attempts
    assert [attempt.turn for attempt in attempts] == [0, 1, 2]
    assert isinstance(conversation.prompt, list)
    roles = [turn["role"] for turn in conversation.prompt]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert conversation.prompt[2]["content"] == attempts[0].completion
    for attempt, turn in zip(attempts, (3, 5), strict=False):
        assert describe_reason(attempt.verdict.detail).rpartition(": ")[2] in conversation.prompt[turn]["content"]


def test_repair_ends_where_the_conversation_is_too_long(chat: Planner) -> None:
    conversation = chat.start(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl")
    short = chat.prompt_config.model_copy(update={"max_tokens": len(conversation.ids) + 10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat, "prompt_config", short)
        result = chat.plan(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl", repair=3)
    assert result.num_samples == 1
    assert "prompt.max_tokens" in result.stop_reason


def test_repair_is_refused_without_a_chat_template(planner: Planner, problems: Path) -> None:
    with pytest.raises(ParamsError, match=r"repair: .*models/base has no chat template"):
        planner.plan(problems / "ferry/domain.pddl", problems / "ferry/1.pddl", repair=1)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("(drive e1 platform s1)\n(couple e1 w2)", "fails at action 2, (couple e1 w2): unsatisfied precondition"),
        ("(drive e1 platform s1)", "only 1 of 2 goals hold: missing: "),
        ("(fly e1)", "not a plan that can be carried out: line 1: unknown action"),
        ("I cannot.", "not a plan that can be carried out: no plan in the text"),
    ],
)
def test_feedback_says_what_is_wrong(plan: str, words: str) -> None:
    verdict = judge_text(RAILYARD / "domain.pddl", RAILYARD / "p1.pddl", plan, 10)
    (turn,) = PromptTemplate(TEMPLATE).render(FailureVariables(verdict))
    assert turn["role"] == "user"
    assert words in turn["content"]
    assert "(Set " not in turn["content"]


def test_feedback_says_which_constraint_is_violated(tmp_path: Path) -> None:
    text = (RAILYARD / "p1.pddl").read_text().replace("(:metric", "(:constraints (always (not (on e1 s2))))\n(:metric")
    (tmp_path / "p.pddl").write_text(text)
    verdict = judge_text(RAILYARD / "domain.pddl", tmp_path / "p.pddl", RAILYARD_PLAN, 10)
    (turn,) = PromptTemplate(TEMPLATE).render(FailureVariables(verdict))
    assert "violates a constraint at action 5, (drive e1 platform s2): " in turn["content"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"samples": 4}, "temperature above 0"),
        ({"best": True, "temperature": 1.0}, "best of one sample"),
        ({"samples": 0}, "samples must be 1 or more"),
    ],
)
def test_contradicting_searches_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ParamsError, match=words):
        SearchConfig(**settings)  # type: ignore[arg-type]


def test_published_prompt_comes_with_the_weights(empty: Path, chat: Planner) -> None:
    folder = empty / "published"
    shutil.copytree(chat.folder, folder)
    prompt = {"style": "full", "max_tokens": 900, "max_completion_tokens": 12, "template": "gone.jinja"}
    template = "{% block user %}Please solve {{ domain_name }}.{% endblock %}"
    content = {"task": "planning", "prompt": prompt, "template": template}
    (folder / "planward.json").write_text(json.dumps(content))
    planner = Planner(folder)
    conversation = planner.start(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl")
    assert conversation.prompt == [{"role": "user", "content": "Please solve elevator."}]
    assert planner.plan(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl").num_tokens <= 12
    (folder / "planward.json").write_text(json.dumps(content | {"task": "economy"}))
    with pytest.raises(ParamsError, match="a model of the task economy"):
        load_settings(folder)


def test_models_are_found_by_run_and_by_success(project: Path) -> None:
    shutil.copy(ROOT / "params.yaml", project)
    for run, rate in (Run("sft", 400, 3407), 0.6), (Run("grpo", 400, 3407), 0.8), (Run("grpo", 200, 3407), 0.9):
        predictions = {"run": run.as_dict("planning"), "success_rate": {"0": rate}}
        (project / "results/predictions").mkdir(parents=True, exist_ok=True)
        (project / f"results/predictions/{run.name}.json").write_text(json.dumps(predictions))
        if run.size == 400:  # the weights of the best one are not here
            (project / "results/models" / run.name).mkdir(parents=True)
    assert find_model("sft-400-3407") == Path("results/models/sft-400-3407")
    assert find_model(None) == Path("results/models/grpo-400-3407")
    with pytest.raises(ParamsError, match="no folder grpo-9-9"):
        find_model("grpo-9-9")


def test_random_examples_are_of_the_domain_and_not_of_the_problem(
    planner: Planner, problems: Path, tmp_path: Path
) -> None:
    lines = [
        {
            "prompt": "",
            "response": "\n".join(planner.plan(problems / f"{style}/domain.pddl", problems / f"{style}/{n}.pddl").plan),
            "meta": {"scenario": style, "domain_file": f"{style}/domain.pddl", "problem_file": f"{style}/{n}.pddl"},
            "id": f"{style}-{n}",
        }
        for style in ("ferry", "spanner")
        for n in range(3)
    ]
    shutil.copytree(problems, tmp_path / "problems")
    write_lines(tmp_path / "score/train.jsonl", lines)
    pool = read_examples(tmp_path / "score/train.jsonl")
    select = RandomExamples(pool, 2, 1, planner.task)
    files = problems / "ferry/domain.pddl", problems / "ferry/1.pddl"
    assert {example.id for example in select(build_record(*files))} == {"ferry-0", "ferry-2"}
    result = planner.plan(*files, examples=select)
    assert result.num_examples == 2
    assert result.success
    with pytest.raises(ParamsError, match="none of the domain elevator"):
        select(build_record(UNKNOWN / "domain.pddl", UNKNOWN / "p1.pddl"))


@pytest.fixture
def folder(problems: Path, tmp_path: Path) -> SimpleNamespace:
    """Three problems, two files that are none, and two copies of the domain, in a folder of their own."""
    shutil.copytree(problems / "ferry", tmp_path / "in/deep")
    shutil.copy(problems / "ferry/domain.pddl", tmp_path / "in/deep/1-domain.pddl")
    (tmp_path / "in/broken.pddl").write_text("(define (problem p)")
    (tmp_path / "in/deep/other.pddl").write_text((UNKNOWN / "p1.pddl").read_text())
    return SimpleNamespace(domain=problems / "ferry/domain.pddl", files=tmp_path / "in", out=tmp_path / "out")


def test_folder_gets_a_file_for_each_plan(planner: Planner, folder: SimpleNamespace) -> None:
    summary = plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    assert (summary.solved, summary.failed, summary.quarantined, summary.known) == (3, 0, 2, 0)
    for row in read_rows(folder.out / "results.jsonl"):
        text = (folder.out / row["problem"]).with_suffix(".plan").read_text()
        assert text.splitlines()[:-1] == row["plan"]
        assert judge_text(folder.domain, folder.files / row["problem"], text, 10).success
    reasons = {row["file"]: row["reason"] for row in read_rows(folder.out / "quarantine.jsonl")}
    assert reasons.keys() == {"broken.pddl", "deep/other.pddl"}
    assert "bracket" in reasons["broken.pddl"]


def test_folder_continues_where_it_was_stopped(planner: Planner, folder: SimpleNamespace) -> None:
    plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    results = folder.out / "results.jsonl"
    rows = read_rows(results)
    first, second, _ = results.read_text().splitlines()
    first_row = json.loads(first) | {"detail": "from before"}
    results.write_text(json.dumps(first_row) + "\n" + second[:40])  # killed while it wrote the second line
    assert plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig()).known == 1
    assert read_rows(results) == [first_row, *rows[1:]]
    problem_file = folder.files / first_row["problem"]
    problem_file.write_text(problem_file.read_text() + "\n; edited\n")
    assert plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig()).known == 2
    assert "from before" not in results.read_text()
    plan = (folder.out / first_row["problem"]).with_suffix(".plan")
    assert plan.exists()
    problem_file.write_text("(define (problem p)")  # which cannot be planned for
    assert plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig()).quarantined == 3
    assert not plan.exists()


def test_folder_refuses_results_of_other_settings(planner: Planner, folder: SimpleNamespace) -> None:
    plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    before = (folder.out / "results.jsonl").read_bytes()
    with pytest.raises(ParamsError, match=r"other settings \(search; see settings.json\)"):
        plan_folder(planner, folder.domain, folder.files, folder.out, replace(SearchConfig(), temperature=0.5))
    assert (folder.out / "results.jsonl").read_bytes() == before


def test_folder_continues_after_separators_of_unicode(planner: Planner, folder: SimpleNamespace) -> None:
    plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    results = folder.out / "results.jsonl"
    rows = [json.loads(line) | {"detail": "one\u2028two"} for line in results.read_text().splitlines()]
    results.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    before = results.read_bytes()
    assert plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig()).known == 3
    assert results.read_bytes() == before


@pytest.mark.parametrize("change", [{"precision": "bfloat16"}, {"load_in_4bit": True}], ids=str)
def test_folder_refuses_results_of_weights_loaded_otherwise(
    planner: Planner, folder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    model = planner.settings.model.model_copy(update=change)
    monkeypatch.setattr(planner, "settings", replace(planner.settings, model=model))
    with pytest.raises(ParamsError, match=r"other settings \(loading; see settings.json\)"):
        plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())


def test_folder_refuses_results_of_an_adapter_on_other_weights(
    planner: Planner, folder: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for path, text in ((base / "model.safetensors", "old"), (adapter / "adapter_model.safetensors", "same")):
        path.parent.mkdir()
        path.write_text(text)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    monkeypatch.setattr(planner, "folder", adapter)
    plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())
    (base / "model.safetensors").write_text("new")
    with pytest.raises(ParamsError, match=r"other settings \(adapter_base; see settings.json\)"):
        plan_folder(planner, folder.domain, folder.files, folder.out, SearchConfig())


def test_folder_without_a_usable_file_says_why(planner: Planner, folder: SimpleNamespace, tmp_path: Path) -> None:
    files = tmp_path / "only"
    files.mkdir()
    shutil.copy(folder.files / "broken.pddl", files)
    with pytest.raises(ValueError, match=r"none of 1 files can be used; broken.pddl: .*bracket"):
        plan_folder(planner, folder.domain, files, folder.out, SearchConfig())


def test_command_prints_a_plan_that_validate_accepts(empty: Path, problems: Path) -> None:
    files = [str(problems / "spanner/domain.pddl"), str(problems / "spanner/1.pddl")]
    result = CliRunner().invoke(app, ["plan", *files, "--model", str(BASE)])
    assert result.exit_code == 0, result.output
    assert "label: success_plans" in result.stderr
    (empty / "spanner.plan").write_text(result.stdout)
    assert CliRunner().invoke(app, ["validate", *files, str(empty / "spanner.plan")]).exit_code == 0


@pytest.mark.usefixtures("empty")
def test_command_fails_like_validate() -> None:
    files = [str(UNKNOWN / "domain.pddl"), str(UNKNOWN / "p1.pddl")]
    result = CliRunner().invoke(app, ["plan", *files, "--model", str(BASE), "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["success"], document["plan"], document["samples"]) == (False, None, 1)
    assert document["attempts"][0]["label"] == document["label"]
    result = CliRunner().invoke(app, ["plan", files[0], "missing.pddl", "--model", str(BASE)])
    assert result.exit_code == 2
    assert "missing.pddl: no such file" in result.stderr


@pytest.mark.usefixtures("empty")
def test_command_plans_for_a_folder(folder: SimpleNamespace) -> None:
    command = ["plan", str(folder.domain), str(folder.files)]
    result = CliRunner().invoke(app, [*command, "--model", str(BASE), "--out", str(folder.out), "--json"])
    assert result.exit_code == 1, result.output  # two files cannot be used
    assert json.loads(result.stdout) == {"solved": 3, "failed": 0, "quarantined": 2, "known": 0}
    assert CliRunner().invoke(app, command).exit_code == 2  # without --out


def test_package_is_imported_without_torch() -> None:
    subprocess.run([sys.executable, "-c", "import planward, sys; assert 'torch' not in sys.modules"], check=True)
    assert planward.Planner is Planner

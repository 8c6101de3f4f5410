"""Stage `evaluate` with the shipped model on the real planning task."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from completions_server import serve_completions
from planward.core.prompts import PromptTooLong
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.runs import BASE, Run
from planward.core.verdicts import VerifierError
from planward.evaluation.scoring import (
    EvaluationPrompt,
    build_evaluation_prompts,
    build_predictions,
    complete_and_judge,
)
from planward.inference import decoding
from planward.inference.models import load_model
from planward.params import ModelConfig, Params, ParamsError
from planward.stages import evaluate, problems, sample, score, split
from planward.tasks.planning.examples import sample_examples
from support import ROOT, read_rows

Small = Callable[..., Params]


@pytest.fixture(scope="module")
def scored_project(tmp_path_factory: pytest.TempPathFactory, small: Small) -> tuple[Path, Params]:
    """A folder that is ready for evaluation, and its parameters."""
    folder = tmp_path_factory.mktemp("evaluate")
    params = small(
        dataset_sizes=[8],
        problems={
            "generated": {
                "blocksworld": {"count": 18, "blocks": [3, 4]},
                "ferry": {"count": 18, "locations": [3, 4], "cars": [1, 2]},
            }
        },
        prompt={"max_tokens": 400, "max_completion_tokens": 8},
        evaluate={"shots": [0, 1, 3], "batch_size": 16},
        model={"path": str(ROOT / "models/base")},
    )
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        problems.run(params)
        split.run(params)
        score.run(params)
    return folder, params


@dataclass
class Evaluation:
    """What the stage loads, and the prompts that it builds."""

    task: Any
    model: Any
    tokenizer: Any
    test: list[Record]
    pool: list[Record]

    def build_prompts(self, params: Params) -> list[EvaluationPrompt]:
        def select_examples(problem: Record, count: int) -> list[Record]:
            return sample_examples(problem, self.pool, count, str(params.seed))

        shot_nums = params.evaluate.shots
        return build_evaluation_prompts(self.task, self.tokenizer, self.test, select_examples, shot_nums, params)


def load_evaluation(params: Params) -> Evaluation:
    model, tokenizer = load_model(params.model, params.model.path, 408, params.seed)
    test, pool = (list(read_records(Path(f"results/score/{split}.jsonl"))) for split in ("test", "train"))
    return Evaluation(load_task(params), model, tokenizer, test, pool)


@pytest.fixture
def params_in_project(scored_project: tuple[Path, Params], monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(scored_project[0])
    return scored_project[1]


def test_predictions_have_the_verdicts_of_val(params_in_project: Params) -> None:
    evaluate.run(params_in_project, BASE)
    predictions = read_rows(Path("results/predictions/base-0.jsonl"))
    test = {record.id: record for record in read_records(Path("results/score/test.jsonl"))}
    assert len(predictions) == 3 * len(test)
    assert {(row["id"], row["shot_num"]) for row in predictions} == {(i, n) for i in test for n in (0, 1, 3)}
    task = load_task(params_in_project)
    pairs = [(test[row["id"]], row["completion"]) for row in predictions]
    verdicts = task.judge([(record, task.undo_renaming(record, text)) for record, text in pairs])
    for row, verdict in zip(predictions, verdicts, strict=True):
        assert (row["label"], row["reward"], row["plan"]) == (verdict.label, verdict.reward, verdict.plan)
        assert row["success"] == (row["label"] == "success_plans") == (row["reward"] == 1)
        assert (row["bucket"], row["score"]) == (test[row["id"]].bucket, test[row["id"]].score)
        assert (row["method"], row["dataset_size"], row["seed"]) == ("base", 0, params_in_project.seed)
    assert len({row["label"] for row in predictions}) > 1
    metrics = json.loads(Path("results/predictions/base-0.json").read_text())
    assert metrics["run"] == {"task": "planning", "method": "base", "size": 0, "seed": 0}
    before = Path("results/predictions/base-0.jsonl").read_bytes()
    evaluate.run(params_in_project, BASE)
    assert Path("results/predictions/base-0.jsonl").read_bytes() == before


def test_generate_and_a_server_give_the_same_predictions(
    params_in_project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, num_calls = decoding.decode, 0

    def count_calls(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return decode(*args)

    def evaluate_with(**model: Any) -> bytes:
        section = ModelConfig.model_validate(params_in_project.model.model_dump() | model)
        evaluate.run(params_in_project.model_copy(update={"model": section}), BASE)
        return Path("results/predictions/base-0.jsonl").read_bytes()

    monkeypatch.setattr(decoding, "decode", count_calls)
    expected = evaluate_with(generation="own")
    assert num_calls > 0
    num_calls = 0
    assert evaluate_with(generation="transformers") == expected
    assert num_calls == 0
    path = params_in_project.model.path
    network, tokenizer = load_model(params_in_project.model, path, 408, 0)
    with serve_completions(network, tokenizer, "base", path) as (url, requests):
        assert evaluate_with(generation="vllm", vllm={"mode": "server", "url": url}) == expected
    assert {len(request["prompt"]) for request in requests} >= {params_in_project.evaluate.batch_size}


def test_reference_plans_succeed(params_in_project: Params) -> None:
    task = load_task(params_in_project)
    test = list(read_records(Path("results/score/test.jsonl")))
    pairs = [(record, task.undo_renaming(record, task.reference_completion(record))) for record in test]
    assert {verdict.reward for verdict in task.judge(pairs)} == {1.0}


def test_examples_are_nested_and_other_problems_of_the_domain(params_in_project: Params) -> None:
    evaluation, seed = load_evaluation(params_in_project), str(params_in_project.seed)
    test, pool = evaluation.test, evaluation.pool
    for problem in [*test, *pool]:
        selections = [[example.id for example in sample_examples(problem, pool, n, seed)] for n in range(5)]
        for count, selection in enumerate(selections):
            assert len(selection) == len(set(selection)) == count
            assert selection == selections[4][:count]
        candidates = {record.id for record in pool if record.domain == problem.domain} - {problem.id}
        assert set(selections[4]) <= candidates
    first, second = ([example.id for example in sample_examples(test[0], pool, 4, seed)] for seed in ("1", "2"))
    assert first != second


def test_examples_that_do_not_fit_are_dropped_and_counted(params_in_project: Params) -> None:
    evaluation = load_evaluation(params_in_project)
    tokenizer = evaluation.tokenizer

    def count_tokens(prompt: EvaluationPrompt) -> int:
        return len(tokenizer(str(prompt.prompt))["input_ids"])

    def limit_prompts(max_tokens: int) -> Params:
        prompt = params_in_project.prompt.model_copy(update={"max_tokens": max_tokens})
        return params_in_project.model_copy(update={"prompt": prompt})

    full_prompts = evaluation.build_prompts(params_in_project)
    max_tokens = max(count_tokens(prompt) for prompt in full_prompts if prompt.shot_num == 0) + 40
    params = limit_prompts(max_tokens)
    prompts = evaluation.build_prompts(params)
    assert all(count_tokens(prompt) <= max_tokens for prompt in prompts)
    for prompt, full_prompt in zip(prompts, full_prompts, strict=True):
        last_examples = full_prompt.examples[len(full_prompt.examples) - len(prompt.examples) :]
        assert [example.id for example in prompt.examples] == [example.id for example in last_examples]
    judged_completions = complete_and_judge(evaluation.task, evaluation.model, tokenizer, prompts, params)
    metrics = build_predictions(judged_completions, tokenizer, BASE, params.seed)[1]
    assert metrics["shots_dropped"] == sum(prompt.shot_num - len(prompt.examples) for prompt in prompts) > 0
    with pytest.raises(PromptTooLong, match=f"problem {evaluation.test[0].id}"):
        evaluation.build_prompts(limit_prompts(5))


def test_verifier_error_leaves_no_predictions(params_in_project: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", str(Path("no-such-val").absolute()))
    predictions = Path("results/predictions")
    if predictions.exists():
        predictions.rename("results/earlier-predictions")
    with pytest.raises(VerifierError):
        evaluate.run(params_in_project, BASE)
    assert not predictions.exists()


@pytest.mark.parametrize(("method", "size"), [("base", 8), ("sft", 0), ("dpo", 8)])
def test_impossible_run_is_rejected(params_in_project: Params, method: str, size: int) -> None:
    run = Run(method, size, 3407)
    with pytest.raises(ParamsError, match=f"no model {run.name}"):
        evaluate.run(params_in_project, run)


def test_all_models_see_the_same_prompts_whatever_their_seed(params_in_project: Params) -> None:
    shutil.copytree(ROOT / "models/base", "results/models/dense-8-11", dirs_exist_ok=True)
    evaluate.run(params_in_project, BASE)
    evaluate.run(params_in_project, Run("dense", 8, 11))
    base, variant = (read_rows(Path(f"results/predictions/{name}.jsonl")) for name in ("base-0", "dense-8-11"))
    assert {(row["method"], row["dataset_size"], row["seed"]) for row in variant} == {("dense", 8, 11)}
    identity = {"method", "dataset_size", "seed"}
    assert [{k: v for k, v in row.items() if k not in identity} for row in variant] == [
        {k: v for k, v in row.items() if k not in identity} for row in base
    ]


def test_samples_have_the_verdicts_of_val(params_in_project: Params) -> None:
    changes = {"count": 3, "temperature": 2.0, "shot_num": 1}
    params = params_in_project.model_copy(
        update={
            "evaluate": params_in_project.evaluate.model_copy(
                update={"samples": params_in_project.evaluate.samples.model_copy(update=changes)}
            )
        }
    )
    sample.run(params, BASE)
    file = Path("results/samples/base-0.jsonl")
    rows, before = read_rows(file), file.read_bytes()
    test = {record.id: record for record in read_records(Path("results/score/test.jsonl"))}
    assert sorted(row["id"] for row in rows) == sorted(test)
    task = load_task(params)
    for row in rows:
        pairs = [(test[row["id"]], task.undo_renaming(test[row["id"]], text)) for text in row["completions"]]
        verdicts = task.judge(pairs)
        assert row["labels"] == [verdict.label for verdict in verdicts]
        assert row["successes"] == [verdict.success for verdict in verdicts]
        assert len(row["shot_ids"]) == 1
        assert all(1 <= tokens <= params.prompt.max_completion_tokens for tokens in row["tokens"])
    assert any(len(set(row["completions"])) > 1 for row in rows)
    metrics = json.loads(file.with_suffix(".json").read_text())
    assert (metrics["problems"], metrics["samples"]) == (len(test), 3)
    successes = [success for row in rows for success in row["successes"]]
    assert metrics["success_rate"] == pytest.approx(sum(successes) / len(successes))
    sample.run(params, BASE)
    assert file.read_bytes() == before


def test_no_samples_load_no_model(params_in_project: Params) -> None:
    params = params_in_project.model_copy(
        update={"model": params_in_project.model.model_copy(update={"path": "nowhere"})}
    )
    evaluate_config = params.evaluate.model_copy(
        update={"samples": params.evaluate.samples.model_copy(update={"count": 0})}
    )
    sample.run(params.model_copy(update={"evaluate": evaluate_config}), BASE)
    assert read_rows(Path("results/samples/base-0.jsonl")) == []
    assert json.loads(Path("results/samples/base-0.json").read_text())["success_rate"] is None

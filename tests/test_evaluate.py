"""Predictions: the shipped model over the real planning task, and VAL's word on every one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, rows
from planward.evaluation.scoring import answers, predictions, queries
from planward.params import Params, ParamsError
from planward.records import BASE, Record, Run, VerifierError, read_records
from planward.stages import evaluate, problems, score, split
from planward.tasks import load_task
from planward.tasks.fitting import PromptTooLong
from planward.tasks.planning.examples import drawn_shots
from planward.training.models import load

Small = Callable[..., Params]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, small: Small) -> tuple[Path, Params]:
    """A project that is ready for evaluation, and its parameters."""
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


def asked(params: Params) -> tuple[Any, Any, Any, list[Record], list[Record], Any]:
    model, tokenizer = load(params.model, params.model.path, 408, params.seed)
    task = load_task(params)
    test, pool = (list(read_records(Path(f"results/score/{side}.jsonl"))) for side in ("test", "train"))
    return task, model, tokenizer, test, pool, drawn(task, tokenizer, test, pool, params)


def drawn(task: Any, tokenizer: Any, test: list[Record], pool: list[Record], params: Params) -> Any:
    def shots_of(problem: Record, count: int) -> list[Record]:
        return drawn_shots(problem, pool, count, str(params.seed))

    return queries(task, tokenizer, test, shots_of, params.evaluate.shots, params)


@pytest.fixture
def inside(pipeline: tuple[Path, Params], monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(pipeline[0])
    return pipeline[1]


def test_every_prediction_has_vals_verdict(inside: Params) -> None:
    evaluate.run(inside, BASE)
    found = rows(Path("results/predictions/base-0.jsonl"))
    test = {record.id: record for record in read_records(Path("results/score/test.jsonl"))}
    assert len(found) == 3 * len(test)
    assert {(row["id"], row["shot_num"]) for row in found} == {(i, n) for i in test for n in (0, 1, 3)}
    task = load_task(inside)
    verdicts = task.judge([(test[row["id"]], row["completion"]) for row in found])
    for row, verdict in zip(found, verdicts, strict=True):
        assert (row["label"], row["reward"], row["plan"]) == (verdict.label, verdict.reward, verdict.plan)
        assert row["success"] == (row["label"] == "success_plans") == (row["reward"] == 1)
        assert (row["bucket"], row["score"]) == (test[row["id"]].bucket, test[row["id"]].score)
        assert (row["method"], row["dataset_size"], row["seed"]) == ("base", 0, inside.seed)
    assert len({row["label"] for row in found}) > 1
    before = Path("results/predictions/base-0.jsonl").read_bytes()
    evaluate.run(inside, BASE)
    assert Path("results/predictions/base-0.jsonl").read_bytes() == before


def test_reference_plans_would_all_succeed(inside: Params) -> None:
    task = load_task(inside)
    test = list(read_records(Path("results/score/test.jsonl")))
    assert {verdict.reward for verdict in task.judge([(record, task.answer(record)) for record in test])} == {1.0}


def test_shots_are_nested_from_the_pool_of_the_domain_and_never_the_problem_itself(inside: Params) -> None:
    *_, test, pool, _ = asked(inside)
    for problem in [*test, *pool]:
        draws = [[shot.id for shot in drawn_shots(problem, pool, count, str(inside.seed))] for count in range(5)]
        for count, drawn in enumerate(draws):
            assert len(drawn) == len(set(drawn)) == count
            assert drawn == draws[4][:count]
        allowed = {record.id for record in pool if record.domain == problem.domain} - {problem.id}
        assert set(draws[4]) <= allowed
    first, second = ([s.id for s in drawn_shots(test[0], pool, 4, seed)] for seed in ("1", "2"))
    assert first != second


def test_examples_that_do_not_fit_are_dropped_and_counted(inside: Params) -> None:
    task, model, tokenizer, test, pool, full = asked(inside)
    longest = max(len(tokenizer(str(query.prompt))["input_ids"]) for query in full if query.shot_num == 0)
    short = inside.model_copy(update={"prompt": inside.prompt.model_copy(update={"max_tokens": longest + 40})})
    tight = drawn(task, tokenizer, test, pool, short)
    assert all(len(tokenizer(str(query.prompt))["input_ids"]) <= longest + 40 for query in tight)
    assert all([s.id for s in t.shots] == [s.id for s in f.shots[len(f.shots) - len(t.shots) :]]
               for t, f in zip(tight, full, strict=True))  # fmt: skip
    metrics = predictions(answers(task, model, tokenizer, tight, short), tokenizer, BASE, short.seed)[1]
    assert metrics["shots_dropped"] == sum(query.shot_num - len(query.shots) for query in tight) > 0
    none = inside.model_copy(update={"prompt": inside.prompt.model_copy(update={"max_tokens": 5})})
    with pytest.raises(PromptTooLong, match=f"problem {test[0].id}"):
        drawn(task, tokenizer, test, pool, none)


def test_a_broken_val_raises_and_no_prediction_is_written(inside: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", str(Path("no-such-val").absolute()))
    renamed = Path("results/predictions")
    if renamed.exists():
        renamed.rename("results/earlier-predictions")
    with pytest.raises(VerifierError):
        evaluate.run(inside, BASE)
    assert not renamed.exists()


@pytest.mark.parametrize(("method", "size"), [("base", 8), ("sft", 0), ("dpo", 8)])
def test_a_model_that_cannot_be_is_refused(inside: Params, method: str, size: int) -> None:
    run = Run(method, size, 3407)
    with pytest.raises(ParamsError, match=f"no model {run.name}"):
        evaluate.run(inside, run)


def test_a_trained_model_is_asked_what_base_was_asked_whatever_its_seed(inside: Params) -> None:
    shutil.copytree(ROOT / "models/base", "results/models/dense-8-11", dirs_exist_ok=True)
    evaluate.run(inside, BASE)
    evaluate.run(inside, Run("dense", 8, 11))
    base, variant = (rows(Path(f"results/predictions/{name}.jsonl")) for name in ("base-0", "dense-8-11"))
    assert {(row["method"], row["dataset_size"], row["seed"]) for row in variant} == {("dense", 8, 11)}
    own = {"method", "dataset_size", "seed"}
    assert [{k: v for k, v in row.items() if k not in own} for row in variant] == [
        {k: v for k, v in row.items() if k not in own} for row in base
    ]

"""Validation during SFT and GRPO: the best weights are kept, and training stops early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import letters
from planward.core.records import Record
from planward.core.tasks import Renaming
from planward.core.verdicts import Verdict
from planward.inference import models
from planward.params import Params
from planward.training.validation import find_stop, select_best
from training_runs import (
    RECORDS,
    TASK,
    KillAfter,
    KillAtEnd,
    Killed,
    StepRecorder,
    are_equal,
    load_weights,
    read_curve,
    read_files,
    read_metrics,
    read_rows,
    run_grpo,
    run_sft,
)

pytestmark = pytest.mark.usefixtures("project_root")

HELD_OUT = [record.model_copy(update={"id": f"held-out-{index}"}) for index, record in enumerate(RECORDS[:10])]
ONE_PHASE = [{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}]


class ScriptedTask(letters.LettersTask):
    """The success on validation problems, in tenths, is scripted for each optimizer step."""

    def __init__(self, successes: Sequence[int]) -> None:
        self.successes, self.step = successes, 0

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:
        if not problem.id.startswith("held-out-"):
            return super().verify(problem, completion, renaming)
        success = int(problem.id.removeprefix("held-out-")) < self.successes[self.step]
        return Verdict("right" if success else "wrong", 1.0 if success else -1.0, success)


class StepCounter(TrainerCallback):
    """Tells the task which step is next."""

    def __init__(self, task: ScriptedTask) -> None:
        self.task = task

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.task.step = state.global_step + 1


class WeightRecorder(TrainerCallback):
    """Copies the weights after every step of training."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_begin(self, *args: Any, model: Any = None, **_: Any) -> None:
        self.on_step_end(*args, model=model)

    def on_step_end(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        self.weights[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}

    def find_step(self, name: str) -> int:
        """Return the step whose weights a model on disk has."""
        model_weights = load_weights(name)
        (step,) = [
            step
            for step, weights in self.weights.items()
            if all(torch.equal(weights[key], value) for key, value in model_weights.items())
        ]
        return step


def build_params(steps: int, validation: dict[str, Any] | None = None, **grpo: Any) -> Params:
    settings = {"steps": 1, "problems": 10, "keep": "best", "patience": None} | (validation or {})
    return letters.build_params(grpo={"steps": steps} | grpo, validation=settings, curriculum=ONE_PHASE)


def build_extendable(steps: int, **validation: Any) -> Params:
    return build_params(steps, validation, lr_scheduler_type="constant", extendable=True)


def run_scripted(
    name: str, successes: Sequence[int], params: Params, callbacks: Sequence[TrainerCallback] = (), base: str = "base"
) -> None:
    task = ScriptedTask(successes)
    run_grpo(name, params, task, [StepCounter(task), *callbacks], base, HELD_OUT)


@pytest.mark.parametrize(
    ("successes", "interval", "keep", "expected"),
    [
        ([2, 5, 3, 5, 1], 1, "best", 1),  # the earlier of equals
        ([2, 5, 3, 5, 1], 1, "last", 4),
        ([2, 5, 3, 4, 1], 2, "best", 2),  # step 1 is not validated
        ([4, 3, 4, 3, 2], 1, "best", 0),  # the initial weights
        ([1, 1, 1, 1, 2], 3, "best", 4),  # the last step always is
        ([0, 0, 0, 0, 0], 1, "best", 4),  # no success says which is better
    ],
)
def test_weights_of_the_best_validation_are_kept(successes: list[int], interval: int, keep: str, expected: int) -> None:
    recorder = WeightRecorder()
    run_scripted("model", successes, build_params(4, {"steps": interval, "keep": keep}), [recorder])
    assert recorder.find_step("model") == expected
    metrics = read_metrics("model")
    assert metrics.get("best_step") == (expected if keep == "best" else None)
    assert "stop_step" not in metrics
    assert len(read_rows("model", "consumed")) == 4 * 8
    assert not list(Path(".checkpoints").iterdir())


@pytest.mark.parametrize("kill_after", [1, 3, 4])
def test_interrupted_run_keeps_the_same_weights(kill_after: int) -> None:
    successes, params = [2, 4, 1, 6, 3], build_params(4, save_steps=2)
    run_scripted("straight", successes, params)
    with pytest.raises(Killed):
        run_scripted("resumed", successes, params, [KillAfter(kill_after)])
    run_scripted("resumed", successes, params)
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")
    assert read_metrics("resumed")["best_step"] == 3


def test_best_weights_outlast_better_ones_that_a_checkpoint_has_not_seen() -> None:
    params, recorder = build_params(4, save_steps=2), WeightRecorder()
    with pytest.raises(Killed):
        run_scripted("model", [2, 4, 1, 6, 3], params, [recorder, KillAfter(3)])
    run_scripted("model", [2, 4, 1, 2, 3], params, [recorder])
    assert recorder.find_step("model") == 1


@pytest.mark.parametrize("file", ["best-1.safetensors", "rollouts-000001.parquet"])
def test_run_whose_files_are_incomplete_starts_anew(file: str) -> None:
    successes, params, recorder = [2, 4, 1, 3, 3], build_params(4, save_steps=2), StepRecorder()
    run_scripted("straight", successes, params)
    with pytest.raises(Killed):
        run_scripted("model", successes, params, [KillAfter(3)])
    (folder,) = Path(".checkpoints").iterdir()
    (folder / file).write_bytes(b"half")
    run_scripted("model", successes, params, [recorder])
    assert recorder.steps == [1, 2, 3, 4]
    assert are_equal(load_weights("straight"), load_weights("model"))
    assert read_files("training/straight") == read_files("training/model")


@pytest.mark.parametrize(("successes", "best"), [([2, 3, 6, 1, 4, 5], 2), ([2, 3, 6, 1, 4, 7], 5)])
def test_extended_run_goes_on_from_the_last_weights_and_keeps_the_best(successes: list[int], best: int) -> None:
    recorder, steps = WeightRecorder(), StepRecorder()
    run_scripted("straight", successes, build_extendable(5), [recorder])
    run_scripted("longer", successes, build_extendable(3))
    assert recorder.find_step("longer") == 2
    run_scripted("longer", successes, build_extendable(5), [steps])
    assert steps.steps == [4, 5]
    assert recorder.find_step("longer") == best
    assert read_files("training/straight") == read_files("training/longer")
    checkpoints = {folder.name.split("-")[0]: folder for folder in Path(".checkpoints").iterdir()}["grpo"]
    assert [file.name for file in checkpoints.glob("best-*")] == [f"best-{best}.safetensors"]


def test_training_stops_after_validations_without_a_better_one() -> None:
    successes, recorder = [2, 5, 4, 5, 3, 9], WeightRecorder()
    params = build_params(5, {"patience": 2}, save_steps=2)
    run_scripted("straight", successes, params, [recorder])
    assert recorder.find_step("straight") == 1
    assert max(recorder.weights) == 3
    metrics = read_metrics("straight")
    assert (metrics["best_step"], metrics["stop_step"], metrics["prompts"], metrics["completions"]) == (1, 3, 24, 96)
    assert metrics["completions_kept"] == 96
    assert {row["step"] for row in read_rows("straight", "consumed")} == {0, 1, 2}

    again = StepRecorder()
    with pytest.raises(Killed):
        run_scripted("resumed", successes, params, [KillAtEnd()])
    run_scripted("resumed", successes, params, [again])
    assert again.steps == []
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")


def test_stopped_run_with_more_steps_stays_stopped() -> None:
    successes, recorder = [2, 5, 4, 3, 3, 9, 9], StepRecorder()
    run_scripted("model", successes, build_extendable(5, patience=2, keep="last"))
    weights = load_weights("model")
    run_scripted("model", successes, build_extendable(6, patience=2, keep="last"), [recorder])
    assert recorder.steps == []
    assert are_equal(load_weights("model"), weights)


@pytest.mark.parametrize("merge", [True, False])
def test_best_adapter_is_kept(merge: bool) -> None:
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": merge}
    for name, successes in (("best", [2, 5, 3]), ("one_step", [2, 5])):
        params = build_params(len(successes) - 1, lr_scheduler_type="constant")
        params = params.model_copy(update={"model": letters.build_params(model={"lora": lora}).model})
        with pytest.raises(Killed):
            run_scripted(name, successes, params, [KillAtEnd()])
        (weights,) = Path(".checkpoints").glob("*/best-1.safetensors")
        assert len(load_file(weights)) == 2 * 2 * 7  # A and B of the linear layers, no more
        run_scripted(name, successes, params)
    file = "model.safetensors" if merge else "adapter_model.safetensors"
    assert are_equal(load_file(Path("best", file)), load_file(Path("one_step", file)))
    model, base = (models.load_weights(path, torch.float32).state_dict() for path in ("best", "base"))
    assert not are_equal(model, base)


def compute_loss(model: str, problems: Sequence[Record]) -> float:
    """Return the mean loss per token of the reference completions, one problem at a time."""
    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    losses: list[float] = []
    for problem in problems:
        prompt, completion = (
            tokenizer(text, return_token_type_ids=False)["input_ids"]
            for text in (str(TASK.prompt(problem, [])), f"{TASK.reference_completion(problem)} </s>")
        )
        logs = network(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        losses += [-logs[len(prompt) - 1 + position, token].item() for position, token in enumerate(completion)]
    return sum(losses) / len(losses)


def test_sft_logs_validation_and_keeps_the_best_weights() -> None:
    def run(name: str, successes: Sequence[int], keep: str, callbacks: Sequence[TrainerCallback] = ()) -> None:
        params = letters.build_params(
            sft={"validation_steps": 2, "learning_rate": 1e-2}, validation={"problems": 10, "keep": keep}
        )
        task = ScriptedTask(successes)
        run_sft(name, params, [StepCounter(task), *callbacks], task, HELD_OUT)

    recorder, successes = WeightRecorder(), [1, 0, 2, 0, 6, 0, 3]
    run("straight", successes, "best", [recorder])
    assert recorder.find_step("straight") == 4
    assert read_metrics("straight")["best_step"] == 4
    assert read_curve("straight", "validation_success") == [(0, 0.1), (2, 0.2), (4, 0.6), (6, 0.3)]
    losses = dict(read_curve("straight", "validation_loss"))
    assert list(losses) == [0, 2, 4, 6]
    assert losses[0] == pytest.approx(compute_loss("base", HELD_OUT), rel=1e-5)
    assert losses[4] == pytest.approx(compute_loss("straight", HELD_OUT), rel=1e-5)

    with pytest.raises(Killed):
        run("resumed", successes, "best", [KillAfter(5)])
    run("resumed", successes, "best")
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")

    run("last", successes, "last", [recorder])
    assert recorder.find_step("last") == 6
    run_sft("plain", letters.build_params(sft={"validation_steps": 0, "learning_rate": 1e-2}), validation=HELD_OUT)
    assert are_equal(load_weights("plain"), load_weights("last"))  # validation changes nothing else
    assert not Path("training/plain/curves/validation_success.tsv").exists()


def test_sft_stops_early_and_stays_stopped() -> None:
    params = letters.build_params(
        sft={"validation_steps": 1, "epochs": 3, "batch_size": 7, "micro_batch_size": 7, "warmup_ratio": 0.0},
        validation={"problems": 10, "patience": 2},
    )
    for name, last in (("straight", None), ("resumed", KillAtEnd())):
        task, recorder = ScriptedTask([3, 4, 4, 2, 9, 9, 9, 9, 9, 9, 9, 9]), WeightRecorder()
        callbacks = [StepCounter(task), recorder]
        if last is not None:
            with pytest.raises(Killed):
                run_sft(name, params, [*callbacks, last], task, HELD_OUT)
        run_sft(name, params, callbacks, task, HELD_OUT)
        assert max(recorder.weights) == 3
        assert (recorder.find_step(name), read_metrics(name)["stop_step"]) == (1, 3)
    assert read_files("training/straight") == read_files("training/resumed")


success_rates = st.lists(st.integers(0, 4).map(lambda count: count / 4), max_size=12)


@given(success_rates, st.integers(1, 4))
def test_stop_is_the_first_step_with_enough_validations_since_the_best(rates: list[float], patience: int) -> None:
    history = [(10 * index, rate) for index, rate in enumerate(rates)]
    stop_steps = [
        step
        for index, (step, _) in enumerate(history)
        if index >= patience and max(rates[: index - patience + 1]) >= max(rates[: index + 1])
    ]
    assert find_stop(history, patience) == (stop_steps[0] if stop_steps else None)
    assert find_stop(history, None) is None


@given(success_rates)
def test_best_step_has_the_highest_success_and_no_earlier_one_equals_it(rates: list[float]) -> None:
    best = select_best(list(enumerate(rates)))
    if best is None:
        assert not any(rates)
    else:
        assert rates[best] == max(rates) > 0
        assert all(rate < rates[best] for rate in rates[:best])

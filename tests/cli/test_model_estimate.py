"""`planward doctor --model`: what a run with a model takes, from a few measured steps."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import letters
from planward.cli import app
from planward.estimation import measurement
from planward.estimation.costs import estimate_costs
from planward.estimation.estimate import estimate_model
from planward.estimation.measurement import Measurement, count_parameters, measure
from planward.estimation.workload import Workload, measure_problems
from planward.inference.models import load_model
from planward.params import SamplesConfig
from support import ROOT

MEASURED = Measurement(
    parameters=1000,
    trainable=1000,
    device="CPU",
    weights=4000,
    generator_weights=4000,
    gradients=4000,
    optimizer=8000,
    activations_per_token=10.0,
    cache_per_token=2.0,
    prefill=100.0,
    decoding=10.0,
    training=50.0,
    training_sequences=4,
    decoding_rows=8,
    processor_share=1.0,
    peak_generation=0,
    peak_training=0,
)
WORKLOAD = Workload(
    source="test",
    sequences=[([1] * 20, [1] * 5), ([1] * 10, [1] * 5)],
    grpo_prompt=10.0,
    completion=5.0,
    max_completion=8,
    validation_prompt=10.0,
    validation_problems=2,
    evaluation_prompts={0: 10.0, 1: 30.0},
    sample_prompt=20.0,
    test_problems=3,
)
LORA = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": ["q_proj"], "merge": True}


def run_doctor(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["doctor", "--json", "--model", *arguments])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def base(project: Path) -> Path:
    """A random model of the letters task."""
    letters.write_base(project / "base")
    return project / "base"


def test_without_problems_the_longest_prompts_are_assumed(project: Path) -> None:
    text = (ROOT / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("max_tokens: 768 ", "max_tokens: 96 "))
    document = run_doctor(str(ROOT / "models/base"))
    assert document["measurement"]["parameters"] == document["measurement"]["trainable"] == 1_385_600
    assert document["measurement"]["weights"] == 4 * 1_385_600
    assert document["workload"]["sft_sequence"] == 96 + 80
    assert "random tokens" in document["workload"]["source"]
    stages = [time["stage"].partition(",")[0] for time in document["times"]]
    assert stages == ["sft"] * 3 + ["grpo", "evaluate", "sample"]
    assert all(0 < time["expected"] <= time["longest"] for time in document["times"])
    assert document["total"]["expected"] == sum(time["runs"] * time["expected"] for time in document["times"])


def test_lengths_are_those_of_present_problems(base: Path) -> None:
    params = letters.build_params(dataset_sizes=[8], evaluate={"shots": [0], "samples": {"shot_num": 1}})
    records = letters.build_problems(16)
    tokenizer = load_model(params.model, str(base), 40, 0)[1]
    splits = {"train": records[:8], "validation": records[8:12], "test": records[12:]}
    workload = measure_problems(letters.LettersTask(), tokenizer, splits, params, "here")
    assert workload.source == "8 problems of here"
    assert (workload.validation_problems, workload.test_problems) == (4, 4)
    assert workload.validation_prompt == sum(len(record.prompt.split()) + 1 for record in records[8:12]) / 4
    assert workload.sample_prompt > workload.evaluation_prompts[0]
    assert workload.longest_sequence <= 32 + 8


def test_times_and_memory_follow_from_speeds_and_lengths() -> None:
    params = letters.build_params(
        dataset_sizes=[4, 8],
        seeds=[1, 2],
        sft={"epochs": 3, "batch_size": 4, "micro_batch_size": 2, "validation_steps": 0},
        grpo={"steps": 2, "batch_size": 4, "num_generations": 4, "micro_batch_size": 8},
        validation={"steps": 1},
        evaluate={
            "batch_size": 16,
            "samples": {"count": 6, "shot_num": 2, "methods": ["grpo"], "dataset_size": 8},
        },
    )
    estimate = estimate_costs("m", WORKLOAD, MEASURED, MEASURED, params)
    sft, larger, grpo, evaluate, sample = estimate.times
    assert [time.runs for time in estimate.times] == [2, 2, 4, 9, 3]
    assert sft.expected == sft.longest == 3 * 4 * 20 / 50
    assert larger.expected == 2 * sft.expected
    validation = 2 * (10 / 100 + 5 / 10)
    step = 4 * 10 / 100 + 16 * 5 / 10 + (4 * 10 + 16 * 5) / 50
    assert grpo.expected == pytest.approx(2 * step + 3 * validation)
    assert evaluate.longest == pytest.approx(3 * (10 / 100 + 8 / 10 + 30 / 100 + 8 / 10))
    assert sample.expected == pytest.approx(3 * (20 / 100 + 6 * 5 / 10))
    training, rollouts, completion = estimate.memory
    assert training.total == 4000 + 4000 + 8000 + 2 * 25 * 10
    assert (rollouts.activations, rollouts.cache) == ((2 * 10 + 8 * 8) * 10, 8 * (20 + 8) * 2)
    assert completion.total == 4000 + 16 * (20 + 8) * 2

    model = params.model.model_copy(update={"gradient_checkpointing": True})
    slower = estimate_costs("m", WORKLOAD, MEASURED, MEASURED, params.model_copy(update={"model": model})).times[2]
    assert slower.expected > grpo.expected  # every completion reads its prompt again

    evaluation = params.evaluate.model_copy(update={"samples": SamplesConfig()})
    times = estimate_costs("m", WORKLOAD, MEASURED, MEASURED, params.model_copy(update={"evaluate": evaluation})).times
    assert times == estimate.times[:4]


def test_an_adapter_trains_few_numbers_and_checkpointing_keeps_few_activations(base: Path) -> None:
    workload = WORKLOAD
    measurements = {}
    for name, changes in (("full", {}), ("lora", {"lora": LORA}), ("checkpointed", {"gradient_checkpointing": True})):
        params = letters.build_params(model=changes)
        measurements[name] = measure(str(base), workload, params, count_parameters(base))
    full, lora, checkpointing = measurements.values()
    assert full.trainable == full.parameters == lora.parameters
    assert lora.trainable == 2 * 2 * (32 + 32)  # layers x rank x (in + out)
    assert (full.gradients, full.optimizer) == (4 * full.trainable, 8 * full.trainable)
    assert full.cache_per_token == 2 * 2 * 32 * 4  # keys and values x layers x width x bytes
    assert checkpointing.activations_per_token < full.activations_per_token
    params_4bit = letters.build_params(model={"lora": LORA, "load_in_4bit": True})
    assert measure(str(base), workload, params_4bit, 1).weights < lora.weights / 2


def test_a_network_is_released_before_the_next_is_loaded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = list[weakref.ref[Any]]()
    load_network = measurement.load_network

    def load_alone(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        assert [network() for network in networks] == [None] * len(networks)
        network, tokenizer = load_network(*arguments, **options)
        networks.append(weakref.ref(network))
        return network, tokenizer

    monkeypatch.setattr(measurement, "load_network", load_alone)
    estimate_model(str(base), letters.build_params(grpo={"lora": LORA}))
    assert len(networks) == 4


def test_what_grpo_alone_adapts_counts_for_grpo(base: Path) -> None:
    params = letters.build_params(grpo={"lora": LORA, "beta": 0.01}, model={"precision": "bfloat16"})
    estimate = estimate_model(str(base), params)
    full, adapter = estimate.measurement, estimate.grpo
    assert full.trainable == full.parameters > 10 * adapter.trainable
    sft, grpo, evaluation = estimate.memory
    assert sft.weights == 2 * evaluation.weights  # 32 bits and 16
    assert grpo.weights == evaluation.weights + 4 * adapter.trainable
    assert (sft.gradients, grpo.gradients) == (4 * full.trainable, 4 * adapter.trainable)


@pytest.mark.parametrize(
    ("path", "style", "message"),
    [
        ("Org/Name", "compact", "no folder Org/Name; fix: planward fetch-model Org/Name"),
        ("empty", "compact", "empty: has no .safetensors; fix: planward fetch-model"),
        ("base", "full", "base: the tokenizer has no chat template, which prompt.style: full needs; fix: set"),
    ],
)
def test_what_the_model_lacks_is_named(base: Path, path: str, style: str, message: str) -> None:
    shutil.copytree(base, base.parent / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    text = (ROOT / "params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("style: compact ", f"style: {style} "))
    result = CliRunner().invoke(app, ["doctor", "--model", path])
    assert result.exit_code == 2
    assert message in result.stderr

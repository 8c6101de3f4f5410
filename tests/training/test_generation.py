"""Who generates the completions of GRPO: Planward, TRL on the network, or vLLM (its configuration only)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig

import letters
from planward.inference import models
from planward.inference.models import BackendError
from planward.params import Params
from planward.preflight.checks import list_reference_faults
from planward.training import grpo, shared_prefixes
from planward.training.batching import Batching
from planward.training.generation import check_generation
from training_runs import are_equal, load_weights, read_curve, run_grpo

pytestmark = pytest.mark.usefixtures("project_root")


def build_params(generation: str, vllm: dict[str, Any] | None = None, **sections: Any) -> Params:
    model = {"generation": generation, "vllm": vllm or {}, "backend": "transformers"}
    return letters.build_params(model=model | sections.pop("model", {}), **sections)


def build_arguments(params: Params) -> GRPOConfig:
    return grpo._build_arguments(params, Batching(processes=1, micro_batch=8, accumulation=1), 2, Path("checkpoints"))


@pytest.mark.parametrize("generation", ["own", "transformers"])
def test_grpo_trains_on_completions_of_either_generation(generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, num_calls = shared_prefixes.sample_completions, 0

    def count_calls(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return sample(*args)

    monkeypatch.setattr(shared_prefixes, "sample_completions", count_calls)
    params = build_params(generation, grpo={"steps": 2, "learning_rate": 1e-2, "loss_type": "dapo", "beta": 0.0})
    rows = run_grpo("model", params)
    assert num_calls == (2 if generation == "own" else 0)
    assert [row["step"] for row in rows] == [step for step in range(2) for _ in range(params.grpo.batch_size)]
    assert not are_equal(load_weights("base"), load_weights("model"))
    assert all(entropy > 0 for _, entropy in read_curve("model", "entropy"))


def test_vllm_in_the_training_process_gets_limits_and_memory() -> None:
    params = build_params("vllm", {"gpu_memory_utilization": 0.4, "tensor_parallel_size": 2})
    arguments = build_arguments(params)
    assert (arguments.use_vllm, arguments.vllm_mode) == (True, "colocate")
    assert (arguments.vllm_gpu_memory_utilization, arguments.vllm_tensor_parallel_size) == (0.4, 2)
    assert arguments.vllm_max_model_length == params.prompt.max_tokens + params.prompt.max_completion_tokens
    assert (arguments.temperature, arguments.top_p, arguments.top_k) == (
        params.grpo.temperature,
        params.grpo.top_p,
        params.grpo.top_k,
    )


def test_a_vllm_server_is_asked_by_trl() -> None:
    arguments = build_arguments(build_params("vllm", {"mode": "server", "url": "http://node7:8001"}))
    assert (arguments.use_vllm, arguments.vllm_mode) == (True, "server")
    assert arguments.vllm_server_base_url == "http://node7:8001"


@pytest.mark.parametrize("generation", ["own", "transformers"])
def test_without_vllm_trl_gets_none(generation: str) -> None:
    assert not build_arguments(build_params(generation)).use_vllm


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"grpo": {"temperatures": {"easy": 0.8, "medium": 1.0, "hard": 1.2}}}, r"grpo\.temperatures: null"),
        ({"grpo": {"replay": True}}, r"grpo\.replay: false"),
        ({"grpo": {"extendable": True, "lr_scheduler_type": "constant", "warmup_ratio": 0.0},
          "curriculum": [{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}],
          "validation": {"steps": 0}}, r"grpo\.extendable: false"),
        ({"model": {"load_in_4bit": True}}, r"model\.load_in_4bit: false"),
        ({"model": {"backend": "unsloth"}}, r"model\.backend: transformers"),
    ],
)  # fmt: skip
def test_what_vllm_cannot_do_is_refused_before_training(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=rf"model\.generation: vllm needs {message}"):
        run_grpo("model", build_params("vllm", **sections))
    assert not Path("training").exists()


@pytest.mark.parametrize(
    ("merge", "section", "message"),
    [
        (True, {"temperatures": {"easy": 0.8, "medium": 1.0, "hard": 1.2}}, r"grpo\.temperatures: null"),
        (True, {"loss_type": "dr_grpo", "scale_rewards": "group"}, r"grpo\.scale_rewards: none"),
        (False, {"beta": 0.01}, r"grpo\.beta: 0\.0, or model\.lora\.merge: true"),
    ],
)
def test_what_unsloth_would_ignore_is_refused_before_training(
    merge: bool, section: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "planward.training.generation.choose_backend", lambda _: "unsloth"
    )  # which is not installed here
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": merge}
    with pytest.raises(BackendError, match=rf"model\.backend: unsloth needs {message}"):
        run_grpo("model", build_params("own", model={"lora": lora}, grpo=section))
    assert not Path("training").exists()


def test_vllm_does_not_start_from_an_adapter() -> None:
    Path("base/adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match="base: a LoRA adapter"):
        check_generation(build_params("vllm"), "base")


def test_missing_vllm_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planward.inference.vllm.find_spec", lambda _: None)  # also where it is installed
    with pytest.raises(BackendError, match=r"model\.generation is vllm, which is not installed.*extra `vllm`"):
        run_grpo("model", build_params("vllm"))


def write_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    network, tokenizer = models.load_model(letters.build_params().model, "base", 40, 0)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    models.save_model(get_peft_model(network, lora), tokenizer, Path("adapter"), adapter=True)


def test_a_kl_term_against_the_base_of_an_adapter_is_refused() -> None:
    write_adapter()
    message = r"grpo\.beta: 0\.01, but adapter is an adapter.*fix: planward merge adapter FOLDER"
    with pytest.raises(BackendError, match=message):
        run_grpo("model", build_params("own", grpo={"beta": 0.01}), base="adapter")
    assert not Path("training").exists()
    [fault] = list_reference_faults(build_params("own", grpo={"beta": 0.01}), "adapter")
    assert "grpo.beta: 0.01" in fault
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": True}
    check_generation(build_params("own", grpo={"beta": 0.01}, model={"lora": lora}), "adapter")
    check_generation(build_params("own", grpo={"beta": 0.0}), "adapter")


def test_tokens_that_end_a_turn_beside_the_tokenizers_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    params = build_params("own", grpo={"steps": 1})
    run_grpo("plain", params)
    assert "warning" not in capsys.readouterr().out
    file = Path("base/generation_config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [1, 2]}))
    run_grpo("model", params)
    assert "base may also end a turn with <unk>, but completions of GRPO end with </s> alone" in capsys.readouterr().out

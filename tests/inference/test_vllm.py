"""vLLM without a GPU: the arguments it would get, what is refused, and its server's API over HTTP.

vLLM itself is not installed here; `tests/stages/test_evaluate.py` evaluates a model through a server.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

import letters
from completions_server import serve_completions
from planward.inference import vllm
from planward.inference.decoding import generate_greedy
from planward.inference.models import BackendError
from planward.inference.sampling import generate_samples
from planward.params import ModelConfig

MAX_NEW_TOKENS = 6


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    letters.write_base(tmp_path / "base")
    return "base"


def load(base: str) -> tuple[Any, Any]:
    return LlamaForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)


def build_config(**values: Any) -> ModelConfig:
    section = letters.build_params().model.model_dump() | {"generation": "vllm", "backend": "transformers"}
    return ModelConfig.model_validate(section | values)


def test_an_engine_gets_the_weights_limits_and_memory() -> None:
    config = build_config(vllm={"gpu_memory_utilization": 0.8, "tensor_parallel_size": 2})
    arguments = vllm.build_engine_arguments(config, "results/models/sft-400-1", 2088, 1)
    assert arguments == vllm.EngineArguments(
        model="results/models/sft-400-1",
        max_model_len=2088,
        gpu_memory_utilization=0.8,
        tensor_parallel_size=2,
        seed=1,
        dtype="bfloat16",
        generation_config="vllm",
        trust_remote_code=False,
    )
    assert vllm.build_engine_arguments(build_config(precision="float32"), "base", 32, 0).dtype == "float32"


def test_completions_are_greedy_with_the_models_own_penalty(base: str) -> None:
    _, tokenizer = load(base)
    assert vllm.build_sampling_arguments(base, tokenizer, 9) == vllm.SamplingArguments(
        max_tokens=9, stop_token_ids=[tokenizer.eos_token_id], repetition_penalty=1.0, temperature=0.0
    )
    GenerationConfig(repetition_penalty=1.05, do_sample=True, temperature=0.7).save_pretrained(base)
    arguments = vllm.build_sampling_arguments(base, tokenizer, 9)
    assert (arguments.repetition_penalty, arguments.temperature) == (1.05, 0.0)


def test_a_missing_package_is_named_with_its_extra(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda _: None)  # also where it is installed
    with pytest.raises(BackendError, match=r"model\.generation is vllm, which is not installed.*extra `vllm`"):
        vllm.load_vllm(build_config(), base, 32, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backend": "unsloth"}, r"model\.generation: vllm needs model\.backend: transformers"),
        ({"load_in_4bit": True}, r"model\.generation: vllm needs model\.load_in_4bit: false"),
    ],
)
def test_weights_that_vllm_cannot_hold_are_refused(base: str, values: dict[str, Any], message: str) -> None:
    for mode in ("colocate", "server"):
        with pytest.raises(BackendError, match=message):
            vllm.load_vllm(build_config(**values, vllm={"mode": mode}), base, 32, 0)


def test_an_adapter_is_refused(base: str) -> None:
    Path(base, "adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"base: a LoRA adapter.*planward merge base OUT"):
        vllm.load_vllm(build_config(), base, 32, 0)


def test_a_servers_completions_are_those_of_the_model(base: str) -> None:
    model, tokenizer = load(base)
    prompts = [[3, 4, 5], [6], [7, 8, 9, 3], [4, 4], [5, 3]]
    for name, root in (("base", "base"), ("letters", str(Path(base).resolve()))):
        with serve_completions(model, tokenizer, name, root) as (url, requests):
            config = build_config(vllm={"mode": "server", "url": f"{url}/"})
            client, served_tokenizer = vllm.load_vllm(config, base, 32, 0)
            expected = generate_greedy(model, tokenizer, prompts, MAX_NEW_TOKENS, 64)
            assert generate_greedy(client, served_tokenizer, prompts, MAX_NEW_TOKENS, 2) == expected
            assert [len(request["prompt"]) for request in requests] == [2, 2, 1]
            assert {request["model"] for request in requests} == {name}
    assert len(set(expected)) > 2


def test_a_server_samples_what_is_asked_for(base: str) -> None:
    model, tokenizer = load(base)
    prompts, sampling = [[3, 4, 5], [6], [7, 8, 9, 3]], (5, 1.5, MAX_NEW_TOKENS, 64, 11)
    with serve_completions(model, tokenizer, "base", "base") as (url, requests):
        client, _ = vllm.load_vllm(build_config(vllm={"mode": "server", "url": url}), base, 32, 0)
        samples = generate_samples(client, tokenizer, prompts, *sampling, progress=False)
    expected = generate_samples(model, tokenizer, prompts, *sampling, progress=False)
    assert [[sample.text for sample in row] for row in samples] == [[sample.text for sample in row] for row in expected]
    assert len({sample.text for sample in samples[0]}) > 1
    assert [(request["n"], request["temperature"], request["seed"]) for request in requests] == [(5, 1.5, 11)] * 3
    for request in requests:  # `vllm serve` would take what is missing from the model's generation_config.json
        assert {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}.items() <= request.items()


def test_a_server_with_other_weights_is_refused(base: str) -> None:
    shutil.copytree(base, "other")
    with serve_completions(*load(base), "base", "base") as (url, _):
        config = build_config(vllm={"mode": "server", "url": url})
        with pytest.raises(BackendError, match=rf"model\.vllm\.url: {url} serves base; fix: vllm serve other"):
            vllm.load_vllm(config, "other", 32, 0)


def test_an_error_of_the_server_is_shown(base: str) -> None:
    with serve_completions(*load(base), "base", "base") as (url, _):
        client, tokenizer = vllm.load_vllm(build_config(vllm={"mode": "server", "url": url}), base, 32, 0)
        with pytest.raises(BackendError, match=r"/v1/completions: 400 .*maximum context length exceeded"):
            generate_greedy(client, tokenizer, [[3, 4]], 10**6, 2)


def test_no_server_is_named_by_its_key(base: str) -> None:
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused_socket.getsockname()[1]}"
        with pytest.raises(BackendError, match=rf"model\.vllm\.url: {url} does not answer"):
            vllm.load_vllm(build_config(vllm={"mode": "server", "url": url}), base, 32, 0)

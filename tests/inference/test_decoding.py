"""Greedy and sampled completions against Transformers' own `generate`, for models that `decode` supports and others."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoTokenizer,
    FalconConfig,
    FalconForCausalLM,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import letters
from planward.inference import decoding
from planward.inference.attention import group_queries
from planward.inference.decoding import generate_greedy
from planward.inference.models import load_model
from planward.inference.sampling import generate_samples
from planward.inference.vllm import build_sampling_arguments

MAX_NEW_TOKENS = 24


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    torch.set_num_threads(1)
    letters.write_base(tmp_path / "base")
    return AutoTokenizer.from_pretrained(tmp_path / "base")


def randomize(model: Any) -> Any:
    """Give the model weights so large that completions vary, in length too."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5)
    return model.eval()


def build_llama(folder: Path) -> Any:
    return randomize(LlamaForCausalLM.from_pretrained(folder / "base"))


def build_with_grouped_queries(folder: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    config = LlamaForCausalLM.from_pretrained(folder / "base").config
    config.num_key_value_heads = config.num_attention_heads // 2
    config._attn_implementation = attention
    return randomize(LlamaForCausalLM(config)).to(dtype)


def build_with_adapter(folder: Path) -> Any:
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(build_with_grouped_queries(folder, "sdpa"), lora).eval()


def build_without_attention_interface(folder: Path) -> Any:
    words = LlamaForCausalLM.from_pretrained(folder / "base").config.vocab_size
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2}
    config = FalconConfig(vocab_size=words, **shape, new_decoder_architecture=True, bos_token_id=None, eos_token_id=1)
    return randomize(FalconForCausalLM(config))


def build_with_suppressed_tokens(folder: Path) -> Any:
    model = build_llama(folder)
    model.generation_config.suppress_tokens = [5, 6, 8]
    return model


def build_with_sliding_window(folder: Path) -> Any:
    small = LlamaForCausalLM.from_pretrained(folder / "base").config.to_dict()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    shape = {name: small[name] for name in sizes} | {"num_key_value_heads": 2}
    return randomize(MistralForCausalLM(MistralConfig(**shape, **ends, sliding_window=4)))


@pytest.mark.parametrize(
    ("build", "uses_decode"),
    [
        (build_llama, True),
        (partial(build_with_grouped_queries, attention="eager"), True),
        (partial(build_with_grouped_queries, attention="sdpa"), True),
        (build_with_adapter, True),
        (build_without_attention_interface, True),
        (build_with_suppressed_tokens, False),
        (build_with_sliding_window, False),
    ],
)
@pytest.mark.parametrize("batch_size", [5, 40])
def test_greedy_completions_equal_generate(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, uses_decode: bool, batch_size: int
) -> None:
    model, rng, calls = build(tmp_path), Random(0), []
    prompts = [rng.choices(range(3, len(tokenizer)), k=rng.randint(1, 12)) for _ in range(30)]
    prompts += prompts[:2]
    expected = []
    for prompt in prompts:
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=MAX_NEW_TOKENS, do_sample=False)[0, len(prompt) :]
        expected.append(tokenizer.decode(ids, skip_special_tokens=True))
    decode = decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda *args: calls.append(True) or decode(*args))
    state = torch.get_rng_state()
    assert generate_greedy(model, tokenizer, prompts, MAX_NEW_TOKENS, batch_size) == expected
    assert bool(calls) is uses_decode
    assert torch.equal(torch.get_rng_state(), state)
    assert len({len(text.split()) for text in expected}) > 3  # finished rows were dropped
    assert len(set(expected)) > 15


def test_a_completion_ends_with_any_token_that_the_model_names(tokenizer: Any, tmp_path: Path) -> None:
    letters.write_base(tmp_path)
    file = tmp_path / "generation_config.json"
    turn_end = tokenizer.eos_token_id + 1
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [turn_end]}))
    settings = letters.build_params().model
    for training, ends in ((True, tokenizer.eos_token_id), (False, [tokenizer.eos_token_id, turn_end])):
        network, _ = load_model(settings, str(tmp_path), 32, 0, training=training)
        assert network.generation_config.eos_token_id == ends
    assert build_sampling_arguments(str(tmp_path), tokenizer, 8).stop_token_ids == ends


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_grouped_queries_change_no_bit_in_bfloat16_and_copy_no_keys(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    model = build_with_grouped_queries(tmp_path, attention, torch.bfloat16)
    cache = model(torch.randint(3, len(tokenizer), (6, 9)), use_cache=True).past_key_values
    mask, tokens = torch.ones(6, 10, dtype=torch.long), torch.randint(3, len(tokenizer), (6, 1))
    mask[:3, :2] = 0

    def compute_logits() -> torch.Tensor:
        logits: torch.Tensor = model(tokens, attention_mask=mask, past_key_values=deepcopy(cache)).logits
        return logits

    expected = compute_logits()
    for module in ("integrations.sdpa_attention", "models.llama.modeling_llama"):
        monkeypatch.setattr(f"transformers.{module}.repeat_kv", refuse_copies)
    with pytest.raises(AssertionError):
        compute_logits()
    with group_queries(model):
        assert torch.equal(compute_logits(), expected)
    assert model.config._attn_implementation == attention


def refuse_copies(states: torch.Tensor, count: int) -> torch.Tensor:
    assert count == 1
    return states


def test_samples_depend_on_seed_prompt_and_position_only(tokenizer: Any, tmp_path: Path) -> None:
    model, rng = build_llama(tmp_path), Random(1)
    prompts = [rng.choices(range(3, len(tokenizer)), k=rng.randint(2, 9)) for _ in range(7)]

    def sample(prompts: list[list[int]], count: int, batch_size: int, seed: int = 5) -> Any:
        arguments = (count, 1.0, MAX_NEW_TOKENS, batch_size, seed)
        return generate_samples(model, tokenizer, prompts, *arguments, progress=False)

    all_samples = sample(prompts, 6, 64)
    assert [row[:2] for row in all_samples] == sample(prompts, 2, 3)
    assert all_samples[2:4] == sample(prompts[2:4], 6, 5)
    assert all_samples != sample(prompts, 6, 64, seed=6)
    assert len({sample.text for sample in all_samples[0]}) > 3


@pytest.mark.parametrize("build", [build_llama, build_with_sliding_window])
def test_samples_follow_the_models_distribution(tokenizer: Any, tmp_path: Path, build: Any) -> None:
    model, prompt, count, temperature = build(tmp_path), [4, 7, 5], 3000, 1.7
    (samples,) = generate_samples(model, tokenizer, [prompt], count, temperature, 1, 500, 0, progress=False)
    with torch.no_grad():
        shares = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / temperature, 0)
    texts = [sample.text for sample in samples]
    assert all(sample.num_tokens == 1 for sample in samples)
    for token in shares.topk(4).indices.tolist():
        share = float(shares[token])
        rate = texts.count(tokenizer.decode([token], skip_special_tokens=True)) / count
        assert abs(rate - share) < 4 * (share * (1 - share) / count) ** 0.5 + 1e-3


def test_tokens_of_a_sample_include_its_end(tokenizer: Any, tmp_path: Path) -> None:
    model = build_llama(tmp_path)
    (samples,) = generate_samples(model, tokenizer, [[4, 7, 5]], 200, 1.0, MAX_NEW_TOKENS, 50, 0, progress=False)
    words = [len(sample.text.split()) for sample in samples]
    assert {sample.num_tokens - length for sample, length in zip(samples, words, strict=True)} >= {0, 1}
    assert max(sample.num_tokens for sample in samples) == MAX_NEW_TOKENS
    assert min(sample.num_tokens for sample in samples) >= 1


@pytest.mark.parametrize("build", [build_llama, build_with_adapter])
def test_samples_ignore_a_models_own_settings(tokenizer: Any, tmp_path: Path, build: Any) -> None:
    model, prompts = build(tmp_path), [[4, 7, 5], [8, 3]]

    def sample() -> Any:
        return generate_samples(
            model, tokenizer, prompts, 20, 1.0, MAX_NEW_TOKENS, 40, 0, generation="transformers", progress=False
        )

    plain, settings = sample(), model.generation_config
    settings.update(repetition_penalty=5.0, min_p=0.3, no_repeat_ngram_size=1, suppress_tokens=[4])
    assert sample() == plain
    assert model.generation_config is settings
    assert getattr(model, "get_base_model", lambda: model)().generation_config is settings

"""Greedy completions are those of Transformers' own `generate`, whatever the model; only the time differs."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import letters
from planward.evaluation import generation
from planward.evaluation.generation import greedy_completions

LENGTH = 24


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    torch.set_num_threads(1)
    letters.write_base(tmp_path / "base")
    return AutoTokenizer.from_pretrained(tmp_path / "base")


def decided(model: Any) -> Any:
    """The model with weights so large that what it writes varies, and ends now and then."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5)
    return model.eval()


def llama(folder: Path) -> Any:
    return decided(LlamaForCausalLM.from_pretrained(folder / "base"))


def with_forbidden_words(folder: Path) -> Any:
    model = llama(folder)
    model.generation_config.suppress_tokens = [5, 6, 8]
    return model


def with_window(folder: Path) -> Any:
    small = LlamaForCausalLM.from_pretrained(folder / "base").config.to_dict()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    shape = {name: small[name] for name in sizes} | {"num_key_value_heads": 2}
    return decided(MistralForCausalLM(MistralConfig(**shape, **ends, sliding_window=4)))


@pytest.mark.parametrize(("build", "fast"), [(llama, True), (with_forbidden_words, False), (with_window, False)])
@pytest.mark.parametrize("batch_size", [5, 40])
def test_greedy_completions_are_those_of_generate(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, fast: bool, batch_size: int
) -> None:
    model, random, used = build(tmp_path), Random(0), []
    prompts = [random.choices(range(3, len(tokenizer)), k=random.randint(1, 12)) for _ in range(30)]
    prompts += prompts[:2]
    expected = []
    for prompt in prompts:
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False)[0, len(prompt) :]
        expected.append(tokenizer.decode(alone, skip_special_tokens=True))
    completed = generation.completed
    monkeypatch.setattr(generation, "completed", lambda *given: used.append(True) or completed(*given))
    state = torch.get_rng_state()
    assert greedy_completions(model, tokenizer, prompts, LENGTH, batch_size) == expected
    assert bool(used) is fast
    assert torch.equal(torch.get_rng_state(), state)
    assert len({len(text.split()) for text in expected}) > 3  # rows were dropped as they ended
    assert len(set(expected)) > 15

"""LoRA adapters: separate or merged, one on another, with words that their base lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import letters
from planward.cli import app
from planward.core.runs import Run
from planward.inference import models
from planward.params import Params
from planward.pretraining import adapter
from planward.pretraining.config import AdapterTrainingConfig
from planward.training import grpo, sft
from support import ROOT

TASK = letters.LettersTask()
RECORDS = letters.build_problems(24)
NEW_WORDS = ["plus", "minus"]
CONFIG = AdapterTrainingConfig.model_validate(
    {
        "base": "base",
        "seed": 1,
        "steps": 60,
        "batch_size": 8,
        "examples": 3,
        "learning_rate": 3e-2,
        "warmup_ratio": 0.0,
        "lora": {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "merge": False},
        "save_steps": 30,
        "validation": 1,
    }
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    letters.write_base(tmp_path / "base")


def build_params(merge: bool) -> Params:
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": merge}
    return letters.build_params(model={"lora": lora}, sft={"epochs": 1}, grpo={"steps": 2, "beta": 0.01})


def train_model(params: Params, name: str) -> torch.nn.Module:
    """Train SFT and, from its model, GRPO, both with LoRA; return the GRPO model."""
    schedule = letters.build_schedule(RECORDS, params.grpo.steps, params.grpo.batch_size)
    sft_model, grpo_model, run = f"{name}-sft", f"{name}-grpo", Run("sft", len(RECORDS), 0)
    outputs = {"model": Path(sft_model), "training": Path("training", sft_model)}
    sft.train(TASK, RECORDS, params, base="base", run=run, **outputs)
    outputs = {"model": Path(grpo_model), "training": Path("training", grpo_model)}
    grpo.train(TASK, RECORDS, schedule, params, base=sft_model, run=replace(run, method="grpo"), **outputs)
    return models.load_model(params.model, grpo_model, 40, 0)[0]


def test_adapter_on_an_adapter_equals_merging() -> None:
    separate_network = train_model(build_params(merge=False), "separate")
    merged_network = train_model(build_params(merge=True), "merged")
    for stage in ("sft", "grpo"):
        assert not Path(f"separate-{stage}/model.safetensors").exists()
        assert Path(f"separate-{stage}/adapter_model.safetensors").stat().st_size < 60_000
        assert Path(f"merged-{stage}/model.safetensors").exists()
    for (name, tensor), merged_tensor in zip(
        separate_network.state_dict().items(), merged_network.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, merged_tensor), name

    (Path.cwd() / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    assert CliRunner().invoke(app, ["merge", "separate-grpo", "whole"]).exit_code == 0
    assert load_file("whole/model.safetensors").keys() == load_file("merged-grpo/model.safetensors").keys()
    for name, tensor in load_file("whole/model.safetensors").items():
        assert torch.equal(tensor, load_file("merged-grpo/model.safetensors")[name])
    result = CliRunner().invoke(app, ["merge", "separate-grpo", "whole"])
    assert result.exit_code == 2
    assert "whole: not empty; fix: remove it, or name another folder" in result.output
    assert CliRunner().invoke(app, ["merge", "merged-grpo", "again"]).exit_code == 2


def test_adapter_adds_words_and_stores_only_their_embeddings() -> None:
    pairs = [(f"copy {word}", NEW_WORDS[index % 2]) for index, word in enumerate(letters.LETTERS)]
    network, tokenizer = adapter.train_adapter([pairs], NEW_WORDS, CONFIG, Path(".checkpoints"))
    models.save_model(network, tokenizer, Path("adapter"), adapter=True)
    embeddings = [tensor for name, tensor in load_file("adapter/adapter_model.safetensors").items() if "token" in name]
    assert [tuple(tensor.shape) for tensor in embeddings] == [(len(NEW_WORDS), 32)]

    model, extended_tokenizer = models.load_model(letters.build_params().model, "adapter", 40, 0)
    assert [extended_tokenizer.decode(extended_tokenizer(word)["input_ids"]) for word in NEW_WORDS] == NEW_WORDS
    for prompt, completion in pairs:
        with torch.no_grad():
            first = (
                model(**extended_tokenizer(prompt, return_tensors="pt", return_token_type_ids=False))
                .logits[0, -1]
                .argmax()
            )
        assert extended_tokenizer.decode(first) == completion
    base = PreTrainedTokenizerFast.from_pretrained("base")
    assert extended_tokenizer("copy a b")["input_ids"] == base("copy a b")["input_ids"]


def test_unknown_word_is_rejected() -> None:
    with pytest.raises(ValueError, match="lacks a word of 'copy a' or 'times'"):
        adapter.train_adapter([[("copy a", "times")]], NEW_WORDS, CONFIG, Path(".checkpoints"))

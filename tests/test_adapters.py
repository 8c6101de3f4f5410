"""LoRA adapters: kept apart or merged, one on another, with words that their base lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import letters
from conftest import ROOT
from planward.cli import app
from planward.params import Adapter, Params
from planward.training import adapter, grpo, models, sft

TASK = letters.Letters()
RECORDS = letters.problems(24)
NEW = ["plus", "minus"]
SETTINGS = Adapter.model_validate(
    {
        "base": "base",
        "seed": 1,
        "households": 1,
        "months": 1,
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
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    letters.write_base(tmp_path / "base")


def with_lora(merge: bool) -> Params:
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": merge}
    return letters.params(model={"lora": lora}, sft={"epochs": 1}, grpo={"steps": 2, "beta": 0.01})


def trained(params: Params, name: str) -> torch.nn.Module:
    """The GRPO model of a run that starts from SFT's, both with LoRA."""
    schedule = letters.schedule(RECORDS, params.grpo.steps, params.grpo.batch_size)
    places = [(Path(f"{name}-{stage}"), Path("training", f"{name}-{stage}")) for stage in ("sft", "grpo")]
    sft.train(TASK, RECORDS, params, base="base", model=places[0][0], training=places[0][1])
    grpo.train(TASK, RECORDS, schedule, params, base=f"{name}-sft", model=places[1][0], training=places[1][1])
    return models.load(params.model, f"{name}-grpo", 40, 0)[0]


def test_an_adapter_on_an_adapter_is_the_model_that_merging_gives() -> None:
    apart, merged = trained(with_lora(merge=False), "apart"), trained(with_lora(merge=True), "merged")
    for stage in ("sft", "grpo"):
        assert not Path(f"apart-{stage}/model.safetensors").exists()
        assert Path(f"apart-{stage}/adapter_model.safetensors").stat().st_size < 60_000
        assert Path(f"merged-{stage}/model.safetensors").exists()
    for (name, one), other in zip(apart.state_dict().items(), merged.state_dict().values(), strict=True):
        assert torch.equal(one, other), name

    (Path.cwd() / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    assert CliRunner().invoke(app, ["merge", "apart-grpo", "whole"]).exit_code == 0
    assert load_file("whole/model.safetensors").keys() == load_file("merged-grpo/model.safetensors").keys()
    for name, tensor in load_file("whole/model.safetensors").items():
        assert torch.equal(tensor, load_file("merged-grpo/model.safetensors")[name])
    assert CliRunner().invoke(app, ["merge", "merged-grpo", "again"]).exit_code == 2


def test_an_adapter_teaches_words_that_its_base_lacks_and_holds_nothing_else() -> None:
    pairs = [(f"copy {word}", NEW[place % 2]) for place, word in enumerate(letters.LETTERS)]
    network, tokenizer = adapter.train([pairs], NEW, SETTINGS, Path(".checkpoints"))
    models.save(network, tokenizer, Path("taught"), adapter=True)
    embeddings = [tensor for name, tensor in load_file("taught/adapter_model.safetensors").items() if "token" in name]
    assert [tuple(tensor.shape) for tensor in embeddings] == [(len(NEW), 32)]

    read, words = models.load(letters.params().model, "taught", 40, 0)
    assert [words.decode(words(word)["input_ids"]) for word in NEW] == NEW
    for prompt, answer in pairs:
        with torch.no_grad():
            first = read(**words(prompt, return_tensors="pt", return_token_type_ids=False)).logits[0, -1].argmax()
        assert words.decode(first) == answer
    base = PreTrainedTokenizerFast.from_pretrained("base")
    assert words("copy a b")["input_ids"] == base("copy a b")["input_ids"]


def test_a_word_that_nobody_announced_stops_the_adapter() -> None:
    with pytest.raises(ValueError, match="lacks a word of 'copy a' or 'times'"):
        adapter.train([[("copy a", "times")]], NEW, SETTINGS, Path(".checkpoints"))

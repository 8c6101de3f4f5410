"""`model.precision` and `model.attention` in training and evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import letters
from planward.inference import models
from training_runs import load_weights, read_curve, run_sft

LENGTH = 64


@pytest.mark.usefixtures("project_root")
def test_bfloat16_trains_float32_weights_with_rounded_products() -> None:
    run_sft("exact", letters.build_params(sft={"epochs": 1}))
    run_sft("rounded", letters.build_params(sft={"epochs": 1}, model={"precision": "bfloat16"}))
    exact_losses, rounded_losses = (dict(read_curve(name, "loss")) for name in ("exact", "rounded"))
    assert exact_losses.keys() == rounded_losses.keys()
    assert exact_losses != rounded_losses
    assert rounded_losses == pytest.approx(exact_losses, rel=0.05)
    assert {weight.dtype for weight in load_weights("rounded").values()} == {torch.float32}


def test_evaluation_in_bfloat16_holds_weights_in_bfloat16(project_root: Path) -> None:
    params = letters.build_params(model={"precision": "bfloat16"})
    for training, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        network, _ = models.load_model(params.model, str(project_root / "base"), LENGTH, 0, training=training)
        assert {weight.dtype for weight in network.parameters()} == {dtype}


@pytest.mark.usefixtures("project_root")
def test_an_adapter_in_bfloat16_trains_like_one_in_float32_and_is_itself_float32() -> None:
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": False}
    for precision in ("float32", "bfloat16"):
        run_sft(precision, letters.build_params(sft={"epochs": 1}, model={"precision": precision, "lora": lora}))
    exact_losses, rounded_losses = (dict(read_curve(name, "loss")) for name in ("float32", "bfloat16"))
    assert exact_losses != rounded_losses
    assert rounded_losses == pytest.approx(exact_losses, rel=0.05)
    adapter = load_file("bfloat16/adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_frozen_weights_below_an_adapter_have_the_precision_of_the_products(project_root: Path, precision: str) -> None:
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": True}
    params = letters.build_params(model={"precision": precision, "lora": lora})
    network, _ = models.load_model(params.model, str(project_root / "base"), LENGTH, 0)
    assert {weight.dtype for weight in network.parameters()} == {getattr(torch, precision)}


def test_attention_implementation_is_the_one_asked_for(project_root: Path) -> None:
    names = []
    for attention in ("eager", "sdpa"):
        params = letters.build_params(model={"attention": attention})
        network, _ = models.load_model(params.model, str(project_root / "base"), LENGTH, 0)
        names.append(network.config._attn_implementation)
    assert names == ["eager", "sdpa"]

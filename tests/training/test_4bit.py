"""4-bit weights with LoRA on the backend transformers: SFT, GRPO and evaluation through the stages, on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import chat_runs
from chat_runs import BASE, GRPO, SFT
from planward.core.paths import results
from planward.inference import models
from planward.tasks.planning.config import PlanningParams
from support import merge_values

pytest.importorskip("bitsandbytes", reason="the extra `4bit` is not installed")
Builder = Callable[..., PlanningParams]


@pytest.fixture(scope="module")
def build_params(small: Builder) -> Builder:
    def build_params(merge: bool, **lora: int) -> PlanningParams:
        adapter = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "merge": merge} | lora
        model = {"path": BASE, "backend": "transformers", "load_in_4bit": True, "lora": adapter}
        return small(**merge_values(chat_runs.SECTIONS, {"model": model, "grpo": {"beta": 0.01}}))

    return build_params


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, build_params: Builder) -> Path:
    """Problems and the base model."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("4bit")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        chat_runs.prepare(build_params(merge=True))
    return folder


def test_grpo_continues_the_adapter_of_sft(
    folder: Path, build_params: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    params = build_params(merge=False)
    chat_runs.train_and_evaluate(params)
    folders = [results().model(run) for run in (SFT, GRPO)]
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(tensor.dtype == torch.float32 for tensor in second.values())
    assert all(not torch.equal(first[name], second[name]) for name in first)
    for folder in folders:
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == BASE
        assert not (folder / "ref").exists()  # the reference of the KL term
    chat_runs.check_outputs()
    network, _ = models.load_model(params.model, str(folders[1]), 64, 0)
    assert network.is_loaded_in_4bit
    with pytest.raises(models.BackendError, match=r"model\.lora\.r is 4, but the adapter .* has 8"):
        models.load_model(build_params(merge=False, r=4).model, str(folders[0]), 64, 0)
    config = Path("nested/adapter_config.json")
    config.parent.mkdir()
    config.write_text((folders[1] / config.name).read_text().replace(f'"{BASE}"', f'"{folders[0]}"'))
    with pytest.raises(models.BackendError, match="an adapter on another one"):
        models.load_model(params.model, "nested", 64, 0)


def test_merging_adds_to_the_unquantised_weights(
    folder: Path, build_params: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    chat_runs.train_and_evaluate(build_params(merge=True))
    chat_runs.check_outputs()
    for before, after in pairwise(chat_runs.load_weights()):
        assert before.keys() == after.keys()
        for name in before:
            rank = torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) if before[name].ndim == 2 else 0
            assert rank == (8 if "proj" in name else 0), name

"""4-bit weights with LoRA on the backend transformers: SFT, GRPO and evaluation through the stages, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from chat_project import SEED, SIZE, ChatProject
from planward.core.paths import results
from planward.core.runs import Run
from planward.inference import models
from planward.stages import evaluate, grpo, sft
from planward.tasks.planning.config import PlanningParams

pytest.importorskip("bitsandbytes", reason="the extra `4bit` is not installed")
BASE = "model"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ChatProject:
    torch.set_num_threads(1)
    return ChatProject(tmp_path_factory.mktemp("4bit"))


def build_params(project: ChatProject, merge: bool, **lora: int) -> PlanningParams:
    adapter = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "merge": merge} | lora
    model = {"backend": "transformers", "load_in_4bit": True, "lora": adapter}
    return project.write_params(model=model, grpo={"beta": 0.01})


def train(params: PlanningParams) -> tuple[Path, Path]:
    """Train and evaluate; return the folders of the SFT and the GRPO model."""
    sft.run(params, Run("sft", SIZE, SEED))
    run = Run("grpo", SIZE, SEED)
    grpo.run(params, run)
    evaluate.run(params, run)
    assert json.loads(results().answers(run).with_suffix(".json").read_text())["run"]["method"] == "grpo"
    return results().model(Run("sft", SIZE, SEED)), results().model(run)


def test_grpo_continues_the_adapter_of_sft(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    params = build_params(project, merge=False)
    folders = train(params)
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(tensor.dtype == torch.float32 for tensor in second.values())
    assert any(not torch.equal(first[name], second[name]) for name in first)
    for folder in folders:
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == BASE
        assert not (folder / "ref").exists()  # the reference of the KL term
    network, _ = models.load_model(params.model, str(folders[1]), 64, 0)
    assert network.is_loaded_in_4bit
    with pytest.raises(models.BackendError, match=r"model\.lora\.r is 4"):
        models.load_model(build_params(project, merge=False, r=4).model, str(folders[0]), 64, 0)
    with pytest.raises(models.BackendError, match="planward merge"):
        models.load_model(build_params(project, merge=True).model, str(folders[0]), 64, 0)


def test_merging_writes_unquantised_weights(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    for folder in train(build_params(project, merge=True)):
        weights, base = load_file(folder / "model.safetensors"), load_file(Path(BASE, "model.safetensors"))
        assert {name: (t.shape, t.dtype) for name, t in weights.items()} == {
            name: (t.shape, t.dtype) for name, t in base.items()
        }
        assert {name for name in base if not torch.equal(base[name], weights[name])} == {n for n in base if "proj" in n}

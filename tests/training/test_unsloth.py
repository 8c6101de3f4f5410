"""The backend unsloth on a CPU: SFT, GRPO and evaluation through the stages. `make test-unsloth` runs it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from chat_project import SEED, SIZE, ChatProject

pytestmark = pytest.mark.skipif(find_spec("unsloth") is None, reason="the extra `gpu` is not installed")
RUN = ("--size", str(SIZE), "--seed", str(SEED))
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "merge": True}
# Unsloth asks torch for the GPU's name and memory even with UNSLOTH_ALLOW_CPU, and then leaves TRL's trainers as they
# are: here it gets an answer, and replaces them as it does on a GPU.
PRELUDE = """
import os
from types import SimpleNamespace

import torch

torch.cuda.get_device_properties = lambda *_: SimpleNamespace(name="CPU", total_memory=2**33, major=8, minor=0)
torch.cuda.current_device = lambda: "cpu"

import unsloth
from unsloth.models.rl import PatchFastRL

os.environ["UNSLOTH_ALLOW_CPU"] = "0"
PatchFastRL()
os.environ["UNSLOTH_ALLOW_CPU"] = "1"
"""
ENVIRONMENT = {"UNSLOTH_ALLOW_CPU": "1", "UNSLOTH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ChatProject:
    """A project with a model of SFT and one of GRPO."""
    project = ChatProject(tmp_path_factory.mktemp("unsloth"))
    project.write_params(model={"backend": "unsloth", "lora": LORA})
    for stage in ("sft", "grpo"):
        run(project, stage, *RUN)
    return project


def run(project: ChatProject, *arguments: str) -> str:
    done = project.run(*arguments, prelude=PRELUDE, **ENVIRONMENT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_sft_and_grpo_change_the_weights(project: ChatProject) -> None:
    models = project.folder / "results/models"
    base, sft, grpo = (
        load_weights(folder)
        for folder in (project.folder / "model", models / f"sft-{SIZE}-{SEED}", models / f"grpo-{SIZE}-{SEED}")
    )
    for before, after in ((base, sft), (sft, grpo)):
        assert before.keys() == after.keys()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert {name for name in before if "proj" in name} == changed


def test_grpo_trains_on_the_schedule_in_unsloths_own_loss(project: ChatProject) -> None:
    rows = pq.read_table(project.folder / f"results/training/grpo-{SIZE}-{SEED}/consumed.parquet").to_pylist()
    assert [(row["step"], row["slot"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert any(len(set(row["rewards"])) > 1 for row in rows)
    assert "grpo_accumulated_loss" in (project.folder / "unsloth_compiled_cache/UnslothGRPOTrainer.py").read_text()


def test_merged_model_loads_in_transformers_and_is_evaluated(project: ChatProject) -> None:
    folder = project.folder / f"results/models/grpo-{SIZE}-{SEED}"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.float32
    run(project, "evaluate", "--method", "grpo", *RUN)
    metrics: dict[str, Any] = json.loads((project.folder / f"results/predictions/grpo-{SIZE}-{SEED}.json").read_text())
    assert metrics["run"]["method"] == "grpo"

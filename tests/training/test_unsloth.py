"""The backend unsloth on a CPU: SFT, GRPO and evaluation through the stages. `make test-unsloth` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import chat_runs
from chat_runs import BASE, GRPO, SFT
from planward.core.paths import results
from planward.stages import evaluate
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values

pytestmark = pytest.mark.skipif(find_spec("unsloth") is None, reason="the extra `gpu` is not installed")
Builder = Callable[..., PlanningParams]


@pytest.fixture(scope="module")
def build_params(small: Builder) -> Builder:
    def build_params(merge: bool) -> PlanningParams:
        lora = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear", "merge": merge}
        model = {"path": BASE, "backend": "unsloth", "lora": lora}
        return small(**merge_values(chat_runs.SECTIONS, {"model": model}))

    return build_params


def train(params: PlanningParams, folder: Path) -> None:
    """Prepare, train and evaluate in a process where Unsloth is imported first."""
    process = subprocess.run(
        [sys.executable, ROOT / "tests/unsloth_run.py", params.model_dump_json(exclude={"task"})],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == 0, process.stdout


def test_merged_models_load_in_transformers(
    build_params: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = build_params(merge=True)
    train(params, tmp_path)
    assert "grpo_accumulated_loss" in Path("unsloth_compiled_cache/UnslothGRPOTrainer.py").read_text()
    for before, after in pairwise(chat_runs.load_weights()):
        assert before.keys() == after.keys()
        changed_names = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed_names == {name for name in before if "proj" in name}
    chat_runs.check_outputs()

    answers = results().answers(GRPO)
    predictions = answers.read_text()
    answers.unlink()
    evaluate.run(params.model_copy(update={"model": params.model.model_copy(update={"backend": "transformers"})}), GRPO)
    assert answers.read_text() == predictions


def test_grpo_continues_the_adapter_of_sft(
    build_params: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(build_params(merge=False), tmp_path)
    sft, grpo = (load_file(results().model(run) / "adapter_model.safetensors") for run in (SFT, GRPO))
    assert sft.keys() == grpo.keys()
    assert all(not torch.equal(sft[name], grpo[name]) for name in sft)
    chat_runs.check_outputs()

"""The recipe smollm2-135m through SFT, GRPO and evaluation, in two steps each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import chat_runs
from chat_runs import GRPO, SFT
from planward.core.paths import results
from planward.params import read_yaml
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values, read_rows

RECIPE = ROOT / "workflow/recipes/smollm2-135m.yaml"
SMOLLM2 = ROOT / "models/smollm2"


@pytest.fixture
def build_params(
    small: Callable[..., PlanningParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PlanningParams]:
    """The recipe's prompts, precision and attention, with a few small problems and steps and a reward that varies."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    recipe = read_yaml(RECIPE)
    recipe["prompt"]["template"] = str(ROOT / recipe["prompt"]["template"])
    sections = {name: recipe[name] for name in ("prompt", "model", "sft", "grpo")}

    def build_params(path: str, **changes: Any) -> PlanningParams:
        tiny_sections = merge_values(merge_values(sections, chat_runs.SECTIONS), {"model": {"path": path}})
        return small(**merge_values(tiny_sections, changes))

    return build_params


def test_recipe_trains_and_evaluates_a_tiny_chat_model(build_params: Callable[..., PlanningParams]) -> None:
    params = build_params(chat_runs.BASE)
    assert (params.model.precision, params.model.attention, params.grpo.reward) == ("bfloat16", "eager", "dense")
    chat_runs.prepare(params)
    chat_runs.train_and_evaluate(params)
    chat_runs.check_outputs()
    sft, grpo = (load_file(results().model(run) / "model.safetensors") for run in (SFT, GRPO))
    changed_names = {name for name in sft if not torch.equal(sft[name].bfloat16(), grpo[name])}
    assert changed_names == {name for name in sft if name.endswith("_proj.weight")}  # what grpo.lora adapts
    for row in read_rows(results().answers(GRPO)):
        assert "(:init" not in row["prompt"]
        assert f"{chat_runs.START}user\n{row['domain']}\nobjects " in row["prompt"]


@pytest.mark.skipif(not SMOLLM2.exists(), reason="SmolLM2 has not been fetched (make pretrained)")
def test_recipe_trains_and_evaluates_smollm2(build_params: Callable[..., PlanningParams]) -> None:
    params = build_params(str(SMOLLM2), grpo={"num_generations": 2})
    chat_runs.prepare(params)
    chat_runs.train_and_evaluate(params)
    sft, grpo = (results().model(run) / "model.safetensors" for run in (SFT, GRPO))
    with safe_open(SMOLLM2 / "model.safetensors", "pt") as before, safe_open(sft, "pt") as after:
        name = "model.layers.0.mlp.up_proj.weight"
        assert not torch.equal(before.get_tensor(name).float(), after.get_tensor(name))
    assert grpo.exists()
    problems = {row["id"] for row in read_rows(results().score / "test.jsonl")}
    assert {row["id"] for row in read_rows(results().answers(GRPO))} == problems

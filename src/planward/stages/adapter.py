"""adapter: teach the shipped tiny model the economy's words. Its own pipeline: models/economy/dvc.yaml."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from planward.params import Adapter, Params, load_adapter_params
from planward.records import write_json
from planward.tasks.economy.decisions import Decision, NotADecision, canonical, strict
from planward.tasks.economy.prompt import compact_prompt, compact_state, vocabulary
from planward.tasks.economy.states import State
from planward.tasks.economy.task import behaviours

FOLDER = Path("models/economy")
CHECKPOINTS = Path(".checkpoints/economy")
BATCH = 64  # prompts completed at once, for the metrics
Household = list[tuple[State, Decision]]  # what it was told and what it did, by month


def run(params: Params) -> None:
    """Write models/economy: an adapter on models/base that answers in JSON, and goes on as the examples before do.

    It is shown what simulated households did, good or poor: what is good is left for training to find.
    """
    from planward.training import adapter, models

    settings = load_adapter_params(FOLDER / "params.yaml")
    own = {"households": settings.households, "months": settings.months}
    economy = params.economy.model_copy(update={"simulator": params.economy.simulator.model_copy(update=own)})
    learnt, others = (behaviours(economy, settings.seed + place, progress=True) for place in (0, 1))
    sources = [[(compact_state(state), canonical(done)) for state, done in household] for household in learnt]
    network, tokenizer = adapter.train(sources, vocabulary(), settings, CHECKPOINTS)
    metrics = {
        "parameters": sum(weights.numel() for weights in network.parameters() if weights.requires_grad),
        "training_examples": settings.steps * settings.batch_size * settings.examples,
        "held_out": held_out_metrics(others, network, tokenizer, settings),
    }
    models.save(network, tokenizer, CHECKPOINTS / "adapter", adapter=True)
    for name in ("config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(CHECKPOINTS / "adapter" / name, FOLDER / name)
    config = json.loads((CHECKPOINTS / "adapter/adapter_config.json").read_text(encoding="utf-8"))
    config["target_modules"].sort()  # a set to PEFT, written in any order
    write_json(FOLDER / "adapter_config.json", config)
    write_json(FOLDER / "metrics.json", metrics)
    shutil.rmtree(CHECKPOINTS)


def held_out_metrics(
    households: Sequence[Household], network: Any, tokenizer: Any, settings: Adapter
) -> dict[str, dict[str, float]]:
    """How often an answer is a decision, and its mean distance from what the household did, by months shown before."""
    from planward.evaluation.generation import greedy_completions
    from planward.tasks.fitting import encode

    metrics = {}
    for shots in (0, settings.examples - 1):
        rng = Random(settings.seed)
        drawn = [rng.sample(rng.choice(households), shots + 1) for _ in range(settings.validation)]
        prompts = [compact_prompt(own[-1][0], [(state, canonical(done)) for state, done in own[:-1]]) for own in drawn]
        written = greedy_completions(network, tokenizer, [encode(tokenizer, p) for p in prompts], 12, BATCH)
        decisions = [
            (own[-1][1], decision) for own, text in zip(drawn, written, strict=True) if (decision := read(text))
        ]
        metrics[f"{shots}_shots"] = {
            "parse_rate": len(decisions) / len(drawn),
            "work_distance": fmean(abs(wanted.work - got.work) for wanted, got in decisions),
            "consumption_distance": fmean(abs(wanted.consumption - got.consumption) for wanted, got in decisions),
        }
    return metrics


def read(completion: str) -> Decision | None:
    try:
        return strict(completion)
    except NotADecision:
        return None

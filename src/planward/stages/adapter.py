"""Stage `adapter`: teach models/base the words of a task. Its own pipeline: models/dvc.yaml."""

from __future__ import annotations

import json
import shutil
from random import Random
from statistics import fmean
from typing import Any

from planward.core import paths
from planward.core.adapters import AdapterSources
from planward.core.files import replace_atomic, write_json
from planward.core.prompts import END
from planward.core.registry import task_spec
from planward.params import Params, ParamsError
from planward.pretraining.config import AdapterTrainingConfig, load_adapter_config

BATCH_SIZE = 64  # prompts completed at once, for the metrics


def run(params: Params) -> None:
    """Write models/TASK: an adapter on models/base that completes the task's compact prompts in the required form.

    Raises:
        ParamsError: the task has no adapter, or models/params.yaml is wrong.
    """
    load_adapter = task_spec(params.task).load_adapter
    if load_adapter is None:
        raise ParamsError(f"adapter: the task {params.task} has no adapter")
    from planward.inference import models
    from planward.pretraining import adapter

    folder, checkpoints = paths.MODELS / params.task, paths.CHECKPOINTS / params.task
    config, options = load_adapter_config(paths.MODELS / "params.yaml", params.task)
    sources = load_adapter()(params, config.seed, options)
    network, tokenizer = adapter.train_adapter(sources.training, sources.words, config, checkpoints)
    metrics = {
        "parameters": sum(weights.numel() for weights in network.parameters() if weights.requires_grad),
        "training_examples": config.steps * config.batch_size * config.examples,
        "held_out": compute_held_out_metrics(sources, network, tokenizer, config),
    }
    models.save_model(network, tokenizer, checkpoints / "adapter", adapter=True)
    for name in ("config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        with replace_atomic(folder / name) as partial:
            shutil.copyfile(checkpoints / "adapter" / name, partial)
    adapter_config = json.loads((checkpoints / "adapter/adapter_config.json").read_text(encoding="utf-8"))
    adapter_config["target_modules"].sort()  # a set in PEFT, written in any order
    write_json(folder / "adapter_config.json", adapter_config)
    write_json(folder / "metrics.json", metrics)
    shutil.rmtree(checkpoints)


def compute_held_out_metrics(
    sources: AdapterSources, network: Any, tokenizer: Any, config: AdapterTrainingConfig
) -> dict[str, dict[str, float]]:
    """Share of completions that can be parsed and their mean distances from the sources', by worked examples."""
    from planward.core.prompts import encode_prompt
    from planward.inference.decoding import generate_greedy

    metrics = {}
    for shot_num in (0, config.examples - 1):
        rng = Random(config.seed)
        samples = [rng.sample(rng.choice(sources.held_out), shot_num + 1) for _ in range(config.validation)]
        prompts = []
        for *examples, (problem, _) in samples:
            examples_text = "".join(f"{prompt}{completion}\n{END}\n" for prompt, completion in examples)
            prompts.append(encode_prompt(tokenizer, examples_text + problem, {}))
        completions = generate_greedy(network, tokenizer, prompts, sources.max_completion_tokens, BATCH_SIZE)
        rows = [
            distances
            for sample, completion in zip(samples, completions, strict=True)
            if (distances := sources.measure(completion, sample[-1][1])) is not None
        ]
        means = {name: fmean(distances[name] for distances in rows) for name in rows[0]} if rows else {}
        metrics[f"{shot_num}_shots"] = {"parse_rate": len(rows) / len(samples), **means}
    return metrics

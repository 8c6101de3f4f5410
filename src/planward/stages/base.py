"""Stage `base`: train the shipped tiny model from scratch. Its own pipeline: models/dvc.yaml."""

from __future__ import annotations

import shutil

from planward.core import paths
from planward.core.files import name_write_errors, replace_atomic, write_json
from planward.pretraining.config import load_base_config

FOLDER = paths.MODELS / "base"


def run() -> None:
    """Write models/base: weights, tokenizer and the metrics of held-out problems."""
    from planward.pretraining.base_model import pretrain
    from planward.pretraining.held_out import compute_held_out_metrics

    config, checkpoints = load_base_config(paths.MODELS / "params.yaml"), paths.CHECKPOINTS / "base"
    model, tokenizer = pretrain(config, checkpoints)
    source = checkpoints / "model"
    with name_write_errors(source):
        model.save_pretrained(source)
        tokenizer.save_pretrained(source)
    for file in sorted(source.iterdir()):
        with replace_atomic(FOLDER / file.name) as partial:
            shutil.copyfile(file, partial)
    metrics = {
        "parameters": model.num_parameters(),
        "training_tokens": sum(phase.steps for phase in config.phases) * config.batch_tokens,
        **compute_held_out_metrics(config, model, tokenizer),
    }
    write_json(FOLDER / "metrics.json", metrics)
    shutil.rmtree(checkpoints, ignore_errors=True)

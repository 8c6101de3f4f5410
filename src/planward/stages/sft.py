"""Stage `sft`: fine-tune the base model on the reference plans of a training set."""

from __future__ import annotations

from pathlib import Path

from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import read_records
from planward.tasks import load_task


def run(params: Params, size: int) -> None:
    """Read results/score/train.jsonl; write results/models/sft-SIZE/ and results/training/sft-SIZE/."""
    from planward.training import models

    models.choose_backend(params.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import sft

    name = f"sft-{size}"
    sft.train(
        load_task(params),
        training_set(read_records(Path("results/score/train.jsonl")), size),
        params,
        base=params.model.path,
        model=Path("results/models") / name,
        training=Path("results/training") / name,
        name=name,
    )

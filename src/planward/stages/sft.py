"""Stage `sft`: fine-tune the base model on the reference plans of a training set."""

from __future__ import annotations

from pathlib import Path

from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import Run, read_records
from planward.stages.score import OUT as SCORE
from planward.tasks import load_task

MODELS = Path("results/models")
TRAINING = Path("results/training")


def run(params: Params, run: Run) -> None:
    """Read results/score/train.jsonl; write results/models/RUN/ and results/training/RUN/."""
    from planward.training import models

    models.choose_backend(params.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import sft

    sft.train(
        load_task(params),
        training_set(read_records(params.placed(SCORE) / "train.jsonl"), run.size),
        params.model_copy(update={"seed": run.seed}),
        base=params.model.path,
        model=params.placed(MODELS) / run.name,
        training=params.placed(TRAINING) / run.name,
        name=run.name,
    )

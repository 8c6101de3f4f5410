"""Stage `grpo`: train the fine-tuned model on the verifier's rewards, in the schedule's order."""

from __future__ import annotations

from dataclasses import replace

from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import Run, read_records
from planward.stages.schedule import OUT as SCHEDULES
from planward.stages.score import OUT as SCORE
from planward.stages.sft import MODELS, TRAINING
from planward.tasks import load_task


def run(params: Params, run: Run) -> None:
    """Read results/score/{train,validation}.jsonl, results/schedules/RUN.parquet, the SFT model of that size and seed.

    Writes results/models/RUN/ and results/training/RUN/. A variant of `ablations` runs under its own parameters.
    """
    import pyarrow.parquet as pq

    from planward.training import models

    own = params.variant(run.method).model_copy(update={"seed": run.seed})
    models.choose_backend(own.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import grpo

    grpo.train(
        load_task(own),
        training_set(read_records(params.placed(SCORE) / "train.jsonl"), run.size),
        pq.read_table(params.placed(SCHEDULES) / f"{run.name}.parquet").to_pylist(),
        own,
        base=str(params.placed(MODELS) / replace(run, method="sft").name),
        model=params.placed(MODELS) / run.name,
        training=params.placed(TRAINING) / run.name,
        name=run.name,
        validation=list(read_records(params.placed(SCORE) / "validation.jsonl")),
    )

"""Stage `sft`: fine-tune the base model on the reference completions of a training set."""

from __future__ import annotations

from planward.core import paths
from planward.core.records import read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.curriculum.training_sets import select_training_set
from planward.params import Params


def run(params: Params, run: Run) -> None:
    """Read score/{train,validation}.jsonl; write models/RUN/ and training/RUN/."""
    from planward.inference import models

    models.choose_backend(params.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import sft

    results = paths.results(params.task)
    sft.train(
        load_task(params),
        select_training_set(read_records(results.score / "train.jsonl"), run.size),
        params.model_copy(update={"seed": run.seed}),
        base=params.model.path,
        model=results.model(run),
        training=results.curves(run),
        run=run,
        validation=list(read_records(results.score / "validation.jsonl")),
    )

"""Stage `grpo`: train the weights that `grpo.from` names on the verifier's rewards, in the schedule's order."""

from __future__ import annotations

from planward.core import paths
from planward.core.model_folders import find_start_weights
from planward.core.records import read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.curriculum.training_sets import select_training_set
from planward.params import Params


def run(params: Params, run: Run) -> None:
    """Read score/{train,validation}.jsonl, schedules/RUN.parquet and the weights of `grpo.from`.

    Writes models/RUN/ and training/RUN/. A variant of `ablations` runs with its own parameters.
    """
    import pyarrow.parquet as pq

    from planward.inference import models

    variant_params = params.variant(run.method).move_grpo_lora().model_copy(update={"seed": run.seed})
    models.choose_backend(variant_params.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import grpo

    results = paths.results(params.task)
    grpo.train(
        load_task(variant_params),
        select_training_set(read_records(results.score / "train.jsonl"), run.size),
        pq.read_table(results.schedule(run)).to_pylist(),
        variant_params,
        base=find_start_weights(variant_params, run),
        model=results.model(run),
        training=results.curves(run),
        run=run,
        validation=list(read_records(results.score / "validation.jsonl")),
    )

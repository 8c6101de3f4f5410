"""Stage `grpo`: train the fine-tuned model on the verifier's rewards, in the schedule's order."""

from __future__ import annotations

from pathlib import Path

from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import read_records
from planward.tasks import load_task


def run(params: Params, size: int) -> None:
    """Read results/score/train.jsonl, results/schedules/SIZE.parquet and results/models/sft-SIZE/.

    Writes results/models/grpo-SIZE/ and results/training/grpo-SIZE/.
    """
    import pyarrow.parquet as pq

    from planward.training import models

    models.choose_backend(params.model)  # Unsloth patches TRL, which the trainer imports
    from planward.training import grpo

    name = f"grpo-{size}"
    grpo.train(
        load_task(params),
        training_set(read_records(Path("results/score/train.jsonl")), size),
        pq.read_table(Path("results/schedules") / f"{size}.parquet").to_pylist(),
        params,
        base=str(Path("results/models") / f"sft-{size}"),
        model=Path("results/models") / name,
        training=Path("results/training") / name,
        name=name,
    )

"""schedule: the curriculum of one GRPO run, problem by problem."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from planward.curriculum.schedule import build_schedule, schedule_columns, schedule_metrics
from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import Run, read_records, replaced, write_json
from planward.stages.score import OUT as SCORE

OUT = Path("results/schedules")


def run(params: Params, run: Run) -> None:
    """Read results/score/train.jsonl; write results/schedules/RUN.parquet and RUN.json."""
    records = training_set(read_records(params.placed(SCORE) / "train.jsonl"), run.size)
    own = params.variant(run.method)
    schedule = build_schedule(
        records,
        own.curriculum,
        own.grpo.steps,
        own.grpo.batch_size,
        run.seed,
        balanced=own.grpo.balanced,
        by_domain=own.curriculum_by_domain,
    )
    out = params.placed(OUT)
    with replaced(out / f"{run.name}.parquet") as partial:
        pq.write_table(pa.table(schedule_columns(schedule)), partial)
    write_json(out / f"{run.name}.json", schedule_metrics(schedule))

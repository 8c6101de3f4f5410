"""schedule: the curriculum for one dataset size, problem by problem."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from planward.curriculum.schedule import build_schedule, schedule_columns, schedule_metrics
from planward.curriculum.sets import training_set
from planward.params import Params
from planward.records import read_records, replaced, write_json
from planward.stages.score import OUT as SCORE

OUT = Path("results/schedules")


def run(params: Params, size: int) -> None:
    records = training_set(read_records(SCORE / "train.jsonl"), size)
    schedule = build_schedule(records, params.curriculum, params.grpo.steps, params.grpo.batch_size, params.seed)
    with replaced(OUT / f"{size}.parquet") as partial:
        pq.write_table(pa.table(schedule_columns(schedule)), partial)
    write_json(OUT / f"{size}.json", schedule_metrics(schedule))

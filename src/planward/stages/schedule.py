"""Stage `schedule`: the curriculum of one GRPO run, problem by problem."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from planward.core import paths
from planward.core.files import replace_atomic, write_json
from planward.core.records import read_records
from planward.core.runs import Run
from planward.curriculum.schedule import build_schedule, build_schedule_columns, compute_schedule_metrics
from planward.curriculum.training_sets import select_training_set
from planward.params import Params


def run(params: Params, run: Run) -> None:
    """Read score/train.jsonl; write schedules/RUN.parquet and RUN.json."""
    results = paths.results(params.task)
    records = select_training_set(read_records(results.score / "train.jsonl"), run.size)
    variant_params = params.variant(run.method)
    schedule = build_schedule(
        records,
        variant_params.curriculum,
        variant_params.grpo.steps,
        variant_params.grpo.batch_size,
        run.seed,
        balanced=variant_params.grpo.balanced,
        by_domain=variant_params.curriculum_by_domain,
    )
    with replace_atomic(results.schedule(run)) as partial:
        pq.write_table(pa.table(build_schedule_columns(schedule)), partial)
    metrics = {"run": run.as_dict(params.task)} | compute_schedule_metrics(schedule)
    write_json(results.schedule(run).with_suffix(".json"), metrics)

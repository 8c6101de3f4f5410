"""Stages `sft`, `rce` and `grpo`: train the pointer that chooses worked examples, each from the one before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from planward.core import paths
from planward.core.files import write_json
from planward.core.records import Record, read_records
from planward.core.runs import Run
from planward.core.tables import write_table
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.loggers import check_installed, open_loggers
from planward.params import ParamsError
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import load_track_task
from planward.tasks.planning.config import PlanningParams

if TYPE_CHECKING:
    from planward.selectors.methods import Method

METHODS: dict[str, Method] = {"pointer-sft": "sft", "pointer-rce": "rce", "pointer-grpo": "grpo"}
INITIAL_WEIGHTS = {"pointer-rce": "pointer-sft", "pointer-grpo": "pointer-rce"}  # of which method's run


def run(params: PlanningParams, config: SelectorsConfig, run: Run) -> None:
    """Write results/selectors/models/RUN/ and results/selectors/training/RUN/.

    Raises:
        ParamsError: there is no such method, or a logger's package is missing.
        BeamsError: the file of beams cannot be used.
    """
    if run.method not in METHODS:
        raise ParamsError(f"unknown method {run.method}; fix: choose one of {', '.join(METHODS)}")
    check_installed(params.logging)
    import pandas as pd
    import torch

    from planward.selectors.beams import read_beams
    from planward.selectors.dataset import BeamGroup
    from planward.selectors.embeddings import read_embeddings
    from planward.selectors.frozen_model import load_frozen_model
    from planward.selectors.loop import compute_fingerprint, train_pointer
    from planward.selectors.pointer import Pointer, load_pointer, save_pointer
    from planward.selectors.pools import sample_pool
    from planward.selectors.validation import SelectorValidation
    from planward.selectors.validation import compute_fingerprint as compute_validation_fingerprint

    results, task = paths.SELECTORS, load_track_task(params, config)
    training = list(read_records(results.dialects / "train.jsonl"))

    def find_pool(query: Record) -> list[Record]:
        return sample_pool(query, training, task.core_digest, config.pool, str(params.seed))

    embeddings, by_id = read_embeddings(results.embeddings), {record.id: record for record in training}
    rows = read_beams(
        results.beams / "train.json", by_id, lambda query: [record.id for record in find_pool(by_id[query])]
    )
    query_ids = {query.id for query in select_training_set(training, run.size)}
    groups = [BeamGroup.from_beams(row, embeddings) for row in rows if row.query in query_ids]

    torch.manual_seed(run.seed)
    if initial := INITIAL_WEIGHTS.get(run.method):
        pointer = load_pointer(results.model(replace(run, method=initial)))
    else:
        pointer = Pointer(len(next(iter(embeddings.values()))), config.pointer)
    reference = (
        load_pointer(results.model(replace(run, method="pointer-sft"))) if run.method == "pointer-grpo" else None
    )
    model, tokenizer = load_frozen_model(params, config)
    held_out = select_balanced(read_records(results.dialects / "validation.jsonl"), config.validation)
    if not held_out:
        raise ValueError(
            f"{results.dialects}/validation.jsonl is empty; fix: provide more problems or raise split.validation"
        )
    pools = {query.id: find_pool(query) for query in held_out}
    validation = SelectorValidation(task, model, tokenizer, held_out, pools, embeddings, params, config.shot_num)
    checkpoints = paths.CHECKPOINTS / run.name
    method, identity = METHODS[run.method], run.as_dict("selectors")
    validation_digest = compute_validation_fingerprint(held_out, pools, embeddings, params, config.model)
    digest = compute_fingerprint(method, run.seed, config, groups, pointer, reference, validation_digest)
    loggers = open_loggers(params.logging, identity, f"{run.name}-{digest[:16]}", config)
    history = train_pointer(
        method, pointer, groups, config, run.seed, validation, reference, checkpoints, loggers, validation_digest
    )
    for logger in loggers:
        logger.close()
    save_pointer(pointer, results.model(run))
    for name, table in {"steps": history.steps, "epochs": history.epochs}.items():
        write_table(results.curves(run) / f"{name}.csv", pd.DataFrame(table))
    write_json(results.curves(run) / "metrics.json", {"run": identity, **history.summarise()})
    shutil.rmtree(checkpoints, ignore_errors=True)

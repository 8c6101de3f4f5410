"""Stage `selector`: train the pointer that chooses worked examples, phase by phase."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planward.curriculum.sets import balanced, training_set
from planward.params import Params, ParamsError
from planward.records import Record, Run, read_records, write_json, written
from planward.stages.beams import OUT as BEAMS
from planward.stages.dialects import OUT as DIALECTS
from planward.stages.dialects import PROBLEMS
from planward.stages.embed import EMBEDDINGS, frozen_model
from planward.tasks import load_task

SELECTORS = Path("results/demonstrations/selectors")
TRAINING = Path("results/demonstrations/training")
CHECKPOINTS = Path(".checkpoints")
PHASES: dict[str, Literal["sft", "rce", "grpo"]] = {"pointer-sft": "sft", "pointer-rce": "rce", "pointer-grpo": "grpo"}
BEFORE = {"pointer-rce": "pointer-sft", "pointer-grpo": "pointer-rce"}  # whose weights a phase starts from


def run(params: Params, run: Run) -> None:
    """Write results/demonstrations/selectors/RUN/ and results/demonstrations/training/RUN/.

    Raises:
        ParamsError: there is no such phase.
        BeamsError: the file of beams cannot be used.
    """
    if run.method not in PHASES:
        raise ParamsError(f"selector: no phase {run.method}; there are: {', '.join(PHASES)}")
    import pandas as pd
    import torch

    from planward.demonstrations.beams import read_beams
    from planward.demonstrations.embeddings import read_embeddings
    from planward.demonstrations.phases import Example, train
    from planward.demonstrations.pointer import Pointer, load_pointer, save_pointer
    from planward.demonstrations.pools import candidate_pool
    from planward.demonstrations.validation import Validation

    settings, task = params.demonstrations, load_task(params, PROBLEMS)
    training = list(read_records(DIALECTS / "train.jsonl"))

    def pool(query: Record) -> list[Record]:
        return candidate_pool(query, training, task.core, settings.pool, str(params.seed))

    embeddings, by_id = read_embeddings(EMBEDDINGS), {record.id: record for record in training}
    found = read_beams(BEAMS / "train.json", by_id, lambda query: [shot.id for shot in pool(by_id[query])])
    own = {query.id for query in training_set(training, run.size)}
    examples = [Example.of(beams, embeddings) for beams in found if beams.query in own]

    torch.manual_seed(run.seed)
    if before := BEFORE.get(run.method):
        pointer = load_pointer(SELECTORS / replace(run, method=before).name)
    else:
        pointer = Pointer(len(next(iter(embeddings.values()))), settings.pointer)
    frozen = load_pointer(SELECTORS / replace(run, method="pointer-sft").name) if run.method == "pointer-grpo" else None
    model, tokenizer = frozen_model(params)
    held_out = balanced(read_records(DIALECTS / "validation.jsonl"), settings.validation)
    if not held_out:
        raise ValueError(f"{DIALECTS}/validation.jsonl is empty: bring more problems or raise split.validation")
    pools = {query.id: pool(query) for query in held_out}
    validation = Validation(task, model, tokenizer, held_out, pools, embeddings, params)
    checkpoints = CHECKPOINTS / run.name
    history = train(PHASES[run.method], pointer, examples, settings, run.seed, validation, frozen, checkpoints)
    save_pointer(pointer, SELECTORS / run.name)
    for name, rows in {"steps": history.steps, "epochs": history.epochs}.items():
        with written(TRAINING / run.name / f"{name}.csv") as out:
            pd.DataFrame(rows).to_csv(out, index=False, float_format="%.6g", lineterminator="\n")
    write_json(TRAINING / run.name / "metrics.json", history.summary())
    shutil.rmtree(checkpoints, ignore_errors=True)

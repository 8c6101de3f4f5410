"""Stage `beams`: for every query the sequences of worked examples that make its reference answer likeliest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planward.curriculum.sets import balanced, training_set
from planward.params import Params
from planward.records import Record, read_records, write_json
from planward.stages.dialects import OUT as DIALECTS
from planward.stages.dialects import PROBLEMS
from planward.stages.embed import frozen_model
from planward.tasks import load_task
from planward.tasks.base import Task

if TYPE_CHECKING:
    from planward.demonstrations.beams import QueryBeams

OUT = Path("results/demonstrations/beams")
Split = Literal["train", "test"]


def run(params: Params, split: Split) -> None:
    """Read results/dialects/; write results/demonstrations/beams/SPLIT.json and SPLIT-metrics.json.

    Training queries are those of the largest dataset size, which hold the smaller ones; the model answers each of
    them under each of its beams, and the verdict is noted. Test beams use the reference answers of test problems:
    nothing but the oracle may see them.

    Raises:
        ValueError: the training split holds too few candidates, or a query has no reference answer.
    """
    from planward.demonstrations.beams import write_beams
    from planward.demonstrations.pools import candidate_pool
    from planward.demonstrations.quality import beam_quality, quality
    from planward.demonstrations.search import found_beams

    settings, task = params.demonstrations, load_task(params, PROBLEMS)
    training = list(read_records(DIALECTS / "train.jsonl"))
    if split == "train":
        queries = training_set(training, params.dataset_sizes[-1])
    else:
        queries = balanced(read_records(DIALECTS / "test.jsonl"), settings.test)
    pools = {q.id: candidate_pool(q, training, task.core, settings.pool, str(params.seed)) for q in queries}
    model, tokenizer = frozen_model(params)
    tally = Counter[str]()
    found = found_beams(
        task, model, tokenizer, queries, pools, settings, params.prompt, tally=tally, precision=settings.precision
    )
    if split == "train":
        found = with_verdicts(found, {record.id: record for record in training}, task, model, tokenizer, params)
    write_beams(OUT / f"{split}.json", found)
    sizes = params.dataset_sizes if split == "train" else []
    sets = {str(size): {query.id for query in training_set(training, size)} for size in sizes}
    metrics = {
        **beam_quality(found, {query.id: query.domain for query in queries}),
        "sizes": {size: quality([row for row in found if row.query in ids]) for size, ids in sets.items()},
        "search": dict(tally),
    }
    write_json(OUT / f"{split}-metrics.json", metrics)


def with_verdicts(
    found: Sequence[QueryBeams],
    records: Mapping[str, Record],
    task: Task,
    model: Any,
    tokenizer: Any,
    params: Params,
) -> list[QueryBeams]:
    """The beams with the verdict on the model's own answer under each of them, judged in-process."""
    from planward.evaluation.scoring import Query, answers

    asked = []
    for beams in found:
        for beam in beams.beams:
            problem, shots = records[beams.query], [records[shot] for shot in beam.shots]
            asked.append(Query(problem, len(shots), shots, task.prompt(problem, shots)))
    answered = iter(answers(task, model, tokenizer, asked, params, quickly=True))
    return [
        replace(own, beams=tuple(replace(beam, success=next(answered).verdict.success) for beam in own.beams))
        for own in found
    ]

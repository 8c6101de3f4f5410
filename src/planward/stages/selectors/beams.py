"""Stage `beams`: search for the worked examples that make each query's reference plan most likely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from planward.core import paths
from planward.core.files import write_json
from planward.core.records import Record, read_records
from planward.core.tasks import Task
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import load_track_task
from planward.tasks.planning.config import PlanningParams

if TYPE_CHECKING:
    from planward.selectors.beams import QueryBeams

Split = Literal["train", "test"]


def run(params: PlanningParams, config: SelectorsConfig, split: Split) -> None:
    """Write results/selectors/beams/SPLIT.json and SPLIT-metrics.json.

    Training queries are those of the largest dataset size, which contain those of the smaller ones; the model completes
    each query with each of its beams, and the verdict is stored. Test beams use the reference plans of test problems:
    only the oracle may read them.

    Raises:
        ValueError: the training split holds too few candidates, or a query has no reference plan.
    """
    from planward.inference.precision import choose_precision
    from planward.selectors.beam_quality import compute_quality, compute_quality_by_domain
    from planward.selectors.beams import write_beams
    from planward.selectors.frozen_model import load_frozen_model
    from planward.selectors.pools import sample_pool
    from planward.selectors.search import search_beams

    dialects, out = paths.SELECTORS.dialects, paths.SELECTORS.beams
    task = load_track_task(params, config)
    training = list(read_records(dialects / "train.jsonl"))
    if split == "train":
        queries = select_training_set(training, params.dataset_sizes[-1])
    else:
        queries = select_balanced(read_records(dialects / "test.jsonl"), config.test)
    pools = {q.id: sample_pool(q, training, task.core_digest, config.pool, str(params.seed)) for q in queries}
    model, tokenizer = load_frozen_model(params, config)
    precision = choose_precision(config.precision, model.device.type)
    print(f"search in {precision}")
    tally = Counter[str]()
    rows = search_beams(task, model, tokenizer, queries, pools, config, params.prompt, tally=tally, precision=precision)
    if split == "train":
        rows = add_verdicts(rows, {record.id: record for record in training}, task, model, tokenizer, params)
    write_beams(out / f"{split}.json", rows)
    sizes = params.dataset_sizes if split == "train" else []
    ids_by_size = {str(size): {query.id for query in select_training_set(training, size)} for size in sizes}
    metrics = {
        **compute_quality_by_domain(rows, {query.id: query.domain for query in queries}),
        "sizes": {
            size: compute_quality([row for row in rows if row.query in ids]) for size, ids in ids_by_size.items()
        },
        "search": dict(tally),
    }
    write_json(out / f"{split}-metrics.json", metrics)


def add_verdicts(
    rows: Sequence[QueryBeams],
    records: Mapping[str, Record],
    task: Task,
    model: Any,
    tokenizer: Any,
    params: PlanningParams,
) -> list[QueryBeams]:
    """Add to each beam the in-process verdict on the model's completion with its examples."""
    from planward.evaluation.scoring import EvaluationPrompt, complete_and_judge

    prompts = []
    for row in rows:
        for beam in row.beams:
            problem, examples = records[row.query], [records[example] for example in beam.examples]
            prompts.append(EvaluationPrompt(problem, len(examples), examples, task.prompt(problem, examples)))
    judged_completions = iter(complete_and_judge(task, model, tokenizer, prompts, params, in_process=True))
    return [
        replace(row, beams=tuple(replace(beam, success=next(judged_completions).verdict.success) for beam in row.beams))
        for row in rows
    ]

"""Stage `transfer-problems`: build problems that are unlike those of training, with their worked examples."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.paths import HELD_OUT
from planward.core.records import TRANSFER_KINDS, read_records
from planward.core.registry import load_task
from planward.curriculum.buckets import compute_thresholds
from planward.curriculum.training_sets import select_training_set
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.transfer import TransferSource


def run(params: PlanningParams) -> None:
    """Write results/transfer: problems.jsonl, the PDDL files in problems/, and metrics.json.

    Raises:
        ParamsError: the sizes in `transfer.larger` allow fewer distinct problems.
        VerifierError: no verdict on a reference plan could be reached.
    """
    results, transfer = paths.results(), paths.results().transfer
    shutil.rmtree(transfer.problems, ignore_errors=True)
    training = list(read_records(results.score / "train.jsonl"))
    scores: dict[str, list[float]] = defaultdict(list)
    for record in training:
        scores[record.domain].append(record.score or 0.0)
    bounds = {domain: compute_thresholds(values, params.buckets) for domain, values in scores.items()}
    pool = select_training_set(training, params.dataset_sizes[0])  # as in stage `evaluate`
    source = TransferSource(
        params, load_task(params), load_task(params, transfer.problems), results.problems, transfer.problems
    )
    problems = [
        *source.iter_renamed(list(read_records(results.score / "test.jsonl")), pool),
        *source.iter_larger(pool, bounds),
        *source.iter_unseen(list(read_records(results.score / f"{HELD_OUT}.jsonl"))),
    ]
    transfer.problems.mkdir(parents=True, exist_ok=True)  # a stage's output, even where it is empty
    write_jsonl(transfer.records, problems)
    counts = {kind: Counter(problem.domain for problem in problems if problem.kind == kind) for kind in TRANSFER_KINDS}
    write_json(transfer.root / "metrics.json", {"problems": counts, "not_copied": source.left_out["renamed"]})

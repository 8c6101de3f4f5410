"""Stage `transfer-compare`: success on problems that are unlike those of training, from the stored predictions."""

from __future__ import annotations

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.outcomes import read_outcomes
from planward.analysis.transfer import compute_transfer_table
from planward.core import paths
from planward.core.records import read_transfer_problems
from planward.core.tables import write_table
from planward.params import METHODS
from planward.tasks.planning.config import PlanningParams


def run(params: PlanningParams) -> None:
    """Write results/tables/transfer.csv.

    Raises:
        PredictionsError: as in stage `compare`.
    """
    results, config = paths.results(), params.transfer
    rows = [(p.id, p.kind, p.known_to_base) for p in read_transfer_problems(results.transfer.records)]
    problems = pd.DataFrame(rows, columns=["id", "kind", "known_to_base"])
    ablations = params.ablations.model_copy(update={"run": []})
    run_params = params.model_copy(update={"dataset_sizes": [config.dataset_size], "ablations": ablations})
    methods = [method for method in METHODS if method == "base" or method in config.methods]
    outcomes = originals = pd.DataFrame()
    if len(problems):
        outcomes = read_outcomes(results.transfer.predictions, run_params, methods)
    if "renamed" in set(problems["kind"]):
        originals = read_outcomes(results.predictions, run_params, methods)
    by = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    table = compute_transfer_table(problems, outcomes, originals, by, params.compare.margin)
    write_table(results.tables / "transfer.csv", table)

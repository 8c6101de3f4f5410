"""Stage `compare`: compute every table of the selectors track from the stored predictions."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.outcomes import PredictionsError, read_outcomes
from planward.analysis.selectors import compute_headline, compute_selector_tables, read_dialects
from planward.core import paths
from planward.core.files import write_json
from planward.core.runs import SELECTORS, Run
from planward.core.tables import write_table
from planward.params import Params


def run(params: Params) -> None:
    """Write results/selectors/tables/ from results/selectors/predictions/.

    Raises:
        PredictionsError: there are no predictions, a file is empty or of another run, rows are duplicated, files do
            not answer the same problems, selectors were not trained with the same seeds, or a problem or example is
            not in results/selectors/dialects.
    """
    results = paths.SELECTORS
    outcomes = read_outcomes(results.predictions, params, SELECTORS)
    by = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    test_file, train_file = results.dialects / "test.jsonl", results.dialects / "train.jsonl"
    queries, examples = read_dialects(test_file), read_dialects(train_file)
    check_known(outcomes, "id", queries, test_file)
    check_known(outcomes.explode("shot_ids").dropna(subset="shot_ids"), "shot_ids", examples, train_file)
    outcomes["dialect_number"] = [queries[problem].dialect for problem in outcomes["id"]]
    tables = compute_selector_tables(outcomes, examples, by)
    for name, table in tables.items():
        write_table(results.tables / f"{name}.csv", table)
    write_json(results.tables / "metrics.json", compute_headline(tables["cells"]))


def check_known(outcomes: pd.DataFrame, column: str, known: Container[str], source: Path) -> None:
    """Check that the problems in a column are `known`, those of the file `source`; raises PredictionsError."""
    for row in outcomes.drop_duplicates(column).itertuples():
        if (problem := getattr(row, column)) not in known:
            path = paths.SELECTORS.answers(Run(row.method, row.dataset_size, row.seed))
            raise PredictionsError(
                f"{path}: problem {problem!r} is not in {source}; fix: run `planward selectors evaluate` again"
            )

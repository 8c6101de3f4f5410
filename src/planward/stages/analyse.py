"""Stage `analyse`: the tables that only one task has, from its stored predictions."""

from __future__ import annotations

from planward.core import paths
from planward.core.files import write_json
from planward.core.registry import task_spec
from planward.core.tables import write_table
from planward.params import Params, ParamsError


def run(params: Params) -> None:
    """Write the task's analysis/: its tables and their metrics.

    Raises:
        ParamsError: the task has no analysis.
        PredictionsError: the predictions are missing or cannot be compared.
    """
    load_analysis = task_spec(params.task).load_analysis
    if load_analysis is None:
        raise ParamsError(f"analyse: the task {params.task} has no analysis; its tables come from `planward compare`")
    results = paths.results(params.task)
    tables, metrics = load_analysis()(params, results)
    for name, table in tables.items():
        write_table(results.analysis / f"{name}.csv", table)
    write_json(results.analysis / "metrics.json", metrics)

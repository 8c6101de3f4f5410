"""Readers for the result files that every task and track has.

Which run a file belongs to is read from the JSON file beside it, never from its name.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from planward.analysis.outcomes import list_prediction_files
from planward.analysis.transfer import PAIRED_COLUMNS
from planward.core import paths
from planward.core.records import Prediction, Record, read_predictions, read_records
from planward.core.runs import Run, is_requested, iter_run_files, read_run
from planward.params import METHODS, Params
from planward.report.figures import Point


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_metrics(path: Path) -> dict[str, Any]:
    """A metrics file without the identity of its run."""
    return {key: value for key, value in read_json(path).items() if key != "run"}


def read_table(path: Path) -> pd.DataFrame:
    """A table of stage `compare`.

    Raises:
        FileNotFoundError: the message says which stage writes it.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; fix: run `compare` first")
    # Nothing to compare with, or undefined; elsewhere text stays: a domain may be named NA.
    numbers = ("detectable_difference", "correlation", "ci_low", "ci_high", *PAIRED_COLUMNS)
    missing = {name: [""] for name in numbers}
    return pd.read_csv(path, keep_default_na=False, na_values=missing)


def read_log(path: Path) -> pd.DataFrame:
    """A CSV file of a training phase; empty where the phase had nothing to learn from."""
    return pd.read_csv(path) if path.stat().st_size > 1 else pd.DataFrame()


def read_curves(folder: Path) -> dict[str, list[Point]]:
    """The curves that dvclive wrote, by name (`reward_by_domain/ferry`): step and value; gaps are left out."""
    curves = {}
    for path in sorted(folder.rglob("*.tsv")):
        frame = pd.read_csv(path, sep="\t").iloc[:, [0, -1]].apply(pd.to_numeric, errors="coerce")
        name = path.relative_to(folder).with_suffix("").as_posix().removeprefix("plots/").removeprefix("metrics/")
        finite = frame.replace([math.inf, -math.inf], math.nan).dropna()
        curves[name] = list(finite.itertuples(index=False, name=None))
    return curves


def read_curves_by_run(results: paths.Results, params: Params) -> dict[Run, dict[str, list[Point]]]:
    """The training curves of every run that params.yaml asks for."""
    runs = iter_run_files(results.training, "*/metrics.json", params)
    return {run: read_curves(folder) for run, path in runs if (folder := path.parent / "curves").exists()}


def count_quarantine(path: Path) -> Counter[str]:
    """The lines that the split rejected, by kind of fault: the reason up to its first colon."""
    if not path.exists():
        return Counter()
    with path.open(encoding="utf-8") as lines:
        return Counter(str(json.loads(line).get("reason", "no reason given")).partition(":")[0] for line in lines)


def list_training_files(results: paths.Results, params: Params, methods: Collection[str] = METHODS) -> list[Path]:
    """The JSON files of every run's training; of a run that was stopped there may be no metrics.json."""
    files = []
    for folder in sorted(results.training.glob("*")):
        metrics = folder / "metrics.json"
        run = read_run(metrics) if metrics.exists() else None
        if run is None or is_requested(run, params, methods):
            files += sorted(folder.glob("*.json"))
    return files


def select_largest_runs(results: paths.Results, params: Params, methods: Sequence[str]) -> list[Path]:
    """The prediction file of each of `methods` at its largest dataset size and with the first seed."""
    files = list_prediction_files(results.predictions, params, methods)
    by_size = sorted(files.items(), key=lambda item: item[1].size)
    largest = {run.method: path for path, run in by_size if run.size == 0 or run.seed == params.seeds[0]}
    return [largest[method] for method in methods if method in largest]


def iter_largest_run_predictions(results: paths.Results, params: Params) -> Iterator[Prediction]:
    """Predictions of the runs of `select_largest_runs` with the fewest worked examples, method by method."""
    for path in select_largest_runs(results, params, params.methods):
        for prediction in read_predictions(path):
            if prediction.shot_num == min(params.evaluate.shots):
                yield prediction


def read_problems(folder: Path, splits: Sequence[str] = ("train", "test")) -> dict[str, Record]:
    """The problems of the splits in `folder`, by id; a split without a file is left out."""
    files = [path for split in splits if (path := folder / f"{split}.jsonl").exists()]
    return {record.id: record for path in files for record in read_records(path)}

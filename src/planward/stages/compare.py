"""Stage `compare`: every table of results, from the stored predictions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from planward.params import Params
from planward.records import read_predictions, write_json, written
from planward.reporting import tables

PREDICTIONS = Path("results/predictions")
TABLES = Path("results/tables")
COLUMNS = ["id", "domain", "bucket", "constrained", "method", "dataset_size", "seed", "shot_num", "label", "success"]


class PredictionsError(ValueError):
    """The prediction files cannot be compared; the message names the file and the fault."""


def run(params: Params) -> None:
    """Write results/tables/ (success, buckets, shots, paired, labels, constraints, metrics).

    Raises:
        PredictionsError: no prediction files, an empty or misnamed one, duplicated rows, or two files that
            do not answer the same problems.
    """
    outcomes, confidence = read_outcomes(PREDICTIONS, params), params.compare.confidence
    cells = tables.shots(outcomes, confidence)
    _write_csv("success", tables.success(outcomes, confidence))
    _write_csv("buckets", tables.success(outcomes, confidence, extra=["bucket"]))
    _write_csv("shots", cells)
    _write_csv("paired", tables.paired(outcomes, confidence))
    _write_csv("labels", tables.labels(outcomes))
    _write_csv("constraints", tables.constraints(outcomes, confidence))
    for name, text in {"shots.md": tables.markdown(cells), "shots.tex": tables.latex(cells, confidence)}.items():
        with written(TABLES / name) as out:
            out.write(text)
    write_json(TABLES / "metrics.json", tables.metrics(cells))


def read_outcomes(folder: Path, params: Params) -> pd.DataFrame:
    """Outcomes of this run's prediction files in `folder`, checked to be comparable; see `run` for what it raises."""
    paths = sorted(path for path in folder.glob("*.jsonl") if params.concerns(path.stem))
    if not paths:
        raise PredictionsError(f"{folder}: no prediction files (*.jsonl); run `evaluate` first")
    frames = {path: _read(path) for path in paths}
    first, *others = paths
    asked = set(_asked(frames[first]))
    for path in others:
        if odd := sorted(asked.symmetric_difference(_asked(frames[path]))):
            problem, shot_num = odd[0]
            raise PredictionsError(
                f"{first} and {path} do not answer the same problems: {len(odd)} pairs of problem and shot_num are "
                f"in one of them only, such as {problem!r} with {shot_num} shots; evaluate both on the same test split"
            )
    outcomes = pd.concat(frames.values(), ignore_index=True)
    kinds = outcomes.groupby("id")["constrained"].nunique()
    if len(odd_ids := kinds.index[kinds > 1]):
        raise PredictionsError(
            f"{folder}: the files do not agree on whether problem {odd_ids[0]!r} has safety constraints; "
            "evaluate every model on the same test split"
        )
    return outcomes


def _read(path: Path) -> pd.DataFrame:
    rows: list[list[object]] = []
    try:
        for prediction in read_predictions(path):
            rows.append([getattr(prediction, column) for column in COLUMNS])
    except ValidationError as error:
        raise PredictionsError(f"{path}: line {len(rows) + 1} is no prediction: {error}") from None
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if frame.empty:
        raise PredictionsError(f"{path}: holds no predictions")
    runs = sorted({f"{method}-{size}" for method, size in zip(frame["method"], frame["dataset_size"], strict=True)})
    if runs != [path.stem]:
        raise PredictionsError(f"{path}: holds predictions of {', '.join(runs)}, not of {path.stem}")
    twice = frame.duplicated(["id", "shot_num"])
    if twice.any():
        problem, shot_num = frame.loc[twice, ["id", "shot_num"]].iloc[0]
        raise PredictionsError(
            f"{path}: {twice.sum()} duplicated rows (same id and shot_num), such as {problem!r} with {shot_num} shots"
        )
    return frame


def _asked(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(frame["id"], frame["shot_num"], strict=True))


def _write_csv(name: str, table: pd.DataFrame) -> None:
    with written(TABLES / f"{name}.csv") as out:
        table.to_csv(out, index=False, float_format="%.6g", lineterminator="\n")

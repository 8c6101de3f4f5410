"""Outcomes: stored predictions as data frames with one row each, checked to be comparable.

The parsers take lines, so that a folder of results and a revision kept by Git and DVC are read alike.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from planward.core.records import Prediction
from planward.core.runs import Run, iter_run_files
from planward.params import METHODS, Params

COLUMNS = ["id", "domain", "bucket", "constrained", "method", "dataset_size", "seed", "shot_num", "shot_ids", "label"]
COLUMNS += ["success", "score"]


class PredictionsError(ValueError):
    """The prediction files cannot be compared; the message names the file and the fault."""


def list_prediction_files(folder: Path, params: Params, methods: Collection[str] = METHODS) -> dict[Path, Run]:
    """Prediction files (RUN.jsonl) of the runs that params.yaml asks for, in order of their names, with their runs.

    A file's run is what the `run` of the RUN.json beside it says.

    Args:
        methods: those that are trained at every dataset size, `core.runs.SELECTORS` for the selectors track.
    """
    pairs = iter_run_files(folder, "*.json", params, methods)
    files = {path.with_suffix(".jsonl"): run for run, path in pairs}
    return {path: run for path, run in files.items() if path.exists()}


def read_outcomes(
    folder: Path, params: Params, methods: Collection[str] = METHODS, columns: Sequence[str] = COLUMNS
) -> pd.DataFrame:
    """Read the outcomes of all prediction files that `list_prediction_files` lists, checked to be comparable.

    Args:
        columns: `COLUMNS`, or those without `shot_ids`, which need most of the memory.

    Raises:
        PredictionsError: there is no file, or one is empty, damaged, of another run than the JSON file beside it says,
            or has duplicated rows; or the files do not answer the same problems with the same seeds.
    """
    files = list_prediction_files(folder, params, methods)
    if not files:
        raise PredictionsError(
            f"{folder}: no predictions of a run that params.yaml asks for; fix: run `evaluate` first"
        )
    outcomes = join_outcomes({str(path): _read_file(path, run, columns) for path, run in files.items()})
    check_seeds(outcomes, str(folder))
    check_constraints(outcomes, str(folder))
    return outcomes


def parse_outcomes(
    source: str, lines: Iterable[str | bytes], run: Run | None = None, columns: Sequence[str] = COLUMNS
) -> pd.DataFrame:
    """Parse the lines of one prediction file into a frame with these fields of `Prediction` as columns.

    Args:
        source: the file's name in error messages.
        run: the run whose predictions the file must hold; None for any single run.
        columns: `COLUMNS`, which may be followed by others, and of which `shot_ids` may be missing.

    Raises:
        PredictionsError: a line is no prediction, there is none, one is of another run, or rows are duplicated.
    """
    rows: list[tuple[object, ...]] = []
    try:
        for line in lines:
            prediction = Prediction.model_validate_json(line)
            rows.append(tuple(_share_text(getattr(prediction, column)) for column in columns))
    except ValidationError as error:
        raise PredictionsError(f"{source}: line {len(rows) + 1} is no prediction: {error}") from None
    frame = pd.DataFrame(rows, columns=list(columns))
    if frame.empty:
        raise PredictionsError(f"{source}: holds no predictions")
    keys = frame[["method", "dataset_size", "seed"]].drop_duplicates()
    runs = [_build_run(str(method), int(size), int(seed)) for method, size, seed in keys.itertuples(index=False)]
    if len(runs) > 1 or run not in (None, *runs):
        expected = run.name if run else "one run"
        names = ", ".join(sorted(other.name for other in runs))
        raise PredictionsError(f"{source}: holds predictions of {names}, not of {expected}")
    duplicates = frame.duplicated(["id", "shot_num"])
    if duplicates.any():
        problem, shot_num = frame.loc[duplicates, ["id", "shot_num"]].iloc[0]
        raise PredictionsError(
            f"{source}: {duplicates.sum()} duplicated rows (same id and shot_num), "
            f"such as {problem!r} with {shot_num} shots"
        )
    return frame


def parse_run(source: str, line: str | bytes) -> Run:
    """The run of a prediction file, from its first line; raises PredictionsError where that is no prediction."""
    if not line:
        raise PredictionsError(f"{source}: holds no predictions")
    try:
        row = Prediction.model_validate_json(line)
    except ValidationError as error:
        raise PredictionsError(f"{source}: line 1 is no prediction: {error}") from None
    return _build_run(row.method, row.dataset_size, row.seed)


def join_outcomes(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the rows of several prediction files, at least one, by the name of each in error messages.

    Raises:
        PredictionsError: two files do not answer the same problems with the same numbers of worked examples.
    """
    first, *others = frames
    expected = set(_list_cells(frames[first]))
    for source in others:
        if differing := sorted(expected.symmetric_difference(_list_cells(frames[source]))):
            problem, shot_num = differing[0]
            raise PredictionsError(
                f"{first} and {source} do not answer the same problems: {len(differing)} pairs of problem and shot_num "
                f"are in one of them only, such as {problem!r} with {shot_num} shots; "
                "fix: evaluate both on the same test split"
            )
    return pd.concat(frames.values(), ignore_index=True)


def check_seeds(outcomes: pd.DataFrame, folder: str) -> None:
    """Check that every trained method has the same seeds.

    Raises:
        PredictionsError: one has not; the message names the file that is missing.
    """
    trained_runs = outcomes[outcomes["dataset_size"] > 0].drop_duplicates(["method", "dataset_size", "seed"])
    for seed in sorted(trained_runs["seed"].unique()):
        for (method, size), rows in trained_runs.groupby(["method", "dataset_size"]):
            if seed not in set(rows["seed"]):
                raise PredictionsError(
                    f"{folder}: no {Run(str(method), int(size), int(seed)).name}.jsonl, but others have this seed; "
                    "fix: evaluate it, or take the seed out of `seeds`"
                )


def check_constraints(outcomes: pd.DataFrame, folder: str) -> None:
    """Check that all rows of a problem agree on whether it has safety constraints.

    Raises:
        PredictionsError: they do not; the message names a problem.
    """
    values = outcomes.groupby("id")["constrained"].nunique()
    if len(differing := values.index[values > 1]):
        raise PredictionsError(
            f"{folder}: the files do not agree on whether problem {differing[0]!r} has safety constraints; "
            "fix: evaluate every model on the same test split"
        )


def _read_file(path: Path, run: Run, columns: Sequence[str]) -> pd.DataFrame:
    with path.open(encoding="utf-8") as lines:
        return parse_outcomes(str(path), lines, run, columns)


def _share_text(value: object) -> object:
    """Keep equal texts in memory once: a million rows have a few thousand ids."""
    return sys.intern(value) if isinstance(value, str) else value


def _build_run(method: str, size: int, seed: int) -> Run:
    """The run of a row: an untrained run's rows hold the seed of the data, and it has none of its own."""
    return Run(method, size, seed if size else 0)


def _list_cells(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(frame["id"], frame["shot_num"], strict=True))

"""Outcomes: stored predictions as frames with one row each, checked to be comparable.

Where the files lie is the caller's: a folder of results, or a revision that Git and DVC keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from pydantic import ValidationError

from planward.records import Prediction, Run

COLUMNS = ["id", "domain", "bucket", "constrained", "method", "dataset_size", "seed", "shot_num", "shot_ids", "label"]
COLUMNS += ["success"]


class PredictionsError(ValueError):
    """The prediction files cannot be compared; the message names the file and the fault."""


def file_outcomes(
    source: str, run: str, lines: Iterable[str | bytes], columns: Sequence[str] = COLUMNS
) -> pd.DataFrame:
    """The rows of one prediction file, with these fields of `Prediction` as columns.

    Args:
        source: what errors call the file.
        run: the name of the run whose predictions it must hold, `grpo-400-3407`.
        columns: `COLUMNS` may be followed by others.

    Raises:
        PredictionsError: a line is no prediction, there is none, one is of another run, or rows are duplicated.
    """
    rows: list[list[object]] = []
    try:
        for line in lines:
            prediction = Prediction.model_validate_json(line)
            rows.append([getattr(prediction, column) for column in columns])
    except ValidationError as error:
        raise PredictionsError(f"{source}: line {len(rows) + 1} is no prediction: {error}") from None
    frame = pd.DataFrame(rows, columns=list(columns))
    if frame.empty:
        raise PredictionsError(f"{source}: holds no predictions")
    keys = frame[["method", "dataset_size", "seed"]].drop_duplicates()
    runs = sorted({Run(str(method), int(size), int(seed)).name for method, size, seed in keys.itertuples(index=False)})
    if runs != [run]:
        raise PredictionsError(f"{source}: holds predictions of {', '.join(runs)}, not of {run}")
    twice = frame.duplicated(["id", "shot_num"])
    if twice.any():
        problem, shot_num = frame.loc[twice, ["id", "shot_num"]].iloc[0]
        raise PredictionsError(
            f"{source}: {twice.sum()} duplicated rows (same id and shot_num), such as {problem!r} with {shot_num} shots"
        )
    return frame


def joined_outcomes(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The rows of several prediction files, at least one; the key of each is what errors call it.

    Raises:
        PredictionsError: two files do not answer the same problems with the same numbers of worked examples.
    """
    (first, asked), *others = ((source, set(_asked(frame))) for source, frame in frames.items())
    for source, other in others:
        if odd := sorted(asked.symmetric_difference(other)):
            problem, shot_num = odd[0]
            raise PredictionsError(
                f"{first} and {source} do not answer the same problems: {len(odd)} pairs of problem and shot_num are "
                f"in one of them only, such as {problem!r} with {shot_num} shots; evaluate both on the same test split"
            )
    return pd.concat(frames.values(), ignore_index=True)


def check_seeds(outcomes: pd.DataFrame, folder: str) -> None:
    """See that every trained method has the same seeds.

    Raises:
        PredictionsError: one has not; the message names the file that is missing.
    """
    trained = outcomes[outcomes["dataset_size"] > 0].drop_duplicates(["method", "dataset_size", "seed"])
    for seed in sorted(trained["seed"].unique()):
        for (method, size), own in trained.groupby(["method", "dataset_size"]):
            if seed not in set(own["seed"]):
                raise PredictionsError(
                    f"{folder}: no {Run(str(method), int(size), int(seed)).name}.jsonl, but others have this seed; "
                    "evaluate it, or take the seed out of `seeds`"
                )


def check_constraints(outcomes: pd.DataFrame, folder: str) -> None:
    """See that all rows of a problem agree on whether it has safety constraints.

    Raises:
        PredictionsError: they do not; the message names a problem.
    """
    kinds = outcomes.groupby("id")["constrained"].nunique()
    if len(odd := kinds.index[kinds > 1]):
        raise PredictionsError(
            f"{folder}: the files do not agree on whether problem {odd[0]!r} has safety constraints; "
            "evaluate every model on the same test split"
        )


def _asked(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(frame["id"], frame["shot_num"], strict=True))

"""Stage `compare`: every table of results, from the stored predictions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from planward.params import Params
from planward.records import METHODS, Run, read_predictions, write_json, written
from planward.reporting import formats, tables
from planward.reporting.answers import Answers
from planward.reporting.comparison import Uncertainty

PREDICTIONS = Path("results/predictions")
TABLES = Path("results/tables")
COLUMNS = ["id", "domain", "bucket", "constrained", "method", "dataset_size", "seed", "shot_num", "label", "success"]


class PredictionsError(ValueError):
    """The prediction files cannot be compared; the message names the file and the fault."""


def run(params: Params) -> None:
    """Write results/tables/.

    Raises:
        PredictionsError: no prediction files, an empty or misnamed one, duplicated rows, files that do not answer
            the same problems, or methods that were not trained with the same seeds.
    """
    outcomes = read_outcomes(PREDICTIONS, params)
    by = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    plain = outcomes[outcomes["method"].isin(METHODS)]
    answers = Answers.of(plain)
    cells = tables.shots(answers, by)
    _write_csv("success", tables.success(answers, by))
    _write_csv("buckets", tables.success(answers, by, extra=["bucket"]))
    _write_csv("seeds", tables.seeds(plain, by.confidence))
    _write_csv("shots", cells)
    _write_csv("paired", tables.paired(answers, by))
    _write_csv("domains", tables.domains(answers, by))
    _write_csv("labels", tables.labels(plain))
    _write_csv("constraints", tables.constraints(plain, answers, by))
    variants = [name for name in params.ablations.run if name in set(outcomes["method"])]
    _write_csv("ablations", tables.ablations(Answers.of(outcomes), by, variants, params.ablations.dataset_size))
    for name, text in {"shots.md": formats.markdown(cells), "shots.tex": formats.latex(cells, by.confidence)}.items():
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
    trained = outcomes[outcomes["method"] != "base"].drop_duplicates(["method", "dataset_size", "seed"])
    for seed in sorted(trained["seed"].unique()):
        for (method, size), own in trained.groupby(["method", "dataset_size"]):
            if seed not in set(own["seed"]):
                raise PredictionsError(
                    f"{folder}: no {Run(str(method), int(size), int(seed)).name}.jsonl, but others have this seed; "
                    "run `evaluate` for it, or take the seed out of `seeds`"
                )
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
    keys = frame[["method", "dataset_size", "seed"]].drop_duplicates()
    runs = sorted({Run(str(method), int(size), int(seed)).name for method, size, seed in keys.itertuples(index=False)})
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

"""Stage `compare`: every table of results, from the stored predictions."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from planward.params import Params
from planward.records import METHODS, SELECTORS, Run, read_predictions, read_records, write_json, written
from planward.reporting import formats, tables
from planward.reporting.answers import Answers
from planward.reporting.comparison import Uncertainty
from planward.reporting.demonstrations import Language, demonstration_tables
from planward.reporting.demonstrations import headline as demonstrations_headline

PREDICTIONS = Path("results/predictions")
SELECTIONS = Path("results/demonstrations/predictions")  # the selectors' predictions
DIALECTS = Path("results/dialects")
TABLES = Path("results/tables")
COLUMNS = ["id", "domain", "bucket", "constrained", "method", "dataset_size", "seed", "shot_num", "shot_ids", "label"]
COLUMNS += ["success"]


class PredictionsError(ValueError):
    """The prediction files cannot be compared; the message names the file and the fault."""


def run(params: Params) -> None:
    """Write results/tables/: what the predictions of results/predictions come to.

    Raises:
        PredictionsError: no prediction files of methods, an empty or misnamed one, duplicated rows, files that do not
            answer the same problems, methods or selectors that were not trained with the same seeds, or a problem
            or worked example of the demonstrations track that results/dialects does not know.
    """
    out, outcomes = params.placed(TABLES), read_outcomes(params.placed(PREDICTIONS), params)
    by = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    plain = outcomes[outcomes["method"].isin(METHODS)]
    answers = Answers.of(plain)
    cells = tables.shots(answers, by)
    variants = [name for name in params.ablations.run if name in set(outcomes["method"])]
    found = {
        "success": tables.success(answers, by),
        "buckets": tables.success(answers, by, extra=["bucket"]),
        "seeds": tables.seeds(plain, by.confidence),
        "shots": cells,
        "paired": tables.paired(answers, by),
        "domains": tables.domains(answers, by),
        "labels": tables.labels(plain),
        "constraints": tables.constraints(plain, answers, by),
        "ablations": tables.ablations(Answers.of(outcomes), by, variants, params.ablations.dataset_size),
    }
    metrics = tables.metrics(cells)
    if params.task == "planning":  # whose frozen model has examples chosen for it
        found |= demonstrations(params, by)
        selectors = demonstrations_headline(found["demonstrations-cells"])
        metrics |= {"demonstrations": selectors} if selectors else {}
    for name, table in found.items():
        with written(out / f"{name}.csv") as file:
            table.to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    for name, text in {"shots.md": formats.markdown(cells), "shots.tex": formats.latex(cells, by.confidence)}.items():
        with written(out / name) as file:
            file.write(text)
    write_json(out / "metrics.json", metrics)


def demonstrations(params: Params, by: Uncertainty) -> dict[str, pd.DataFrame]:
    """Tables of the demonstrations track by name, without rows where it has not run; raises as `run` does."""
    if not prediction_files(SELECTIONS, params):
        return demonstration_tables(pd.DataFrame(), {}, by)
    outcomes = read_outcomes(SELECTIONS, params)
    if strangers := sorted(set(outcomes["method"]) - set(SELECTORS)):
        raise PredictionsError(
            f"{SELECTIONS}: holds predictions of {', '.join(strangers)}; selectors are {', '.join(SELECTORS)}"
        )
    queries, examples = languages(DIALECTS / "test.jsonl"), languages(DIALECTS / "train.jsonl")
    _check_known(outcomes, "id", queries, DIALECTS / "test.jsonl")
    _check_known(outcomes.explode("shot_ids").dropna(subset="shot_ids"), "shot_ids", examples, DIALECTS / "train.jsonl")
    outcomes["number"] = [queries[problem].dialect for problem in outcomes["id"]]
    return demonstration_tables(outcomes, examples, by)


def languages(path: Path) -> dict[str, Language]:
    """Domain and dialect of every problem of a file by its id; one whose `meta` has no `dialect` is plain."""
    if not path.exists():
        raise PredictionsError(f"{path}: no such file; run `dialects` first")
    return {r.id: Language(r.domain, (r.meta.model_extra or {}).get("dialect", 0)) for r in read_records(path)}


def prediction_files(folder: Path, params: Params) -> list[Path]:
    """This run's prediction files in a folder, those of sizes, seeds or variants no longer asked for left out."""
    return sorted(path for path in folder.glob("*.jsonl") if params.concerns(path.stem))


def read_outcomes(folder: Path, params: Params) -> pd.DataFrame:
    """Outcomes of this run's prediction files in `folder`, checked to be comparable; see `run` for what it raises."""
    paths = prediction_files(folder, params)
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
    trained = outcomes[outcomes["dataset_size"] > 0].drop_duplicates(["method", "dataset_size", "seed"])
    for seed in sorted(trained["seed"].unique()):
        for (method, size), own in trained.groupby(["method", "dataset_size"]):
            if seed not in set(own["seed"]):
                raise PredictionsError(
                    f"{folder}: no {Run(str(method), int(size), int(seed)).name}.jsonl, but others have this seed; "
                    "evaluate it, or take the seed out of `seeds`"
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


def _check_known(outcomes: pd.DataFrame, column: str, known: Container[str], source: Path) -> None:
    for row in outcomes.drop_duplicates(column).itertuples():
        if (problem := getattr(row, column)) not in known:
            name = Run(row.method, row.dataset_size, row.seed).name
            raise PredictionsError(
                f"{SELECTIONS}/{name}.jsonl: problem {problem!r} is not in {source}; run `demonstrate` for it again"
            )


def _asked(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(frame["id"], frame["shot_num"], strict=True))

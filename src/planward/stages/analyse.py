"""Stage `analyse`: what the economy's models decide, from the stored predictions, and what baselines would."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

import pandas as pd

from planward.params import Params, ParamsError
from planward.records import METHODS, Prediction, Record, read_predictions, read_records, write_json, written
from planward.reporting.baselines import baseline_rows
from planward.reporting.comparison import Uncertainty
from planward.reporting.economy import analysis, answer_rows, headline
from planward.reporting.outcomes import PredictionsError
from planward.stages.compare import PREDICTIONS, prediction_files, read_outcomes
from planward.stages.score import OUT as SCORE
from planward.tasks import load_task

OUT = Path("results/analysis")


def run(params: Params) -> None:
    """Write the task's analysis/: tables and their metrics.

    Raises:
        ParamsError: the task is one whose answers are no decisions.
        PredictionsError: as `compare` raises it, or a prediction is on a problem that the test split does not have.
        ValueError: the training split is too small for the baselines; the message says what is missing.
    """
    if params.task != "economy":
        raise ParamsError(f"analyse: {params.task} has no decisions to analyse; ask for --task economy")
    out, by = params.placed(OUT), Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    answers = read_answers(params)
    naive = read_baselines(params, set(answers["id"]))
    tables = analysis(answers, naive, params.economy.collapse_sd, by)
    for name, table in tables.items():
        _write_csv(out / f"{name}.csv", table)
    write_json(out / "metrics.json", headline(answers, tables))


def read_answers(params: Params) -> pd.DataFrame:
    """The answers of this run's models, variants left out, checked to be comparable; see `run` for what it raises."""
    folder, test = params.placed(PREDICTIONS), params.placed(SCORE) / "test.jsonl"
    read_outcomes(folder, params)
    problems: dict[str, Record] = {problem.id: problem for problem in read_records(test)}
    try:
        return answer_rows(_predictions(folder, params), problems)
    except KeyError as error:
        raise PredictionsError(
            f"{folder}: {test} has no problem {error.args[0]!r} of a household; run `evaluate` again on this split"
        ) from None


def read_baselines(params: Params, asked: Container[str]) -> pd.DataFrame:
    """What the baselines decide in the test problems with these ids."""
    train, test = (read_records(params.placed(SCORE) / f"{side}.jsonl") for side in ("train", "test"))
    problems = [problem for problem in test if problem.id in asked]
    return baseline_rows(problems, list(train), load_task(params), params)


def _predictions(folder: Path, params: Params) -> Iterator[Prediction]:
    for path in prediction_files(folder, params):
        yield from (prediction for prediction in read_predictions(path) if prediction.method in METHODS)


def _write_csv(path: Path, table: pd.DataFrame) -> None:
    with written(path) as out:
        table.to_csv(out, index=False, float_format="%.6g", lineterminator="\n")

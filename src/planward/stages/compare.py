"""Stage `compare`: every table of results, from the stored predictions."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pandas as pd

from planward.params import Params
from planward.records import METHODS, SELECTORS, Run, read_records, write_json, written
from planward.reporting import formats, tables
from planward.reporting.answers import Answers
from planward.reporting.comparison import Uncertainty
from planward.reporting.demonstrations import Language, demonstration_tables
from planward.reporting.demonstrations import headline as demonstrations_headline
from planward.reporting.outcomes import (
    PredictionsError,
    check_constraints,
    check_seeds,
    file_outcomes,
    joined_outcomes,
)

PREDICTIONS = Path("results/predictions")
SELECTIONS = Path("results/demonstrations/predictions")  # the selectors' predictions
DIALECTS = Path("results/dialects")
TABLES = Path("results/tables")


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
        "labels": tables.labels(plain, by.confidence),
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
    outcomes = joined_outcomes({str(path): _read(path) for path in paths})
    check_seeds(outcomes, str(folder))
    check_constraints(outcomes, str(folder))
    return outcomes


def _read(path: Path) -> pd.DataFrame:
    with path.open(encoding="utf-8") as lines:
        return file_outcomes(str(path), path.stem, lines)


def _check_known(outcomes: pd.DataFrame, column: str, known: Container[str], source: Path) -> None:
    for row in outcomes.drop_duplicates(column).itertuples():
        if (problem := getattr(row, column)) not in known:
            name = Run(row.method, row.dataset_size, row.seed).name
            raise PredictionsError(
                f"{SELECTIONS}/{name}.jsonl: problem {problem!r} is not in {source}; run `demonstrate` for it again"
            )

"""A comparison or ranking as one JSON object, whose keys docs/how-to/comparing.md describes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from planward.experiments.comparison import Comparison
from planward.experiments.experiment import Experiment
from planward.experiments.overlap import Overlap
from planward.experiments.ranking import Ranking
from planward.experiments.sentences import findings, ranking_findings
from planward.reporting.tables import Row

SCHEMA = "planward-diff/1"  # the number grows when a key changes its meaning or goes


def document(compared: Comparison | Ranking) -> Row:
    """Plain dicts, lists, strings, numbers and None; experiments in the order in which they were asked for."""
    two = isinstance(compared, Comparison)
    head = {
        "schema": SCHEMA,
        "kind": "comparison" if two else "ranking",
        "task": compared.task,
        "revisions": [_revision(experiment) for experiment in compared.experiments],
        "uncertainty": {"confidence": compared.by.confidence, "resamples": compared.by.resamples},
        "common": _common(compared.overlap),
        "findings": findings(compared) if isinstance(compared, Comparison) else ranking_findings(compared),
        "params": compared.params,
        "code": compared.code,
        "cost": _records(compared.cost),
    }
    if isinstance(compared, Ranking):
        return _object(
            head
            | {"quantity": compared.quantity, "pooled": _records(compared.pooled), "cells": _records(compared.cells)}
        )
    tables = {"cells": compared.cells, "pooled": compared.pooled, "rewards": compared.rewards}
    tables |= {"labels": compared.labels, "transitions": compared.transitions}
    return _object(head | {name: _records(table) for name, table in tables.items()} | {"flips": list(flips(compared))})


def flips(compared: Comparison) -> Iterator[Row]:
    """Problems that only one experiment solves, with both answers."""
    for row in compared.flips.to_dict("records"):
        keys = ("method", "dataset_size", "shot_num", "id", "domain")
        yield {key: row[key] for key in keys} | {
            "kind": "gained" if row["success_b"] else "lost",
            "a": _answer(row, "a"),
            "b": _answer(row, "b"),
        }


def _answer(row: dict[Any, Any], letter: str) -> Row:
    names = ["seed", "label", "reward", "plan", "failing_step", "detail"]
    names += [] if row[f"plan_{letter}"] else ["completion"]  # what there was in place of a plan
    answer = {name: row[f"{name}_{letter}"] for name in names}
    step = answer["failing_step"]
    return answer | {"failing_step": None if step is None or math.isnan(step) else int(step)}


def _revision(experiment: Experiment) -> Row:
    own = experiment.revision
    return {"name": own.name, "commit": own.commit, "experiment": own.experiment, "notes": experiment.notes}


def _common(common: Overlap) -> Row:
    keys = ("method", "dataset_size")
    return {
        "problems": len(common.problems),
        "shots": common.shots,
        "runs": [
            dict(zip(keys, run, strict=True)) | {"seeds": common.seeds[run], "same_answers": run in common.same}
            for run in common.runs
        ],
        "held_by_some": [dict(zip(keys, run, strict=True)) | {"by": names} for run, names in common.lone.items()],
        "notes": common.notes,
    }


def _records(table: pd.DataFrame) -> Sequence[Row]:
    return list(table.to_dict("records"))


def _object(values: Row) -> Row:
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's; what is no finite number as None."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)

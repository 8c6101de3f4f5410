"""A comparison or ranking as one JSON object, whose keys docs/how-to/comparing.md describes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from planward.analysis.success_arrays import RUN
from planward.analysis.tables import Row
from planward.comparison.comparison import Comparison
from planward.comparison.experiment import Experiment
from planward.comparison.overlap import Overlap
from planward.comparison.ranking import Ranking
from planward.comparison.sentences import describe_findings

SCHEMA = "planward-diff/1"  # the number grows when a key is removed or changes its meaning


def build_document(compared: Comparison | Ranking) -> Row:
    """Build the object from plain dicts, lists, strings, numbers and None; experiments keep the user's order."""
    head: Row = {
        "schema": SCHEMA,
        "kind": "comparison" if isinstance(compared, Comparison) else "ranking",
        "task": compared.subject.name,
        "revisions": [_describe_revision(experiment) for experiment in compared.experiments],
        "uncertainty": {
            "confidence": compared.uncertainty.confidence,
            "resamples": compared.uncertainty.resamples,
        },
        "common": _describe_overlap(compared.overlap),
        "findings": describe_findings(compared),
        "params": compared.params,
        "code": compared.code,
        "cost": _list_rows(compared.cost),
    }
    if isinstance(compared, Ranking):
        tables = {"pooled": compared.pooled, "cells": compared.cells}
        head |= {"quantity": compared.quantity, "reference": compared.reference, "unfinished": compared.unfinished}
        flips = {}
    else:
        tables = {"cells": compared.cells, "pooled": compared.pooled, "rewards": compared.rewards}
        tables |= {"labels": compared.labels, "transitions": compared.transitions}
        flips = {"flips": list(iter_flips(compared))}
    document: Row = _convert(head | {name: _list_rows(table) for name, table in tables.items()} | flips)
    return document


def iter_flips(comparison: Comparison) -> Iterator[Row]:
    """Iterate over the problems that only one experiment solves, with both predictions."""
    for row in comparison.flips.to_dict("records"):
        yield {key: row[key] for key in (*RUN, "shot_num", "id", "domain")} | {
            "kind": "gained" if row["success_b"] else "lost",
            "a": _select_answer(row, "a"),
            "b": _select_answer(row, "b"),
        }


def _select_answer(row: dict[Any, Any], letter: str) -> Row:
    names = ["seed", "label", "reward", "plan", "failing_step", "detail"]
    names += [] if row[f"plan_{letter}"] else ["completion"]  # without a plan, what there was in its place
    answer = {name: row[f"{name}_{letter}"] for name in names}
    step = answer["failing_step"]
    return answer | {"failing_step": None if step is None or math.isnan(step) else int(step)}


def _describe_revision(experiment: Experiment) -> Row:
    revision = experiment.revision
    return {
        "name": revision.name,
        "commit": revision.commit,
        "experiment": revision.experiment,
        "notes": experiment.notes,
    }


def _describe_overlap(overlap: Overlap) -> Row:
    return {
        "problems": len(overlap.problems),
        "shots": overlap.shot_nums,
        "runs": [
            dict(zip(RUN, run, strict=True)) | {"seeds": overlap.seeds[run], "same_answers": run in overlap.identical}
            for run in overlap.runs
        ],
        "held_by_some": [dict(zip(RUN, run, strict=True)) | {"by": names} for run, names in overlap.partial.items()],
        "notes": overlap.notes,
    }


def _list_rows(table: pd.DataFrame) -> Sequence[Row]:
    return list(table.to_dict("records"))


def _convert(value: Any) -> Any:
    """Convert numpy's numbers to Python's, and those that are not finite to None."""
    if isinstance(value, dict):
        return {str(key): _convert(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)

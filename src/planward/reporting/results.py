"""What the page is made of: the other stages' results, read and held together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.pddl.language import Problem
from planward.records import Prediction, Record, Run
from planward.reporting.demonstrations import Language
from planward.reporting.figures import Point


@dataclass(frozen=True)
class Sample:
    """One test problem and the answer of each method to it."""

    problem: str
    answers: list[Prediction]
    pddl: Problem | None = None  # where its file is known and can be read in-process


@dataclass(frozen=True)
class Plans:
    """Every answer of a task's runs, and its problems."""

    task: str  # planning | demonstrations | economy
    folder: str  # of the prediction files
    answers: list[Prediction]
    records: Mapping[str, Record]  # of training and test problems, by id


@dataclass(frozen=True)
class Provenance:
    commit: str | None
    lock: str | None  # SHA-256
    packages: dict[str, str]
    params: str | None  # params.yaml as it stands


@dataclass(frozen=True)
class Demonstrations:
    """What the demonstrations track wrote; empty where it has not run."""

    cells: pd.DataFrame
    paired: pd.DataFrame
    choices: pd.DataFrame
    answers: dict[str, list[Prediction]]  # of each selector at its largest N and most shots, of the first seed
    languages: dict[str, Language]  # of test and training problems, by id
    steps: dict[Run, pd.DataFrame]
    epochs: dict[Run, pd.DataFrame]


@dataclass(frozen=True)
class Month:
    """A test problem of the economy and the answer of each method to it."""

    problem: Record
    answers: list[Prediction]


@dataclass(frozen=True)
class Economy:
    """What the economy's stages wrote. The tables are those of `stages.analyse`."""

    decisions: pd.DataFrame
    paired: pd.DataFrame
    collapse: pd.DataFrame
    requirements: pd.DataFrame
    histograms: pd.DataFrame
    against_reference: pd.DataFrame
    baselines: pd.DataFrame
    reference: Mapping[str, float]  # of the reference decisions: mean and standard deviation
    macro: pd.DataFrame | None  # month, and a column a series
    curves: dict[Run, dict[str, list[Point]]]  # by run, then by curve
    quarantine: Mapping[str, int]  # lines by kind of fault
    months: list[Month]


@dataclass(frozen=True)
class Results:
    """What the stages wrote; empty where a stage has not run. Tables are those of `stages.compare`."""

    shots: pd.DataFrame
    success: pd.DataFrame
    buckets: pd.DataFrame
    seeds: pd.DataFrame
    paired: pd.DataFrame
    domains: pd.DataFrame
    labels: pd.DataFrame
    constraints: pd.DataFrame
    ablations: pd.DataFrame
    samples: dict[str, list[Sample]]  # by domain
    plans: list[Plans]  # of the tasks that have answers
    short_prompts: dict[str, int]  # by prediction file
    quarantine: Mapping[str, int]  # lines by kind of fault
    metrics: dict[str, dict[str, Any]]  # by file
    difficulty_figure: str | None
    schedules: dict[Run, pd.DataFrame]
    consumed: dict[Run, pd.DataFrame]
    curves: dict[Run, dict[str, list[Point]]]  # by run, then by curve
    demonstrations: Demonstrations
    economy: Economy | None
    timing: list[dict[str, Any]]
    provenance: Provenance

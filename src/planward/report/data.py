"""The data of the report page, as the stage reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.analysis.selectors import ProblemDialect
from planward.core.records import Prediction, Record
from planward.core.runs import Run
from planward.pddl.language import Problem
from planward.report.figures import Point
from planward.report.sections.task import TaskSection


@dataclass(frozen=True)
class SampleProblem:
    """A test problem and the prediction of each method on it."""

    id: str
    predictions: list[Prediction]
    pddl: Problem | None = None  # None where its file is unknown or only VAL can read it


@dataclass(frozen=True)
class TrackPredictions:
    """The predictions of a task's or track's runs, with their problems; of very many, those that are shown first."""

    track: str  # planning | selectors | another task
    title: str
    folder: str  # of the prediction files
    predictions: list[Prediction]
    problems: Mapping[str, Record]  # of training and test, by id
    first_seed: int  # of the seeds of training
    has_plans: bool  # completions are plans, an action a line
    total: int  # predictions that are stored


@dataclass(frozen=True)
class Provenance:
    commit: str | None
    lock: str | None  # SHA-256
    packages: dict[str, str]
    params: dict[str, str]  # text of the parameter files of planning and of each track, by path


@dataclass(frozen=True)
class SelectorData:
    """What the selectors track wrote; empty tables where it has not run."""

    model: str  # path of the frozen model
    cells: pd.DataFrame
    paired: pd.DataFrame
    shots: pd.DataFrame  # which examples were chosen
    predictions: dict[str, list[Prediction]]  # by selector: its largest N, most worked examples, first seed
    dialects: dict[str, ProblemDialect]  # of test and training problems, by id
    steps: dict[Run, pd.DataFrame]
    epochs: dict[Run, pd.DataFrame]
    training: dict[Run, dict[str, Any]]  # metrics
    beams: Mapping[str, Any]  # metrics of the training beams


@dataclass(frozen=True)
class PageData:
    """What the stages wrote; empty where a stage has not run. Tables are those of stage `compare`."""

    shots: pd.DataFrame
    success: pd.DataFrame
    buckets: pd.DataFrame
    constrained_buckets: pd.DataFrame
    difficulty: pd.DataFrame
    seeds: pd.DataFrame
    paired: pd.DataFrame
    domains: pd.DataFrame
    labels: pd.DataFrame
    constraints: pd.DataFrame
    ablations: pd.DataFrame
    pass_at_k: pd.DataFrame
    transfer: pd.DataFrame  # of stage `transfer-compare`
    samples: dict[str, list[SampleProblem]]  # by domain
    predictions: list[TrackPredictions]  # of each track that has any
    short_prompts: dict[str, int]  # prompts with examples dropped to fit, by prediction file
    quarantine: dict[str, Mapping[str, int]]  # rejected lines by kind of fault, by quarantine file
    metrics: dict[str, dict[str, Any]]  # of every track, by file
    training: dict[Run, dict[str, Any]]  # metrics of planning's runs
    split: Mapping[str, Any]  # metrics
    score: Mapping[str, Any]  # metrics
    difficulty_figure: str | None
    schedules: dict[Run, pd.DataFrame]
    consumed: dict[Run, pd.DataFrame]
    curves: dict[Run, dict[str, list[Point]]]  # by run, then by curve
    tracks: dict[str, str]  # further tracks that the page shows, in order: name and title
    selectors: SelectorData | None  # None where the track is left out
    sections: dict[str, TaskSection | None]  # of further tasks by name; None where the task has not run
    timing: list[dict[str, Any]]  # of each stage; `task` is its task or track
    provenance: Provenance

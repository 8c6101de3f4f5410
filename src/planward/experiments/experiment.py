"""What a revision holds of a task: predictions, the problems that they answer, what it all cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from planward.experiments.revisions import (
    Revision,
    RevisionError,
    Stage,
    disagreements,
    lineage,
    opened_repository,
    read_revision,
)
from planward.params import Compare, ParamsError, checked
from planward.records import Record, Run
from planward.reporting.comparison import Uncertainty
from planward.reporting.outcomes import COLUMNS, PredictionsError, file_outcomes, joined_outcomes

PLANNING, ECONOMY, DEMONSTRATIONS = "planning", "economy", "demonstrations"
PREDICTIONS = {
    PLANNING: "results/predictions",
    ECONOMY: "results/economy/predictions",
    DEMONSTRATIONS: "results/demonstrations/predictions",
}
PROBLEMS = {
    PLANNING: "results/score/test.jsonl",
    ECONOMY: "results/economy/score/test.jsonl",
    DEMONSTRATIONS: "results/dialects/test.jsonl",
}
TIMING = "results/timing"
ANSWER = ["reward", "prompt", "completion", "plan", "failing_step", "detail"]  # beside `COLUMNS`
NAMED = 5  # runs, parameters or problems that a sentence names before it says how many more there are


@dataclass(frozen=True)
class Experiment:
    """A revision's part in one task. Runs are keyed by method, N and seed; an untrained one has the seed 0."""

    revision: Revision
    outcomes: pd.DataFrame  # one row a prediction: `COLUMNS`, `ANSWER`
    digests: Mapping[Run, str]  # MD5 of each run's prediction file
    problems: Mapping[str, Record]  # by id; empty where the revision does not hold them
    stages: Mapping[str, Stage]  # that the predictions come from
    timing: Mapping[str, Mapping[str, Any]]  # by stage: wall_s, cpu_s, peak_rss_mb, and `md5` of the file
    notes: list[str]  # what to know before believing it

    @property
    def name(self) -> str:
        return self.revision.name


def read_experiments(
    names: Sequence[str], task: str, methods: Collection[str] = (), sizes: Collection[int] = ()
) -> list[Experiment]:
    """What revisions of the project around the current folder hold of a task; see `read_experiment` for the arguments.

    Raises:
        ValueError: there are fewer than two names, or one is there twice.
        RevisionError, PredictionsError: as `read_revision` and `read_experiment` do, or there is no project here.
    """
    if len(names) < 2:
        raise ValueError("name two revisions to compare them, or more to rank them")
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise ValueError(f"{', '.join(twice)}: named twice")
    known: dict[str, pd.DataFrame] = {}
    with opened_repository() as repo:
        return [read_experiment(read_revision(repo, name), task, methods, sizes, known) for name in names]


def read_experiment(
    revision: Revision, task: str, methods: Collection[str], sizes: Collection[int], known: dict[str, pd.DataFrame]
) -> Experiment:
    """What a revision holds of a task.

    Args:
        methods: those to read; all where empty. Likewise `sizes`; methods without one (base, rules) are read anyway.
        known: frames of prediction files by MD5; those read here are added.

    Raises:
        RevisionError: no evaluation has run there, or a prediction file is missing.
        PredictionsError: a prediction file is damaged, or two do not answer the same problems.
    """
    asked = _runs(revision, task)
    chosen = {
        path: run
        for path, run in asked.items()
        if (not methods or run.method in methods) and (not sizes or run.size in (0, *sizes))
    }
    if not chosen:
        held = ", ".join(run.name for run in asked.values())
        raise RevisionError(f"{revision.name}: holds no predictions of what is asked for, but of {held}")
    frames: dict[str, pd.DataFrame] = {}
    digests, notes = dict[Run, str](), list[str]()
    for path, run in chosen.items():
        data = revision.read(path)
        digests[run] = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if digests[run] != revision.outputs[path]:  # in the workspace it may be
            notes.append(f"{path} is not the file that dvc.lock records")
        source = f"{revision.name}: {path}"
        if digests[run] not in known:
            known[digests[run]] = file_outcomes(source, run.name, data.splitlines(), [*COLUMNS, *ANSWER])
        frames[source] = known[digests[run]]
    stages = lineage(revision, chosen)
    return Experiment(
        revision=revision,
        outcomes=joined_outcomes(frames),
        digests=digests,
        problems=_problems(revision, task),
        stages=stages,
        timing=_timing(revision, stages),
        notes=notes + disagreements(revision, stages),
    )


def uncertainty(revisions: Iterable[Revision]) -> Uncertainty:
    """How the first params.yaml that says so as this version of Planward reads it asks for intervals.

    Raises:
        ParamsError: none does.
    """
    faults = []
    for revision in revisions:
        try:
            source = f"{revision.name}: params.yaml, section compare"
            asked = checked(Compare, revision.params.get("compare"), source)
        except ParamsError as error:
            faults.append(str(error))
        else:
            return Uncertainty(asked.confidence, asked.resamples, int(revision.params.get("seed", 0)))
    raise ParamsError("\n".join(faults))


def few(names: Collection[Any]) -> str:
    """The first names of many, and how many more there are."""
    first = list(names)[:NAMED]
    more = len(names) - len(first)
    return ", ".join(map(str, first)) + (f" and {more} more" if more else "")


def _runs(revision: Revision, task: str) -> dict[str, Run]:
    """The run of each prediction file of a task that was made."""
    folder, made = PREDICTIONS[task], revision.outputs
    found: dict[str, Run] = {}
    for path, md5 in made.items():
        place = PurePosixPath(path)
        if str(place.parent) == folder and place.suffix == ".jsonl" and (run := Run.parsed(place.stem)) and md5:
            found[path] = run
    if not found:
        wanted = "demonstrate" if task == DEMONSTRATIONS else "evaluate"
        raise RevisionError(
            f"{revision.name}: its dvc.lock has no predictions in {folder}, so `{wanted}` has not run there for the "
            f"task {task}; run it with `dvc exp run`"
        )
    return found


def _problems(revision: Revision, task: str) -> dict[str, Record]:
    """The test problems by id. Planning's may be missing, where answers without worked examples tell them apart."""
    path = PROBLEMS[task]
    try:
        lines = revision.read(path).splitlines()
    except RevisionError:
        if task == ECONOMY:  # whose households are in there
            raise
        return {}
    try:
        return {record.id: record for record in map(Record.model_validate_json, lines)}
    except ValueError as error:
        raise PredictionsError(f"{revision.name}: {path} holds a line that is no problem: {error}") from None


def _timing(revision: Revision, stages: Mapping[str, Stage]) -> dict[str, dict[str, Any]]:
    """What each stage measured of its last run; a stage without such a file that is here is left out."""
    found = {}
    for stage in stages.values():
        for path, md5 in stage.outputs.items():
            if PurePosixPath(path).parent == PurePosixPath(TIMING):
                try:
                    found[stage.name] = dict(json.loads(revision.read(path))) | {"md5": md5}
                except (RevisionError, ValueError, TypeError):
                    continue
    return found

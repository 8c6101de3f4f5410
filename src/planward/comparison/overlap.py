"""What experiments can be compared on: runs, problems, numbers of worked examples and seeds that all of them hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.analysis.names import format_run, sort_rows
from planward.analysis.outcomes import PredictionsError
from planward.analysis.success_arrays import RUN
from planward.analysis.tables import AnyRun
from planward.comparison.experiment import Experiment, format_names
from planward.core.runs import Run


@dataclass(frozen=True)
class Overlap:
    """The rows of the experiments that are compared.

    The frames of a run, one an experiment, have the same length and order of rows: seed, shot_num, id. With different
    seeds, the first seeds of each are paired.
    """

    problems: list[str]
    shot_nums: list[int]
    runs: dict[AnyRun, list[pd.DataFrame]]  # by method and N, in the order of every table
    identical: set[AnyRun]  # runs whose prediction files are the same in all experiments
    partial: dict[AnyRun, list[str]]  # runs that only these experiments hold
    seeds: dict[AnyRun, list[list[int]]]  # compared, by experiment; [] for a run that is not trained
    notes: list[str]  # what was left out, and why

    @property
    def training_seeds(self) -> list[int]:
        """The seeds of every trained run of every experiment; empty where these differ."""
        distinct = {tuple(seeds) for run, by_experiment in self.seeds.items() if run[1] for seeds in by_experiment}
        return list(distinct.pop()) if len(distinct) == 1 else []


def find_overlap(
    experiments: Sequence[Experiment], shot_nums: Collection[int] = (), cluster: str | None = None
) -> Overlap:
    """Find what all experiments hold.

    Args:
        shot_nums: the numbers of worked examples to compare; all where empty.
        cluster: the key of a problem's `meta` that frames have as a column too, `TaskSpec.resampling_unit`.

    Raises:
        PredictionsError: they have no run, problem, or number of worked examples in common.
    """
    notes: list[str] = []
    problems = _find_problems(experiments, notes)
    common_shot_nums = _find_shot_nums(experiments, shot_nums, notes)
    seeds_by_experiment = [_list_seeds(experiment) for experiment in experiments]
    all_runs = _sort_runs({run for seeds_by_run in seeds_by_experiment for run in seeds_by_run})
    common_runs = [run for run in all_runs if all(run in seeds_by_run for seeds_by_run in seeds_by_experiment)]
    if not common_runs:
        names = "; ".join(
            f"{experiment.name}: {format_names([format_run(*run) for run in _sort_runs(set(seeds_by_run))])}"
            for experiment, seeds_by_run in zip(experiments, seeds_by_experiment, strict=True)
        )
        raise PredictionsError(f"no method and N is in all of them ({names})")
    runs, seeds, identical = {}, {}, set()
    frames = [dict(iter(_add_clusters(experiment, cluster).groupby(RUN))) for experiment in experiments]
    for run in common_runs:
        seeds[run] = _find_seeds(experiments, [seeds_by_run[run] for seeds_by_run in seeds_by_experiment], notes)
        runs[run] = [
            _select_rows(by_run[run], run_seeds, problems, common_shot_nums)
            for by_run, run_seeds in zip(frames, seeds[run], strict=True)
        ]
        digests = [
            [experiment.digests[Run(*run, seed)] for seed in run_seeds or [0]]
            for experiment, run_seeds in zip(experiments, seeds[run], strict=True)
        ]
        if all(files == digests[0] for files in digests):
            identical.add(run)
    _compare_examples(experiments, runs, notes)
    partial = {
        run: [
            experiment.name
            for experiment, seeds_by_run in zip(experiments, seeds_by_experiment, strict=True)
            if run in seeds_by_run
        ]
        for run in all_runs
        if run not in runs
    }
    return Overlap(problems, common_shot_nums, runs, identical, partial, seeds, notes)


def _find_problems(experiments: Sequence[Experiment], notes: list[str]) -> list[str]:
    """Ids of the problems that all experiments answer and that have the same text in all."""
    ids = [set(experiment.outcomes["id"]) for experiment in experiments]
    common = set.intersection(*ids)
    if any(problem_ids != common for problem_ids in ids):
        sizes = ", ".join(f"{e.name} has {len(problem_ids)}" for e, problem_ids in zip(experiments, ids, strict=True))
        notes.append(f"Different test problems: {sizes}, {len(common)} are in common; only those are compared.")
    texts = [_find_texts(experiment) for experiment in experiments]
    if all(experiment.problems for experiment in experiments):
        texts = [{key: record.prompt for key, record in experiment.problems.items()} for experiment in experiments]
    differing = sorted(key for key in common if len({by_id[key] for by_id in texts if key in by_id}) > 1)
    if differing:
        notes.append(
            "Same id but another text, so another problem and left out: "
            f"{format_names(differing)} ({len(differing)} in all)."
        )
    problems = sorted(common.difference(differing))
    if not problems:
        raise PredictionsError(
            " ".join(["no test problem is the same in all of them.", *notes, "See `seed`, `problems` and `split`."])
        )
    return problems


def _find_texts(experiment: Experiment) -> dict[str, str]:
    """Each problem's prompt without worked examples; empty where none was evaluated so."""
    zero_shot = experiment.outcomes[experiment.outcomes["shot_num"] == 0].drop_duplicates("id")
    return dict(zip(zero_shot["id"], zero_shot["prompt"], strict=True))


def _find_shot_nums(experiments: Sequence[Experiment], selection: Collection[int], notes: list[str]) -> list[int]:
    by_experiment = [set(map(int, experiment.outcomes["shot_num"])) for experiment in experiments]
    common = set.intersection(*by_experiment)
    shot_nums = sorted(common.intersection(selection) if selection else common)
    names = "; ".join(
        f"{e.name} has {', '.join(map(str, sorted(numbers)))}"
        for e, numbers in zip(experiments, by_experiment, strict=True)
    )
    if not shot_nums or not common.issuperset(selection):
        raise PredictionsError(f"no such number of worked examples is in all of them ({names})")
    if any(numbers != common for numbers in by_experiment) and not selection:
        notes.append(
            f"Different numbers of worked examples: {names}; only {', '.join(map(str, shot_nums))} are compared."
        )
    return shot_nums


def _list_seeds(experiment: Experiment) -> dict[AnyRun, list[int]]:
    """The seeds of each method and N; [] for a run that is not trained."""
    seeds: dict[AnyRun, list[int]] = {}
    for run in experiment.digests:
        seeds.setdefault((run.method, run.size), []).extend([run.seed] if run.size else [])
    return {run: sorted(run_seeds) for run, run_seeds in seeds.items()}


def _sort_runs(runs: set[AnyRun]) -> list[AnyRun]:
    frame = sort_rows(pd.DataFrame(sorted(runs), columns=RUN), RUN)
    return [(str(method), int(size)) for method, size in frame.itertuples(index=False)]


def _find_seeds(experiments: Sequence[Experiment], seeds: list[list[int]], notes: list[str]) -> list[list[int]]:
    """The seeds of each experiment that are compared: those in common, else as many of each as the fewest."""
    common = sorted(set.intersection(*map(set, seeds)))
    if all(experiment_seeds == common for experiment_seeds in seeds):
        return seeds
    fewest = min(map(len, seeds))
    names = "; ".join(
        f"{e.name} has {', '.join(map(str, experiment_seeds))}"
        for e, experiment_seeds in zip(experiments, seeds, strict=True)
    )
    if common:
        compared_seeds = [common] * len(seeds)
        choice = f"only {', '.join(map(str, common))} are compared"
    else:
        compared_seeds = [experiment_seeds[:fewest] for experiment_seeds in seeds]
        choice = f"the first {fewest} of each are compared, in order"
    note = f"Different seeds ({names}): {choice}."
    if note not in notes:
        notes.append(note)
    return compared_seeds


def _select_rows(
    rows: pd.DataFrame, seeds: Sequence[int], problems: Collection[str], shot_nums: Collection[int]
) -> pd.DataFrame:
    """The rows of a run that are compared, sorted. An untrained run has no seed of its own: it is 0."""
    mask = rows["shot_num"].isin(shot_nums) & rows["id"].isin(problems)
    compared_rows = rows[mask & rows["seed"].isin(seeds)] if seeds else rows[mask].assign(seed=0)
    return compared_rows.sort_values(["seed", "shot_num", "id"], kind="stable").reset_index(drop=True)


def _add_clusters(experiment: Experiment, cluster: str | None) -> pd.DataFrame:
    """The outcomes with the cluster of each problem as a column."""
    rows = experiment.outcomes
    if cluster is None:
        return rows
    by_id = {key: (problem.meta.model_extra or {}).get(cluster) for key, problem in experiment.problems.items()}
    return rows.assign(**{cluster: [str(by_id.get(key)) for key in rows["id"]]})


def _compare_examples(
    experiments: Sequence[Experiment], runs: dict[AnyRun, list[pd.DataFrame]], notes: list[str]
) -> None:
    """Note where prompts show different worked examples: then the models are not the only difference."""
    first = experiments[0].name
    for i, experiment in enumerate(experiments[1:], 1):
        counts: dict[AnyRun, int] = {}
        for run, frames in runs.items():
            if count := sum(a != b for a, b in zip(frames[0]["shot_ids"], frames[i]["shot_ids"], strict=True)):
                counts[run] = count
        if counts:
            prompts = sum(len(runs[run][0]) for run in counts)
            notes.append(
                f"{first} and {experiment.name} show other worked examples in {sum(counts.values())} of {prompts} "
                f"prompts of {format_names([format_run(*run) for run in counts])}."
            )

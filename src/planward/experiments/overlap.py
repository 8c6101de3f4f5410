"""What several experiments can be compared on: the runs, problems, worked examples and seeds that all of them hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.experiments.experiment import Experiment, few
from planward.records import Run
from planward.reporting.answers import RUN
from planward.reporting.names import ordered, title
from planward.reporting.outcomes import PredictionsError
from planward.reporting.tables import AnyRun


@dataclass(frozen=True)
class Overlap:
    """Rows of the experiments that stand against each other.

    The frames of a run have the same length, one an experiment, and their rows the same order: seed, shot_num, id. With
    different seeds, the first seeds of each stand against each other.
    """

    problems: list[str]
    shots: list[int]
    runs: dict[AnyRun, list[pd.DataFrame]]  # by method and N, in the order of every table
    same: set[AnyRun]  # whose prediction files are the same in all experiments
    lone: dict[AnyRun, list[str]]  # held by these experiments only
    seeds: dict[AnyRun, list[list[int]]]  # compared, by experiment; [] for a run that is not trained
    notes: list[str]  # what was left out, and why

    @property
    def training_seeds(self) -> list[int]:
        """The seeds of every trained run of every experiment; empty where these differ."""
        found = {tuple(own) for run, seeds in self.seeds.items() if run[1] for own in seeds}
        return list(found.pop()) if len(found) == 1 else []


def overlap(experiments: Sequence[Experiment], shots: Collection[int] = ()) -> Overlap:
    """What all experiments hold; with `shots`, of these numbers of worked examples only.

    Raises:
        PredictionsError: they have no run, problem, or number of worked examples in common.
    """
    notes: list[str] = []
    problems = _problems(experiments, notes)
    counts = _shots(experiments, shots, notes)
    held = [_held(experiment) for experiment in experiments]
    every = _ordered({run for own in held for run in own})
    common = [run for run in every if all(run in own for own in held)]
    if not common:
        names = "; ".join(
            f"{experiment.name}: {few([title(*run) for run in _ordered(set(own))])}"
            for experiment, own in zip(experiments, held, strict=True)
        )
        raise PredictionsError(f"no method and N is in all of them ({names})")
    runs, seeds, same = {}, {}, set()
    by_run = [dict(iter(_with_households(experiment).groupby(RUN))) for experiment in experiments]
    for run in common:
        seeds[run] = _seeds(experiments, [own[run] for own in held], notes)
        runs[run] = [_rows(rows[run], own, problems, counts) for rows, own in zip(by_run, seeds[run], strict=True)]
        files = [
            [experiment.digests[Run(*run, seed)] for seed in own or [0]]
            for experiment, own in zip(experiments, seeds[run], strict=True)
        ]
        if all(own == files[0] for own in files):
            same.add(run)
    _compare_examples(experiments, runs, notes)
    lone = {
        run: [experiment.name for experiment, own in zip(experiments, held, strict=True) if run in own]
        for run in every
        if run not in runs
    }
    return Overlap(problems, counts, runs, same, lone, seeds, notes)


def _problems(experiments: Sequence[Experiment], notes: list[str]) -> list[str]:
    """Ids of the problems that all answer and that are the same in all."""
    asked = [set(experiment.outcomes["id"]) for experiment in experiments]
    common = set.intersection(*asked)
    if any(own != common for own in asked):
        sizes = ", ".join(f"{e.name} has {len(own)}" for e, own in zip(experiments, asked, strict=True))
        notes.append(f"Different test problems: {sizes}, {len(common)} are in common; only those are compared.")
    texts = [_texts(experiment) for experiment in experiments]
    if all(e.problems for e in experiments):
        texts = [{key: record.prompt for key, record in e.problems.items()} for e in experiments]
    other = sorted(key for key in common if len({own[key] for own in texts if key in own}) > 1)
    if other:
        notes.append(f"Same id but another text, so another problem and left out: {few(other)} ({len(other)} in all).")
    kept = sorted(common.difference(other))
    if not kept:
        raise PredictionsError(
            " ".join(["no test problem is the same in all of them.", *notes, "See `seed`, `problems` and `split`."])
        )
    return kept


def _texts(experiment: Experiment) -> dict[str, str]:
    """What each problem's prompt says without worked examples; empty where none was evaluated so."""
    plain = experiment.outcomes[experiment.outcomes["shot_num"] == 0].drop_duplicates("id")
    return dict(zip(plain["id"], plain["prompt"], strict=True))


def _shots(experiments: Sequence[Experiment], asked: Collection[int], notes: list[str]) -> list[int]:
    held = [set(map(int, experiment.outcomes["shot_num"])) for experiment in experiments]
    common = set.intersection(*held)
    chosen = sorted(common.intersection(asked) if asked else common)
    names = "; ".join(
        f"{e.name} has {', '.join(map(str, sorted(own)))}" for e, own in zip(experiments, held, strict=True)
    )
    if not chosen:
        raise PredictionsError(f"no such number of worked examples is in all of them ({names})")
    if any(own != common for own in held) and not asked:
        notes.append(f"Different numbers of worked examples: {names}; only {', '.join(map(str, chosen))} are compared.")
    return chosen


def _held(experiment: Experiment) -> dict[AnyRun, list[int]]:
    """The seeds of each method and N; [] for a run that is not trained."""
    found: dict[AnyRun, list[int]] = {}
    for run in experiment.digests:
        found.setdefault((run.method, run.size), []).extend([run.seed] if run.size else [])
    return {run: sorted(seeds) for run, seeds in found.items()}


def _ordered(runs: set[AnyRun]) -> list[AnyRun]:
    frame = ordered(pd.DataFrame(sorted(runs), columns=RUN), RUN)
    return [(str(method), int(size)) for method, size in frame.itertuples(index=False)]


def _seeds(experiments: Sequence[Experiment], held: list[list[int]], notes: list[str]) -> list[list[int]]:
    """The seeds of each experiment that are compared: those that all have, else as many of each as the fewest."""
    common = sorted(set.intersection(*map(set, held)))
    if all(own == common for own in held):
        return held
    fewest = min(map(len, held))
    names = "; ".join(f"{e.name} has {', '.join(map(str, own))}" for e, own in zip(experiments, held, strict=True))
    if common:
        chosen, said = [common] * len(held), f"only {', '.join(map(str, common))} are compared"
    else:
        chosen, said = [own[:fewest] for own in held], f"the first {fewest} of each are compared, as they stand"
    note = f"Different seeds ({names}): {said}."
    if note not in notes:
        notes.append(note)
    return chosen


def _rows(rows: pd.DataFrame, seeds: Sequence[int], problems: Collection[str], shots: Collection[int]) -> pd.DataFrame:
    """The rows of a run that are compared, in order. An untrained run has no seed of its own: it is 0."""
    kept = rows["shot_num"].isin(shots) & rows["id"].isin(problems)
    found = rows[kept & rows["seed"].isin(seeds)] if seeds else rows[kept].assign(seed=0)
    return found.sort_values(["seed", "shot_num", "id"], kind="stable").reset_index(drop=True)


def _with_households(experiment: Experiment) -> pd.DataFrame:
    """The outcomes with the household of each problem, which only the economy's have."""
    households = {
        key: (problem.meta.model_extra or {}).get("household") for key, problem in experiment.problems.items()
    }
    rows = experiment.outcomes
    return rows.assign(household=[str(households.get(key)) for key in rows["id"]])


def _compare_examples(
    experiments: Sequence[Experiment], runs: dict[AnyRun, list[pd.DataFrame]], notes: list[str]
) -> None:
    """Note where prompts show other worked examples: a difference is then not the models' alone."""
    first = experiments[0].name
    for place, experiment in enumerate(experiments[1:], 1):
        differ: dict[AnyRun, int] = {}
        for run, frames in runs.items():
            if count := sum(a != b for a, b in zip(frames[0]["shot_ids"], frames[place]["shot_ids"], strict=True)):
                differ[run] = count
        if differ:
            of = sum(len(runs[run][0]) for run in differ)
            notes.append(
                f"{first} and {experiment.name} show other worked examples in {sum(differ.values())} of {of} prompts "
                f"of {few([title(*run) for run in differ])}."
            )

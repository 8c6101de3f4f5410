"""All experiments of one commit, finished or not: those that `dvc exp run` made of it, queued or at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from planward.analysis.outcomes import PredictionsError
from planward.analysis.tables import Row
from planward.comparison.experiment import (
    Experiment,
    Subject,
    pull_experiment,
    read_experiment,
    read_uncertainty,
)
from planward.comparison.ranking import Ranking, rank_experiments
from planward.comparison.revisions import Revision, RevisionError, open_repository, read_revision

if TYPE_CHECKING:
    from dvc.repo import Repo

QUEUED, RUNNING, FAILED, INCOMPLETE, UNREADABLE = "queued", "running", "failed", "incomplete", "unreadable"


@dataclass(frozen=True)
class Sweep:
    """A commit's experiments."""

    experiments: list[Experiment]  # the commit itself first, then those whose results are those of their parameters
    unfinished: list[Row]  # the others: name, status, reason


def rank_sweep(
    commit: str,
    subject: Subject,
    methods: Collection[str] = (),
    sizes: Collection[int] = (),
    shot_nums: Collection[int] = (),
    pull: bool = False,
) -> Ranking:
    """Rank a commit and its experiments, each tested against the commit; raises as `read_sweep`, `rank_experiments`."""
    sweep = read_sweep(commit, subject, methods, sizes, pull)
    uncertainty = read_uncertainty(experiment.revision for experiment in sweep.experiments)
    ranking = rank_experiments(sweep.experiments, subject, uncertainty, shot_nums, has_baseline=True)
    return replace(ranking, unfinished=sweep.unfinished)


def read_sweep(
    commit: str,
    subject: Subject,
    methods: Collection[str] = (),
    sizes: Collection[int] = (),
    pull: bool = False,
) -> Sweep:
    """Read what a commit and its experiments hold of a subject; see `read_experiments` for the arguments.

    Raises:
        RevisionError, PredictionsError: the commit itself cannot be read, or none of its experiments has finished.
    """
    cache: dict[str, pd.DataFrame] = {}
    with open_repository() as repo:

        def read(revision: Revision) -> Experiment:
            if pull:
                pull_experiment(repo, revision, subject)
            return read_experiment(revision, subject, methods, sizes, cache)

        baseline = read(read_revision(repo, commit))
        sha = baseline.revision.commit
        if sha is None:
            raise RevisionError(f"{commit}: experiments belong to a commit; fix: name one, such as HEAD")
        experiments, unfinished_tasks = [baseline], list[Row]()
        revisions = _find_experiments(repo, sha)
        for name, experiment_sha in sorted(revisions.items()):
            try:
                revision = replace(read_revision(repo, experiment_sha), name=name)
                experiment = read(revision)
            except (RevisionError, PredictionsError) as error:
                reason = str(error).replace(experiment_sha, name).removeprefix(f"{name}: ")
                unfinished_tasks.append({"name": name, "status": UNREADABLE, "reason": reason})
                continue
            if experiment.notes:  # a target of `dvc exp run` ended before the evaluation, or `dvc exp save`
                unfinished_tasks.append({"name": name, "status": INCOMPLETE, "reason": "; ".join(experiment.notes)})
            else:
                experiments.append(experiment)
        unfinished_tasks += [task for task in _iter_unfinished_tasks(repo, sha) if task["name"] not in revisions]
    if len(experiments) == 1:
        states = "; ".join(f"{task['name']}: {task['status']}, {task['reason']}" for task in unfinished_tasks)
        raise RevisionError(
            f"{baseline.revision.title}: none of its experiments has finished ({states or 'there are none'}); "
            "fix: wait for `dvc queue status`, or name the commit that they start from (`dvc exp list --all-commits`)"
        )
    return Sweep(experiments, unfinished_tasks)


def _find_experiments(repo: Repo, sha: str) -> dict[str, str]:
    """The commits of the experiments that start from a commit, by name."""
    from dvc.repo.experiments.utils import exp_refs_by_baseline

    refs = exp_refs_by_baseline(repo.scm, {sha})[sha]
    return {str(ref.name): str(repo.scm.get_ref(str(ref))) for ref in refs}


def _iter_unfinished_tasks(repo: Repo, sha: str) -> Iterator[Row]:
    """The tasks of DVC's queue that start from a commit and have no result."""
    queue = repo.experiments.celery_queue
    states = {
        RUNNING: (queue.iter_active(), "dvc queue logs NAME"),
        QUEUED: (queue.iter_queued(), "dvc queue start"),
        FAILED: ((result.entry for result in queue.iter_failed()), "dvc queue logs NAME"),
    }
    for status, (entries, command) in states.items():
        for entry in entries:
            if entry.baseline_rev == sha:
                name = entry.name or entry.stash_rev[:7]
                yield {"name": name, "status": status, "reason": command.replace("NAME", name)}

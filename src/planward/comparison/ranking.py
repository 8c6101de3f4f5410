"""Ranking of experiments, cell by cell and over all numbers of worked examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.statistics import adjust_p_values
from planward.analysis.tables import CELL, TIED, Row, classify_result
from planward.comparison.comparison import (
    ANSWER_COLUMNS,
    SAME,
    compute_cost,
    find_code_changes,
    find_param_changes,
    list_cells,
)
from planward.comparison.experiment import Experiment, Subject
from planward.comparison.measures import Measure, build_measures
from planward.comparison.overlap import Overlap, find_overlap

BASELINE, BEST, WORSE = "baseline", "best", "worse"
RANKED = [*CELL, "rank", "experiment", "seeds", "n", "value", "ci_low", "ci_high", "interval"]
RANKED += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference", "result"]


@dataclass(frozen=True)
class Ranking:
    """Experiments in order of mean reward where the subject has a resampling unit, else of success.

    Tables have the columns `RANKED`. Each experiment is tested against the first where that is a baseline, else against
    the best of its row.
    """

    experiments: list[Experiment]
    subject: Subject
    uncertainty: Uncertainty
    overlap: Overlap
    quantity: str  # success, a share; or reward
    params: list[Row]
    code: list[Row]
    pooled: pd.DataFrame  # over all numbers of worked examples, by run
    cells: pd.DataFrame  # by run and shot_num
    cost: pd.DataFrame
    has_baseline: bool = False
    unfinished: list[Row] = field(default_factory=list)  # experiments left out: name, status, reason

    @property
    def reference(self) -> str:
        """What differences are from."""
        return BASELINE if self.has_baseline else BEST


def rank_experiments(
    experiments: Sequence[Experiment],
    subject: Subject,
    uncertainty: Uncertainty,
    shot_nums: Collection[int] = (),
    has_baseline: bool = False,
) -> Ranking:
    """Rank experiments on what all of them hold, on these numbers of worked examples only if there are any.

    Args:
        has_baseline: test every experiment against the first, not against the best of its row.

    Raises:
        PredictionsError: they hold no problem, run or number of worked examples in common.
    """
    overlap = find_overlap(experiments, shot_nums, subject.resampling_unit)
    measure = build_measures(subject, overlap, uncertainty)[-1]
    names = [experiment.name for experiment in experiments]
    return Ranking(
        experiments=list(experiments),
        subject=subject,
        uncertainty=uncertainty,
        overlap=overlap,
        quantity=measure.quantity,
        params=find_param_changes(experiments),
        code=find_code_changes(experiments),
        pooled=_rank_cells(names, overlap, measure, uncertainty, has_baseline, is_pooled=True),
        cells=_rank_cells(names, overlap, measure, uncertainty, has_baseline, is_pooled=False),
        cost=compute_cost(experiments),
        has_baseline=has_baseline,
    )


def _rank_cells(
    names: Sequence[str],
    overlap: Overlap,
    measure: Measure,
    uncertainty: Uncertainty,
    has_baseline: bool,
    is_pooled: bool,
) -> pd.DataFrame:
    """A row a cell and experiment, the highest first, each tested against the reference; Holm over the table.

    Equal values have equal ranks; all that equal the highest are best. Not tested are cells whose predictions are the
    same in all experiments, and experiments with the answers of the baseline.
    """
    rows: list[Row] = []
    tested_rows: list[Row] = []
    for key, frames in list_cells(overlap, is_pooled):
        values = measure.compute_rates(frames)
        order = sorted(range(len(names)), key=lambda i: -values[i]["value"])
        reference = 0 if has_baseline else order[0]
        others = [i for i in order if i != reference]
        identical = (key["method"], key["dataset_size"]) in overlap.identical
        same = [identical or (has_baseline and _have_same_answers(frames[reference], frame)) for frame in frames]
        gaps = measure.compute_differences([(frames[reference], frames[other]) for other in others])
        differences = dict(zip(others, gaps, strict=True))
        for i in order:
            value = values[i]["value"]
            rank = 1 + sum(other["value"] > value for other in values)
            row: Row = key | values[i] | {"rank": rank, "experiment": names[i]}
            row["result"] = SAME if same[i] else BEST
            if i in differences:
                difference = differences[i]
                row |= {name: difference[name] for name in ("difference", "p", "test", "detectable_difference")}
                row |= {"difference_low": difference["ci_low"], "difference_high": difference["ci_high"]}
                tested_rows += [] if same[i] else [row]
            elif has_baseline and not identical:
                row["result"] = BASELINE
            rows.append(row)
    for row, p in zip(tested_rows, adjust_p_values([row["p"] for row in tested_rows]), strict=True):
        row["p_holm"] = p
        if has_baseline:
            row["result"] = classify_result(p, row["difference"], 1 - uncertainty.confidence)
        elif row["rank"] > 1:
            row["result"] = TIED if p >= 1 - uncertainty.confidence else WORSE
    return pd.DataFrame(rows, columns=RANKED)


def _have_same_answers(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    return bool(a[ANSWER_COLUMNS].equals(b[ANSWER_COLUMNS]))

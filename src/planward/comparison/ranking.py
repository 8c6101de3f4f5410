"""Ranking of three or more experiments, cell by cell and over all numbers of worked examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.statistics import adjust_p_values
from planward.analysis.tables import CELL, TIED, Row
from planward.comparison.comparison import SAME, compute_cost, find_code_changes, find_param_changes, list_cells
from planward.comparison.experiment import Experiment, Subject
from planward.comparison.measures import Measure, build_measures
from planward.comparison.overlap import Overlap, find_overlap

BEST, WORSE = "best", "worse"
RANKED = [*CELL, "rank", "experiment", "seeds", "n", "value", "ci_low", "ci_high", "interval"]
RANKED += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference", "result"]


@dataclass(frozen=True)
class Ranking:
    """Experiments in order of mean reward where the subject has a resampling unit, else of success.

    Tables have the columns `RANKED`.
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


def rank_experiments(
    experiments: Sequence[Experiment], subject: Subject, uncertainty: Uncertainty, shot_nums: Collection[int] = ()
) -> Ranking:
    """Rank experiments on what all of them hold, on these numbers of worked examples only if there are any.

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
        pooled=_rank_cells(names, overlap, measure, uncertainty, pooled=True),
        cells=_rank_cells(names, overlap, measure, uncertainty, pooled=False),
        cost=compute_cost(experiments),
    )


def _rank_cells(
    names: Sequence[str], overlap: Overlap, measure: Measure, uncertainty: Uncertainty, pooled: bool
) -> pd.DataFrame:
    """A row a cell and experiment, the highest first, each tested against the first; Holm over the table.

    Equal values have equal ranks; all that equal the highest are best. Cells whose predictions are the same in all
    experiments are not tested.
    """
    rows: list[Row] = []
    tested_rows: list[Row] = []
    for key, frames in list_cells(overlap, pooled):
        values = measure.compute_rates(frames)
        order = sorted(range(len(names)), key=lambda i: -values[i]["value"])
        best, *others = order
        differences = measure.compute_differences([(frames[best], frames[other]) for other in others])
        identical = (key["method"], key["dataset_size"]) in overlap.identical
        for i, difference in zip(order, [None, *differences], strict=True):
            value = values[i]["value"]
            rank = 1 + sum(other["value"] > value for other in values)
            row: Row = key | values[i] | {"rank": rank, "experiment": names[i]}
            row["result"] = SAME if identical else BEST
            if difference is not None:
                row |= {name: difference[name] for name in ("difference", "p", "test", "detectable_difference")}
                row |= {"difference_low": difference["ci_low"], "difference_high": difference["ci_high"]}
                tested_rows += [] if identical else [row]
            rows.append(row)
    for row, p in zip(tested_rows, adjust_p_values([row["p"] for row in tested_rows]), strict=True):
        row["p_holm"] = p
        if row["rank"] > 1:
            row["result"] = TIED if p >= 1 - uncertainty.confidence else WORSE
    return pd.DataFrame(rows, columns=RANKED)

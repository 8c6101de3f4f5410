"""Three or more experiments ranked, cell by cell and over all numbers of worked examples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.experiments.comparison import (
    SAME,
    cells_of,
    code_that_differs,
    cost,
    measures,
    params_that_differ,
)
from planward.experiments.experiment import Experiment
from planward.experiments.measures import Measure
from planward.experiments.overlap import Overlap, overlap
from planward.reporting.comparison import Uncertainty
from planward.reporting.statistics import holm
from planward.reporting.tables import CELL, TIED, Row

BEST, WORSE = "best", "worse"
RANKED = [*CELL, "rank", "experiment", "seeds", "n", "value", "ci_low", "ci_high", "interval"]
RANKED += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference", "result"]


@dataclass(frozen=True)
class Ranking:
    """Experiments in order of success, of the economy in order of mean reward. Tables have the columns `RANKED`."""

    experiments: list[Experiment]
    task: str
    by: Uncertainty
    overlap: Overlap
    quantity: str  # success, a share; or reward
    params: list[Row]
    code: list[Row]
    pooled: pd.DataFrame  # over all numbers of worked examples, by run
    cells: pd.DataFrame  # by run and shot_num
    cost: pd.DataFrame


def ranked(experiments: Sequence[Experiment], task: str, by: Uncertainty, shots: Collection[int] = ()) -> Ranking:
    """Rank experiments on what all of them hold, with `shots` on these numbers of worked examples only.

    Raises:
        PredictionsError: they hold no problem, run or number of worked examples in common.
    """
    common = overlap(experiments, shots)
    measure = measures(task, common, by)[-1]
    names = [experiment.name for experiment in experiments]
    return Ranking(
        experiments=list(experiments),
        task=task,
        by=by,
        overlap=common,
        quantity=measure.quantity,
        params=params_that_differ(experiments),
        code=code_that_differs(experiments),
        pooled=_ranked(names, common, measure, by, pooled=True),
        cells=_ranked(names, common, measure, by, pooled=False),
        cost=cost(experiments),
    )


def _ranked(names: Sequence[str], common: Overlap, measure: Measure, by: Uncertainty, pooled: bool) -> pd.DataFrame:
    """A row a cell and experiment, the highest first, each tested against the first; Holm over the table.

    Equal values have equal ranks; all that equal the highest are best. Cells whose predictions are the same in all
    experiments are no tests.
    """
    rows: list[Row] = []
    tests: list[Row] = []  # the rows among them that are
    for key, frames in cells_of(common, pooled):
        values = measure.rates(frames)
        order = sorted(range(len(names)), key=lambda i: -values[i]["value"])
        best, *others = order
        gaps = measure.differences([(frames[best], frames[other]) for other in others])
        same = (key["method"], key["dataset_size"]) in common.same
        for i, gap in zip(order, [None, *gaps], strict=True):
            value = values[i]["value"]
            rank = 1 + sum(other["value"] > value for other in values)
            row: Row = key | values[i] | {"rank": rank, "experiment": names[i]}
            row["result"] = SAME if same else BEST
            if gap is not None:
                row |= {name: gap[name] for name in ("difference", "p", "test", "detectable_difference")}
                row |= {"difference_low": gap["ci_low"], "difference_high": gap["ci_high"]}
                tests += [] if same else [row]
            rows.append(row)
    for row, p in zip(tests, holm([row["p"] for row in tests]), strict=True):
        row["p_holm"] = p
        if row["rank"] > 1:
            row["result"] = TIED if p >= 1 - by.confidence else WORSE
    return pd.DataFrame(rows, columns=RANKED)

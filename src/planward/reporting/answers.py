"""Answers as arrays: what each run solved, in one order of seeds, shot numbers and problems."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planward.reporting.names import ALL, ordered

PROBLEM = ["id", "domain", "bucket", "constrained", "dialect"]  # what is known of a problem; dialect: of some
RUN = ["method", "dataset_size"]
Solved = NDArray[np.bool_]  # [seeds, shots, problems]


@dataclass(frozen=True)
class Answers:
    """What the methods solved of the same problems with the same numbers of worked examples."""

    problems: pd.DataFrame  # the columns `PROBLEM`, in the order of the arrays
    shots: list[int]
    solved: dict[tuple[str, int], Solved]  # by method and N, in the order of every table

    @classmethod
    def of(cls, outcomes: pd.DataFrame) -> Answers:
        """Arrays of a frame with one row a prediction: the columns `PROBLEM`, method, dataset_size, seed, shot_num,
        success; every seed of every method has each pair of problem and shot_num once."""
        known = [column for column in PROBLEM if column in outcomes]
        rows = outcomes.sort_values(["seed", "shot_num", "id"], kind="stable")
        problems = rows.drop_duplicates("id").sort_values("id", kind="stable")[known].reset_index(drop=True)
        shots = sorted(int(n) for n in rows["shot_num"].unique())
        runs = {(str(m), int(n)): group["success"].to_numpy(bool) for (m, n), group in rows.groupby(RUN)}
        shape = (-1, len(shots), len(problems))
        order = ordered(rows[RUN].drop_duplicates(), RUN).itertuples(index=False)
        return cls(problems, shots, {(str(m), int(n)): runs[str(m), int(n)].reshape(shape) for m, n in order})

    def cell(self, run: tuple[str, int], shot_num: Hashable, asked: NDArray[np.bool_]) -> Solved:
        """What a run solved of the problems `asked` (a mask) with `shot_num` examples, or with all numbers of them."""
        chosen = slice(None) if shot_num == ALL else [self.shots.index(int(str(shot_num)))]
        return self.solved[run][:, chosen][:, :, asked]

    @property
    def everything(self) -> NDArray[np.bool_]:
        """The mask of all problems."""
        return np.ones(len(self.problems), dtype=bool)

    def mask(self, **values: Hashable) -> NDArray[np.bool_]:
        """The problems with these values of columns of `problems`; the value `all` is any."""
        found = self.everything
        for column, value in values.items():
            if value != ALL:
                found &= (self.problems[column] == value).to_numpy()
        return found

    def strata(self, asked: NDArray[np.bool_]) -> list[str]:
        """The domain of each problem of a mask: what resampling keeps as it is."""
        return list(self.problems["domain"][asked])

"""Success of each run as arrays, in one order of seeds, numbers of worked examples and problems."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planward.analysis.names import ALL, sort_rows

PROBLEM_COLUMNS = ["id", "domain", "bucket", "constrained", "score", "dialect"]  # those that the outcomes have
RUN = ["method", "dataset_size"]
Successes = NDArray[np.bool_]  # of one method and N: [seeds, shot_nums, problems]
Mask = NDArray[np.bool_]  # of problems


@dataclass(frozen=True)
class SuccessArrays:
    """What the methods solved of the same problems with the same numbers of worked examples."""

    problems: pd.DataFrame  # the columns `PROBLEM_COLUMNS`, in the order of the arrays
    shot_nums: list[int]
    arrays: dict[tuple[str, int], Successes]  # by method and N, in the order of every table

    @classmethod
    def from_outcomes(cls, outcomes: pd.DataFrame) -> SuccessArrays:
        """Build the arrays from a frame with one row a prediction.

        Args:
            outcomes: the columns `PROBLEM_COLUMNS`, method, dataset_size, seed, shot_num, success; every seed of every
                method has each pair of problem and shot_num once.
        """
        columns = [column for column in PROBLEM_COLUMNS if column in outcomes]
        ids, _ = pd.factorize(outcomes["id"], sort=True)
        order = np.lexsort((ids, outcomes["shot_num"], outcomes["seed"]))  # positions only: rows would take memory
        _, first = np.unique(ids[order], return_index=True)
        problems = outcomes[columns].iloc[order[first]].reset_index(drop=True)
        shot_nums = sorted(int(n) for n in outcomes["shot_num"].unique())
        success, shape = outcomes["success"].to_numpy(bool)[order], (-1, len(shot_nums), len(problems))
        arrays = {}
        for method, size in sort_rows(outcomes[RUN].drop_duplicates(), RUN).itertuples(index=False):
            mask = ((outcomes["method"] == method) & (outcomes["dataset_size"] == size)).to_numpy(bool)[order]
            arrays[str(method), int(size)] = success[mask].reshape(shape)
        return cls(problems, shot_nums, arrays)

    def select(self, run: tuple[str, int], shot_num: Hashable, mask: Mask) -> Successes:
        """Success of a run on the problems of a mask with `shot_num` examples, or with all numbers of them (`ALL`)."""
        shot_indices = slice(None) if shot_num == ALL else [self.shot_nums.index(int(str(shot_num)))]
        return self.arrays[run][:, shot_indices][:, :, mask]

    @property
    def all_problems(self) -> Mask:
        """The mask of all problems."""
        return np.ones(len(self.problems), dtype=bool)

    def build_mask(self, **values: Hashable) -> Mask:
        """Select the problems with these values of columns of `problems`; the value `all` matches any."""
        mask = self.all_problems
        for column, value in values.items():
            if value != ALL:
                mask &= (self.problems[column] == value).to_numpy()
        return mask

    def list_strata(self, mask: Mask) -> list[str]:
        """The domain of each problem of a mask; resampling keeps the number of problems of each."""
        return list(self.problems["domain"][mask])

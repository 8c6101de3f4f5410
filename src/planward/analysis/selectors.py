"""Tables of the selectors track, computed from outcomes.

`outcomes` is a frame with one row per prediction: id, domain, bucket, constrained, `dialect_number` (0: the plain
domain), method (the selector), dataset_size, seed, shot_num, shot_ids, success. Every selector has the same problems
with the same shot_num. A cell pools the seeds; see `cells`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.names import ALL, DIALECTS, PLAIN, sort_rows
from planward.analysis.outcomes import PredictionsError
from planward.analysis.success_arrays import RUN, SuccessArrays
from planward.analysis.tables import (
    ADJUSTED,
    CELL,
    RATES,
    AnyRun,
    Row,
    adjust_comparisons,
    classify_result,
    compute_comparison_rows,
    compute_rate_rows,
    compute_seeds_table,
    mark_best,
)
from planward.core.records import read_records

FOCUS, CEILING = "pointer-grpo", "oracle"  # the selector that the track is about; the one that uses the reference plan
PAIRS = [(a, FOCUS) for a in ("random", "similarity", "pointer-sft", "pointer-rce", CEILING)]  # a and b of b minus a
PAIRS += [("random", "similarity"), ("similarity", "pointer-sft")]

_WILSON = ["n", "successes", "success_rate", "ci_low", "ci_high", "detectable_difference"]
COLUMNS = {
    "success": ["selector", "dataset_size", "seed", "shot_num", "domain", *_WILSON],
    "groups": ["selector", "dataset_size", "seed", "shot_num", "dialect", *_WILSON],
    "cells": ["selector", "dataset_size", "dialect", "shot_num", *RATES, "best", "tied"],
    "paired": ["dialect", "shot_num", "dataset_size", *ADJUSTED, "result"],
    "shots": [
        *("selector", "dataset_size", "shot_num", "seeds", "shots", "own_domain", "own_dialect"),
        *("distinct_examples", "effective_examples"),
    ],
}  # of each table, by the name of its file


class ProblemDialect(NamedTuple):
    """What a problem is written in."""

    domain: str
    dialect: int  # 0: the plain domain


def read_dialects(path: Path) -> dict[str, ProblemDialect]:
    """Read domain and dialect of every problem of a file, by id; one whose `meta` has no `dialect` is plain."""
    if not path.exists():
        raise PredictionsError(f"{path}: no such file; fix: run `planward selectors dialects` first")
    return {
        record.id: ProblemDialect(record.domain, getattr(record.meta, "dialect", 0)) for record in read_records(path)
    }


def compute_selector_tables(
    outcomes: pd.DataFrame, examples: Mapping[str, ProblemDialect], by: Uncertainty
) -> dict[str, pd.DataFrame]:
    """Compute every table of the track, by the name of its file.

    Args:
        examples: the dialect of every problem that may have been chosen, by its id.
    """
    grouped_outcomes = outcomes.assign(dialect=np.where(outcomes["dialect_number"] > 0, DIALECTS, PLAIN))
    answers = SuccessArrays.from_outcomes(grouped_outcomes)
    with_all = pd.concat([grouped_outcomes.assign(domain=ALL), grouped_outcomes], ignore_index=True)
    tables = {
        "success": compute_seeds_table(with_all, by.confidence, ["domain"]),
        "groups": compute_seeds_table(grouped_outcomes, by.confidence, ["dialect"]),
        "cells": compute_cells(answers, by),
        "paired": compute_paired(answers, by),
        "shots": compute_choices(grouped_outcomes, examples),
    }
    return {name: table.rename(columns={"method": "selector"})[COLUMNS[name]] for name, table in tables.items()}


def compute_cells(answers: SuccessArrays, by: Uncertainty) -> pd.DataFrame:
    """Success on all, on plain and on dialect problems, with `best` and `tied`; the ceiling takes no part in these."""
    blocks = []
    for dialect in _list_groups(answers):
        mask = answers.build_mask(dialect=dialect)
        block = pd.DataFrame(compute_rate_rows(answers, mask, by, {"dialect": dialect}))
        is_ceiling = block["method"] == CEILING
        blocks.append(mark_best(block[~is_ceiling], answers, mask, by.confidence))
        blocks.append(block[is_ceiling].assign(best=False, tied=False))
    return sort_rows(pd.concat(blocks), [*RUN, "dialect", "shot_num"])


def compute_paired(answers: SuccessArrays, by: Uncertainty) -> pd.DataFrame:
    """Paired comparisons of `PAIRS` on all, on plain and on dialect problems, at each N and shot_num and over all.

    A rule has no N: two rules are compared once, under N = 0. `p_holm` is adjusted, for each pair and each group of
    problems, over the cells of N and shot_num, and separately over those that pool all shot_num.
    """
    rows: list[Row] = []
    for dialect in _list_groups(answers):
        comparisons = [
            ({"dialect": dialect, "shot_num": shot_num, "dataset_size": max(a[1], b[1])}, a, b)
            for names, shot_num in product(PAIRS, [ALL, *answers.shot_nums])
            for a, b in _pair_runs(answers, *names)
        ]
        rows += compute_comparison_rows(answers, comparisons, answers.build_mask(dialect=dialect), by)
    table = adjust_comparisons(rows, ["dialect", "shot_num", "dataset_size"], _get_family)
    results = [
        classify_result(p, d, 1 - by.confidence) for p, d in zip(table["p_holm"], table["difference"], strict=True)
    ]
    return table.assign(result=results)


def compute_choices(outcomes: pd.DataFrame, examples: Mapping[str, ProblemDialect]) -> pd.DataFrame:
    """Compute what was chosen, by selector, N and shot_num, over all problems; means over seeds.

    `own_domain` and `own_dialect` are the shares of the examples in the prompts that are of the query's domain, and of
    the query's dialect of it. `distinct_examples` counts distinct ones; `effective_examples` is the exponential of the
    entropy of their use: equal to that count if all are used alike, lower otherwise (Hill, Ecology 54, 1973, 427-432).
    """
    rows = outcomes.explode("shot_ids").dropna(subset="shot_ids")
    dialects = [examples[example] for example in rows["shot_ids"]]
    same_domain = [dialect.domain == domain for dialect, domain in zip(dialects, rows["domain"], strict=True)]
    same_number = [dialect.dialect == number for dialect, number in zip(dialects, rows["dialect_number"], strict=True)]
    rows = rows.assign(own_domain=same_domain, own_dialect=np.logical_and(same_domain, same_number))
    shares = rows.groupby(CELL).agg(
        seeds=("seed", "nunique"),
        shots=("shot_ids", "size"),
        own_domain=("own_domain", "mean"),
        own_dialect=("own_dialect", "mean"),
    )
    usage = rows.groupby([*CELL, "seed"])["shot_ids"].agg(distinct_examples="nunique", effective_examples=_effective)
    return sort_rows(shares.join(usage.groupby(CELL).mean()).reset_index(), CELL)


def compute_headline(cells: pd.DataFrame) -> dict[str, float]:
    """Compute the track's `dvc metrics`: of each selector at its largest N, success over all shot_num."""
    on_all = cells[cells["dialect"] == ALL]
    at_largest = on_all["dataset_size"] == on_all.groupby("selector")["dataset_size"].transform("max")
    means = on_all[at_largest].groupby("selector")["success_rate"].mean()
    return {str(selector): round(float(rate), 6) for selector, rate in means.items()}


def _list_groups(answers: SuccessArrays) -> list[str]:
    return [ALL, *(group for group in (PLAIN, DIALECTS) if answers.build_mask(dialect=group).any())]


def _pair_runs(answers: SuccessArrays, a: str, b: str) -> list[tuple[AnyRun, AnyRun]]:
    """Pair the runs of two selectors: those of the same N; a rule's with every one of the other's."""
    first_runs, second_runs = ([run for run in answers.arrays if run[0] == name] for name in (a, b))
    return [(x, y) for x, y in product(first_runs, second_runs) if x[1] == y[1] or 0 in (x[1], y[1])]


def _get_family(row: Row) -> tuple[str, str, str, bool]:
    return row["method_a"], row["method_b"], row["dialect"], row["shot_num"] == ALL


def _effective(examples: pd.Series) -> float:
    shares = examples.value_counts(normalize=True).to_numpy()
    return float(np.exp(-(shares * np.log(shares)).sum()))

"""Tables of the demonstrations track, computed from the outcomes of its selectors.

`outcomes` is a frame with one row a prediction: id, domain, bucket, constrained, `number` (the dialect's, 0 where the
problem is in its domain's own words), method (the selector), dataset_size, seed, shot_num, shot_ids, success. Every
selector answered the same problems with the same numbers of shots. A cell pools the seeds; see `comparison`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from planward.reporting.answers import RUN, Answers
from planward.reporting.comparison import Uncertainty
from planward.reporting.names import ALL, DIALECTS, PLAIN, ordered
from planward.reporting.tables import (
    ADJUSTED,
    CELL,
    RATES,
    AnyRun,
    Row,
    adjusted,
    compared,
    marked,
    rate_rows,
    result,
    seeds,
)

FOCUS, CEILING = "pointer-grpo", "oracle"  # the selector that the track is about; the one that sees the answer
PAIRS = [(a, FOCUS) for a in ("random", "similarity", "pointer-sft", "pointer-rce", CEILING)]  # a and b of b minus a
PAIRS += [("random", "similarity"), ("similarity", "pointer-sft")]

_WILSON = ["n", "successes", "success_rate", "ci_low", "ci_high", "detectable_difference"]
COLUMNS = {
    "demonstrations": ["selector", "dataset_size", "seed", "shot_num", "domain", *_WILSON],
    "demonstrations-groups": ["selector", "dataset_size", "seed", "shot_num", "dialect", *_WILSON],
    "demonstrations-cells": ["selector", "dataset_size", "dialect", "shot_num", *RATES, "best", "tied"],
    "demonstrations-paired": ["dialect", "shot_num", "dataset_size", *ADJUSTED, "result"],
    "demonstrations-shots": [
        *("selector", "dataset_size", "shot_num", "seeds", "shots", "own_domain", "own_dialect"),
        *("distinct_examples", "effective_examples"),
    ],
}  # of each table, by the name of its file


class Language(NamedTuple):
    """What a problem is written in."""

    domain: str
    dialect: int  # 0: the domain's own words


def demonstration_tables(
    outcomes: pd.DataFrame, examples: Mapping[str, Language], by: Uncertainty
) -> dict[str, pd.DataFrame]:
    """Every table of the track, by the name of its file; no rows where there are no outcomes.

    Args:
        examples: the language of every problem that may have been chosen, by its id.
    """
    if outcomes.empty:
        return {name: pd.DataFrame(columns=columns) for name, columns in COLUMNS.items()}
    grouped = outcomes.assign(dialect=np.where(outcomes["number"] > 0, DIALECTS, PLAIN))
    answers = Answers.of(grouped)
    everywhere = pd.concat([grouped.assign(domain=ALL), grouped], ignore_index=True)
    tables = {
        "demonstrations": seeds(everywhere, by.confidence, ["domain"]),
        "demonstrations-groups": seeds(grouped, by.confidence, ["dialect"]),
        "demonstrations-cells": cells(answers, by),
        "demonstrations-paired": paired(answers, by),
        "demonstrations-shots": choices(grouped, examples),
    }
    return {name: table.rename(columns={"method": "selector"})[COLUMNS[name]] for name, table in tables.items()}


def cells(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Success on all, on plain and on dialect problems, with the marks of `marked`; the ceiling stands outside them."""
    blocks = []
    for dialect in _groups(answers):
        asked = answers.mask(dialect=dialect)
        block = pd.DataFrame(rate_rows(answers, asked, by, {"dialect": dialect}))
        ceiling = block["method"] == CEILING
        blocks.append(marked(block[~ceiling], answers, asked, by.confidence))
        blocks.append(block[ceiling].assign(best=False, tied=False))
    return ordered(pd.concat(blocks), [*RUN, "dialect", "shot_num"])


def paired(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Paired comparisons of `PAIRS` on all, on plain and on dialect problems, at each N and shot_num and over all.

    A rule has no N: two of them are compared once, under N = 0. `p_holm` is adjusted, for each pair and for each kind
    of problems, over the cells of N and shot_num; over those of all shot_num together by themselves.
    """
    rows: list[Row] = []
    for dialect in _groups(answers):
        chosen = [
            ({"dialect": dialect, "shot_num": shot_num, "dataset_size": max(a[1], b[1])}, a, b)
            for names, shot_num in product(PAIRS, [ALL, *answers.shots])
            for a, b in _runs(answers, *names)
        ]
        rows += compared(answers, chosen, answers.mask(dialect=dialect), by)
    table = adjusted(rows, ["dialect", "shot_num", "dataset_size"], _family)
    verdicts = [result(p, d, 1 - by.confidence) for p, d in zip(table["p_holm"], table["difference"], strict=True)]
    return table.assign(result=verdicts)


def choices(outcomes: pd.DataFrame, examples: Mapping[str, Language]) -> pd.DataFrame:
    """What was chosen, by selector, N and shot_num, over all problems; means over seeds.

    `own_domain` and `own_dialect` are the shares of the shots in the prompts that are of the query's domain, and of
    its dialect of it. `distinct_examples` counts different ones; `effective_examples` is the exponential of the entropy
    of their use, which is that count if all are used alike and less otherwise (Hill, Ecology 54, 1973, 427-432).
    """
    rows = outcomes.explode("shot_ids").dropna(subset="shot_ids")
    spoken = [examples[shot] for shot in rows["shot_ids"]]
    own = [shot.domain == domain for shot, domain in zip(spoken, rows["domain"], strict=True)]
    same = [shot.dialect == number for shot, number in zip(spoken, rows["number"], strict=True)]
    rows = rows.assign(own_domain=own, own_dialect=np.logical_and(own, same))
    shares = rows.groupby(CELL).agg(
        seeds=("seed", "nunique"),
        shots=("shot_ids", "size"),
        own_domain=("own_domain", "mean"),
        own_dialect=("own_dialect", "mean"),
    )
    used = rows.groupby([*CELL, "seed"])["shot_ids"].agg(distinct_examples="nunique", effective_examples=_effective)
    return ordered(shares.join(used.groupby(CELL).mean()).reset_index(), CELL)


def headline(cells: pd.DataFrame) -> dict[str, float]:
    """The small table for `dvc metrics`: of each selector at its largest N, success over all numbers of shots."""
    everything = cells[cells["dialect"] == ALL]
    last = everything["dataset_size"] == everything.groupby("selector")["dataset_size"].transform("max")
    means = everything[last].groupby("selector")["success_rate"].mean()
    return {str(selector): round(float(rate), 6) for selector, rate in means.items()}


def _groups(answers: Answers) -> list[str]:
    return [ALL, *(kind for kind in (PLAIN, DIALECTS) if answers.mask(dialect=kind).any())]


def _runs(answers: Answers, a: str, b: str) -> list[tuple[AnyRun, AnyRun]]:
    """The runs of two selectors that are compared: those of the same N; a rule's with every one of the other's."""
    firsts, seconds = ([run for run in answers.solved if run[0] == name] for name in (a, b))
    return [(x, y) for x, y in product(firsts, seconds) if x[1] == y[1] or 0 in (x[1], y[1])]


def _family(row: Row) -> tuple[str, str, str, bool]:
    return row["method_a"], row["method_b"], row["dialect"], row["shot_num"] == ALL


def _effective(used: pd.Series) -> float:
    shares = used.value_counts(normalize=True).to_numpy()
    return float(np.exp(-(shares * np.log(shares)).sum()))

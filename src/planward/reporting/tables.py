"""Tables of success, computed from outcomes.

`outcomes` is a frame with one row a prediction: id, domain, bucket, constrained, method, dataset_size, seed,
shot_num, label, success. Every method answered the same problems with the same numbers of shots, every method but
base with the same seeds (`stages.compare` checks). A cell pools the seeds; see `comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from planward.records import Label
from planward.reporting.answers import RUN, Answers
from planward.reporting.comparison import DIFFERENCE, RATE, Uncertainty, differences, p_value, rates
from planward.reporting.names import ALL, ordered
from planward.reporting.statistics import holm, wilson

CELL = [*RUN, "shot_num"]
TIED = "statistically tied"
ABLATIONS = ["variant", "dataset_size", "shot_num", *RATE, "default_success_rate", "default_ci_low", "default_ci_high"]
ABLATIONS += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference"]
ABLATIONS += ["result"]


def success(answers: Answers, by: Uncertainty, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate with its interval by run, shot_num and domain (`all` included), and the columns `extra`."""
    domains = [ALL, *sorted(answers.problems["domain"].unique())]
    values = [sorted(answers.problems[column].unique()) for column in extra]
    rows = []
    for domain, *others in product(domains, *values):
        kind = {"domain": domain} | dict(zip(extra, others, strict=True))
        rows += _rates(answers, answers.mask(**kind), by, kind)
    return ordered(pd.DataFrame(rows)[[*CELL, "domain", *extra, *RATE]], [*CELL, "domain", *extra])


def shots(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """The headline table, one row a cell: rate, interval, `best` of its shot_num, `tied` with the best.

    Tied: the paired exact test against the best cell, Holm-adjusted over the column, finds no difference.
    """
    cells = ordered(pd.DataFrame(_rates(answers, answers.everything, by, {}))[[*CELL, *RATE]], CELL)
    cells["best"] = cells["success_rate"] == cells.groupby("shot_num")["success_rate"].transform("max")
    cells["tied"] = False
    for shot_num, column in cells.groupby("shot_num"):
        solved = {
            row.Index: answers.cell((row.method, row.dataset_size), shot_num, answers.everything)
            for row in column.itertuples()
        }
        best, *others = column.sort_values("best", ascending=False, kind="stable").index
        p_values = holm([p_value(solved[best], solved[other]) for other in others])
        cells.loc[others, "tied"] = [p >= 1 - by.confidence for p in p_values]
    cells["tied"] &= ~cells["best"]
    return cells


def seeds(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Success rate and Wilson interval of each single run by shot_num: how much training's luck matters."""
    keys = [*RUN, "seed", "shot_num"]
    counts = outcomes.groupby(keys)["success"].agg(n="size", successes="sum").reset_index()
    bounds = [wilson(k, n, confidence) for k, n in zip(counts["successes"], counts["n"], strict=True)]
    low, high = zip(*bounds, strict=True)
    return ordered(counts.assign(success_rate=counts["successes"] / counts["n"], ci_low=low, ci_high=high), keys)


def paired(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Paired comparisons of the methods at each N and shot_num, on the same problems.

    Differences are success of b minus success of a, in points of a hundred; `p_holm` is adjusted over the table.
    """
    chosen = [
        (shot_num, size, a, b)
        for shot_num in answers.shots
        for size in dict.fromkeys(n for _, n in answers.solved if n)
        for a, b in combinations([run for run in answers.solved if run[1] in (0, size)], 2)
    ]
    everything = answers.everything
    pairs = [tuple(answers.cell(run, shot_num, everything) for run in runs) for shot_num, _, *runs in chosen]
    found = differences(pairs, answers.strata(everything), by)  # type: ignore[arg-type]
    rows = [
        {"shot_num": shot_num, "dataset_size": size, "method_a": a[0], "method_b": b[0]} | row
        for (shot_num, size, a, b), row in zip(chosen, found, strict=True)
    ]
    return _adjusted(rows, ["shot_num", "dataset_size", "method_a", "method_b"])


def domains(answers: Answers, by: Uncertainty, a: str = "sft", b: str = "grpo") -> pd.DataFrame:
    """Paired comparisons of two methods in each domain, at each N and shot_num; `p_holm` is adjusted over the table."""
    sizes = [n for method, n in answers.solved if method == b and (a, n) in answers.solved]
    rows: list[dict[str, Any]] = []
    for domain in sorted(answers.problems["domain"].unique()):
        asked = answers.mask(domain=domain)
        chosen = list(product(answers.shots, sizes))
        pairs = [(answers.cell((a, n), k, asked), answers.cell((b, n), k, asked)) for k, n in chosen]
        rows += [
            {"shot_num": shot_num, "dataset_size": size, "domain": domain, "method_a": a, "method_b": b} | row
            for (shot_num, size), row in zip(chosen, differences(pairs, answers.strata(asked), by), strict=True)
        ]
    keys = ["shot_num", "dataset_size", "domain"]
    return _adjusted(sorted(rows, key=lambda row: [row[key] for key in keys]), [*keys, "method_a", "method_b"])


def ablations(answers: Answers, by: Uncertainty, variants: Sequence[str], size: int) -> pd.DataFrame:
    """Each variant against `grpo` at the same N, by shot_num and with all of them pooled (`all`).

    `p_holm` is adjusted over the variants, for each shot_num and for `all` apart. Empty where there is no variant.
    """
    everything, blocks = answers.everything, [pd.DataFrame()]
    strata = answers.strata(everything)
    for shot_num in [ALL, *answers.shots] if variants else []:
        default, *cells = (answers.cell((name, size), shot_num, everything) for name in ("grpo", *variants))
        reference, *own = rates([default, *cells], strata, by)
        gaps = differences([(default, cell) for cell in cells], strata, by)
        adjusted = holm([gap["p"] for gap in gaps])
        rows = [
            {"variant": name, "dataset_size": size, "shot_num": shot_num}
            | rate
            | {f"default_{key}": reference[key] for key in ("success_rate", "ci_low", "ci_high")}
            | {"difference": gap["difference"], "difference_low": gap["ci_low"], "difference_high": gap["ci_high"]}
            | {"p": gap["p"], "p_holm": p, "test": gap["test"], "detectable_difference": gap["detectable_difference"]}
            | {"result": result(p, gap["difference"], 1 - by.confidence)}
            for name, rate, gap, p in zip(variants, own, gaps, adjusted, strict=True)
        ]
        blocks.append(pd.DataFrame(rows))
    return pd.concat(blocks).reindex(columns=ABLATIONS)


def result(p_holm: float, difference: float, alpha: float) -> str:
    """A comparison in words: better, worse, or statistically tied."""
    if p_holm >= alpha:
        return TIED
    return "better" if difference > 0 else "worse"


def labels(outcomes: pd.DataFrame) -> pd.DataFrame:
    """How often each run's answers got each label, by shot_num, over all seeds; labels it never got count 0."""
    counts = outcomes.groupby([*CELL, "label"]).size().unstack(fill_value=0).stack().rename("count").reset_index()
    counts["share"] = counts["count"] / counts.groupby(CELL)["count"].transform("sum")
    return ordered(counts, [*CELL, "label"])


def constraints(outcomes: pd.DataFrame, answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Success of each run by shot_num on problems with (`constrained`) and without safety constraints.

    `safety_violations` and `safety_share` count the answers whose plan breaks a constraint; a kind of problem that
    nobody was asked has no rows.
    """
    keys = [*CELL, "constrained"]
    kinds = [{"constrained": bool(kind)} for kind in sorted(answers.problems["constrained"].unique())]
    rows = [row for kind in kinds for row in _rates(answers, answers.mask(**kind), by, kind)]
    broken = (outcomes["label"] == Label.SAFETY.value).groupby([outcomes[key] for key in keys])
    shares = broken.agg(safety_violations="sum", safety_share="mean").reset_index()
    return ordered(pd.DataFrame(rows)[[*keys, *RATE]].merge(shares, on=keys), keys)


def metrics(cells: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The small table for `dvc metrics`: for each run success at the fewest shots, mean over shots, and n."""
    return {
        f"{method}-{size}": {
            f"success_{group['shot_num'].min()}_shot": round(float(group["success_rate"].iloc[0]), 6),
            "success_mean": round(float(group["success_rate"].mean()), 6),
            "n": int(group["n"].iloc[0]),
        }
        for (method, size), group in cells.groupby(RUN)
    }


def _rates(answers: Answers, asked: Any, by: Uncertainty, kind: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of every run and shot_num on the problems `asked`; none where that is no problem."""
    if not np.any(asked):
        return []
    chosen = list(product(answers.solved, answers.shots))
    found = rates([answers.cell(run, shot_num, asked) for run, shot_num in chosen], answers.strata(asked), by)
    return [
        {"method": method, "dataset_size": size, "shot_num": shot_num} | kind | row
        for ((method, size), shot_num), row in zip(chosen, found, strict=True)
    ]


def _adjusted(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> pd.DataFrame:
    """Comparisons as a table, with Holm's adjustment over all of them beside p."""
    columns = [*keys, *DIFFERENCE]
    columns.insert(columns.index("p") + 1, "p_holm")
    table = pd.DataFrame(rows).assign(p_holm=holm([row["p"] for row in rows])) if rows else pd.DataFrame()
    return table.reindex(columns=columns)

"""Tables of success, computed from outcomes.

`outcomes` is a frame with one row a prediction: id, domain, bucket, constrained, method, dataset_size, seed,
shot_num, label, success. Every method answered the same problems with the same numbers of shots, every method but
base with the same seeds (`stages.compare` checks). A cell pools the seeds; see `comparison`. Tables of the
demonstrations track are in `demonstrations`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planward.records import Label
from planward.reporting.answers import RUN, Answers
from planward.reporting.comparison import DIFFERENCE, RATE, Uncertainty, detectable, differences, p_value, rates
from planward.reporting.names import ALL, ordered
from planward.reporting.statistics import holm, wilson

CELL = [*RUN, "shot_num"]
RATES = [*RATE, "detectable_difference"]  # of a table of rates
TIED = "statistically tied"
ABLATIONS = ["variant", "dataset_size", "shot_num", *RATE, "default_success_rate", "default_ci_low", "default_ci_high"]
ABLATIONS += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference"]
ABLATIONS += ["result"]
ADJUSTED = ["method_a", "method_b", *DIFFERENCE]
ADJUSTED.insert(ADJUSTED.index("p") + 1, "p_holm")
AnyRun = tuple[str, int]  # a method and N
Row = dict[str, Any]


def success(answers: Answers, by: Uncertainty, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate with its interval by run, shot_num and domain (`all` included), and the columns `extra`."""
    domains = [ALL, *sorted(answers.problems["domain"].unique())]
    values = [sorted(answers.problems[column].unique()) for column in extra]
    rows = []
    for domain, *others in product(domains, *values):
        kind = {"domain": domain} | dict(zip(extra, others, strict=True))
        rows += rate_rows(answers, answers.mask(**kind), by, kind)
    return ordered(pd.DataFrame(rows)[[*CELL, "domain", *extra, *RATES]], [*CELL, "domain", *extra])


def shots(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """The headline table, one row a cell: rate, interval, and the marks of `marked`."""
    cells = ordered(pd.DataFrame(rate_rows(answers, answers.everything, by, {}))[[*CELL, *RATES]], CELL)
    return marked(cells, answers, answers.everything, by.confidence)


def marked(cells: pd.DataFrame, answers: Answers, asked: NDArray[np.bool_], confidence: float) -> pd.DataFrame:
    """Cells on the problems `asked` with the columns `best` of its shot_num and `tied` with the best.

    Tied: the paired exact test against the best cell, Holm-adjusted over the column, finds no difference.
    """
    highest = cells.groupby("shot_num")["success_rate"].transform("max")
    cells = cells.assign(best=cells["success_rate"] == highest, tied=False)
    for shot_num, column in cells.groupby("shot_num"):
        solved = {
            row.Index: answers.cell((row.method, row.dataset_size), shot_num, asked) for row in column.itertuples()
        }
        best, *others = column.sort_values("best", ascending=False, kind="stable").index
        p_values = holm([p_value(solved[best], solved[other]) for other in others])
        cells.loc[others, "tied"] = [p >= 1 - confidence for p in p_values]
    cells["tied"] &= ~cells["best"]
    return cells


def seeds(outcomes: pd.DataFrame, confidence: float, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate and Wilson interval of each single run by shot_num and the columns `extra`.

    Beside each other, the runs of a method show how much training's luck matters. `detectable_difference` is that of
    single runs, whichever their seeds.
    """
    keys = [*RUN, "seed", "shot_num", *extra]
    counts = outcomes.groupby(keys)["success"].agg(n="size", successes="sum").reset_index()
    bounds = [wilson(k, n, confidence) for k, n in zip(counts["successes"], counts["n"], strict=True)]
    low, high = zip(*bounds, strict=True)
    counts = counts.assign(success_rate=counts["successes"] / counts["n"], ci_low=low, ci_high=high)
    asked = ["shot_num", *extra]
    found = {key: _detectable(own, [*RUN, "seed"], "success", confidence) for key, own in outcomes.groupby(asked)}
    counts["detectable_difference"] = [found[key] for key in counts[asked].itertuples(index=False, name=None)]
    return ordered(counts, keys)


def paired(answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Paired comparisons of the methods at each N and shot_num, on the same problems.

    Differences are success of b minus success of a, in points of a hundred; `p_holm` is adjusted over the table.
    """
    chosen = [
        ({"shot_num": shot_num, "dataset_size": size}, a, b)
        for shot_num in answers.shots
        for size in dict.fromkeys(n for _, n in answers.solved if n)
        for a, b in combinations([run for run in answers.solved if run[1] in (0, size)], 2)
    ]
    return adjusted(compared(answers, chosen, answers.everything, by), ["shot_num", "dataset_size"])


def domains(answers: Answers, by: Uncertainty, a: str = "sft", b: str = "grpo") -> pd.DataFrame:
    """Paired comparisons of two methods in each domain, at each N and shot_num; `p_holm` is adjusted over the table."""
    sizes = [n for method, n in answers.solved if method == b and (a, n) in answers.solved]
    keys = ["shot_num", "dataset_size", "domain"]
    rows: list[Row] = []
    for domain in sorted(answers.problems["domain"].unique()):
        chosen = [
            (dict(zip(keys, (k, n, domain), strict=True)), (a, n), (b, n)) for k, n in product(answers.shots, sizes)
        ]
        rows += compared(answers, chosen, answers.mask(domain=domain), by)
    return adjusted(sorted(rows, key=lambda row: [row[key] for key in keys]), keys)


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


def labels(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """How often each run's answers got each label, by shot_num, over all seeds; labels it never got count 0.

    `detectable_difference` is between two runs' shares of a label, as they got it on the same problems.
    """
    counts = outcomes.groupby([*CELL, "label"]).size().unstack(fill_value=0).stack().rename("count").reset_index()
    counts["share"] = counts["count"] / counts.groupby(CELL)["count"].transform("sum")
    found = {
        (shot_num, label): _detectable(own.assign(got=own["label"] == label), RUN, "got", confidence)
        for shot_num, own in outcomes.groupby("shot_num")
        for label in counts["label"].unique()
    }
    asked = counts[["shot_num", "label"]].itertuples(index=False, name=None)
    return ordered(counts.assign(detectable_difference=[found[key] for key in asked]), [*CELL, "label"])


def constraints(outcomes: pd.DataFrame, answers: Answers, by: Uncertainty) -> pd.DataFrame:
    """Success of each run by shot_num on problems with (`constrained`) and without safety constraints.

    `safety_violations` and `safety_share` count the answers whose plan breaks a constraint; a kind of problem that
    nobody was asked has no rows.
    """
    keys = [*CELL, "constrained"]
    kinds = [{"constrained": bool(kind)} for kind in sorted(answers.problems["constrained"].unique())]
    rows = [row for kind in kinds for row in rate_rows(answers, answers.mask(**kind), by, kind)]
    broken = (outcomes["label"] == Label.SAFETY.value).groupby([outcomes[key] for key in keys])
    shares = broken.agg(safety_violations="sum", safety_share="mean").reset_index()
    return ordered(pd.DataFrame(rows)[[*keys, *RATES]].merge(shares, on=keys), keys)


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


def rate_rows(answers: Answers, asked: NDArray[np.bool_], by: Uncertainty, kind: Row) -> list[Row]:
    """Rows of every run and shot_num on the problems `asked`; none where that is no problem.

    Beside the rate `detectable_difference`, between any two runs with the same shot_num.
    """
    if not np.any(asked):
        return []
    chosen = list(product(answers.solved, answers.shots))
    cells = [answers.cell(run, shot_num, asked) for run, shot_num in chosen]
    found = rates(cells, answers.strata(asked), by)
    smallest = {
        shot_num: detectable(
            np.stack([c.mean(axis=(0, 1)) for c, key in zip(cells, chosen, strict=True) if key[1] == shot_num]),
            by.confidence,
        )
        for shot_num in answers.shots
    }
    return [
        {"method": method, "dataset_size": size, "shot_num": shot_num}
        | kind
        | row
        | {"detectable_difference": smallest[shot_num]}
        for ((method, size), shot_num), row in zip(chosen, found, strict=True)
    ]


def compared(
    answers: Answers, chosen: Sequence[tuple[Row, AnyRun, AnyRun]], asked: NDArray[np.bool_], by: Uncertainty
) -> list[Row]:
    """A row for each comparison of two runs, a and b, on the problems `asked`.

    `chosen` holds, for each, the columns that it begins with, `shot_num` among them, and the two runs.
    """
    shots = [keys["shot_num"] for keys, _, _ in chosen]
    pairs = [(answers.cell(a, k, asked), answers.cell(b, k, asked)) for k, (_, a, b) in zip(shots, chosen, strict=True)]
    found = differences(pairs, answers.strata(asked), by)
    return [keys | {"method_a": a[0], "method_b": b[0]} | row for (keys, a, b), row in zip(chosen, found, strict=True)]


def adjusted(
    rows: Sequence[Row], keys: Sequence[str], family: Callable[[Row], Hashable] = lambda _: None
) -> pd.DataFrame:
    """Comparisons as a table that begins with the columns `keys`; beside p, Holm's adjustment over its `family`."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        members[family(row)].append(place)
    p_holm = [0.0] * len(rows)
    for places in members.values():
        for place, p in zip(places, holm([rows[place]["p"] for place in places]), strict=True):
            p_holm[place] = p
    return pd.DataFrame(rows).assign(p_holm=p_holm).reindex(columns=[*keys, *ADJUSTED])


def _detectable(outcomes: pd.DataFrame, rows: Sequence[str], value: str, confidence: float) -> float:
    """What is `detectable` of `value` between rows that the columns `rows` tell apart, on the problems they share."""
    means = outcomes.groupby([*rows, "id"])[value].mean().unstack("id")
    return detectable(means.to_numpy(np.float64), confidence)

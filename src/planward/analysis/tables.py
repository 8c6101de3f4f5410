"""Tables of success, computed from outcomes.

`outcomes` is a frame with one row a prediction: id, domain, bucket, constrained, method, dataset_size, seed,
shot_num, label, success. Every method answered the same problems with the same numbers of worked examples, every method
but base with the same seeds (`outcomes.read_outcomes` checks). A cell pools the seeds; see `cells`. Tables of the
selectors track are in `selectors`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from planward.analysis.cells import (
    DIFFERENCE_COLUMNS,
    RATE_COLUMNS,
    Uncertainty,
    compute_differences,
    compute_largest_detectable,
    compute_p_value,
    compute_rates,
)
from planward.analysis.names import ALL, sort_rows
from planward.analysis.statistics import adjust_p_values, compute_wilson_interval
from planward.analysis.success_arrays import RUN, Mask, SuccessArrays
from planward.core.verdicts import Label

CELL = [*RUN, "shot_num"]
RATES = [*RATE_COLUMNS, "detectable_difference"]  # of a table of rates
TIED = "statistically tied"
ABLATIONS = ["variant", "dataset_size", "shot_num", *RATE_COLUMNS]
ABLATIONS += ["default_success_rate", "default_ci_low", "default_ci_high"]
ABLATIONS += ["difference", "difference_low", "difference_high", "p", "p_holm", "test", "detectable_difference"]
ABLATIONS += ["result"]
ADJUSTED = ["method_a", "method_b", *DIFFERENCE_COLUMNS]
ADJUSTED.insert(ADJUSTED.index("p") + 1, "p_holm")
AnyRun = tuple[str, int]  # a method and N
Row = dict[str, Any]


def compute_success_table(success: SuccessArrays, uncertainty: Uncertainty, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate with its interval by run, shot_num and domain (`all` included), and the columns `extra`."""
    domains = [ALL, *sorted(success.problems["domain"].unique())]
    values = [sorted(success.problems[column].unique()) for column in extra]
    rows = []
    for domain, *others in product(domains, *values):
        group = {"domain": domain} | dict(zip(extra, others, strict=True))
        rows += compute_rate_rows(success, success.build_mask(**group), uncertainty, group)
    return sort_rows(pd.DataFrame(rows)[[*CELL, "domain", *extra, *RATES]], [*CELL, "domain", *extra])


def compute_headline_table(success: SuccessArrays, uncertainty: Uncertainty) -> pd.DataFrame:
    """The headline table, one row a cell: rate, interval, and the columns of `mark_best`."""
    rows = compute_rate_rows(success, success.all_problems, uncertainty, {})
    cells = sort_rows(pd.DataFrame(rows)[[*CELL, *RATES]], CELL)
    return mark_best(cells, success, success.all_problems, uncertainty.confidence)


def mark_best(cells: pd.DataFrame, success: SuccessArrays, mask: Mask, confidence: float) -> pd.DataFrame:
    """Add the columns `best` of its shot_num and `tied` with the best to cells on the problems of a mask.

    Tied: the paired exact test against the best cell, Holm-adjusted over the column, finds no difference.
    """
    highest = cells.groupby("shot_num")["success_rate"].transform("max")
    cells = cells.assign(best=cells["success_rate"] == highest, tied=False)
    for shot_num, column in cells.groupby("shot_num"):
        arrays = {
            row.Index: success.select((row.method, row.dataset_size), shot_num, mask) for row in column.itertuples()
        }
        best, *others = column.sort_values("best", ascending=False, kind="stable").index
        p_values = adjust_p_values([compute_p_value(arrays[best], arrays[other]) for other in others])
        cells.loc[others, "tied"] = [p >= 1 - confidence for p in p_values]
    cells["tied"] &= ~cells["best"]
    return cells


def compute_seeds_table(outcomes: pd.DataFrame, confidence: float, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate and Wilson interval of each single run by shot_num and the columns `extra`.

    It shows how much results vary between training seeds. `detectable_difference` is between single runs, whichever
    their seeds.
    """
    keys = [*RUN, "seed", "shot_num", *extra]
    counts = outcomes.groupby(keys)["success"].agg(n="size", successes="sum").reset_index()
    bounds = [compute_wilson_interval(k, n, confidence) for k, n in zip(counts["successes"], counts["n"], strict=True)]
    low, high = zip(*bounds, strict=True)
    counts = counts.assign(success_rate=counts["successes"] / counts["n"], ci_low=low, ci_high=high)
    groups = ["shot_num", *extra]
    detectable = {
        key: _compute_detectable(rows, [*RUN, "seed"], "success", confidence) for key, rows in outcomes.groupby(groups)
    }
    counts["detectable_difference"] = [detectable[key] for key in counts[groups].itertuples(index=False, name=None)]
    return sort_rows(counts, keys)


def compute_paired_table(success: SuccessArrays, uncertainty: Uncertainty) -> pd.DataFrame:
    """Paired comparisons of the methods at each N and shot_num, on the same problems; of untrained ones with N = 0.

    Differences are success of b minus success of a, in points; `p_holm` is adjusted over the table.
    """
    comparisons = [
        ({"shot_num": shot_num, "dataset_size": size}, a, b)
        for shot_num in success.shot_nums
        for size in dict.fromkeys([0, *(n for _, n in success.arrays)])
        for a, b in combinations([run for run in success.arrays if run[1] in (0, size)], 2)
        if size in (a[1], b[1])
    ]
    rows = compute_comparison_rows(success, comparisons, success.all_problems, uncertainty)
    return adjust_comparisons(rows, ["shot_num", "dataset_size"])


def compute_domains_table(
    success: SuccessArrays, uncertainty: Uncertainty, a: str = "sft", b: str = "grpo"
) -> pd.DataFrame:
    """Paired comparisons of two methods in each domain, at each N and shot_num; `p_holm` is adjusted over the table."""
    sizes = [n for method, n in success.arrays if method == b and (a, n) in success.arrays]
    keys = ["shot_num", "dataset_size", "domain"]
    rows: list[Row] = []
    for domain in sorted(success.problems["domain"].unique()):
        comparisons = [
            (dict(zip(keys, (k, n, domain), strict=True)), (a, n), (b, n)) for k, n in product(success.shot_nums, sizes)
        ]
        rows += compute_comparison_rows(success, comparisons, success.build_mask(domain=domain), uncertainty)
    return adjust_comparisons(sorted(rows, key=lambda row: [row[key] for key in keys]), keys)


def compute_ablations_table(
    success: SuccessArrays, uncertainty: Uncertainty, variants: Sequence[str], size: int
) -> pd.DataFrame:
    """Compare each variant with `grpo` at the same N, by shot_num and with all of them pooled (`all`).

    `p_holm` is adjusted over the variants, for each shot_num and for `all` separately. Empty without variants.
    """
    mask, blocks = success.all_problems, [pd.DataFrame()]
    strata = success.list_strata(mask)
    for shot_num in [ALL, *success.shot_nums] if variants else []:
        default, *cells = (success.select((name, size), shot_num, mask) for name in ("grpo", *variants))
        reference, *rates = compute_rates([default, *cells], strata, uncertainty)
        differences = compute_differences([(default, cell) for cell in cells], strata, uncertainty)
        adjusted_p_values = adjust_p_values([difference["p"] for difference in differences])
        rows = [
            {"variant": name, "dataset_size": size, "shot_num": shot_num}
            | rate
            | {f"default_{key}": reference[key] for key in ("success_rate", "ci_low", "ci_high")}
            | {"difference": gap["difference"], "difference_low": gap["ci_low"], "difference_high": gap["ci_high"]}
            | {"p": gap["p"], "p_holm": p, "test": gap["test"], "detectable_difference": gap["detectable_difference"]}
            | {"result": classify_result(p, gap["difference"], 1 - uncertainty.confidence)}
            for name, rate, gap, p in zip(variants, rates, differences, adjusted_p_values, strict=True)
        ]
        blocks.append(pd.DataFrame(rows))
    return pd.concat(blocks).reindex(columns=ABLATIONS)


def classify_result(p_holm: float, difference: float, alpha: float) -> str:
    """The result of a comparison: better, worse, or statistically tied."""
    if p_holm >= alpha:
        return TIED
    return "better" if difference > 0 else "worse"


def compute_labels_table(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Counts of each label by run and shot_num, over all seeds; 0 for labels that a run never had.

    `detectable_difference` is between two runs' shares of a label on the same problems.
    """
    counts = outcomes.groupby([*CELL, "label"]).size().unstack(fill_value=0).stack().rename("count").reset_index()
    counts["share"] = counts["count"] / counts.groupby(CELL)["count"].transform("sum")
    detectable = {
        (shot_num, label): _compute_detectable(rows.assign(hit=rows["label"] == label), RUN, "hit", confidence)
        for shot_num, rows in outcomes.groupby("shot_num")
        for label in counts["label"].unique()
    }
    keys = counts[["shot_num", "label"]].itertuples(index=False, name=None)
    return sort_rows(counts.assign(detectable_difference=[detectable[key] for key in keys]), [*CELL, "label"])


def compute_constraints_table(outcomes: pd.DataFrame, success: SuccessArrays, uncertainty: Uncertainty) -> pd.DataFrame:
    """Success of each run by shot_num on problems with (`constrained`) and without safety constraints.

    `safety_violations` and `safety_share` count the predictions whose plan violates a constraint; there are no rows for
    a kind of problem that the test set lacks.
    """
    keys = [*CELL, "constrained"]
    groups = [{"constrained": bool(value)} for value in sorted(success.problems["constrained"].unique())]
    rows = [
        row for group in groups for row in compute_rate_rows(success, success.build_mask(**group), uncertainty, group)
    ]
    violations = (outcomes["label"] == Label.SAFETY.value).groupby([outcomes[key] for key in keys])
    shares = violations.agg(safety_violations="sum", safety_share="mean").reset_index()
    return sort_rows(pd.DataFrame(rows)[[*keys, *RATES]].merge(shares, on=keys), keys)


def compute_metrics(cells: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The small table for `dvc metrics`: for each run success at the fewest shots, mean over shots, and n."""
    return {
        f"{method}-{size}": {
            f"success_{group['shot_num'].min()}_shot": round(float(group["success_rate"].iloc[0]), 6),
            "success_mean": round(float(group["success_rate"].mean()), 6),
            "n": int(group["n"].iloc[0]),
        }
        for (method, size), group in cells.groupby(RUN)
    }


def compute_rate_rows(success: SuccessArrays, mask: Mask, uncertainty: Uncertainty, group: Row) -> list[Row]:
    """Rows of every run and shot_num on the problems of a mask; none where it is empty.

    Beside the rate `detectable_difference`, between any two runs with the same shot_num.

    Args:
        group: further columns of every row.
    """
    if not np.any(mask):
        return []
    keys = list(product(success.arrays, success.shot_nums))
    cells = [success.select(run, shot_num, mask) for run, shot_num in keys]
    rates = compute_rates(cells, success.list_strata(mask), uncertainty)
    detectable = {
        shot_num: compute_largest_detectable(
            np.stack([cell.mean(axis=(0, 1)) for cell, key in zip(cells, keys, strict=True) if key[1] == shot_num]),
            uncertainty.confidence,
        )
        for shot_num in success.shot_nums
    }
    return [
        {"method": method, "dataset_size": size, "shot_num": shot_num}
        | group
        | rate
        | {"detectable_difference": detectable[shot_num]}
        for ((method, size), shot_num), rate in zip(keys, rates, strict=True)
    ]


def compute_comparison_rows(
    success: SuccessArrays, comparisons: Sequence[tuple[Row, AnyRun, AnyRun]], mask: Mask, uncertainty: Uncertainty
) -> list[Row]:
    """Compare pairs of runs, a and b, on the problems of a mask.

    Args:
        comparisons: of each, the columns that its row begins with, `shot_num` among them, and the two runs.
    """
    pairs = [
        (success.select(a, keys["shot_num"], mask), success.select(b, keys["shot_num"], mask))
        for keys, a, b in comparisons
    ]
    differences = compute_differences(pairs, success.list_strata(mask), uncertainty)
    return [
        keys | {"method_a": a[0], "method_b": b[0]} | difference
        for (keys, a, b), difference in zip(comparisons, differences, strict=True)
    ]


def adjust_comparisons(
    rows: Sequence[Row], keys: Sequence[str], family: Callable[[Row], Hashable] = lambda _: None
) -> pd.DataFrame:
    """Comparisons as a table that begins with the columns `keys`; beside p, Holm's adjustment over its `family`."""
    families: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        families[family(row)].append(index)
    p_holm = [0.0] * len(rows)
    for indices in families.values():
        for index, p in zip(indices, adjust_p_values([rows[index]["p"] for index in indices]), strict=True):
            p_holm[index] = p
    return pd.DataFrame(rows).assign(p_holm=p_holm).reindex(columns=[*keys, *ADJUSTED])


def _compute_detectable(outcomes: pd.DataFrame, rows: Sequence[str], value: str, confidence: float) -> float:
    """`compute_largest_detectable` of a column between rows told apart by the columns `rows`, on the same problems."""
    means = outcomes.groupby([*rows, "id"])[value].mean().unstack("id")
    return compute_largest_detectable(means.to_numpy(np.float64), confidence)

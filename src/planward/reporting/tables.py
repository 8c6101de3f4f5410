"""Tables of success, computed from outcomes.

`outcomes` is a frame with one row a prediction: id, domain, bucket, constrained, method, dataset_size, seed,
shot_num, label, success. Every method answered the same problems with the same numbers of shots (`stages.compare`
checks).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from planward.params import BUCKETS
from planward.records import Label
from planward.reporting.statistics import (
    Pairs,
    detectable_difference,
    holm,
    mcnemar_exact,
    paired_interval,
    wilson,
)

METHODS = {"base": "base", "sft": "SFT", "grpo": "GRPO"}  # in the order of every table; others follow by name
ALL = "all"  # the domain that stands for all of them
RUN = ["method", "dataset_size"]
CELL = [*RUN, "shot_num"]
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def title(method: str, size: int) -> str:
    """How a run is called in figures and text: `base`, `GRPO, N = 200`."""
    name = METHODS.get(method, method)
    return f"{name}, N = {size}" if size else name


def shots_title(shot_num: int) -> str:
    return f"{shot_num} shot{'' if shot_num == 1 else 's'}"


def percent(rate: float, low: float, high: float) -> str:
    """A rate with its interval, in percent: `57.3 [52.1, 62.4]`."""
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def rank(column: str, value: Any) -> tuple[int, Any]:
    """A sorting key: methods and buckets in their own order, the domain `all` first, the rest by value."""
    orders: dict[str, Sequence[str]] = {"method": list(METHODS), "bucket": BUCKETS, "domain": [ALL]}
    known = orders.get(column, [])
    return (known.index(value), "") if value in known else (len(known), value)


def ordered(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Rows sorted by the columns `by`, each in its own order."""
    keys = [tuple(rank(c, v) for c, v in zip(by, row, strict=True)) for row in frame[list(by)].itertuples(False)]
    return frame.iloc[sorted(range(len(keys)), key=keys.__getitem__)].reset_index(drop=True)


def success(outcomes: pd.DataFrame, confidence: float, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Success rate and Wilson interval by run, shot_num and domain (`all` included), and the columns `extra`."""
    keys = [*RUN, "seed", "shot_num", "domain", *extra]
    counts = (
        pd.concat([outcomes.assign(domain=ALL), outcomes])
        .groupby(keys)["success"]
        .agg(n="size", successes="sum")
        .reset_index()
    )
    return ordered(_with_interval(counts, confidence), [*CELL, "domain", *extra, "seed"])


def shots(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """The headline table, one row a cell: rate, interval, `best` of its shot_num, `tied` with the best.

    Tied: the paired exact McNemar test against the best cell, Holm-adjusted over the column, finds no difference.
    """
    cells = outcomes.groupby(CELL)["success"].agg(n="size", successes="sum").reset_index()
    cells = ordered(_with_interval(cells, confidence), CELL)
    cells["best"] = cells["success_rate"] == cells.groupby("shot_num")["success_rate"].transform("max")
    cells["tied"] = False
    for shot_num, column in cells.groupby("shot_num"):
        best, *others = column.sort_values("best", ascending=False, kind="stable").index
        answers = _answers(outcomes, shot_num)
        pairs = [Pairs.count(answers[_run(cells, best)], answers[_run(cells, other)]) for other in others]
        cells.loc[others, "tied"] = [p >= 1 - confidence for p in holm([mcnemar_exact(pair) for pair in pairs])]
    cells["tied"] &= ~cells["best"]
    return cells


def paired(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Paired comparisons of the methods at each N and shot_num, on the same problems.

    Differences are success of b minus success of a, in points of a hundred; `p_holm` is adjusted over the table.
    """
    runs = list(_grid(outcomes))
    sizes = [n for n in dict.fromkeys(n for _, n in runs) if n]
    rows: list[dict[str, Any]] = []
    for shot_num in sorted(outcomes["shot_num"].unique()):
        answers = _answers(outcomes, shot_num)
        for size in sizes:
            for a, b in combinations([run for run in runs if run[1] in (0, size)], 2):
                pairs = Pairs.count(answers[a], answers[b])
                low, high = paired_interval(pairs, confidence)
                rows.append(
                    {"shot_num": shot_num, "dataset_size": size, "method_a": a[0], "method_b": b[0], "n": pairs.n}
                    | {"both": pairs.both, "only_a": pairs.only_a, "only_b": pairs.only_b}
                    | {"difference": 100 * pairs.difference, "ci_low": 100 * low, "ci_high": 100 * high}
                    | {"p": mcnemar_exact(pairs)}
                    | {"detectable_difference": 100 * detectable_difference(pairs, confidence)}
                )
    columns = ["shot_num", "dataset_size", "method_a", "method_b", "n", "both", "only_a", "only_b"]
    columns += ["difference", "ci_low", "ci_high", "p", "p_holm", "detectable_difference"]
    table = pd.DataFrame(rows).assign(p_holm=holm([row["p"] for row in rows])) if rows else pd.DataFrame()
    return table.reindex(columns=columns)


def labels(outcomes: pd.DataFrame) -> pd.DataFrame:
    """How often each run's answers got each label, by shot_num; labels that a run never got count 0."""
    counts = outcomes.groupby([*CELL, "label"]).size().unstack(fill_value=0).stack().rename("count").reset_index()
    counts["share"] = counts["count"] / counts.groupby(CELL)["count"].transform("sum")
    return ordered(counts, [*CELL, "label"])


def constraints(outcomes: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Success of each run by shot_num on problems with (`constrained`) and without safety constraints.

    `safety_violations` and `safety_share` count the plans that break a constraint; a kind of problem that nobody
    was asked has no rows.
    """
    keys = [*CELL, "constrained"]
    groups = outcomes.assign(broken=outcomes["label"] == Label.SAFETY.value).groupby(keys)
    counts = groups.agg(n=("success", "size"), successes=("success", "sum"), safety_violations=("broken", "sum"))
    table = _with_interval(counts.reset_index(), confidence)
    table["safety_share"] = table["safety_violations"] / table["n"]
    columns = ["n", "successes", "success_rate", "ci_low", "ci_high", "safety_violations", "safety_share"]
    return ordered(table[[*keys, *columns]], keys)


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


def markdown(cells: pd.DataFrame) -> str:
    """The headline table in Markdown: best cells bold, tied ones with a dagger."""
    rows = _written(cells, "**{}**", "{} †", lambda text: text.replace("|", r"\|"))
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def latex(cells: pd.DataFrame, confidence: float) -> str:
    """The headline table as a LaTeX `tabular` for booktabs."""
    head, *body = _written(cells, r"\textbf{{{}}}", r"{}$^\dagger$", escape_latex)
    lines = [
        r"% Needs \usepackage{booktabs}. Success in percent with "
        f"{100 * confidence:g} % Wilson intervals; bold: best of its column;",
        "% dagger: statistically tied with the best (exact McNemar test, Holm over the column).",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return re.sub(r"[&%$#_{}~^\\]", lambda match: _LATEX[match[0]], text)


def _written(cells: pd.DataFrame, best: str, tied: str, escape: Any) -> list[list[str]]:
    rows = [["method", "N", *map(shots_title, sorted(cells["shot_num"].unique()))]]
    for method, size in _grid(cells):
        run = cells[(cells["method"] == method) & (cells["dataset_size"] == size)].sort_values("shot_num")
        texts = [
            (best if c.best else tied if c.tied else "{}").format(percent(c.success_rate, c.ci_low, c.ci_high))
            for c in run.itertuples()
        ]
        rows.append([escape(METHODS.get(method, method)), str(size), *texts])
    return rows


def _with_interval(counts: pd.DataFrame, confidence: float) -> pd.DataFrame:
    bounds = [wilson(k, n, confidence) for k, n in zip(counts["successes"], counts["n"], strict=True)]
    low, high = zip(*bounds, strict=True)
    return counts.assign(success_rate=counts["successes"] / counts["n"], ci_low=low, ci_high=high)


def _grid(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return [(str(m), int(n)) for m, n in ordered(frame[RUN].drop_duplicates(), RUN).itertuples(index=False)]


def _run(cells: pd.DataFrame, row: Hashable) -> tuple[str, int]:
    return str(cells.at[row, "method"]), int(cells.at[row, "dataset_size"])


def _answers(outcomes: pd.DataFrame, shot_num: Any) -> dict[tuple[str, int], list[bool]]:
    """Success of each run on each problem, in one order of problems."""
    one = outcomes[outcomes["shot_num"] == shot_num].sort_values("id", kind="stable")
    return {(str(m), int(n)): list(group["success"]) for (m, n), group in one.groupby(RUN)}

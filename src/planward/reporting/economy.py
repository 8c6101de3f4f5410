"""Tables of the economy: what models decide for households, and what it is worth.

`answers` is a frame with one row a prediction, made by `answer_rows`. Every method answered the same problems with the
same numbers of worked examples. A cell (`CELL`) pools the seeds; see `households` for measures and their intervals.
`naive` is a frame with one row a decision of a baseline, made by `baselines.baseline_rows` for the same problems.
Rewards are in [-1, 1], `work` and `consumption` in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from planward.records import METHODS, Prediction, Record
from planward.reporting.answers import RUN
from planward.reporting.comparison import Uncertainty
from planward.reporting.households import Estimate, Households
from planward.reporting.names import ordered, rank
from planward.reporting.statistics import holm, wilson
from planward.reporting.tables import CELL, Row, result
from planward.tasks.economy.decisions import Decision, NotADecision, lenient, strict

QUANTITIES = ("work", "consumption")
REFERENCE = "reference"  # the method that stands for the reference decisions
BIN, WIDE_BIN = 0.05, 0.1  # of histograms; of reference decisions
ENOUGH = 500  # answers behind the requirements, at least
REQUIREMENTS = ("answers", "parse_rate", "minus_one_share", "work_sd", "consumption_sd", "reward_gain")
YES, NO, UNCLEAR = "yes", "no", "unclear"

_BOUNDS = ("", "_low", "_high")
COLUMNS = {
    "decisions": [
        *(*CELL, "seeds", "households", "n", "parse_rate", "lenient_parse_rate", "minus_one_share"),
        *(f"{name}{end}" for name in ("reward", "good") for end in (*_BOUNDS, "_detectable_difference")),
        *(f"{name}_{kind}{end}" for name in QUANTITIES for kind in ("mean", "sd") for end in _BOUNDS),
    ],
    "paired": [
        *("shot_num", "dataset_size", "method_a", "method_b", "seeds", "households", "n", "reward_a", "reward_b"),
        *("difference", "ci_low", "ci_high", "p", "p_holm", "test", "detectable_difference", "result"),
    ],
    "collapse": [
        *(*RUN, "seed", "shot_num", "n", "distinct", "most_frequent_share"),
        *(f"{name}_{kind}{end}" for name in QUANTITIES for kind in ("sd", "correlation") for end in _BOUNDS),
        "collapsed",
    ],
    "requirements": [*CELL, "requirement", "seeds", "n", "value", "ci_low", "ci_high", "bound", "holds"],
    "histograms": ["method", "dataset_size", "shot_num", "quantity", "low", "high", "count", "share"],
    "against-reference": [
        *("method", "dataset_size", "shot_num", "quantity", "low", "high", "n", "mean", "quartile_1", "quartile_3"),
    ],
    "baselines": [
        *("baseline", "n", "households", *(f"{name}{end}" for name in ("reward", "good") for end in _BOUNDS)),
        *(f"{name}_{kind}" for name in QUANTITIES for kind in ("mean", "sd")),
        *(f"grpo_minus{end}" for end in (*_BOUNDS, "_detectable_difference")),
    ],
}  # of each table, by the name of its file


def answer_rows(predictions: Iterable[Prediction], problems: Mapping[str, Record]) -> pd.DataFrame:
    """The frame that every table is computed from, one row a prediction.

    `strict` and `lenient`: whether that parser reads a decision; `work` and `consumption` are the strict one's, NaN
    where there is none, and `reference_work` and `reference_consumption` those of the problem's reference decision.

    Args:
        problems: the test problems by id; `meta.household` says whose month one is.

    Raises:
        KeyError: a prediction is on no such problem, or that has no household; the argument is its id.
    """
    known: dict[str, tuple[str, Decision | None]] = {}
    for problem in problems.values():
        household = (problem.meta.model_extra or {}).get("household")
        if household is not None:
            known[problem.id] = str(household), _decision(problem.response or "")
    rows = []
    for answer in predictions:
        household, reference = known[answer.id]
        found = _decision(answer.completion)
        rows.append(
            {"id": answer.id, "household": household, "method": answer.method, "dataset_size": answer.dataset_size}
            | {"seed": answer.seed, "shot_num": answer.shot_num, "reward": answer.reward, "good": answer.success}
            | {"strict": found is not None, "lenient": lenient(answer.completion) is not None}
            | {name: getattr(found, name, np.nan) for name in QUANTITIES}
            | {f"reference_{name}": getattr(reference, name, np.nan) for name in QUANTITIES}
        )
    return pd.DataFrame(rows)


def analysis(
    answers: pd.DataFrame, naive: pd.DataFrame, collapse_sd: float, by: Uncertainty
) -> dict[str, pd.DataFrame]:
    """Every table by the name of its file.

    Args:
        collapse_sd: the standard deviation of decisions from which a model has not collapsed.
    """
    draws = Households(answers["household"], by)
    gains, spreads = paired(answers, draws), collapse(answers, collapse_sd, draws)
    tables = {
        "decisions": decisions(answers, draws),
        "paired": gains,
        "collapse": spreads,
        "requirements": requirements(answers, gains, spreads, collapse_sd, by.confidence),
        "histograms": histograms(answers),
        "against-reference": against_reference(answers),
        "baselines": baselines(naive, answers, draws),
    }
    return {name: table.reindex(columns=COLUMNS[name]) for name, table in tables.items()}


def decisions(answers: pd.DataFrame, draws: Households) -> pd.DataFrame:
    """What each run decides by shot_num: how much can be read, how good it is, its mean and standard deviation.

    Parse rates and `minus_one_share` (of rewards that are -1) are shares of the answers of all seeds; decisions are
    those that the strict parser reads. `reward_detectable_difference`, in units of reward, and
    `good_detectable_difference`, in points of a hundred, are between any two runs with the same shot_num.
    """
    rows, smallest = [], {}
    for shot_num, asked in answers.groupby("shot_num"):
        runs = [cell for _, cell in asked.groupby(RUN)]
        found = {"reward": draws.detectable(runs, "reward"), "good": 100 * draws.detectable(runs, "good")}
        smallest[shot_num] = {f"{name}_detectable_difference": value for name, value in found.items()}
    for keys, cell in answers.groupby(CELL):
        row: Row = dict(zip(CELL, keys, strict=True)) | _counts(cell)
        row |= {"parse_rate": cell["strict"].mean(), "lenient_parse_rate": cell["lenient"].mean()}
        row |= {"minus_one_share": (cell["reward"] == -1).mean()}
        row |= _named("reward", draws.mean(cell, "reward")) | _named("good", draws.mean(cell, "good"))
        for name in QUANTITIES:
            row |= _named(f"{name}_mean", draws.mean(cell, name)) | _named(f"{name}_sd", draws.spread(cell, name))
        rows.append(row | smallest[row["shot_num"]])
    return ordered(pd.DataFrame(rows), CELL)


def paired(answers: pd.DataFrame, draws: Households) -> pd.DataFrame:
    """Reward of b minus reward of a on the same problems, for every two methods at each N and shot_num.

    Runs of the same seed are compared, base's one run with each. `p_holm` is adjusted over the table.
    """
    cells = {(str(m), int(n), int(k)): cell for (m, n, k), cell in answers.groupby(CELL)}
    sizes = sorted({n for _, n, _ in cells if n})
    rows: list[Row] = []
    for shot_num in sorted({k for _, _, k in cells}):
        for size in sizes:
            runs = sorted((run for run in cells if run[1] in (0, size) and run[2] == shot_num), key=_by_method)
            for a, b in combinations(runs, 2):
                gaps = differences(cells[a], cells[b])
                gain = draws.mean(gaps, "difference")
                rows.append(
                    {"shot_num": shot_num, "dataset_size": size, "method_a": a[0], "method_b": b[0]}
                    | _counts(gaps)
                    | {"reward_a": gaps["reward_a"].mean(), "reward_b": gaps["reward_b"].mean()}
                    | {"difference": gain.value, "ci_low": gain.low, "ci_high": gain.high}
                    | {"p": draws.p_value(gaps, "difference"), "test": "sign-flip of households"}
                    | {"detectable_difference": draws.detectable([cells[a], cells[b]], "reward")}
                )
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS["paired"] if name not in ("p_holm", "result")])
    table["p_holm"] = holm(list(table["p"]))
    alpha = 1 - draws.by.confidence
    table["result"] = [result(p, d, alpha) for p, d in zip(table["p_holm"], table["difference"], strict=True)]
    return table


def differences(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Answers of two cells to the same problems side by side: id, household, seed, reward_a, reward_b, difference.

    Answers of the same seed belong together; the one run of a cell with one seed stands against each of the other's.

    Raises:
        ValueError: the cells do not answer the same problems, each once a seed.
    """
    left, right = (cell.pivot(index="id", columns="seed", values="reward") for cell in (a, b))
    if not left.index.equals(right.index) or left.isna().any(axis=None) or right.isna().any(axis=None):
        raise ValueError("two methods answered different problems; evaluate both on the same test split")
    seeds = max(left.columns, right.columns, key=len)
    first, second = np.broadcast_arrays(left.to_numpy(), right.to_numpy())
    both = pd.DataFrame({"id": np.repeat(left.index, len(seeds)), "seed": np.tile(seeds, len(left))})
    both["household"] = both["id"].map(a.drop_duplicates("id").set_index("id")["household"])
    return both.assign(reward_a=first.ravel(), reward_b=second.ravel(), difference=(second - first).ravel())


def collapse(answers: pd.DataFrame, collapse_sd: float, draws: Households) -> pd.DataFrame:
    """Whether a run, of one seed, gives nearly the same decision to every state, by shot_num.

    `collapsed`: the standard deviation of work or of consumption is not shown to reach `collapse_sd`, since the lower
    end of its interval does not, or there is no decision. Beside it, over the n answers that are decisions: how many
    are distinct, the share of the most frequent one, and Spearman's correlation with the reference decisions.
    """
    keys, rows = [*RUN, "seed", "shot_num"], []
    for values, run in answers.groupby(keys):
        read = run[run["strict"]]
        each = read.groupby(list(QUANTITIES)).size()
        spreads = {name: draws.spread(run, name) for name in QUANTITIES}
        row: Row = dict(zip(keys, values, strict=True)) | {"n": len(read), "distinct": len(each)}
        row |= {"most_frequent_share": each.max() / len(read) if len(read) else np.nan}
        for name, spread in spreads.items():
            row |= _named(f"{name}_sd", spread)
            row |= _named(f"{name}_correlation", draws.correlation(run, name, f"reference_{name}"))
        rows.append(row | {"collapsed": not all(spread.low >= collapse_sd for spread in spreads.values())})
    return ordered(pd.DataFrame(rows), keys)


def requirements(
    answers: pd.DataFrame, gains: pd.DataFrame, spreads: pd.DataFrame, collapse_sd: float, confidence: float
) -> pd.DataFrame:
    """What must hold of every trained run at the fewest worked examples, a row each; `holds`: yes, no or unclear.

    Shares count problems, with Wilson's interval: one counts as parsed where the answers of all seeds are, and as -1
    where that of any is; these hold or not by the answers themselves. A standard deviation is that of the seed where
    it is smallest. It and the gain in reward over base, on the same problems, hold where the whole interval does, and
    are unclear where a part does.

    Args:
        gains: what `paired` returns.
        spreads: what `collapse` returns.
    """
    fewest = answers["shot_num"].min()
    rows: list[Row] = []
    trained = answers[(answers["shot_num"] == fewest) & (answers["dataset_size"] > 0)]
    for keys, cell in trained.groupby(CELL):
        size, n, seeds = keys[1], cell["id"].nunique(), cell["seed"].nunique()
        by_problem = cell.groupby("id").agg(parsed=("strict", "all"), lowest=("reward", "min"))
        parsed, minus_ones = int(by_problem["parsed"].sum()), int((by_problem["lowest"] == -1).sum())
        found: dict[str, tuple[Estimate, float, str]] = {
            "answers": (Estimate(n, np.nan, np.nan), ENOUGH, _yes(n >= ENOUGH)),
            "parse_rate": (_share(parsed, n, confidence), 1.0, _yes(parsed == n)),
            "minus_one_share": (_share(minus_ones, n, confidence), 0.0, _yes(minus_ones == 0)),
        }
        own = spreads[(spreads[CELL] == list(keys)).all(axis=1)]
        for name in QUANTITIES:
            smallest = own.sort_values(f"{name}_sd", na_position="first", kind="stable").iloc[0]
            spread = Estimate(*(float(smallest[f"{name}_sd{end}"]) for end in _BOUNDS))
            found[f"{name}_sd"] = spread, collapse_sd, _reaches(spread, collapse_sd)
        here = gains[(gains["method_a"] == METHODS[0]) & (gains["method_b"] == keys[0])]
        for row in here[(here["dataset_size"] == size) & (here["shot_num"] == fewest)].itertuples():
            gain = Estimate(row.difference, row.ci_low, row.ci_high)
            found["reward_gain"] = gain, 0.0, _reaches(gain, 0.0)
        for name, (estimate, bound, holds) in found.items():
            rows.append(
                dict(zip(CELL, keys, strict=True))
                | {"requirement": name, "seeds": seeds, "n": n, "value": estimate.value}
                | {"ci_low": estimate.low, "ci_high": estimate.high, "bound": bound, "holds": holds}
            )
    return ordered(pd.DataFrame(rows, columns=COLUMNS["requirements"]), CELL)


def histograms(answers: pd.DataFrame) -> pd.DataFrame:
    """Counts of work, consumption and reward in bins of `BIN`, of each method at its largest N and fewest examples.

    A bin holds its lower end; the last one both. Answers of all seeds count, decisions that the strict parser reads.
    The method `reference` stands for the reference decisions.
    """
    rows: list[Row] = []
    for keys, cell in _last(answers):
        for quantity, low in (("work", 0.0), ("consumption", 0.0), ("reward", -1.0)):
            rows += [dict(keys) | row for row in _histogram(cell[quantity], quantity, low)]
    reference = answers.drop_duplicates("id")
    for quantity in QUANTITIES:
        keys = {"method": REFERENCE, "dataset_size": 0, "shot_num": answers["shot_num"].min()}
        rows += [keys | row for row in _histogram(reference[f"reference_{quantity}"], quantity, 0.0)]
    return pd.DataFrame(rows)


def against_reference(answers: pd.DataFrame) -> pd.DataFrame:
    """Decisions by the reference decision, in bins of `WIDE_BIN`: how many, their mean, first and third quartile.

    Of each method at its largest N and fewest examples; answers of all seeds.
    """
    rows: list[Row] = []
    for keys, cell in _last(answers):
        for quantity in QUANTITIES:
            read = cell[[quantity, f"reference_{quantity}"]].dropna()
            edges = _edges(0.0, WIDE_BIN)
            place = np.minimum(np.searchsorted(edges, read[f"reference_{quantity}"], side="right"), len(edges) - 1)
            for at, inside in read[quantity].groupby(place):
                first, third = np.quantile(inside, [0.25, 0.75])
                rows.append(
                    dict(keys)
                    | {"quantity": quantity, "low": edges[at - 1], "high": edges[at], "n": len(inside)}
                    | {"mean": inside.mean(), "quartile_1": first, "quartile_3": third}
                )
    return pd.DataFrame(rows, columns=COLUMNS["against-reference"])


def baselines(naive: pd.DataFrame, answers: pd.DataFrame, draws: Households) -> pd.DataFrame:
    """How good the decisions of each baseline are, a row each; n counts problems.

    `grpo_minus`: GRPO's mean reward at its largest N and fewest worked examples, minus the baseline's on the same
    problems; missing without GRPO. A baseline that decides a problem several times has the mean of these rewards.
    """
    grpo = next((cell for keys, cell in _last(answers) if keys["method"] == "grpo"), None)
    rows: list[Row] = []
    for name, chosen in naive.assign(seed=0).groupby("baseline", sort=False):
        row: Row = {"baseline": name, "n": chosen["id"].nunique(), "households": chosen["household"].nunique()}
        row |= _named("reward", draws.mean(chosen, "reward")) | _named("good", draws.mean(chosen, "good"))
        for quantity in QUANTITIES:
            values, middle = chosen[quantity], chosen[quantity].median()  # less the median, a constant's spread is 0
            row |= {f"{quantity}_mean": values.mean(), f"{quantity}_sd": (values - middle).std(ddof=0)}
        if grpo is not None:
            other = grpo["id"].map(chosen.groupby("id")["reward"].mean())
            row |= _named("grpo_minus", draws.mean(grpo.assign(difference=grpo["reward"] - other), "difference"))
            row["grpo_minus_detectable_difference"] = draws.detectable([grpo, chosen], "reward")
        rows.append(row)
    return pd.DataFrame(rows)


def headline(answers: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """The small table for `dvc metrics`: every run at the fewest worked examples, the requirements' values for the
    last method at its largest N with how many of them hold, and on the same problems the reference decisions and the
    baselines."""
    cells, required = tables["decisions"], tables["requirements"]
    measures = ["reward", "good", "parse_rate", "work_sd", "consumption_sd"]
    runs = {
        f"{row['method']}-{row['dataset_size']}": {name: _rounded(row[name]) for name in measures} | {"n": row["n"]}
        for row in cells[cells["shot_num"] == cells["shot_num"].min()].to_dict("records")
    }
    metrics: dict[str, Any] = {"runs": runs, "reference": reference_metrics(answers)}
    metrics["baselines"] = {
        str(row.baseline): {"reward": _rounded(row.reward), "good": _rounded(row.good)}
        for row in tables["baselines"].itertuples()
    }
    last = focus(required)
    if len(last):
        holds = {"required": len(last), "hold": int((last["holds"] == YES).sum())}
        values = {str(row.requirement): _rounded(row.value) for row in last.itertuples()}
        metrics["must_hold"] = values | holds
    return metrics


def reference_metrics(answers: pd.DataFrame) -> dict[str, float]:
    """Mean and standard deviation of the reference decisions, one a problem, and how many households and problems."""
    each = answers.drop_duplicates("id")
    metrics: dict[str, float] = {"households": int(each["household"].nunique()), "n": len(each)}
    for name in QUANTITIES:
        values = each[f"reference_{name}"]
        metrics |= {f"{name}_mean": _rounded(values.mean()), f"{name}_sd": _rounded(values.std(ddof=0))}
    return metrics


def focus(required: pd.DataFrame) -> pd.DataFrame:
    """The requirements of the last method at its largest N."""
    if required.empty:
        return required
    method = max(required["method"], key=lambda name: rank("method", name))
    own = required[required["method"] == method]
    return own[own["dataset_size"] == own["dataset_size"].max()]


def _decision(text: str) -> Decision | None:
    try:
        return strict(text)
    except NotADecision:
        return None


def _last(answers: pd.DataFrame) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Keys and answers of each method at its largest N and fewest worked examples, in the order of every table."""
    fewest = answers[answers["shot_num"] == answers["shot_num"].min()]
    last = fewest[fewest["dataset_size"] == fewest.groupby("method")["dataset_size"].transform("max")]
    groups = dict(iter(last.groupby(CELL)))
    for key in sorted(groups, key=_by_method):
        yield dict(zip(CELL, key, strict=True)), groups[key]


def _by_method(cell: tuple[Any, ...]) -> Any:
    return rank("method", cell[0])


def _histogram(values: pd.Series, quantity: str, low: float) -> list[Row]:
    edges = _edges(low, BIN)
    counts, _ = np.histogram(values.dropna(), edges)
    return [
        {"quantity": quantity, "low": a, "high": b, "count": int(count), "share": count / max(counts.sum(), 1)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def _edges(low: float, width: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bounds of bins from `low` to 1, as the decimal numbers that they are."""
    return np.round(np.linspace(low, 1.0, round((1.0 - low) / width) + 1), 10)


def _counts(cell: pd.DataFrame) -> Row:
    return {
        name: cell[column].nunique() for name, column in (("seeds", "seed"), ("households", "household"), ("n", "id"))
    }


def _named(name: str, estimate: Estimate) -> Row:
    return {f"{name}{end}": value for end, value in zip(_BOUNDS, estimate, strict=True)}


def _share(count: int, n: int, confidence: float) -> Estimate:
    return Estimate(count / n, *wilson(count, n, confidence))


def _yes(holds: bool) -> str:
    return YES if holds else NO


def _reaches(estimate: Estimate, bound: float) -> str:
    """Whether an interval lies from `bound` on; no where all of it lies below, or where there is none."""
    return YES if estimate.low >= bound else UNCLEAR if estimate.high >= bound else NO


def _rounded(value: float) -> float:
    return round(float(value), 6)

"""Tables of the economy: the decisions of each model, and their rewards.

`answers` has one row per prediction (`build_answers`); every method answered the same problems with the same numbers of
worked examples. `naive` has one row per decision of a baseline on these problems (`baselines.build_baselines`). A cell
(`CELL`) pools the seeds; see `analysis.clusters` for measures and their intervals. Rewards are in [-1, 1], `work` and
`consumption` in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.clusters import ClusterBootstrap, Estimate, pair_predictions
from planward.analysis.names import sort_key, sort_rows
from planward.analysis.outcomes import PredictionsError, list_prediction_files, read_outcomes
from planward.analysis.statistics import adjust_p_values, compute_wilson_interval
from planward.analysis.success_arrays import RUN
from planward.analysis.tables import CELL, Row, classify_result
from planward.core.paths import Results
from planward.core.records import Prediction, Record, read_predictions, read_records
from planward.params import METHODS
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.economy.environment.decisions import (
    Decision,
    InvalidDecision,
    parse_decision,
    parse_decision_leniently,
)
from planward.tasks.economy.reporting.baselines import build_baselines
from planward.tasks.economy.task import EconomyTask

QUANTITIES = ("work", "consumption")
REFERENCE = "reference"  # the method that stands for the reference decisions
BIN_WIDTH, REFERENCE_BIN_WIDTH = 0.05, 0.1  # of histograms; of reference decisions
MIN_ANSWERS = 500  # that the requirements need
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
}  # of each table, by file name


def analyse(params: EconomyParams, results: Results) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Compute every table by file name, and their metrics, from the predictions of all requested runs but variants.

    Raises:
        PredictionsError: as `read_outcomes` raises it, or a prediction is on a problem outside the test split.
        ValueError: the training split is too small for the baselines; the message says what is missing.
    """
    read_outcomes(results.predictions, params)  # checks that the files can be compared
    test, train = (list(read_records(results.score / f"{split}.jsonl")) for split in ("test", "train"))
    predictions = (
        prediction
        for path, run in list_prediction_files(results.predictions, params).items()
        if run.method in METHODS
        for prediction in read_predictions(path)
    )
    try:
        answers = build_answers(predictions, {problem.id: problem for problem in test})
    except KeyError as error:
        raise PredictionsError(
            f"{results.predictions}: {results.score / 'test.jsonl'} has no problem {error.args[0]!r} of a household; "
            "fix: run `evaluate` again on this split"
        ) from None
    answered_ids = set(answers["id"])
    task = EconomyTask(params, results.problems)
    naive = build_baselines([problem for problem in test if problem.id in answered_ids], train, task, params)
    uncertainty = Uncertainty(params.compare.confidence, params.compare.resamples, params.seed)
    tables = compute_tables(answers, naive, params.economy.collapse_sd, uncertainty)
    return tables, build_metrics(answers, tables)


def build_answers(predictions: Iterable[Prediction], problems: Mapping[str, Record]) -> pd.DataFrame:
    """Build the frame that every table is computed from, one row per prediction.

    `strict` and `lenient`: whether that parser accepts the completion. `work` and `consumption` are the strict
    parser's, NaN where it rejects the completion; `reference_work` and `reference_consumption` the reference's.

    Args:
        problems: the test problems by id, with `meta.household`.

    Raises:
        KeyError: a prediction is on no such problem, or that has no household; the argument is its id.
    """
    references_by_id: dict[str, tuple[str, Decision | None]] = {}
    for problem in problems.values():
        household = (problem.meta.model_extra or {}).get("household")
        if household is not None:
            references_by_id[problem.id] = str(household), _parse(problem.response or "")
    rows = []
    for answer in predictions:
        household, reference = references_by_id[answer.id]
        decision = _parse(answer.completion)
        rows.append(
            {"id": answer.id, "household": household, "method": answer.method, "dataset_size": answer.dataset_size}
            | {"seed": answer.seed, "shot_num": answer.shot_num, "reward": answer.reward, "good": answer.success}
            | {"strict": decision is not None, "lenient": parse_decision_leniently(answer.completion) is not None}
            | {name: getattr(decision, name, np.nan) for name in QUANTITIES}
            | {f"reference_{name}": getattr(reference, name, np.nan) for name in QUANTITIES}
        )
    return pd.DataFrame(rows)


def compute_tables(
    answers: pd.DataFrame, naive: pd.DataFrame, collapse_sd: float, uncertainty: Uncertainty
) -> dict[str, pd.DataFrame]:
    """Compute every table by file name.

    Args:
        collapse_sd: standard deviation of decisions below which a model has collapsed.
    """
    bootstrap = ClusterBootstrap(answers["household"], uncertainty)
    gains, spreads = compute_paired_differences(answers, bootstrap), compute_collapse(answers, collapse_sd, bootstrap)
    tables = {
        "decisions": compute_decisions(answers, bootstrap),
        "paired": gains,
        "collapse": spreads,
        "requirements": compute_requirements(answers, gains, spreads, collapse_sd, uncertainty.confidence),
        "histograms": compute_histograms(answers),
        "against-reference": compute_against_reference(answers),
        "baselines": compute_baselines(naive, answers, bootstrap),
    }
    return {name: table.reindex(columns=COLUMNS[name]) for name, table in tables.items()}


def compute_decisions(answers: pd.DataFrame, bootstrap: ClusterBootstrap) -> pd.DataFrame:
    """Compute parse rates, rewards and the distribution of decisions, by run and shot_num.

    Parse rates and `minus_one_share` (of rewards that are -1) are shares of the answers of all seeds; decisions are
    those that the strict parser accepts. `reward_detectable_difference`, in units of reward, and
    `good_detectable_difference`, in percentage points, are between any two runs with the same shot_num.
    """
    rows, smallest = [], {}
    for shot_num, part in answers.groupby("shot_num"):
        runs = [cell for _, cell in part.groupby(RUN)]
        detectable = {
            "reward": bootstrap.compute_detectable_difference(runs, "reward"),
            "good": 100 * bootstrap.compute_detectable_difference(runs, "good"),
        }
        smallest[shot_num] = {f"{name}_detectable_difference": value for name, value in detectable.items()}
    for keys, cell in answers.groupby(CELL):
        row: Row = dict(zip(CELL, keys, strict=True)) | _count(cell)
        row |= {"parse_rate": cell["strict"].mean(), "lenient_parse_rate": cell["lenient"].mean()}
        row |= {"minus_one_share": (cell["reward"] == -1).mean()}
        for name in ("reward", "good"):
            row |= _flatten(name, bootstrap.estimate_mean(cell, name))
        for name in QUANTITIES:
            row |= _flatten(f"{name}_mean", bootstrap.estimate_mean(cell, name))
            row |= _flatten(f"{name}_sd", bootstrap.estimate_sd(cell, name))
        rows.append(row | smallest[row["shot_num"]])
    return sort_rows(pd.DataFrame(rows), CELL)


def compute_paired_differences(answers: pd.DataFrame, bootstrap: ClusterBootstrap) -> pd.DataFrame:
    """Compute the reward of b minus that of a on the same problems, for any two methods at each N and shot_num.

    Runs of the same seed are compared, base's only run with each. `p_holm` is corrected over the table.
    """
    cells = {(str(m), int(n), int(k)): cell for (m, n, k), cell in answers.groupby(CELL)}
    sizes = sorted({n for _, n, _ in cells if n})
    rows: list[Row] = []
    for shot_num in sorted({k for _, _, k in cells}):
        for size in sizes:
            runs = sorted((run for run in cells if run[1] in (0, size) and run[2] == shot_num), key=_rank_method)
            for a, b in combinations(runs, 2):
                pairs = pair_predictions(cells[a], cells[b], "reward", "household")
                gain = bootstrap.estimate_mean(pairs, "difference")
                rows.append(
                    {"shot_num": shot_num, "dataset_size": size, "method_a": a[0], "method_b": b[0]}
                    | _count(pairs)
                    | {"reward_a": pairs["reward_a"].mean(), "reward_b": pairs["reward_b"].mean()}
                    | {"difference": gain.value, "ci_low": gain.low, "ci_high": gain.high}
                    | {"p": bootstrap.compute_p_value(pairs, "difference"), "test": "sign-flip of households"}
                    | {"detectable_difference": bootstrap.compute_detectable_difference([cells[a], cells[b]], "reward")}
                )
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS["paired"] if name not in ("p_holm", "result")])
    table["p_holm"] = adjust_p_values(list(table["p"]))
    alpha = 1 - bootstrap.uncertainty.confidence
    table["result"] = [classify_result(p, d, alpha) for p, d in zip(table["p_holm"], table["difference"], strict=True)]
    return table


def compute_collapse(answers: pd.DataFrame, collapse_sd: float, bootstrap: ClusterBootstrap) -> pd.DataFrame:
    """Compute whether the run of one seed gives nearly the same decision for every state, by shot_num.

    `collapsed`: the interval of the standard deviation of work or consumption begins below `collapse_sd`, or there is
    no decision. The other columns describe the n answers that are decisions: number of distinct ones, share of the most
    frequent one, and Spearman's correlation with the reference decisions.
    """
    keys, rows = [*RUN, "seed", "shot_num"], []
    for values, run in answers.groupby(keys):
        parsed_answers = run[run["strict"]]
        frequencies = parsed_answers.groupby(list(QUANTITIES)).size()
        spreads = {name: bootstrap.estimate_sd(run, name) for name in QUANTITIES}
        row: Row = dict(zip(keys, values, strict=True)) | {"n": len(parsed_answers), "distinct": len(frequencies)}
        row |= {"most_frequent_share": frequencies.max() / len(parsed_answers) if len(parsed_answers) else np.nan}
        for name, spread in spreads.items():
            row |= _flatten(f"{name}_sd", spread)
            row |= _flatten(f"{name}_correlation", bootstrap.estimate_correlation(run, name, f"reference_{name}"))
        rows.append(row | {"collapsed": not all(spread.low >= collapse_sd for spread in spreads.values())})
    return sort_rows(pd.DataFrame(rows), keys)


def compute_requirements(
    answers: pd.DataFrame, gains: pd.DataFrame, spreads: pd.DataFrame, collapse_sd: float, confidence: float
) -> pd.DataFrame:
    """Check the requirements on every trained run with the fewest worked examples; `holds`: yes, no or unclear.

    Shares count problems, with Wilson's interval: a problem counts as parsed where the answers of all seeds are parsed,
    and as -1 where any of them has reward -1; the share itself decides. A standard deviation is the smallest over
    seeds. The standard deviations and the gain in reward over base, on the same problems, hold where the whole interval
    meets the bound, and are unclear where part of it does.

    Args:
        gains: of `compute_paired_differences`.
        spreads: of `compute_collapse`.
    """
    fewest = answers["shot_num"].min()
    rows: list[Row] = []
    trained_answers = answers[(answers["shot_num"] == fewest) & (answers["dataset_size"] > 0)]
    for keys, cell in trained_answers.groupby(CELL):
        size, n, seeds = keys[1], cell["id"].nunique(), cell["seed"].nunique()
        by_problem = cell.groupby("id").agg(parsed=("strict", "all"), lowest=("reward", "min"))
        num_parsed, minus_ones = int(by_problem["parsed"].sum()), int((by_problem["lowest"] == -1).sum())
        checks: dict[str, tuple[Estimate, float, str]] = {
            "answers": (Estimate(n, np.nan, np.nan), MIN_ANSWERS, _format_holds(n >= MIN_ANSWERS)),
            "parse_rate": (_estimate_share(num_parsed, n, confidence), 1.0, _format_holds(num_parsed == n)),
            "minus_one_share": (_estimate_share(minus_ones, n, confidence), 0.0, _format_holds(minus_ones == 0)),
        }
        by_seed = spreads[(spreads[CELL] == list(keys)).all(axis=1)]
        for name in QUANTITIES:
            smallest = by_seed.sort_values(f"{name}_sd", na_position="first", kind="stable").iloc[0]
            spread = Estimate(*(float(smallest[f"{name}_sd{end}"]) for end in _BOUNDS))
            checks[f"{name}_sd"] = spread, collapse_sd, _compare_interval(spread, collapse_sd)
        over_base = gains[(gains["method_a"] == METHODS[0]) & (gains["method_b"] == keys[0])]
        for row in over_base[(over_base["dataset_size"] == size) & (over_base["shot_num"] == fewest)].itertuples():
            gain = Estimate(row.difference, row.ci_low, row.ci_high)
            checks["reward_gain"] = gain, 0.0, _compare_interval(gain, 0.0)
        for name, (estimate, bound, holds) in checks.items():
            rows.append(
                dict(zip(CELL, keys, strict=True))
                | {"requirement": name, "seeds": seeds, "n": n, "value": estimate.value}
                | {"ci_low": estimate.low, "ci_high": estimate.high, "bound": bound, "holds": holds}
            )
    return sort_rows(pd.DataFrame(rows, columns=COLUMNS["requirements"]), CELL)


def compute_histograms(answers: pd.DataFrame) -> pd.DataFrame:
    """Count work, consumption and reward in bins, for each method at its largest N with the fewest worked examples.

    A bin includes its lower end, the last one both. Counts are over all seeds, and over decisions that the strict
    parser accepts. The method `reference` stands for the reference decisions.
    """
    rows: list[Row] = []
    for keys, cell in _iter_largest(answers):
        for quantity, low in (("work", 0.0), ("consumption", 0.0), ("reward", -1.0)):
            rows += [dict(keys) | row for row in _count_bins(cell[quantity], quantity, low)]
    reference = answers.drop_duplicates("id")
    for quantity in QUANTITIES:
        keys = {"method": REFERENCE, "dataset_size": 0, "shot_num": answers["shot_num"].min()}
        rows += [keys | row for row in _count_bins(reference[f"reference_{quantity}"], quantity, 0.0)]
    return pd.DataFrame(rows)


def compute_against_reference(answers: pd.DataFrame) -> pd.DataFrame:
    """Compute count, mean and quartiles of decisions in bins of the reference decision.

    For each method at its largest N with the fewest worked examples, over all seeds.
    """
    rows: list[Row] = []
    for keys, cell in _iter_largest(answers):
        for quantity in QUANTITIES:
            decisions = cell[[quantity, f"reference_{quantity}"]].dropna()
            edges = _compute_edges(0.0, REFERENCE_BIN_WIDTH)
            bins = np.minimum(np.searchsorted(edges, decisions[f"reference_{quantity}"], side="right"), len(edges) - 1)
            for i, inside in decisions[quantity].groupby(bins):
                first, third = np.quantile(inside, [0.25, 0.75])
                rows.append(
                    dict(keys)
                    | {"quantity": quantity, "low": edges[i - 1], "high": edges[i], "n": len(inside)}
                    | {"mean": inside.mean(), "quartile_1": first, "quartile_3": third}
                )
    return pd.DataFrame(rows, columns=COLUMNS["against-reference"])


def compute_baselines(naive: pd.DataFrame, answers: pd.DataFrame, bootstrap: ClusterBootstrap) -> pd.DataFrame:
    """Compute rewards and decisions of each baseline; n counts problems.

    `grpo_minus`: GRPO's mean reward at its largest N with the fewest worked examples, minus the baseline's on the same
    problems; missing without GRPO. The rewards of several decisions on a problem are averaged.
    """
    grpo = next((cell for keys, cell in _iter_largest(answers) if keys["method"] == "grpo"), None)
    rows: list[Row] = []
    for name, group in naive.assign(seed=0).groupby("baseline", sort=False):
        row: Row = {"baseline": name, "n": group["id"].nunique(), "households": group["household"].nunique()}
        for measure in ("reward", "good"):
            row |= _flatten(measure, bootstrap.estimate_mean(group, measure))
        for quantity in QUANTITIES:
            values = group[quantity]
            centred_values = values - values.median()  # so that the sd of a constant is exactly 0
            row |= {f"{quantity}_mean": values.mean(), f"{quantity}_sd": centred_values.std(ddof=0)}
        if grpo is not None:
            baseline_rewards = grpo["id"].map(group.groupby("id")["reward"].mean())
            differences = grpo.assign(difference=grpo["reward"] - baseline_rewards)
            row |= _flatten("grpo_minus", bootstrap.estimate_mean(differences, "difference"))
            row["grpo_minus_detectable_difference"] = bootstrap.compute_detectable_difference([grpo, group], "reward")
        rows.append(row)
    return pd.DataFrame(rows)


def build_metrics(answers: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Build the table of `dvc metrics`: each run with the fewest worked examples, reference decisions, baselines, and
    the requirements on the last method at its largest N."""
    cells, requirements = tables["decisions"], tables["requirements"]
    measures = ["reward", "good", "parse_rate", "work_sd", "consumption_sd"]
    runs = {
        f"{row['method']}-{row['dataset_size']}": {name: _round(row[name]) for name in measures} | {"n": row["n"]}
        for row in cells[cells["shot_num"] == cells["shot_num"].min()].to_dict("records")
    }
    metrics: dict[str, Any] = {"runs": runs, "reference": compute_reference_metrics(answers)}
    metrics["baselines"] = {
        str(row.baseline): {"reward": _round(row.reward), "good": _round(row.good)}
        for row in tables["baselines"].itertuples()
    }
    final = select_final_run(requirements)
    if len(final):
        holds = {"required": len(final), "hold": int((final["holds"] == YES).sum())}
        values = {str(row.requirement): _round(row.value) for row in final.itertuples()}
        metrics["must_hold"] = values | holds
    return metrics


def compute_reference_metrics(answers: pd.DataFrame) -> dict[str, float]:
    """Compute mean and standard deviation of the reference decisions, and the number of households and problems."""
    problems = answers.drop_duplicates("id")
    metrics: dict[str, float] = {"households": int(problems["household"].nunique()), "n": len(problems)}
    for name in QUANTITIES:
        values = problems[f"reference_{name}"]
        metrics |= {f"{name}_mean": _round(values.mean()), f"{name}_sd": _round(values.std(ddof=0))}
    return metrics


def select_final_run(requirements: pd.DataFrame) -> pd.DataFrame:
    """Select the requirements on the last method at its largest N."""
    if requirements.empty:
        return requirements
    method = max(requirements["method"], key=lambda name: sort_key("method", name))
    rows = requirements[requirements["method"] == method]
    return rows[rows["dataset_size"] == rows["dataset_size"].max()]


def _parse(text: str) -> Decision | None:
    try:
        return parse_decision(text)
    except InvalidDecision:
        return None


def _iter_largest(answers: pd.DataFrame) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Keys and answers of each method at its largest N with the fewest worked examples, in the order of tables."""
    fewest = answers[answers["shot_num"] == answers["shot_num"].min()]
    largest = fewest[fewest["dataset_size"] == fewest.groupby("method")["dataset_size"].transform("max")]
    groups = dict(iter(largest.groupby(CELL)))
    for key in sorted(groups, key=_rank_method):
        yield dict(zip(CELL, key, strict=True)), groups[key]


def _rank_method(cell: tuple[Any, ...]) -> Any:
    return sort_key("method", cell[0])


def _count_bins(values: pd.Series, quantity: str, low: float) -> list[Row]:
    edges = _compute_edges(low, BIN_WIDTH)
    counts, _ = np.histogram(values.dropna(), edges)
    return [
        {"quantity": quantity, "low": a, "high": b, "count": int(count), "share": count / max(counts.sum(), 1)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def _compute_edges(low: float, width: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bounds of bins from `low` to 1, rounded to exact decimals."""
    return np.round(np.linspace(low, 1.0, round((1.0 - low) / width) + 1), 10)


def _count(cell: pd.DataFrame) -> Row:
    return {
        name: cell[column].nunique() for name, column in (("seeds", "seed"), ("households", "household"), ("n", "id"))
    }


def _flatten(name: str, estimate: Estimate) -> Row:
    return {f"{name}{end}": value for end, value in zip(_BOUNDS, estimate, strict=True)}


def _estimate_share(count: int, n: int, confidence: float) -> Estimate:
    return Estimate(count / n, *compute_wilson_interval(count, n, confidence))


def _format_holds(holds: bool) -> str:
    return YES if holds else NO


def _compare_interval(estimate: Estimate, bound: float) -> str:
    """Whether an interval reaches `bound`: yes where all of it does, unclear where part does, no otherwise."""
    return YES if estimate.low >= bound else UNCLEAR if estimate.high >= bound else NO


def _round(value: float) -> float:
    return round(float(value), 6)

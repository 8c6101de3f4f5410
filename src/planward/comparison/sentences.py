"""The findings of a comparison or ranking in sentences: what its tests show, and what they do not."""

from __future__ import annotations

import pandas as pd

from planward.analysis.names import ALL, format_run, format_shot_num
from planward.analysis.tables import TIED
from planward.comparison.comparison import SAME, Comparison
from planward.comparison.experiment import format_names
from planward.comparison.ranking import BASELINE, BEST, WORSE, Ranking


def describe_findings(compared: Comparison | Ranking) -> list[str]:
    """The sentences at the head of every output."""
    sentences = _describe_comparison(compared) if isinstance(compared, Comparison) else _describe_ranking(compared)
    return [*sentences, _describe_scope(compared)]


def format_cell(method: str, size: int, shot_num: int | str) -> str:
    """`GRPO, N = 400, 2 shots`."""
    run = format_run(method, size)
    return run if shot_num == ALL else f"{run}, {format_shot_num(int(shot_num))}"


def _describe_comparison(comparison: Comparison) -> list[str]:
    """How many cells differ after Holm's correction."""
    a, b = comparison.names
    sentences = [_count_differing(comparison.cells, a, b, "points", 1)]
    if len(comparison.pooled):
        lead = "Over all numbers of worked examples, "
        sentences.append(_count_differing(comparison.pooled, a, b, "points", 1, "run", lead))
    if len(comparison.rewards):
        sentences.append(_count_differing(comparison.rewards, a, b, "units of reward", 3, lead="By mean reward, "))
    return sentences


def _describe_ranking(ranking: Ranking) -> list[str]:
    """How often each experiment is best or tied with the best, and what that does not show."""
    table = ranking.pooled
    tested_rows = table[table["result"] != SAME]
    count = len(tested_rows.drop_duplicates(["method", "dataset_size"]))
    if not count:
        return ["All experiments hold the same answers."]
    if ranking.has_baseline:
        return _describe_sweep(ranking, tested_rows[tested_rows["result"] != BASELINE])
    parts = []
    for name in [experiment.name for experiment in ranking.experiments]:
        results = tested_rows[tested_rows["experiment"] == name]["result"]
        parts.append(f"{name} is best in {(results == BEST).sum()} and tied with the best in {(results == TIED).sum()}")
    return [
        f"Over all numbers of worked examples, of {_format_count(count, 'run')} whose answers differ: "
        f"{'; '.join(parts)}.",
        "The best of each row is picked by the answers that it is then tested on, so it looks a little better than it "
        "is.",
    ]


def _describe_sweep(ranking: Ranking, tested_rows: pd.DataFrame) -> list[str]:
    """How many experiments differ from the baseline."""
    baseline, *others = ranking.experiments
    differing = tested_rows[tested_rows["result"] != TIED]
    parts = [f"{(differing['result'] == result).sum()} {result}" for result in ("better", WORSE)]
    return [
        f"Over all numbers of worked examples, of {_format_count(len(tested_rows), 'test')} of "
        f"{_format_count(len(others), 'experiment')} against {baseline.name}: {', '.join(parts)}, "
        f"{len(tested_rows) - len(differing)} tied after Holm's correction.",
        "The first of many is partly first by luck: confirm a choice with other seeds.",
    ]


def _describe_scope(comparison: Comparison | Ranking) -> str:
    """What a difference is a difference of: of these trained models, or of the settings that made them."""
    overlap = comparison.overlap
    seeds_by_run = [seeds for run, seeds in overlap.seeds.items() if run[1] and run not in overlap.identical]
    if not seeds_by_run:
        return "No trained model differs, so this says nothing of how settings train."
    fewest = min(len(experiment_seeds) for seeds in seeds_by_run for experiment_seeds in seeds)
    if fewest == 1:
        return (
            "With one training seed, a difference is one between these trained models, not between their settings: "
            "another training seed may move results as much. Several training seeds tell the two apart."
        )
    return (
        f"Intervals resample the {fewest} training seeds as well as the problems, so they speak of the settings as far "
        f"as {fewest} seeds can; p is given these seeds."
    )


def _count_differing(
    table: pd.DataFrame, a: str, b: str, unit: str, digits: int, noun: str = "cell", lead: str = ""
) -> str:
    """How many rows of a table of tests differ, in which direction, and the detectable differences.

    Args:
        noun: what a row is.
        lead: how the sentence begins.
    """
    tested_rows = table[table["result"] != SAME]
    identical = len(table) - len(tested_rows)
    aside = f" ({_format_count(identical, noun)} with the same answers in both set aside)" if identical else ""
    if not len(tested_rows):
        return f"{lead}{a} and {b} give the same answers in every {noun}."
    parts = []
    for result in ("better", "worse"):
        rows = tested_rows[tested_rows["result"] == result]
        if len(rows):
            names = [
                f"{format_cell(row.method, row.dataset_size, row.shot_num)}: {row.difference:+.{digits}f}"
                for row in rows.itertuples()
            ]
            parts.append(f"{b} is {result} than {a} in {len(rows)} ({format_names(names)})")
    differing = len(tested_rows) - int((tested_rows["result"] == TIED).sum())
    verb = "differs" if differing == 1 else "differ"
    head = f"{differing or 'none'} of {_format_count(len(tested_rows), noun)}{aside} {verb}"
    if len(tested_rows) == 1:
        head = f"the one {noun} that was tested{aside} {'differs' if differing else 'does not differ'}"
    head = head if lead else head[:1].upper() + head[1:]
    head += " after Holm's correction"
    body = f": {'; '.join(parts)}." if parts else "."
    detectable = tested_rows["detectable_difference"].dropna()
    if len(detectable):
        ends = dict.fromkeys(f"{value:.{digits}f}" for value in (detectable.min(), detectable.max()))
        body += f" What each test would have found with 80 % power, before Holm: {' to '.join(ends)} {unit}."
    return f"{lead}{head}{body}"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

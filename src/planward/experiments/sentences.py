"""What a comparison of experiments says and does not say, in sentences that follow from its tests."""

from __future__ import annotations

import pandas as pd

from planward.experiments.comparison import SAME, Comparison
from planward.experiments.experiment import ECONOMY, few
from planward.experiments.ranking import BEST, Ranking
from planward.reporting.names import ALL, shots_title, title
from planward.reporting.tables import TIED


def findings(comparison: Comparison) -> list[str]:
    """How many cells differ after Holm's correction, and what follows from that."""
    a, b = comparison.names
    cells = comparison.cells
    said = [_differing(cells, a, b, "points", 1)]
    if len(comparison.pooled):
        said.append(_differing(comparison.pooled, a, b, "points", 1, "run", "Over all numbers of worked examples, "))
    if comparison.task == ECONOMY:
        said.append(_differing(comparison.rewards, a, b, "units of reward", 3, lead="By mean reward, "))
    return [*said, meaning(comparison)]


def meaning(compared: Comparison | Ranking) -> str:
    """What a difference is a difference of: of these trained models, or of the settings that made them."""
    trained = [seeds for run, seeds in compared.overlap.seeds.items() if run[1] and run not in compared.overlap.same]
    if not trained:
        return "No trained model differs, so this says nothing of how settings train."
    fewest = min(len(own) for seeds in trained for own in seeds)
    if fewest == 1:
        return (
            "With one training seed, a difference is one between these trained models, not between their settings: "
            "another training seed may move results as much. Several training seeds tell "
            "the two apart."
        )
    return (
        f"Intervals resample the {fewest} training seeds as well as the problems, so they speak of the settings as far "
        f"as {fewest} seeds can; p is given these seeds."
    )


def ranking_findings(ranking: Ranking) -> list[str]:
    """How often each experiment is best or tied with the best, and what that does not say."""
    table = ranking.pooled
    tested = table[table["result"] != SAME]
    count = len(tested.drop_duplicates(["method", "dataset_size"]))
    if not count:
        return ["All experiments hold the same answers.", meaning(ranking)]
    parts = []
    for name in [experiment.name for experiment in ranking.experiments]:
        own = tested[tested["experiment"] == name]["result"]
        parts.append(f"{name} is best in {(own == BEST).sum()} and tied with the best in {(own == TIED).sum()}")
    return [
        f"Over all numbers of worked examples, of {_counted(count, 'run')} whose answers differ: {'; '.join(parts)}.",
        "The best of each row is picked by the answers that it is then tested on, so it looks a little better than it "
        "is.",
        meaning(ranking),
    ]


def cell_title(method: str, size: int, shot_num: int | str) -> str:
    """`GRPO, N = 400, 2 shots`."""
    return title(method, size) if shot_num == ALL else f"{title(method, size)}, {shots_title(int(shot_num))}"


def _differing(table: pd.DataFrame, a: str, b: str, unit: str, digits: int, what: str = "cell", lead: str = "") -> str:
    tested = table[table["result"] != SAME]
    same = len(table) - len(tested)
    aside = f" ({_counted(same, what)} with the same answers in both set aside)" if same else ""
    if not len(tested):
        return f"{lead}{a} and {b} give the same answers in every {what}."
    parts = []
    for kind in ("better", "worse"):
        rows = tested[tested["result"] == kind]
        if len(rows):
            names = [
                f"{cell_title(row.method, row.dataset_size, row.shot_num)}: {row.difference:+.{digits}f}"
                for row in rows.itertuples()
            ]
            parts.append(f"{b} is {kind} than {a} in {len(rows)} ({few(names)})")
    tied = int((tested["result"] == TIED).sum())
    differ = len(tested) - tied
    head = f"{differ or 'none'} of {_counted(len(tested), what)}{aside} {'differs' if differ == 1 else 'differ'}"
    if len(tested) == 1:
        head = f"the one {what} that was tested{aside} {'differs' if differ else 'does not differ'}"
    head = head if lead else head[:1].upper() + head[1:]
    head += " after Holm's correction"
    body = f": {'; '.join(parts)}." if parts else "."
    smallest = tested["detectable_difference"].dropna()
    if len(smallest):
        ends = dict.fromkeys(f"{value:.{digits}f}" for value in (smallest.min(), smallest.max()))
        body += f" What each test would have found with 80 % power, before Holm: {' to '.join(ends)} {unit}."
    return f"{lead}{head}{body}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

"""Economy: what models decide for households, whether it is enough, and how the economy about them went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.params import Params
from planward.reporting import figures
from planward.reporting.baselines import BEST
from planward.reporting.economy import NO, QUANTITIES, REFERENCE, UNCLEAR, YES, focus
from planward.reporting.figures import Figure
from planward.reporting.names import detectable_note, method_title, rank, shots_title, title
from planward.reporting.results import Economy, Month, Results
from planward.reporting.sections.breakdown import COLOURS, success_panels
from planward.reporting.sections.elements import Table, number, p_text, starts
from planward.reporting.sections.findings import tally
from planward.reporting.sections.learning import extent, learning, thinned

SERIES_COLOURS = COLOURS | {REFERENCE: 2}
REQUIREMENTS = {
    "answers": ("states asked", "at least {:.0f}"),
    "parse_rate": ("states whose answer is the JSON asked for, percent", "{:g}"),
    "minus_one_share": ("states with a reward of -1, percent", "{:g}"),
    "work_sd": ("standard deviation of work", "at least {:g}"),
    "consumption_sd": ("standard deviation of consumption", "at least {:g}"),
    "reward_gain": ("mean reward, minus base's on the same states", "at least {:g}"),
}  # what each is called, and its bound
SHARES = ("parse_rate", "minus_one_share")
MACRO = ("price", "wage", "output", "unemployment", "interest")  # the series that are shown first
MONTHS = 120  # points that a series of the economy is drawn with, at most
MEANS = ("work", "consumption", "wealth")  # series that are means over households


@dataclass(frozen=True)
class Example:
    """A household's month, with what was decided for it."""

    heading: str
    state: str
    prompt: str
    reference: str
    threshold: str
    answers: list[tuple[str, str, str, bool, str]]  # method, label, reward, success, completion


@dataclass(frozen=True)
class Section:
    """All that the page says of the economy."""

    households: int
    n: int
    seeds: int
    fewest: str  # `0 shots`
    findings: list[str]
    required: Table | None
    all_required: Table | None
    answers: Table
    all_answers: Table
    baselines: Table
    smallest: int  # N of the smallest training set
    decisions: Table
    all_decisions: Table
    success: list[Figure]
    tests: Table
    histograms: list[Figure]
    against: list[Figure]
    collapse: Table
    macro: list[Figure]
    more_macro: list[Figure]
    learning: list[dict[str, Any]]
    examples: list[Example]


def economy(results: Results, params: Params) -> Section | None:
    """The section; None where no model of the economy was analysed."""
    found = results.economy
    if found is None:
        return None
    fewest = int(found.decisions["shot_num"].min())
    first = found.decisions.iloc[0]
    return Section(
        households=int(first["households"]),
        n=int(first["n"]),
        seeds=int(found.decisions["seeds"].max()),
        fewest=shots_title(fewest),
        findings=findings(found, params),
        required=required_table(found.requirements, params.of("economy").grpo.steps),
        all_required=all_required_table(found.requirements),
        answers=answers_table(found.decisions, fewest),
        all_answers=answers_table(found.decisions),
        baselines=baselines_table(found),
        smallest=params.of("economy").dataset_sizes[0],
        decisions=decisions_table(found, fewest),
        all_decisions=decisions_table(found),
        success=success_by_shots(found.decisions),
        tests=tests_table(found.paired),
        histograms=histogram_panels(found.histograms),
        against=against_panels(found.against_reference),
        collapse=collapse_table(found.collapse),
        macro=macro_panels(found.macro, True),
        more_macro=macro_panels(found.macro, False),
        learning=learning(found.curves),
        examples=[example(month) for month in found.months],
    )


def findings(found: Economy, params: Params) -> list[str]:
    """Sentences on the last method: its reward at the largest N, all comparisons, baselines, the requirements,
    collapse."""
    alpha, paired = 1 - params.compare.confidence, found.paired
    if paired.empty:
        return []
    last = max(paired["method_b"], key=lambda method: rank("method", method))
    mine, name = paired[paired["method_b"] == last], method_title(str(last))
    size, shot_num = mine["dataset_size"].max(), mine["shot_num"].min()
    here = mine[(mine["dataset_size"] == size) & (mine["shot_num"] == shot_num)]
    one = next(here.itertuples())
    seeds = f", the mean of {one.seeds} seeds" if one.seeds > 1 else ""
    sentences = [
        f"In the economy, {name} (N = {size}, {shots_title(int(shot_num))}) has a mean reward of {one.reward_b:.3f} on "
        f"{one.n} states of {one.households} households{seeds}: "
        f"{', and '.join(_verdict(row) for row in here.itertuples())}.",
        f"Of {len(mine)} comparisons, one for each N, number of worked examples and other method, {name} is "
        f"{tally(mine, alpha)}.",
    ]
    return [*sentences, *_against_baselines(found), *_held(found.requirements), _collapsed(found.collapse)]


def required_table(requirements: pd.DataFrame, steps: int) -> Table | None:
    """What must hold, a row each, for the last method at its largest N."""
    own = focus(requirements)
    if own.empty:
        return None
    first = own.iloc[0]
    rows = []
    for row in own.itertuples():
        name, required = REQUIREMENTS[row.requirement]
        bound = 100 * row.bound if row.requirement in SHARES else row.bound
        rows.append([name, required.format(bound), *_value(row), row.holds])
    run = title(str(first["method"]), int(first["dataset_size"]))
    caption = f"What must hold after {steps} steps of GRPO: {run}, {shots_title(int(first['shot_num']))}"
    return Table(caption, ["requirement", "required", "found", "interval", "holds"], rows)


def all_required_table(requirements: pd.DataFrame) -> Table | None:
    """The same of every trained run: a row a run."""
    names = [name for name in REQUIREMENTS if name in set(requirements["requirement"])]
    rows = []
    for (method, size), run in requirements.groupby(["method", "dataset_size"], sort=False):
        cells = {row.requirement: f"{' '.join(_value(row)).strip()}: {row.holds}" for row in run.itertuples()}
        rows.append([title(str(method), int(size)), *(cells.get(name, "") for name in names)])
    return Table("The same of every trained run", ["method", *(REQUIREMENTS[name][0] for name in names)], rows)


def answers_table(cells: pd.DataFrame, shot_num: int | None = None) -> Table:
    """How good each run's answers are and how many can be read, at one number of worked examples or at all."""
    shares = ("parse_rate", "lenient_parse_rate", "minus_one_share")
    rows = []
    for cell in _asked(cells, shot_num):
        row = [*_key(cell, shot_num), _interval(cell, "reward"), _interval(cell, "good", 100, 1)]
        rows.append([*row, *(f"{100 * cell[name]:.1f}" for name in shares)])
    head = [*_key_names(shot_num), "mean reward", "good, percent", "read strictly, percent", "leniently, percent"]
    head.append("with a reward of -1, percent")
    asked = cells if shot_num is None else cells[cells["shot_num"] == shot_num]
    notes = [detectable_note(asked["reward_detectable_difference"], "units of reward")]
    notes.append(detectable_note(asked["good_detectable_difference"]))
    caption, blocks = f"Answers{_at(shot_num)} (n = {cells['n'].max()})", starts(list(asked["method"]))
    return Table(caption, head, rows, note=" ".join(filter(None, notes)), blocks=blocks)


def decisions_table(found: Economy, shot_num: int | None = None) -> Table:
    """Mean and standard deviation of each run's decisions, likewise; last, those of the reference decisions."""
    cells, names = found.decisions, [f"{name}_{kind}" for name in QUANTITIES for kind in ("mean", "sd")]
    rows = [[*_key(cell, shot_num), *(_interval(cell, name) for name in names)] for cell in _asked(cells, shot_num)]
    head = _key_names(shot_num)
    rows.append(["reference", *[""] * (len(head) - 1), *(_decimal(found.reference[name]) for name in names)])
    groups = [("", len(head)), *((name, 2) for name in QUANTITIES)]
    head += ["mean", "standard deviation"] * len(QUANTITIES)
    return Table(f"Decisions{_at(shot_num)} (n = {cells['n'].max()})", head, rows, groups=groups)


def baselines_table(found: Economy) -> Table:
    """How good each baseline's decisions are, and GRPO's mean reward minus its own where GRPO has run."""
    cells, grpo = found.baselines, _grpo(found)
    rows = [
        [
            *(cell["baseline"], _interval(cell, "reward"), _interval(cell, "good", 100, 1)),
            *([_interval(cell, "grpo_minus", sign="+")] if grpo else []),
            *([_decimal(cell["grpo_minus_detectable_difference"])] if grpo else []),
        ]
        for cell in _asked(cells, None)
    ]
    head = ["baseline", "mean reward", "good, percent"]
    head += [f"mean reward of {grpo} minus the baseline's", "detectable"] if grpo else []
    return Table(f"Baselines without a language model (n = {cells['n'].max()})", head, rows)


def tests_table(paired: pd.DataFrame) -> Table:
    rows = [
        [
            f"{method_title(row.method_b)} against {method_title(row.method_a)}",
            *(row.dataset_size, row.shot_num, f"{row.reward_b:.3f}", f"{row.reward_a:.3f}", _gain(row)),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.3f}"),
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "N", "shots", "reward of the first", "of the second", "difference"]
    head += ["p", "p (Holm)", "result", "detectable"]
    return Table("Paired differences in mean reward", head, rows, blocks=starts([row[2] for row in rows]))


def collapse_table(collapse: pd.DataFrame) -> Table:
    head = ["method", "seed", "shots", "result", "decisions", "distinct", "share of the most frequent, percent"]
    head += [f"{kind} of {name}" for name in QUANTITIES for kind in ("standard deviation", "rank correlation")]
    names = [f"{name}_{kind}" for name in QUANTITIES for kind in ("sd", "correlation")]
    rows = [
        [
            title(str(run["method"]), int(run["dataset_size"])),
            *(run["seed"], run["shot_num"], "collapsed" if run["collapsed"] else "spread", run["n"], run["distinct"]),
            *(_decimal(run["most_frequent_share"], 100, 1), *(_interval(run, name) for name in names)),
        ]
        for run in collapse.to_dict("records")
    ]
    return Table("Spread of the decisions of each run", head, rows)


def success_by_shots(cells: pd.DataFrame) -> list[Figure]:
    """Share of good decisions against the number of worked examples, a panel for each N."""
    names = {"good": "success_rate", "good_low": "ci_low", "good_high": "ci_high"}
    return success_panels(cells.rename(columns=names), "dataset_size", "good decisions, N = {}")


def histogram_panels(histograms: pd.DataFrame) -> list[Figure]:
    """Shares of work, consumption and reward by bin, an outline a method, and one of the reference decisions."""
    panels = []
    for quantity, part in histograms.groupby("quantity", sort=False):
        first = part[part["method"] == part["method"].iloc[0]]
        edges = [*first["low"], float(first["high"].iloc[-1])]
        series = {method: list(rows["share"]) for method, rows in part.groupby("method", sort=False)}
        panels.append(figures.histogram(str(quantity), _titled(series), edges, [SERIES_COLOURS[m] for m in series]))
    return panels


def against_panels(against: pd.DataFrame) -> list[Figure]:
    """Decisions against the reference decision: mean and quartiles in bins, a line a method."""
    panels = []
    for quantity, part in against.groupby("quantity", sort=False):
        points = part.assign(x=(part["low"] + part["high"]) / 2)[["method", "x", "mean", "quartile_1", "quartile_3"]]
        series = {
            str(method): list(rows.iloc[:, 1:].itertuples(index=False, name=None))
            for method, rows in points.groupby("method", sort=False)
        }
        colours = [SERIES_COLOURS[method] for method in series]
        panels.append(figures.agreement(f"{quantity}, decided", _titled(series), f"reference {quantity}", colours))
    return panels


def macro_panels(macro: pd.DataFrame | None, main: bool) -> list[Figure]:
    """A panel for each series of the economy, by month: of those in `MACRO`, or of all others."""
    if macro is None:
        return []
    names = [str(name) for name in macro.columns.drop("month")]
    chosen = [name for name in MACRO if name in names] if main else [name for name in names if name not in MACRO]
    panels = []
    for name in chosen:
        points = thinned(list(zip(macro["month"], macro[name], strict=True)), MONTHS)
        heading = f"mean {name}" if name in MEANS else name.replace("_", " ")
        panels.append(figures.lines(heading, {heading: points}, "month", extent([points])))
    return panels


def example(month: Month) -> Example:
    meta = month.problem.meta.model_extra or {}
    state = {key: value for key, value in (meta.get("state") or {}).items() if not isinstance(value, bool)}
    return Example(
        heading=f"{month.problem.meta.problem_file} ({month.problem.domain})",
        state="; ".join(f"{str(key).replace('_', ' ')} {number(value)}" for key, value in state.items()),
        prompt=month.answers[0].prompt,
        reference=month.problem.response or "",
        threshold=_decimal(meta.get("threshold")),
        answers=[
            (title(a.method, a.dataset_size), a.label.replace("_", " "), f"{a.reward:.3f}", a.success, a.completion)
            for a in month.answers
        ],
    )


def _asked(cells: pd.DataFrame, shot_num: int | None) -> list[dict[str, Any]]:
    """The cells with a number of worked examples, or all."""
    chosen = cells if shot_num is None else cells[cells["shot_num"] == shot_num]
    return [{str(name): value for name, value in row.items()} for row in chosen.to_dict("records")]


def _key(cell: dict[str, Any], shot_num: int | None) -> list[Any]:
    """How a row begins; `_key_names` heads it."""
    name = title(str(cell["method"]), int(cell["dataset_size"]))
    return [name] if shot_num is not None else [name, cell["shot_num"]]


def _key_names(shot_num: int | None) -> list[str]:
    return ["method"] if shot_num is not None else ["method", "shots"]


def _at(shot_num: int | None) -> str:
    return f", {shots_title(shot_num)}" if shot_num is not None else ""


def _titled(series: dict[str, Any]) -> dict[str, Any]:
    return {method_title(method): values for method, values in series.items()}


def _verdict(row: Any) -> str:
    """`better than base, +0.050 [+0.031, +0.069], p < 0.001`."""
    name, p = method_title(row.method_a), p_text(row.p_holm)
    words = {"better": f"better than {name}", "worse": f"worse than {name}"}
    return f"{words.get(row.result, f'statistically tied with {name}')}, {_gain(row)}, p {p}"


def _gain(row: Any) -> str:
    return f"{row.difference:+.3f} [{row.ci_low:+.3f}, {row.ci_high:+.3f}]"


def _held(requirements: pd.DataFrame) -> list[str]:
    """How many of the requirements hold, and which do not."""
    own = focus(requirements)
    if own.empty:
        return []
    parts = [f"{(own['holds'] == YES).sum()} of {len(own)} requirements hold"]
    for word, holds in (("not met", NO), ("unclear", UNCLEAR)):
        if names := [REQUIREMENTS[name][0] for name in own["requirement"][own["holds"] == holds]]:
            parts.append(f"{word}: {', '.join(names)}")
    first = own.iloc[0]
    return [f"{title(str(first['method']), int(first['dataset_size']))}: {'; '.join(parts)}."]


def _against_baselines(found: Economy) -> list[str]:
    """Which baselines GRPO's mean reward is above, below or not told apart from; nothing reaches more than the best."""
    others, grpo = found.baselines[found.baselines["baseline"] != BEST], _grpo(found)
    if not grpo:
        return []
    above, below = others["grpo_minus_low"] > 0, others["grpo_minus_high"] < 0
    kinds = [("above", above), ("below", below), ("not told apart from", ~above & ~below)]
    parts = [f"{word} that of {', '.join(others['baseline'][kind])}" for word, kind in kinds if kind.any()]
    return [f"Against baselines without a language model, the mean reward of {grpo} is {'; '.join(parts)}."]


def _grpo(found: Economy) -> str:
    """The run that baselines are compared with: `GRPO (N = 400, 0 shots)`; empty without GRPO."""
    own = found.decisions[found.decisions["method"] == "grpo"]
    if own.empty:
        return ""
    return f"{method_title('grpo')} (N = {own['dataset_size'].max()}, {shots_title(int(own['shot_num'].min()))})"


def _collapsed(collapse: pd.DataFrame) -> str:
    flat = collapse[collapse["collapsed"].astype(bool)]
    if flat.empty:
        return "No run has collapsed: none gives nearly the same decision to every state."
    runs = [f"{title(r.method, r.dataset_size)}, seed {r.seed}, {shots_title(r.shot_num)}" for r in flat.itertuples()]
    more = f"; and {len(runs) - 4} more" if len(runs) > 4 else ""
    return f"Collapsed to nearly one decision, or not shown to be above it: {'; '.join(runs[:4])}{more}."


def _value(row: Any) -> tuple[str, str]:
    """A requirement's value and its interval."""
    if row.requirement == "answers":
        return f"{row.value:.0f}", ""
    factor, digits = (100, 1) if row.requirement in SHARES else (1, 3)
    sign = "+" if row.requirement == "reward_gain" else ""
    low, high = (f"{factor * end:{sign}.{digits}f}" for end in (row.ci_low, row.ci_high))
    return f"{factor * row.value:{sign}.{digits}f}", f"[{low}, {high}]"


def _interval(cell: dict[str, Any], name: str, factor: float = 1, digits: int = 3, sign: str = "") -> str:
    value, low, high = (factor * float(cell[f"{name}{end}"]) for end in ("", "_low", "_high"))
    form = f"{sign}.{digits}f"
    return "" if pd.isna(value) else f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _decimal(value: Any, factor: float = 1, digits: int = 3) -> str:
    return "" if value is None or pd.isna(value) else f"{factor * float(value):.{digits}f}"

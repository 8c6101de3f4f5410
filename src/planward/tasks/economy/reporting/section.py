"""The economy's section of the report: decisions, rewards and requirements of each model, and the simulated economy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from planward.analysis.names import format_detectable_note, format_method, format_run, format_shot_num, sort_key
from planward.core.paths import Results
from planward.core.records import Prediction, Record
from planward.core.runs import Run
from planward.params import Params
from planward.report import figures
from planward.report.figures import Figure, Point
from planward.report.markup import TEXT_LIMIT, build_environment
from planward.report.reading import iter_largest_run_predictions, read_curves_by_run, read_json, read_problems
from planward.report.sections.breakdown import COLOURS, draw_success_panels
from planward.report.sections.elements import Table, find_block_starts, format_number, format_p
from planward.report.sections.findings import format_tally
from planward.report.sections.learning import build_learning_panels, compute_value_range, downsample_curve
from planward.report.sections.task import TaskSection
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.economy.reporting.analysis import NO, QUANTITIES, REFERENCE, UNCLEAR, YES, select_final_run
from planward.tasks.economy.reporting.baselines import BEST
from planward.tasks.economy.task import MACRO_FILE

PACKAGE = "planward.tasks.economy.reporting"
SERIES_COLOURS = COLOURS | {REFERENCE: 2}
REQUIREMENTS = {
    "answers": ("states answered", "at least {:.0f}"),
    "parse_rate": ("states answered with valid JSON, percent", "{:g}"),
    "minus_one_share": ("states with a reward of -1, percent", "{:g}"),
    "work_sd": ("standard deviation of work", "at least {:g}"),
    "consumption_sd": ("standard deviation of consumption", "at least {:g}"),
    "reward_gain": ("mean reward, minus base's on the same states", "at least {:g}"),
}  # title and bound
SHARES = ("parse_rate", "minus_one_share")
MAIN_SERIES = ("price", "wage", "output", "unemployment", "interest")
MAX_SERIES_POINTS = 120
MEANS = ("work", "consumption", "wealth")  # series that are means over households


@dataclass(frozen=True)
class SampleState:
    """A test problem and the prediction of each method on it."""

    problem: Record
    predictions: list[Prediction]


@dataclass(frozen=True)
class EconomyData:
    """The result files of the section. Tables are those of `analysis.compute_tables`."""

    decisions: pd.DataFrame
    paired: pd.DataFrame
    collapse: pd.DataFrame
    requirements: pd.DataFrame
    histograms: pd.DataFrame
    against_reference: pd.DataFrame
    baselines: pd.DataFrame
    reference: Mapping[str, float]  # of the reference decisions: mean and standard deviation
    macro: pd.DataFrame | None  # month, and one column per series
    curves: dict[Run, dict[str, list[Point]]]  # by run, then by curve
    samples: list[SampleState]


def build_section(params: EconomyParams, results: Results) -> TaskSection | None:
    """Build the section; None where `planward analyse` has not run. See `report.sections.task`."""
    if not (results.analysis / "decisions.csv").exists():
        return None
    data = read_data(params, results)
    fewest, cells = int(data.decisions["shot_num"].min()), data.decisions
    values = {
        "economy": params.economy,
        "confidence": f"{100 * params.compare.confidence:g}",
        "text_limit": TEXT_LIMIT,
        "households": int(cells["households"].iloc[0]),
        "n": int(cells["n"].iloc[0]),
        "seeds": int(cells["seeds"].max()),
        "fewest": format_shot_num(fewest),
        "smallest": params.dataset_sizes[0],
        "requirements": build_requirements_table(data.requirements, params.grpo.steps),
        "all_requirements": build_all_requirements_table(data.requirements),
        "answers": build_answers_table(cells, fewest),
        "all_answers": build_answers_table(cells),
        "baselines": build_baselines_table(data),
        "decisions": build_decisions_table(data, fewest),
        "all_decisions": build_decisions_table(data),
        "success": draw_good_decision_panels(cells),
        "tests": build_tests_table(data.paired),
        "histograms": draw_histogram_panels(data.histograms),
        "against": draw_reference_panels(data.against_reference),
        "collapse": build_collapse_table(data.collapse),
        "macro": draw_macro_panels(data.macro, True),
        "more_macro": draw_macro_panels(data.macro, False),
        "learning": build_learning_panels(data.curves),
        "samples": [build_sample(sample) for sample in data.samples],
    }
    environment = build_environment(PACKAGE)
    introduction, html = (
        Markup(environment.get_template(f"{name}.html.j2").render(values))
        for name in ("economy_introduction", "economy")
    )
    return TaskSection("Economy", html, introduction, list_findings(data, params))


def read_data(params: Params, results: Results) -> EconomyData:
    names = ("decisions", "paired", "collapse", "requirements", "histograms", "against-reference", "baselines")
    tables = {name.replace("-", "_"): pd.read_csv(results.analysis / f"{name}.csv") for name in names}
    macro = results.problems / MACRO_FILE
    return EconomyData(
        **tables,
        reference=read_json(results.analysis / "metrics.json")["reference"],
        macro=pd.read_csv(macro) if macro.exists() else None,
        curves=read_curves_by_run(results, params),
        samples=select_samples(params, results),
    )


def select_samples(params: Params, results: Results) -> list[SampleState]:
    """Select, for each scenario, the test problem on which the methods' rewards differ most; ties by id."""
    predictions: dict[str, list[Prediction]] = {}
    for prediction in iter_largest_run_predictions(results, params):
        predictions.setdefault(prediction.id, []).append(prediction)
    rewards = {id: [prediction.reward for prediction in group] for id, group in predictions.items()}
    ids: dict[str, str] = {}
    for id in sorted(predictions, key=lambda id: (min(rewards[id]) - max(rewards[id]), id)):
        ids.setdefault(predictions[id][0].domain, id)
    problems = read_problems(results.score, ["test"])
    return [SampleState(problems[ids[scenario]], predictions[ids[scenario]]) for scenario in sorted(ids)]


def list_findings(data: EconomyData, params: Params) -> list[str]:
    """Sentences on the last method: reward at the largest N, all comparisons, baselines, requirements, collapse."""
    alpha, pairs = 1 - params.compare.confidence, data.paired
    if pairs.empty:
        return []
    last = max(pairs["method_b"], key=lambda method: sort_key("method", method))
    rows, name = pairs[pairs["method_b"] == last], format_method(str(last))
    size, shot_num = rows["dataset_size"].max(), rows["shot_num"].min()
    largest = rows[(rows["dataset_size"] == size) & (rows["shot_num"] == shot_num)]
    first = next(largest.itertuples())
    seeds = f", the mean of {first.seeds} seeds" if first.seeds > 1 else ""
    run = f"{name} (N = {size}, {format_shot_num(int(shot_num))})"
    sentences = [
        f"In the economy, {run} has a mean reward of {first.reward_b:.3f} "
        f"on {first.n} states of {first.households} households{seeds}: "
        f"{', and '.join(_format_comparison(row) for row in largest.itertuples())}.",
        f"Of {len(rows)} comparisons, one for each N, number of worked examples and other method, {name} is "
        f"{format_tally(rows, alpha)}.",
    ]
    return [
        *sentences,
        *_list_baseline_findings(data),
        *_list_requirement_findings(data.requirements),
        _format_collapse_finding(data.collapse),
    ]


def build_requirements_table(requirements: pd.DataFrame, steps: int) -> Table | None:
    """The requirements on the last method at its largest N, one row each."""
    final = select_final_run(requirements)
    if final.empty:
        return None
    first = final.iloc[0]
    rows = []
    for row in final.itertuples():
        name, bound_format = REQUIREMENTS[row.requirement]
        bound = 100 * row.bound if row.requirement in SHARES else row.bound
        rows.append([name, bound_format.format(bound), *_format_value(row), row.holds])
    run = format_run(str(first["method"]), int(first["dataset_size"]))
    caption = f"Requirements after {steps} steps of GRPO: {run}, {format_shot_num(int(first['shot_num']))}"
    return Table(caption, ["requirement", "bound", "value", "interval", "holds"], rows)


def build_all_requirements_table(requirements: pd.DataFrame) -> Table:
    """The requirements on every trained run, one row per run."""
    names = [name for name in REQUIREMENTS if name in set(requirements["requirement"])]
    rows = []
    for (method, size), run in requirements.groupby(["method", "dataset_size"], sort=False):
        cells = {row.requirement: f"{' '.join(_format_value(row)).strip()}: {row.holds}" for row in run.itertuples()}
        rows.append([format_run(str(method), int(size)), *(cells.get(name, "") for name in names)])
    return Table("Requirements on every trained run", ["method", *(REQUIREMENTS[name][0] for name in names)], rows)


def build_answers_table(cells: pd.DataFrame, shot_num: int | None = None) -> Table:
    """Rewards and parse rates of each run with one number of worked examples, or with all."""
    shares = ("parse_rate", "lenient_parse_rate", "minus_one_share")
    rows = []
    for cell in _list_cells(cells, shot_num):
        row = [*_format_key(cell, shot_num), _format_interval(cell, "reward"), _format_interval(cell, "good", 100, 1)]
        rows.append([*row, *(f"{100 * cell[name]:.1f}" for name in shares)])
    head = [*_name_key(shot_num), "mean reward", "good, percent", "parsed, percent", "parsed leniently, percent"]
    head.append("with a reward of -1, percent")
    part = cells if shot_num is None else cells[cells["shot_num"] == shot_num]
    notes = [format_detectable_note(part["reward_detectable_difference"], "units of reward")]
    notes.append(format_detectable_note(part["good_detectable_difference"]))
    caption, blocks = (
        f"Answers{_format_shots(shot_num)} (n = {cells['n'].max()})",
        find_block_starts(list(part["method"])),
    )
    return Table(caption, head, rows, note=" ".join(filter(None, notes)), blocks=blocks)


def build_decisions_table(data: EconomyData, shot_num: int | None = None) -> Table:
    """Mean and standard deviation of each run's decisions, with the reference decisions in the last row."""
    cells, names = data.decisions, [f"{name}_{kind}" for name in QUANTITIES for kind in ("mean", "sd")]
    rows = [
        [*_format_key(cell, shot_num), *(_format_interval(cell, name) for name in names)]
        for cell in _list_cells(cells, shot_num)
    ]
    head = _name_key(shot_num)
    rows.append(["reference", *[""] * (len(head) - 1), *(_format_decimal(data.reference[name]) for name in names)])
    groups = [("", len(head)), *((name, 2) for name in QUANTITIES)]
    head += ["mean", "standard deviation"] * len(QUANTITIES)
    return Table(f"Decisions{_format_shots(shot_num)} (n = {cells['n'].max()})", head, rows, groups=groups)


def build_baselines_table(data: EconomyData) -> Table:
    """Rewards of each baseline, and GRPO's mean reward minus the baseline's where GRPO has run."""
    cells, grpo = data.baselines, _format_grpo_run(data)
    rows = [
        [
            *(cell["baseline"], _format_interval(cell, "reward"), _format_interval(cell, "good", 100, 1)),
            *([_format_interval(cell, "grpo_minus", sign="+")] if grpo else []),
            *([_format_decimal(cell["grpo_minus_detectable_difference"])] if grpo else []),
        ]
        for cell in _list_cells(cells, None)
    ]
    head = ["baseline", "mean reward", "good, percent"]
    head += [f"mean reward of {grpo} minus the baseline's", "detectable"] if grpo else []
    return Table(f"Baselines without a language model (n = {cells['n'].max()})", head, rows)


def build_tests_table(paired: pd.DataFrame) -> Table:
    rows = [
        [
            f"{format_method(row.method_b)} against {format_method(row.method_a)}",
            *(row.dataset_size, row.shot_num, f"{row.reward_b:.3f}", f"{row.reward_a:.3f}", _format_gain(row)),
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.3f}"),
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "N", "shots", "reward of the first", "of the second", "difference"]
    head += ["p", "p (Holm)", "result", "detectable"]
    return Table("Paired differences in mean reward", head, rows, blocks=find_block_starts([row[2] for row in rows]))


def build_collapse_table(collapse: pd.DataFrame) -> Table:
    head = ["method", "seed", "shots", "result", "decisions", "distinct", "share of the most frequent, percent"]
    head += [f"{kind} of {name}" for name in QUANTITIES for kind in ("standard deviation", "rank correlation")]
    names = [f"{name}_{kind}" for name in QUANTITIES for kind in ("sd", "correlation")]
    rows = [
        [
            format_run(str(run["method"]), int(run["dataset_size"])),
            *(run["seed"], run["shot_num"], "collapsed" if run["collapsed"] else "spread", run["n"], run["distinct"]),
            *(_format_decimal(run["most_frequent_share"], 100, 1), *(_format_interval(run, name) for name in names)),
        ]
        for run in collapse.to_dict("records")
    ]
    return Table("Spread of the decisions of each run", head, rows)


def draw_good_decision_panels(cells: pd.DataFrame) -> list[Figure]:
    """Share of good decisions by number of worked examples, one panel per N."""
    names = {"good": "success_rate", "good_low": "ci_low", "good_high": "ci_high"}
    return draw_success_panels(cells.rename(columns=names), "dataset_size", "good decisions, N = {}")


def draw_histogram_panels(histograms: pd.DataFrame) -> list[Figure]:
    """Shares of work, consumption and reward by bin, one outline per method and one of the reference decisions."""
    panels = []
    for quantity, part in histograms.groupby("quantity", sort=False):
        first = part[part["method"] == part["method"].iloc[0]]
        edges = [*first["low"], float(first["high"].iloc[-1])]
        series = {method: list(rows["share"]) for method, rows in part.groupby("method", sort=False)}
        colours = [SERIES_COLOURS[method] for method in series]
        panels.append(figures.draw_histogram(str(quantity), _title_methods(series), edges, colours))
    return panels


def draw_reference_panels(against: pd.DataFrame) -> list[Figure]:
    """Mean and quartiles of decisions by reference decision, one line per method."""
    panels = []
    for quantity, part in against.groupby("quantity", sort=False):
        points = part.assign(x=(part["low"] + part["high"]) / 2)[["method", "x", "mean", "quartile_1", "quartile_3"]]
        series = {
            str(method): list(rows.iloc[:, 1:].itertuples(index=False, name=None))
            for method, rows in points.groupby("method", sort=False)
        }
        colours = [SERIES_COLOURS[method] for method in series]
        label = f"reference {quantity}"
        panels.append(figures.draw_agreement(f"{quantity}, decided", _title_methods(series), label, colours))
    return panels


def draw_macro_panels(macro: pd.DataFrame | None, main: bool) -> list[Figure]:
    """One panel per series of the economy, by month: those in `MAIN_SERIES`, or all others."""
    if macro is None:
        return []
    names = [str(name) for name in macro.columns.drop("month")]
    if main:
        series_names = [name for name in MAIN_SERIES if name in names]
    else:
        series_names = [name for name in names if name not in MAIN_SERIES]
    panels = []
    for name in series_names:
        points = downsample_curve(list(zip(macro["month"], macro[name], strict=True)), MAX_SERIES_POINTS)
        heading = f"mean {name}" if name in MEANS else name.replace("_", " ")
        panels.append(figures.draw_lines(heading, {heading: points}, "month", compute_value_range([points])))
    return panels


def build_sample(sample: SampleState) -> dict[str, Any]:
    """The texts of a sample; each answer is method, label, reward, success and completion."""
    meta = sample.problem.meta.model_extra or {}
    state = {key: value for key, value in (meta.get("state") or {}).items() if not isinstance(value, bool)}
    return {
        "heading": f"{sample.problem.meta.problem_file} ({sample.problem.domain})",
        "state": "; ".join(f"{str(key).replace('_', ' ')} {format_number(value)}" for key, value in state.items()),
        "prompt": sample.predictions[0].prompt,
        "reference": sample.problem.response or "",
        "threshold": _format_decimal(meta.get("threshold")),
        "answers": [
            (
                *(format_run(answer.method, answer.dataset_size), answer.label.replace("_", " ")),
                *(f"{answer.reward:.3f}", answer.success, answer.completion),
            )
            for answer in sample.predictions
        ],
    }


def _list_cells(cells: pd.DataFrame, shot_num: int | None) -> list[dict[str, Any]]:
    """The cells with a number of worked examples, or all."""
    rows = cells if shot_num is None else cells[cells["shot_num"] == shot_num]
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def _format_key(cell: dict[str, Any], shot_num: int | None) -> list[Any]:
    """The first cells of a row, under the heads of `_name_key`."""
    name = format_run(str(cell["method"]), int(cell["dataset_size"]))
    return [name] if shot_num is not None else [name, cell["shot_num"]]


def _name_key(shot_num: int | None) -> list[str]:
    return ["method"] if shot_num is not None else ["method", "shots"]


def _format_shots(shot_num: int | None) -> str:
    return f", {format_shot_num(shot_num)}" if shot_num is not None else ""


def _title_methods(series: dict[str, Any]) -> dict[str, Any]:
    return {format_method(method): values for method, values in series.items()}


def _format_comparison(row: Any) -> str:
    """`better than base, +0.050 [+0.031, +0.069], p < 0.001`."""
    name, p = format_method(row.method_a), format_p(row.p_holm)
    words = {"better": f"better than {name}", "worse": f"worse than {name}"}
    return f"{words.get(row.result, f'statistically tied with {name}')}, {_format_gain(row)}, p {p}"


def _format_gain(row: Any) -> str:
    return f"{row.difference:+.3f} [{row.ci_low:+.3f}, {row.ci_high:+.3f}]"


def _list_requirement_findings(requirements: pd.DataFrame) -> list[str]:
    """How many of the requirements hold, and which do not."""
    final = select_final_run(requirements)
    if final.empty:
        return []
    parts = [f"{(final['holds'] == YES).sum()} of {len(final)} requirements hold"]
    for word, holds in (("not met", NO), ("unclear", UNCLEAR)):
        if names := [REQUIREMENTS[name][0] for name in final["requirement"][final["holds"] == holds]]:
            parts.append(f"{word}: {', '.join(names)}")
    first = final.iloc[0]
    return [f"{format_run(str(first['method']), int(first['dataset_size']))}: {'; '.join(parts)}."]


def _list_baseline_findings(data: EconomyData) -> list[str]:
    """Which baselines GRPO's mean reward is above, below or tied with; `best` is left out, for nothing exceeds it."""
    others, grpo = data.baselines[data.baselines["baseline"] != BEST], _format_grpo_run(data)
    if not grpo:
        return []
    above, below = others["grpo_minus_low"] > 0, others["grpo_minus_high"] < 0
    outcomes = [("above", above), ("below", below), ("statistically tied with", ~above & ~below)]
    parts = [f"{word} that of {', '.join(others['baseline'][rows])}" for word, rows in outcomes if rows.any()]
    return [f"Compared with baselines without a language model, the mean reward of {grpo} is {'; '.join(parts)}."]


def _format_grpo_run(data: EconomyData) -> str:
    """The run that baselines are compared with, `GRPO (N = 400, 0 shots)`; empty without GRPO."""
    rows = data.decisions[data.decisions["method"] == "grpo"]
    if rows.empty:
        return ""
    return f"{format_method('grpo')} (N = {rows['dataset_size'].max()}, {format_shot_num(int(rows['shot_num'].min()))})"


def _format_collapse_finding(collapse: pd.DataFrame) -> str:
    rows = collapse[collapse["collapsed"].astype(bool)]
    if rows.empty:
        return "No run has collapsed to nearly the same decision for every state."
    runs = [
        f"{format_run(r.method, r.dataset_size)}, seed {r.seed}, {format_shot_num(r.shot_num)}"
        for r in rows.itertuples()
    ]
    more = f"; and {len(runs) - 4} more" if len(runs) > 4 else ""
    return f"Collapsed to nearly one decision, or not shown otherwise: {'; '.join(runs[:4])}{more}."


def _format_value(row: Any) -> tuple[str, str]:
    """A requirement's value and its interval."""
    if row.requirement == "answers":
        return f"{row.value:.0f}", ""
    factor, digits = (100, 1) if row.requirement in SHARES else (1, 3)
    sign = "+" if row.requirement == "reward_gain" else ""
    low, high = (f"{factor * end:{sign}.{digits}f}" for end in (row.ci_low, row.ci_high))
    return f"{factor * row.value:{sign}.{digits}f}", f"[{low}, {high}]"


def _format_interval(cell: Mapping[Any, Any], name: str, factor: float = 1, digits: int = 3, sign: str = "") -> str:
    value, low, high = (factor * float(cell[f"{name}{end}"]) for end in ("", "_low", "_high"))
    form = f"{sign}.{digits}f"
    return "" if pd.isna(value) else f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _format_decimal(value: Any, factor: float = 1, digits: int = 3) -> str:
    return "" if value is None or pd.isna(value) else f"{factor * float(value):.{digits}f}"

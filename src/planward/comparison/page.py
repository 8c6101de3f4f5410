"""A comparison or ranking as one HTML file in the style of the report, without scripts or external resources.

Jinja2 escapes everything, so model output stays text; only figures drawn here are markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from planward.analysis.names import format_rate, format_run
from planward.analysis.success_arrays import RUN
from planward.analysis.tables import TIED, Row
from planward.comparison.comparison import SAME, Comparison, list_letters, sort_labels
from planward.comparison.document import iter_flips
from planward.comparison.ranking import BEST, Ranking
from planward.comparison.sentences import describe_findings, format_cell
from planward.core.verdicts import Label
from planward.report import figures
from planward.report.figures import Figure, Interval
from planward.report.markup import build_environment
from planward.report.sections.elements import Position, Table, find_block_starts, format_difference

MAX_FLIPS = 3000  # on the page; of more, those with the fewest worked examples
MAX_TEXT_LENGTH = 6000  # characters of a problem or completion


def render_page(compared: Comparison | Ranking) -> str:
    """Render the page as HTML; the same comparison or ranking gives the same text."""
    parts = _build_comparison_parts(compared) if isinstance(compared, Comparison) else _build_ranking_parts(compared)
    letters = [letter.upper() for letter in list_letters(len(compared.experiments))]
    overlap = compared.overlap
    template = build_environment().get_template("diff.html.j2")
    text = template.render(
        parts,
        compared=compared,
        is_ranking=isinstance(compared, Ranking),
        experiments=list(zip(letters, compared.experiments, strict=True)),
        findings=describe_findings(compared),
        identical=[format_run(*run) for run in overlap.runs if run in overlap.identical],
        partial=[(format_run(*run), holders) for run, holders in overlap.partial.items()],
        params_table=_build_params_table(compared.params, letters),
        code_table=_build_code_table(compared.code),
        cost_table=_build_cost_table(compared.cost, len(letters)),
        confidence=f"{100 * compared.uncertainty.confidence:g}",
        unit=compared.subject.resampling_unit,
        seeds=max((len(experiment_seeds) for seeds in overlap.seeds.values() for experiment_seeds in seeds), default=0),
        safety=Label.SAFETY.value,
        max_text=MAX_TEXT_LENGTH,
    )
    return f"{text.rstrip()}\n"


def _build_comparison_parts(comparison: Comparison) -> Row:
    title = comparison.subject.success_title
    tables = [_build_tests_table(f"Difference in {title}, B minus A, in points", comparison.cells, is_share=True)]
    if len(comparison.pooled):
        caption = f"Difference in {title} over all numbers of worked examples"
        tables.append(_build_tests_table(caption, comparison.pooled, is_share=True))
    if len(comparison.rewards):
        tables.append(_build_tests_table("Difference in mean reward, B minus A", comparison.rewards, is_share=False))
    flips = list(iter_flips(comparison))
    if len(flips) > MAX_FLIPS:
        fewest = min(comparison.overlap.shot_nums)
        flips = [flip for flip in flips if flip["shot_num"] == fewest][:MAX_FLIPS]
    return {
        "tables": [table for table in tables if table.rows],
        "panels": _draw_success(comparison),
        "label_panels": _draw_labels(comparison),
        "label_tables": _build_transition_tables(comparison),
        "flip_cells": _group_by_cell(flips),
        "flip_problems": _group_by_problem(comparison, flips),
        "flips_shown": len(flips),
        "flips_total": len(comparison.flips),
    }


def _build_ranking_parts(ranking: Ranking) -> Row:
    name = "Mean reward" if ranking.quantity == "reward" else "Success"
    tables = [_build_rank_table(f"{name} by number of worked examples, in rank order", ranking.cells, ranking)]
    if len(ranking.overlap.shot_nums) > 1:
        caption = f"{name} over all numbers of worked examples, in rank order"
        tables.insert(0, _build_rank_table(caption, ranking.pooled, ranking))
    if ranking.unfinished:
        rows = [list(task.values()) for task in ranking.unfinished]
        tables.append(Table("Experiments that are not ranked", ["experiment", "status", "reason"], rows))
    parts = {"tables": [table for table in tables if table.rows], "flips_shown": 0, "flips_total": 0}
    return parts | {name: [] for name in ("panels", "label_panels", "label_tables", "flip_cells", "flip_problems")}


def _build_tests_table(caption: str, tests: pd.DataFrame, is_share: bool) -> Table:
    format_value = format_rate if is_share else _format_reward
    rows = []
    for row in tests[tests["result"] != SAME].itertuples():
        gap, low, high = row.difference, row.ci_low, row.ci_high
        cells = [
            format_run(row.method, row.dataset_size),
            row.shot_num,
            format_value(row.value_a, row.value_a_low, row.value_a_high),
            format_value(row.value_b, row.value_b_low, row.value_b_high),
            format_difference(gap, low, high) if is_share else f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]",
            *(row.result, row.lost, row.gained, _format_p(row.p), _format_p(row.p_holm)),
            f"{row.detectable_difference:.{1 if is_share else 3}f}",
        ]
        rows.append(cells)
    unit = " %" if is_share else ""
    head = ["run", "shots", f"A{unit}", f"B{unit}", "B − A", "result", "only A", "only B", "p", "p, Holm", "detectable"]
    return Table(caption, head, rows, blocks=find_block_starts([row[0] for row in rows]))


def _build_rank_table(caption: str, ranks: pd.DataFrame, ranking: Ranking) -> Table:
    is_share = ranking.quantity != "reward"
    format_value: Callable[[float, float, float], str] = format_rate if is_share else _format_reward
    letters = {
        e.name: letter.upper()
        for e, letter in zip(ranking.experiments, list_letters(len(ranking.experiments)), strict=True)
    }
    rows: list[list[Any]] = []
    marks: dict[Position, str] = {}
    for row in ranks[ranks["result"] != SAME].itertuples():
        gap = "" if pd.isna(row.difference) else f"{row.difference:+.{1 if is_share else 3}f}"
        p_values = ["" if pd.isna(value) else _format_p(value) for value in (row.p, row.p_holm)]
        if row.result in (BEST, TIED):
            marks[len(rows), 3] = "best" if row.result == BEST else "tied"
        cell = format_cell(row.method, row.dataset_size, row.shot_num)
        name, value = f"{letters[row.experiment]}: {row.experiment}", format_value(row.value, row.ci_low, row.ci_high)
        rows.append([cell, row.rank, name, value, gap, *p_values, row.result])
    head = [
        "cell",
        "rank",
        "experiment",
        "success %" if is_share else "reward",
        f"minus {ranking.reference}",
        "p",
        "p, Holm",
        "result",
    ]
    return Table(caption, head, rows, marks, blocks=find_block_starts([row[0] for row in rows]))


def _draw_success(comparison: Comparison) -> list[Figure]:
    """Success of both by number of worked examples, a panel a run."""
    if len(comparison.overlap.shot_nums) < 2:
        return []
    panels = []
    for (method, size), group in comparison.cells[comparison.cells["result"] != SAME].groupby(RUN, sort=False):
        series: dict[str, list[Interval]] = {}
        for letter in "ab":
            columns = ["shot_num", *(f"value_{letter}{end}" for end in ("", "_low", "_high"))]
            series[letter.upper()] = [tuple(row[column] for column in columns) for row in group.to_dict("records")]
        panels.append(figures.draw_intervals(format_run(str(method), int(size)), series, "worked examples", [0, 1]))
    return panels


def _draw_labels(comparison: Comparison) -> list[Figure]:
    """Shares of labels in both, a panel a run."""
    order = sort_labels(set(comparison.labels["label"]))
    panels = []
    for (method, size), group in comparison.labels.groupby(RUN, sort=False):
        shares = {letter.upper(): dict(zip(group["label"], group[f"share_{letter}"], strict=True)) for letter in "ab"}
        name = f"Labels, {format_run(str(method), int(size))}"
        panels.append(figures.draw_bars(name, shares, order, list(range(len(order)))))
    return panels


def _build_transition_tables(comparison: Comparison) -> list[Table]:
    """How many predictions with each label in A have which label in B: of all runs, then of each."""
    transitions = comparison.transitions
    blocks = [("all runs", transitions)]
    blocks += [(format_run(str(m), int(n)), group) for (m, n), group in transitions.groupby(RUN, sort=False)]
    tables = []
    for name, group in blocks if len(transitions) else []:
        counts = group.groupby(["label_a", "label_b"])["count"].sum().to_dict()
        labels = sort_labels({label for pair in counts for label in pair})
        rows = [[a, *(counts.get((a, b), 0) for b in labels)] for a in labels]
        tables.append(Table(f"Answers by label in A (rows) and B (columns), {name}", ["A", *labels], rows))
    return tables


def _group_by_cell(flips: Sequence[Row]) -> list[Row]:
    """For each cell the ids of the problems that flipped, those lost and those gained."""
    cells: list[Row] = []
    for key, group in groupby(flips, key=lambda flip: (flip["method"], flip["dataset_size"], flip["shot_num"])):
        members = list(group)
        ids = {kind: list(dict.fromkeys(f["id"] for f in members if f["kind"] == kind)) for kind in ("lost", "gained")}
        cells.append({"title": format_cell(*key), **ids})
    return cells


def _group_by_problem(comparison: Comparison, flips: Sequence[Row]) -> list[Row]:
    """Every problem that flipped, with its text and both predictions of each cell where it did."""
    first = comparison.experiments[0]
    zero_shot = first.outcomes[first.outcomes["shot_num"] == 0].drop_duplicates("id")
    texts = {key: record.prompt for key, record in first.problems.items()}
    texts |= dict(zip(zero_shot["id"], zero_shot["prompt"], strict=True))  # as the models saw it
    problems: dict[str, Row] = {}
    for flip in flips:
        problem = problems.setdefault(
            flip["id"],
            {"id": flip["id"], "domain": flip["domain"], "text": texts.get(flip["id"], ""), "answers": []},
        )
        title = format_cell(flip["method"], flip["dataset_size"], flip["shot_num"])
        problem["answers"].append({"title": title, "kind": flip["kind"], "sides": [("A", flip["a"]), ("B", flip["b"])]})
    return [problems[key] for key in sorted(problems, key=lambda key: (problems[key]["domain"], key))]


def _build_params_table(params: Sequence[Row], letters: Sequence[str]) -> Table | None:
    rows = [
        [row["key"], *("–" if value is None else str(value) for value in row["values"]), _list_families(row["stages"])]
        for row in sorted(params, key=lambda row: not row["stages"])
    ]
    note = "Those that no stage behind these predictions reads come last."
    return Table("Parameters that differ", ["key", *letters, "read by"], rows, note=note) if rows else None


def _build_code_table(code: Sequence[Row]) -> Table | None:
    rows = [[row["path"], _list_families(row["stages"])] for row in code]
    return Table("Code and data that differ", ["path", "read by"], rows) if rows else None


def _build_cost_table(cost: pd.DataFrame, count: int) -> Table | None:
    if not len(cost):
        return None
    letters = list_letters(count)
    quantities = {"wall s": "wall_s", "CPU s": "cpu_s", "peak MB": "peak_rss_mb"}
    rows = [
        [row["kind"], "/".join(dict.fromkeys(str(row[f"stages_{letter}"]) for letter in letters)), row["anew"]]
        + [f"{row[f'{name}_{letter}']:.0f}" for name in quantities.values() for letter in letters]
        for row in cost.to_dict("records")
    ]
    groups = [("", 3), *((name, count) for name in quantities)]
    head = ["stage", "runs", "ran anew", *(letter.upper() for _ in quantities for letter in letters)]
    return Table("Time and memory of the stages behind these predictions", head, rows, groups=groups)


def _list_families(stages: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(stage.partition("@")[0] for stage in stages))


def _format_reward(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"

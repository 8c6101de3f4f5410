"""A comparison or ranking as one HTML file in the style of the report: nothing is loaded, nothing runs.

Everything goes through Jinja2 with autoescape: what a model wrote stays text. Only figures drawn here are markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from planward.experiments.comparison import SAME, Comparison, label_rank, letters
from planward.experiments.document import flips
from planward.experiments.experiment import ECONOMY
from planward.experiments.ranking import BEST, Ranking
from planward.experiments.sentences import cell_title, findings, ranking_findings
from planward.records import Label
from planward.reporting import figures
from planward.reporting.answers import RUN
from planward.reporting.figures import Figure, Interval
from planward.reporting.names import percent, title
from planward.reporting.sections.elements import Place, Table, points, starts
from planward.reporting.tables import TIED, Row

FLIPS = 3000  # that the page prints; of more, those with the fewest worked examples
TEXT = 6000  # characters of a problem or answer that it prints


def page(compared: Comparison | Ranking) -> str:
    """The page as HTML; the same comparison or ranking gives the same text."""
    return _comparison_page(compared) if isinstance(compared, Comparison) else _ranking_page(compared)


def _comparison_page(compared: Comparison) -> str:
    good = "good decisions" if compared.task == ECONOMY else "success"
    tables = [_tests(f"Difference in {good}, B minus A, in points", compared.cells, share=True)]
    if len(compared.pooled):
        caption = f"Difference in {good} over all numbers of worked examples"
        tables.append(_tests(caption, compared.pooled, share=True))
    if len(compared.rewards):
        tables.append(_tests("Difference in mean reward, B minus A", compared.rewards, share=False))
    found = list(flips(compared))
    if len(found) > FLIPS:
        fewest = min(compared.overlap.shots)
        found = [flip for flip in found if flip["shot_num"] == fewest][:FLIPS]
    return _rendered(
        compared,
        findings=findings(compared),
        tables=[table for table in tables if table.rows],
        panels=_panels(compared),
        label_panels=_label_panels(compared),
        label_tables=_transitions(compared),
        flip_cells=_flip_cells(found),
        flip_problems=_flip_problems(compared, found),
        flips_shown=len(found),
        flips_total=len(compared.flips),
    )


def _ranking_page(compared: Ranking) -> str:
    name = "Mean reward" if compared.quantity == "reward" else "Success"
    tables = [_ranks(f"{name} by number of worked examples, in rank order", compared.cells, compared)]
    if len(compared.overlap.shots) > 1:
        caption = f"{name} over all numbers of worked examples, in rank order"
        tables.insert(0, _ranks(caption, compared.pooled, compared))
    return _rendered(
        compared,
        findings=ranking_findings(compared),
        tables=[table for table in tables if table.rows],
        panels=[],
        label_panels=[],
        label_tables=[],
        flip_cells=None,
        flip_problems=[],
        flips_shown=0,
        flips_total=0,
    )


def _rendered(compared: Comparison | Ranking, **parts: Any) -> str:
    environment = Environment(
        loader=PackageLoader("planward.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = [letter.upper() for letter in letters(len(compared.experiments))]
    common = compared.overlap
    text = environment.get_template("diff.html.j2").render(
        parts,
        c=compared,
        ranking=isinstance(compared, Ranking),
        named=list(zip(names, compared.experiments, strict=True)),
        same=[title(*run) for run in common.runs if run in common.same],
        lone=[(title(*run), holders) for run, holders in common.lone.items()],
        params_table=_params(compared.params, names),
        code_table=_code(compared.code),
        cost_table=_cost(compared.cost, len(names)),
        confidence=f"{100 * compared.by.confidence:g}",
        households=compared.task == ECONOMY,
        seeds=max((len(own) for seeds in common.seeds.values() for own in seeds), default=0),
        safety=Label.SAFETY.value,
        text_limit=TEXT,
    )
    return f"{text.rstrip()}\n"


def _tests(caption: str, found: pd.DataFrame, share: bool) -> Table:
    rows = []
    for row in found[found["result"] != SAME].itertuples():
        value_a, value_b, gap = (
            (
                percent(row.value_a, row.value_a_low, row.value_a_high),
                percent(row.value_b, row.value_b_low, row.value_b_high),
                points(row.difference, row.ci_low, row.ci_high),
            )
            if share
            else (
                f"{row.value_a:.3f} [{row.value_a_low:.3f}, {row.value_a_high:.3f}]",
                f"{row.value_b:.3f} [{row.value_b_low:.3f}, {row.value_b_high:.3f}]",
                f"{row.difference:+.3f} [{row.ci_low:+.3f}, {row.ci_high:+.3f}]",
            )
        )
        detectable = f"{row.detectable_difference:.{1 if share else 3}f}"
        run = title(row.method, row.dataset_size)
        cells = [run, row.shot_num, value_a, value_b, gap, row.result, row.lost, row.gained]
        rows.append([*cells, _p(row.p), _p(row.p_holm), detectable])
    unit = " %" if share else ""
    head = ["run", "shots", f"A{unit}", f"B{unit}", "B − A", "result", "only A", "only B", "p", "p, Holm", "detectable"]
    return Table(caption, head, rows, blocks=starts([row[0] for row in rows]))


def _ranks(caption: str, found: pd.DataFrame, compared: Ranking) -> Table:
    share = compared.quantity != "reward"
    letter = {e.name: name.upper() for e, name in zip(compared.experiments, letters(26), strict=False)}
    rows: list[list[Any]] = []
    marks: dict[Place, str] = {}
    for row in found[found["result"] != SAME].itertuples():
        form = percent if share else lambda value, low, high: f"{value:.3f} [{low:.3f}, {high:.3f}]"
        gap = "" if pd.isna(row.difference) else f"{row.difference:+.{1 if share else 3}f}"
        p = ["" if pd.isna(value) else _p(value) for value in (row.p, row.p_holm)]
        cell = cell_title(row.method, row.dataset_size, row.shot_num)
        if row.result in (BEST, TIED):
            marks[len(rows), 3] = "best" if row.result == BEST else "tied"
        name = f"{letter[row.experiment]}: {row.experiment}"
        rows.append([cell, row.rank, name, form(row.value, row.ci_low, row.ci_high), gap, *p, row.result])
    value = "success %" if share else "reward"
    head = ["cell", "rank", "experiment", value, "minus best", "p", "p, Holm", "result"]
    return Table(caption, head, rows, marks, blocks=starts([row[0] for row in rows]))


def _panels(compared: Comparison) -> list[Figure]:
    """Success of both against the number of worked examples, a panel a run."""
    if len(compared.overlap.shots) < 2:
        return []
    drawn = []
    for (method, size), own in compared.cells[compared.cells["result"] != SAME].groupby(RUN, sort=False):
        series: dict[str, list[Interval]] = {
            letter.upper(): [
                tuple(
                    row[f"{name}"] for name in ("shot_num", *(f"value_{letter}{end}" for end in ("", "_low", "_high")))
                )
                for row in own.to_dict("records")
            ]
            for letter in "ab"
        }
        drawn.append(figures.intervals(title(str(method), int(size)), series, "worked examples", [0, 1]))
    return drawn


def _label_panels(compared: Comparison) -> list[Figure]:
    """Shares of labels before and after, a panel a run."""
    order = sorted(set(compared.labels["label"]), key=label_rank)
    drawn = []
    for (method, size), own in compared.labels.groupby(RUN, sort=False):
        shares = {letter.upper(): dict(zip(own["label"], own[f"share_{letter}"], strict=True)) for letter in ("a", "b")}
        name = f"Labels, {title(str(method), int(size))}"
        drawn.append(figures.bars(name, shares, order, list(range(len(order)))))
    return drawn


def _transitions(compared: Comparison) -> list[Table]:
    """How many answers of each label of A have which label in B: of all runs, then of each."""
    found = compared.transitions
    blocks = [("all runs", found)]
    blocks += [(title(str(method), int(size)), own) for (method, size), own in found.groupby(RUN, sort=False)]
    tables = []
    for name, own in blocks if len(found) else []:
        counts = own.groupby(["label_a", "label_b"])["count"].sum().to_dict()
        labels = sorted({label for pair in counts for label in pair}, key=label_rank)
        rows = [[a, *(counts.get((a, b), 0) for b in labels)] for a in labels]
        tables.append(Table(f"Answers by label in A (rows) and B (columns), {name}", ["A", *labels], rows))
    return tables


def _flip_cells(found: Sequence[Row]) -> list[Row]:
    """For each cell the ids of the problems that flipped, those lost and those gained."""
    cells: list[Row] = []
    for key, own in groupby(found, key=lambda flip: (flip["method"], flip["dataset_size"], flip["shot_num"])):
        flipped = list(own)
        ids = {kind: list(dict.fromkeys(f["id"] for f in flipped if f["kind"] == kind)) for kind in ("lost", "gained")}
        cells.append({"title": cell_title(*key), **ids})
    return cells


def _flip_problems(compared: Comparison, found: Sequence[Row]) -> list[Row]:
    """Every problem that flipped, with its text and both answers of each cell where it did."""
    first = compared.experiments[0]
    plain = first.outcomes[first.outcomes["shot_num"] == 0].drop_duplicates("id")
    texts = {key: record.prompt for key, record in first.problems.items()}
    texts |= dict(zip(plain["id"], plain["prompt"], strict=True))  # as the models saw it
    problems: dict[str, Row] = {}
    for flip in found:
        problem = problems.setdefault(
            flip["id"],
            {"id": flip["id"], "domain": flip["domain"], "text": texts.get(flip["id"], ""), "answers": []},
        )
        name = cell_title(flip["method"], flip["dataset_size"], flip["shot_num"])
        problem["answers"].append({"title": name, "kind": flip["kind"], "sides": [("A", flip["a"]), ("B", flip["b"])]})
    return [problems[key] for key in sorted(problems, key=lambda key: (problems[key]["domain"], key))]


def _params(params: Sequence[Row], names: Sequence[str]) -> Table | None:
    rows = [
        [row["key"], *("–" if value is None else str(value) for value in row["values"]), _kinds(row["stages"])]
        for row in sorted(params, key=lambda row: not row["stages"])
    ]
    note = "Those that no stage behind these predictions reads come last."
    return Table("Parameters that differ", ["key", *names, "read by"], rows, note=note) if rows else None


def _code(code: Sequence[Row]) -> Table | None:
    rows = [[row["path"], _kinds(row["stages"])] for row in code]
    return Table("Code and data that differ", ["path", "read by"], rows) if rows else None


def _cost(found: pd.DataFrame, count: int) -> Table | None:
    if not len(found):
        return None
    own = letters(count)
    measures = {"wall s": "wall_s", "CPU s": "cpu_s", "peak MB": "peak_rss_mb"}
    rows = [
        [row["kind"], "/".join(dict.fromkeys(str(row[f"stages_{letter}"]) for letter in own)), row["anew"]]
        + [f"{row[f'{name}_{letter}']:.0f}" for name in measures.values() for letter in own]
        for row in found.to_dict("records")
    ]
    groups = [("", 3), *((name, count) for name in measures)]
    head = ["stage", "runs", "ran anew", *(letter.upper() for _ in measures for letter in own)]
    return Table("Time and memory of the stages behind these predictions", head, rows, groups=groups)


def _kinds(stages: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(stage.partition("@")[0] for stage in stages))


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"

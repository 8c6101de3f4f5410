"""A comparison or ranking as tables for a terminal. Everything that a model wrote is printed as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.experiments.comparison import SAME, Comparison, label_rank, letters
from planward.experiments.document import flips
from planward.experiments.experiment import ECONOMY, Experiment, few
from planward.experiments.overlap import Overlap
from planward.experiments.ranking import BEST, Ranking
from planward.experiments.sentences import cell_title, findings, ranking_findings
from planward.records import Label
from planward.reporting.answers import RUN
from planward.reporting.names import method_title, title
from planward.reporting.tables import TIED

STYLES = {"better": "bold green", "worse": "bold red", BEST: "bold green", TIED: "", SAME: "dim"}
SHORT = {TIED: "tied", SAME: "same"}


def print_compared(compared: Comparison | Ranking, console: Console, shown: int = 0) -> None:
    """Print a comparison of two, with the first `shown` problems of every cell that flipped each way, or a ranking."""
    if isinstance(compared, Comparison):
        _print_comparison(compared, console, shown)
    else:
        _print_ranking(compared, console)


def _print_comparison(compared: Comparison, console: Console, shown: int) -> None:
    _head(console, compared.experiments, compared.overlap, compared.task)
    _findings(console, findings(compared))
    _inputs(console, compared.params, compared.code, 2)
    gap = f"B - A [{100 * compared.by.confidence:g} %]"
    head = ["run", "shots", "A %", "B %", gap, "flips", "p Holm", "detect", "result"]
    name = "Good decisions" if compared.task == ECONOMY else "Success"
    _tests(console, f"{name} on the same problems, in points", head, compared.cells, 1, 100)
    if len(compared.pooled):
        _tests(console, f"{name} over all numbers of worked examples", head, compared.pooled, 1, 100)
    if len(compared.rewards):
        _tests(console, "Mean reward on the same problems", head, compared.rewards, 3, 1)
    if len(compared.answers):
        _note(
            console,
            "flips: answers that only A, and only B, got right. p: exact paired test, Holm over the table. detect: the "
            "smallest true difference that the test would find with 80 % power, before Holm.",
        )
    _labels(console, compared)
    _cost(console, compared.cost, 2)
    if shown:
        _flips(console, compared, shown)


def _print_ranking(compared: Ranking, console: Console) -> None:
    _head(console, compared.experiments, compared.overlap, compared.task)
    _findings(console, ranking_findings(compared))
    _inputs(console, compared.params, compared.code, len(compared.experiments))
    name = "Mean reward" if compared.quantity == "reward" else "Success"
    unit, digits = (1, 3) if compared.quantity == "reward" else (100, 1)
    if len(compared.overlap.shots) > 1:
        _ranks(console, f"{name} over all numbers of worked examples", compared, compared.pooled, unit, digits)
    _ranks(console, f"{name} by number of worked examples", compared, compared.cells, unit, digits)
    _note(
        console,
        f"Brackets: {100 * compared.by.confidence:g} % intervals. p: exact paired test against the best of the same "
        "row, Holm over the table.",
    )
    _cost(console, compared.cost, len(compared.experiments))


def _head(console: Console, experiments: Sequence[Experiment], common: Overlap, task: str) -> None:
    for letter, experiment in zip(letters(len(experiments)), experiments, strict=True):
        revision = experiment.revision
        kind = f", experiment {revision.experiment}" if revision.experiment not in (None, revision.name) else ""
        console.print(Text(f"{letter.upper()}  {revision.title}{kind}", style="bold"))
        for note in experiment.notes:
            console.print(Text(f"   {note}", style="yellow"))
    seeds = ", ".join(map(str, common.training_seeds))
    console.print(
        f"{task}: {len(common.problems)} test problems with {', '.join(map(str, common.shots))} worked examples"
        + (f"; training seeds {seeds}" if seeds else ""),
        highlight=False,
    )
    for note in common.notes:
        console.print(Text(note, style="yellow"))
    for run, names in common.lone.items():
        console.print(Text(f"{title(*run)}: only in {', '.join(names)}", style="yellow"))
    if common.same:
        names = [title(*run) for run in common.runs if run in common.same]
        console.print(Text(f"The same predictions in all: {'; '.join(names)}"))


def _findings(console: Console, sentences: Iterable[str]) -> None:
    console.print()
    for sentence in sentences:
        console.print(Text(sentence))


def _inputs(console: Console, params: Sequence[dict[str, Any]], code: Sequence[dict[str, Any]], count: int) -> None:
    names = [letter.upper() for letter in letters(count)]
    read, others = [row for row in params if row["stages"]], [row["key"] for row in params if not row["stages"]]
    if read:
        table = _table(["key", *names], left=count + 1)
        for row in read:
            table.add_row(*map(_text, (row["key"], *row["values"])))
        _print(console, "Parameters that differ", table)
    else:
        console.print("\nNo parameter differs that a stage behind these predictions reads.")
    if others:
        console.print(Text(f"Parameters that differ and are not read there: {few(others)}"))
    if code:
        table = _table(["path", "read by"], left=2)
        for row in code:
            kinds = dict.fromkeys(stage.partition("@")[0] for stage in row["stages"])
            table.add_row(_text(row["path"]), _text(", ".join(kinds)))
        _print(console, "Code and data that differ", table)
    else:
        console.print("No code or data differs among what these predictions come from.")


def _tests(console: Console, caption: str, head: Sequence[str], found: pd.DataFrame, digits: int, unit: float) -> None:
    tested = found[found["result"] != SAME]
    if not len(tested):
        return
    table = _table(head, left=1)
    last = None
    for row in tested.itertuples():
        run = _run(row.method, row.dataset_size)
        style = STYLES.get(row.result, "")
        table.add_row(
            _text(run if run != last else ""),
            str(row.shot_num),
            f"{unit * row.value_a:.{digits}f}",
            f"{unit * row.value_b:.{digits}f}",
            Text(f"{row.difference:+.{digits}f} [{row.ci_low:+.{digits}f}, {row.ci_high:+.{digits}f}]"),
            f"-{row.lost} +{row.gained}",
            _p(row.p_holm),
            f"{row.detectable_difference:.{digits}f}",
            Text(SHORT.get(row.result, row.result), style=style),
        )
        last = run
    _print(console, caption, table)


def _ranks(console: Console, caption: str, compared: Ranking, found: pd.DataFrame, unit: float, digits: int) -> None:
    tested = found[found["result"] != SAME]
    if not len(tested):
        return
    names = [experiment.name for experiment in compared.experiments]
    letter = dict(zip(names, letters(len(names)), strict=True))
    table = _table(["cell", "rank", "", "value", "minus best", "p Holm", "result"], left=1)
    last = None
    for row in tested.itertuples():
        cell = cell_title(row.method, row.dataset_size, row.shot_num)
        if last not in (None, cell):
            table.add_section()
        difference = "" if pd.isna(row.difference) else f"{row.difference:+.{digits}f}"
        value, low, high = (f"{unit * x:.{digits}f}" for x in (row.value, row.ci_low, row.ci_high))
        table.add_row(
            _text(cell if cell != last else ""),
            str(row.rank),
            letter[row.experiment].upper(),
            Text(f"{value} [{low}, {high}]"),
            difference,
            "" if pd.isna(row.p_holm) else _p(row.p_holm),
            Text(SHORT.get(row.result, row.result), style=STYLES.get(row.result, "")),
        )
        last = cell
    _print(console, caption, table)


def _labels(console: Console, compared: Comparison) -> None:
    if not len(compared.labels):
        return
    table = _table(["run", "label", "A", "B", "B - A"], left=2)
    for (method, size), own in compared.labels.groupby(RUN, sort=False):
        for place, row in enumerate(own.itertuples()):
            gap = 100 * (row.share_b - row.share_a)
            run = _run(str(method), int(size)) if not place else ""
            table.add_row(
                _text(run), _text(row.label), f"{100 * row.share_a:.1f}", f"{100 * row.share_b:.1f}", f"{gap:+.1f}"
            )
    _print(console, "Labels of all answers, in percent", table)
    moved = compared.transitions.groupby(["label_a", "label_b"])["count"].sum()
    names = sorted({name for pair in moved.index for name in pair}, key=label_rank)
    first = [name.partition("_")[0] for name in names]
    head = first if len(set(first)) == len(first) else names
    table = _table(["", *head], left=1)
    for a in names:
        table.add_row(_text(a), *(str(moved.get((a, b), 0)) for b in names))
    _print(console, "Answers by A's label (rows) and B's (columns)", table)


def _cost(console: Console, found: pd.DataFrame, count: int) -> None:
    if not len(found):
        return
    measures = {"wall s": "wall_s", "CPU s": "cpu_s", "peak MB": "peak_rss_mb"}
    head = ["", "stages", "ran anew", *measures]
    table = _table(head, left=1)
    for row in found.to_dict("records"):
        values = [[row[f"{name}_{letter}"] for letter in letters(count)] for name in ("stages", *measures.values())]
        stages, *others = ("/".join(f"{x:.0f}" for x in (own if len(set(own)) > 1 else own[:1])) for own in values)
        table.add_row(_text(row["kind"]), stages, str(row["anew"]), *others)
    _print(console, f"Cost of the stages behind these predictions, {'/'.join(map(str.upper, letters(count)))}", table)


def _flips(console: Console, compared: Comparison, shown: int) -> None:
    counts: dict[Any, int] = {}
    for flip in flips(compared):
        key = (flip["method"], flip["dataset_size"], flip["shot_num"], flip["kind"])
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > shown:
            continue
        where = cell_title(*key[:3])
        console.print()
        console.print(Text(f"{where}, {flip['id']} ({flip['domain']}): {flip['kind']}", style="bold"))
        for letter in "ab":
            answer = flip[letter]
            console.print(
                Text(f"{letter.upper()}: {answer['label']}" + (f"; {answer['detail']}" if answer["detail"] else ""))
            )
            steps = (answer["plan"] or answer.get("completion", "")).splitlines() or ["(nothing)"]
            for number, step in enumerate(steps, 1):
                fails = number == answer["failing_step"]
                broken = "breaks a constraint" if answer["label"] == Label.SAFETY else "fails here"
                text = f"  {number:3} {_visible(step)}{f'  <- {broken}' if fails else ''}"
                console.print(Text(text, style="red" if fails else ""))


def _run(method: str, size: int) -> str:
    """`GRPO 400`: narrow enough for eighty columns."""
    return f"{method_title(method)} {size}" if size else method_title(method)


def _print(console: Console, caption: str, table: Table) -> None:
    console.print()
    console.print(Text(caption, style="bold"))
    console.print(table)


def _table(head: Sequence[str], left: int) -> Table:
    """An empty table; its first `left` columns are text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
    return table


def _text(value: Any) -> Text:
    return Text("-" if value is None else _visible(str(value)))


def _visible(text: str) -> str:
    """Control characters as escapes: an answer may not steer the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _note(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"))


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"

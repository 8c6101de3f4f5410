"""A comparison or ranking as tables for a terminal. Model output is printed as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.analysis.names import format_method, format_run
from planward.analysis.success_arrays import RUN
from planward.analysis.tables import TIED, Row
from planward.comparison.comparison import SAME, Comparison, list_letters, sort_labels
from planward.comparison.document import iter_flips
from planward.comparison.experiment import Experiment, format_names
from planward.comparison.overlap import Overlap
from planward.comparison.ranking import BASELINE, BEST, Ranking
from planward.comparison.sentences import describe_findings, format_cell
from planward.core.verdicts import Label

STYLES = {"better": "bold green", "worse": "bold red", BEST: "bold green", TIED: "", SAME: "dim", BASELINE: "dim"}
SHORT_RESULTS = {TIED: "tied", SAME: "same"}


def print_compared(compared: Comparison | Ranking, console: Console, max_flips: int = 0) -> None:
    """Print a ranking, or a comparison with the first `max_flips` problems of every cell that flipped each way."""
    if isinstance(compared, Ranking) and compared.has_baseline:
        _print_sweep(compared, console)
        return
    for letter, experiment in zip(list_letters(len(compared.experiments)), compared.experiments, strict=True):
        _print_revision(console, letter.upper(), experiment)
    _print_overlap(console, compared.overlap, compared.subject.name)
    _print_findings(console, describe_findings(compared))
    _print_inputs(console, compared.params, compared.code, len(compared.experiments))
    if isinstance(compared, Comparison):
        _print_comparison(compared, console)
    else:
        _print_ranking(compared, console)
    _print_cost(console, compared.cost, len(compared.experiments))
    if isinstance(compared, Comparison) and max_flips:
        _print_flips(console, compared, max_flips)


def _print_comparison(comparison: Comparison, console: Console) -> None:
    gap = f"B - A [{100 * comparison.uncertainty.confidence:g} %]"
    head = ["run", "shots", "A %", "B %", gap, "flips", "p Holm", "detect", "result"]
    title = comparison.subject.success_title.capitalize()
    _print_tests(console, f"{title} on the same problems, in points", head, comparison.cells, 1, 100)
    if len(comparison.pooled):
        _print_tests(console, f"{title} over all numbers of worked examples", head, comparison.pooled, 1, 100)
    if len(comparison.rewards):
        _print_tests(console, "Mean reward on the same problems", head, comparison.rewards, 3, 1)
    if len(comparison.answers):
        _print_note(
            console,
            "flips: answers that only A, and only B, got right. p: exact paired test, Holm over the table. detect: the "
            "smallest true difference that the test would find with 80 % power, before Holm.",
        )
    _print_labels(console, comparison)


def _print_ranking(ranking: Ranking, console: Console) -> None:
    name, scale, digits = _describe_quantity(ranking)
    if len(ranking.overlap.shot_nums) > 1:
        title = f"{name} over all numbers of worked examples"
        _print_ranks(console, title, ranking, ranking.pooled, scale, digits)
    _print_ranks(console, f"{name} by number of worked examples", ranking, ranking.cells, scale, digits)
    _print_note(
        console,
        f"Brackets: {100 * ranking.uncertainty.confidence:g} % intervals. p: exact paired test against the best of the "
        "same row, Holm over the table.",
    )


def _print_sweep(ranking: Ranking, console: Console) -> None:
    """Print a row an experiment, with the parameters that differ; the experiments without results below."""
    _print_revision(console, BASELINE, ranking.experiments[0])
    _print_overlap(console, ranking.overlap, ranking.subject.name)
    _print_findings(console, describe_findings(ranking))
    name, scale, digits = _describe_quantity(ranking)
    caption = f"{name} over worked examples {', '.join(map(str, ranking.overlap.shot_nums))}"
    names = [experiment.name for experiment in ranking.experiments]
    params = [row for row in ranking.params if row["stages"]]
    for (method, size), group in ranking.pooled.groupby(RUN, sort=False):
        if (method, size) in ranking.overlap.identical:
            continue
        head = ["rank", "experiment", *(row["key"] for row in params), "value", "minus\nbaseline", "p Holm", "result"]
        table = _build_table(head, text_columns=2)
        for column in [*table.columns[:2], *table.columns[-4:]]:
            column.no_wrap = True
        for row in group.itertuples():
            table.add_row(
                str(row.rank),
                _format_value(row.experiment),
                *(_format_value(param["values"][names.index(row.experiment)]) for param in params),
                Text(_format_interval(row.value, row.ci_low, row.ci_high, scale, digits)),
                Text(_format_interval(row.difference, row.difference_low, row.difference_high, 1, digits, "+")),
                "" if pd.isna(row.p_holm) else _format_p(row.p_holm),
                _format_result(row.result),
            )
        _print_table(console, f"{format_run(str(method), int(size))}: {caption}", table)
    if ranking.unfinished:
        table = _build_table(["experiment", "status", "reason"], text_columns=3)
        for task in ranking.unfinished:
            table.add_row(*map(_format_value, task.values()))
        _print_table(console, "Not ranked", table)
    if ranking.code:
        paths = format_names([row["path"] for row in ranking.code])
        console.print(Text(f"Code or data differs too: {paths}", style="yellow"))
    _print_note(
        console,
        f"Brackets: {100 * ranking.uncertainty.confidence:g} % intervals. p: exact paired test against the baseline, "
        "Holm over all rows that were tested.",
    )


def _print_revision(console: Console, label: str, experiment: Experiment) -> None:
    revision = experiment.revision
    suffix = f", experiment {revision.experiment}" if revision.experiment not in (None, revision.name) else ""
    console.print(Text(f"{label}  {revision.title}{suffix}", style="bold"))
    for note in experiment.notes:
        console.print(Text(f"   {note}", style="yellow"))


def _print_overlap(console: Console, overlap: Overlap, subject: str) -> None:
    seeds = ", ".join(map(str, overlap.training_seeds))
    console.print(
        f"{subject}: {len(overlap.problems)} test problems with {', '.join(map(str, overlap.shot_nums))} worked "
        "examples" + (f"; training seeds {seeds}" if seeds else ""),
        highlight=False,
    )
    for note in overlap.notes:
        console.print(Text(note, style="yellow"))
    for run, names in overlap.partial.items():
        console.print(Text(f"{format_run(*run)}: only in {', '.join(names)}", style="yellow"))
    if overlap.identical:
        names = [format_run(*run) for run in overlap.runs if run in overlap.identical]
        console.print(Text(f"The same predictions in all: {'; '.join(names)}"))


def _describe_quantity(ranking: Ranking) -> tuple[str, int, int]:
    """What a ranking measures: its name, the factor to print it with and the decimal places."""
    return ("Mean reward", 1, 3) if ranking.quantity == "reward" else ("Success", 100, 1)


def _print_findings(console: Console, sentences: Iterable[str]) -> None:
    console.print()
    for sentence in sentences:
        console.print(Text(sentence))


def _print_inputs(console: Console, params: Sequence[Row], code: Sequence[Row], count: int) -> None:
    letters = [letter.upper() for letter in list_letters(count)]
    rows, unread_keys = [row for row in params if row["stages"]], [row["key"] for row in params if not row["stages"]]
    if rows:
        table = _build_table(["key", *letters], text_columns=count + 1)
        for row in rows:
            table.add_row(*map(_format_value, (row["key"], *row["values"])))
        _print_table(console, "Parameters that differ", table)
    else:
        console.print("\nNo parameter differs that a stage behind these predictions reads.")
    if unread_keys:
        console.print(Text(f"Parameters that differ and are not read there: {format_names(unread_keys)}"))
    if code:
        table = _build_table(["path", "read by"], text_columns=2)
        for row in code:
            families = dict.fromkeys(stage.partition("@")[0] for stage in row["stages"])
            table.add_row(_format_value(row["path"]), _format_value(", ".join(families)))
        _print_table(console, "Code and data that differ", table)
    else:
        console.print("No code or data differs among what these predictions come from.")


def _print_tests(
    console: Console, caption: str, head: Sequence[str], tests: pd.DataFrame, digits: int, scale: float
) -> None:
    tested_rows = tests[tests["result"] != SAME]
    if not len(tested_rows):
        return
    table = _build_table(head, text_columns=1)
    last = None
    for row in tested_rows.itertuples():
        run = _format_short_run(row.method, row.dataset_size)
        table.add_row(
            _format_value(run if run != last else ""),
            str(row.shot_num),
            f"{scale * row.value_a:.{digits}f}",
            f"{scale * row.value_b:.{digits}f}",
            Text(f"{row.difference:+.{digits}f} [{row.ci_low:+.{digits}f}, {row.ci_high:+.{digits}f}]"),
            f"-{row.lost} +{row.gained}",
            _format_p(row.p_holm),
            f"{row.detectable_difference:.{digits}f}",
            _format_result(row.result),
        )
        last = run
    _print_table(console, caption, table)


def _print_ranks(
    console: Console, caption: str, ranking: Ranking, ranks: pd.DataFrame, scale: float, digits: int
) -> None:
    tested_rows = ranks[ranks["result"] != SAME]
    if not len(tested_rows):
        return
    names = [experiment.name for experiment in ranking.experiments]
    letters = dict(zip(names, list_letters(len(names)), strict=True))
    table = _build_table(["cell", "rank", "", "value", "minus best", "p Holm", "result"], text_columns=1)
    last = None
    for row in tested_rows.itertuples():
        cell = format_cell(row.method, row.dataset_size, row.shot_num)
        if last not in (None, cell):
            table.add_section()
        difference = "" if pd.isna(row.difference) else f"{row.difference:+.{digits}f}"
        table.add_row(
            _format_value(cell if cell != last else ""),
            str(row.rank),
            letters[row.experiment].upper(),
            Text(_format_interval(row.value, row.ci_low, row.ci_high, scale, digits)),
            difference,
            "" if pd.isna(row.p_holm) else _format_p(row.p_holm),
            _format_result(row.result),
        )
        last = cell
    _print_table(console, caption, table)


def _print_labels(console: Console, comparison: Comparison) -> None:
    if not len(comparison.labels):
        return
    table = _build_table(["run", "label", "A", "B", "B - A"], text_columns=2)
    for (method, size), group in comparison.labels.groupby(RUN, sort=False):
        for i, row in enumerate(group.itertuples()):
            run = "" if i else _format_short_run(str(method), int(size))
            shares = [f"{100 * row.share_a:.1f}", f"{100 * row.share_b:.1f}"]
            table.add_row(
                _format_value(run), _format_value(row.label), *shares, f"{100 * (row.share_b - row.share_a):+.1f}"
            )
    _print_table(console, "Labels of all answers, in percent", table)
    counts = comparison.transitions.groupby(["label_a", "label_b"])["count"].sum()
    labels = sort_labels({label for pair in counts.index for label in pair})
    first_words = [label.partition("_")[0] for label in labels]
    head = first_words if len(set(first_words)) == len(first_words) else labels
    table = _build_table(["", *head], text_columns=1)
    for a in labels:
        table.add_row(_format_value(a), *(str(counts.get((a, b), 0)) for b in labels))
    _print_table(console, "Answers by A's label (rows) and B's (columns)", table)


def _print_cost(console: Console, cost: pd.DataFrame, count: int) -> None:
    if not len(cost):
        return
    letters = list_letters(count)
    quantities = {"wall s": "wall_s", "CPU s": "cpu_s", "peak MB": "peak_rss_mb"}
    table = _build_table(["", "stages", "ran anew", *quantities], text_columns=1)
    for row in cost.to_dict("records"):
        values = [[row[f"{name}_{letter}"] for letter in letters] for name in ("stages", *quantities.values())]
        distinct = (by_letter if len(set(by_letter)) > 1 else by_letter[:1] for by_letter in values)
        stages, *others = ("/".join(f"{value:.0f}" for value in by_letter) for by_letter in distinct)
        table.add_row(_format_value(row["kind"]), stages, str(row["anew"]), *others)
    title = f"Cost of the stages behind these predictions, {'/'.join(letter.upper() for letter in letters)}"
    _print_table(console, title, table)


def _print_flips(console: Console, comparison: Comparison, max_flips: int) -> None:
    counts: dict[Any, int] = {}
    for flip in iter_flips(comparison):
        key = (flip["method"], flip["dataset_size"], flip["shot_num"], flip["kind"])
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > max_flips:
            continue
        console.print()
        title = f"{format_cell(*key[:3])}, {flip['id']} ({flip['domain']}): {flip['kind']}"
        console.print(Text(title, style="bold"))
        for letter in "ab":
            answer = flip[letter]
            detail = f"; {answer['detail']}" if answer["detail"] else ""
            console.print(Text(f"{letter.upper()}: {answer['label']}{detail}"))
            steps = (answer["plan"] or answer.get("completion", "")).splitlines() or ["(nothing)"]
            for number, step in enumerate(steps, 1):
                is_failing = number == answer["failing_step"]
                failure = "breaks a constraint" if answer["label"] == Label.SAFETY else "fails here"
                text = f"  {number:3} {_escape_control(step)}{f'  <- {failure}' if is_failing else ''}"
                console.print(Text(text, style="red" if is_failing else ""))


def _format_short_run(method: str, size: int) -> str:
    """`GRPO 400`: narrow enough for eighty columns."""
    return f"{format_method(method)} {size}" if size else format_method(method)


def _format_interval(value: float, low: float, high: float, scale: float, digits: int, sign: str = "") -> str:
    if pd.isna(value):
        return ""
    value_text, *ends = (f"{scale * x:{sign}.{digits}f}" for x in (value, low, high))
    return f"{value_text} [{', '.join(ends)}]"


def _format_result(result: str) -> Text:
    return Text(SHORT_RESULTS.get(result, result), style=STYLES.get(result, ""))


def _print_table(console: Console, caption: str, table: Table) -> None:
    console.print()
    console.print(Text(caption, style="bold"))
    console.print(table)


def _build_table(head: Sequence[str], text_columns: int) -> Table:
    """An empty table; its first `text_columns` columns are text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="left" if i < text_columns else "right", overflow="fold")
    return table


def _format_value(value: Any) -> Text:
    return Text("-" if value is None else _escape_control(str(value)))


def _escape_control(text: str) -> str:
    """Escape control characters, so that model output cannot control the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_note(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"))


def _format_p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"

"""Section "Transfer": success on renamed problems, on larger ones, and in held-out domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from planward.analysis.names import ALL, format_detectable_note, format_rate, format_run, format_shot_num, sort_key
from planward.analysis.transfer import EQUIVALENT, HIGHER, LOWER, UNDECIDED
from planward.report.sections.elements import Table, find_block_starts, format_difference

VERDICTS = {
    EQUIVALENT: "the interval lies within ±{margin:g} points, so names make no difference that matters",
    UNDECIDED: "the interval includes 0 and ends outside ±{margin:g} points, so nothing is shown",
    LOWER: "the interval lies below 0, so success depends on names",
    HIGHER: "the interval lies above 0, so success depends on names",
}


@dataclass(frozen=True)
class TransferKind:
    """The tables of one kind of problems, and a sentence on what they show."""

    finding: str
    tables: list[Table]  # the first is shown, the others are folded


@dataclass(frozen=True)
class TransferSection:
    renamed: TransferKind | None
    larger: TransferKind | None
    unseen: TransferKind | None


def build_transfer_section(table: pd.DataFrame, margin: float) -> TransferSection | None:
    """Build the section from the table of stage `transfer-compare`; None where it has no rows.

    Args:
        margin: points; see `CompareConfig`.
    """
    if table.empty:
        return None
    renamed_rows, larger_rows, unseen_rows = (table[table["kind"] == kind] for kind in ("renamed", "larger", "unseen"))
    return TransferSection(
        None if renamed_rows.empty else build_renamed(renamed_rows, margin),
        None if larger_rows.empty else build_larger(larger_rows),
        None if unseen_rows.empty else build_unseen(unseen_rows),
    )


def build_renamed(table: pd.DataFrame, margin: float) -> TransferKind:
    """Each run on renamed problems against itself on the originals: over all domains, and in each."""
    pooled_rows = table[table["domain"] == ALL]
    row = _find_last_run(pooled_rows)
    tally = pooled_rows["result"].value_counts()
    counts = ", ".join(f"{result} in {tally[result]}" for result in VERDICTS if result in tally)
    finding = (
        f"{_format_success(row)} problems with a new name for every symbol, and "
        f"{100 * row.original_success_rate:.1f} % of the same problems with their own names: "
        f"{format_difference(row.difference, row.difference_low, row.difference_high)} points; "
        f"{VERDICTS[row.result].format(margin=margin)}. "
        f"Of all {len(pooled_rows)} cells of method and number of worked examples: {counts}."
    )
    return TransferKind(
        finding,
        [
            _build_renamed_table("Renamed problems against their originals", pooled_rows),
            _build_renamed_table("Renamed problems by domain", table[table["domain"] != ALL]),
        ],
    )


def build_larger(table: pd.DataFrame) -> TransferKind:
    """Success by domain, a column for each run and number of worked examples."""
    pooled_rows = table[table["domain"] == ALL]
    row = _find_last_run(pooled_rows)
    finding = f"{_format_success(row)} problems beyond the sizes of training"
    base = pooled_rows[(pooled_rows["method"] == "base") & (pooled_rows["shot_num"] == row.shot_num)]
    finding += "".join(f", base {_format_rate(cell)} %" for cell in base.itertuples() if row.method != "base")
    cells = {(c.domain, c.method, c.dataset_size, c.shot_num): c for c in table.itertuples()}
    columns = list(dict.fromkeys(key[1:] for key in cells))
    rows = [
        [domain, cells[domain, *columns[0]].n, *(_format_rate(cells[domain, *column]) for column in columns)]
        for domain in _list_domains(table)
    ]
    head = ["domain", "n", *(f"{format_run(method, size)}, {format_shot_num(k)}" for method, size, k in columns)]
    note = format_detectable_note(table["detectable_difference"], between="two runs, by domain")
    caption = "Success in percent on problems larger than in training"
    return TransferKind(f"{finding}.", [Table(caption, head, rows, note=note, blocks={1})])


def build_unseen(table: pd.DataFrame) -> TransferKind:
    """Success in each held-out domain by run and number of worked examples."""
    domains = [domain for domain in _list_domains(table) if domain != ALL]
    findings = [_describe_unseen(table[table["domain"] == domain]) for domain in domains]
    shown_rows = table if len(domains) > 1 else table[table["domain"] != ALL]
    rows: list[list[Any]] = []
    for (domain, is_known, n, method, size), run in shown_rows.groupby(
        ["domain", "known_to_base", "n", "method", "dataset_size"], sort=False
    ):
        cells = [_format_rate(cell) for cell in run.sort_values("shot_num").itertuples()]
        rows.append([domain, n, "yes" if is_known else "no", format_run(str(method), int(size)), *cells])
    head = ["domain", "n", "known to models/base", "method"]
    head += [format_shot_num(shot_num) for shot_num in sorted(table["shot_num"].unique())]
    note = format_detectable_note(shown_rows["detectable_difference"])
    blocks = find_block_starts([row[0] for row in rows])
    caption = "Success in percent in domains without training problems"
    return TransferKind(" ".join(findings), [Table(caption, head, rows, note=note, blocks=blocks)])


def _build_renamed_table(caption: str, table: pd.DataFrame) -> Table:
    rows = [
        [
            *(row.domain, format_run(row.method, row.dataset_size), row.shot_num, row.n),
            *(f"{100 * row.original_success_rate:.1f}", _format_rate(row)),
            *(int(row.only_original), int(row.only_renamed)),
            format_difference(row.difference, row.difference_low, row.difference_high),
            *(f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.1f}"),
        ]
        for row in table.itertuples()
    ]
    head = ["domain", "method", "shots", "n", "originals, percent", "renamed, percent", "only the original"]
    head += ["only the renamed", "difference, points", "p (Holm)", "result", "detectable, points"]
    return Table(caption, head, rows, blocks=find_block_starts([row[:2] for row in rows]))


def _describe_unseen(table: pd.DataFrame) -> str:
    """A sentence on the last run, with the fewest and the most worked examples, and where its interval is above 0."""
    first, last = _find_last_run(table), _find_last_run(table, most=True)
    sentence = f"{_format_success(first)} problems of {first.domain}"
    if last.shot_num != first.shot_num:
        sentence += f", with {format_shot_num(last.shot_num)} {_format_rate(last)} %"
    run = table[(table["method"] == first.method) & (table["dataset_size"] == first.dataset_size)]
    above = sorted(run["shot_num"][run["ci_low"] > 0])
    numbers = [*map(str, above[:-1]), *map(format_shot_num, above[-1:])]
    verdict = f"success is above 0 with {', '.join(numbers)}" if numbers else "no success is shown"
    base_note = ", but models/base has tokens for this domain and was pretrained on it" if first.known_to_base else ""
    return f"{sentence}: {verdict}{base_note}."


def _find_last_run(table: pd.DataFrame, *, most: bool = False) -> Any:
    """The row of the last method in the order of all tables, with the fewest (or `most`) worked examples."""
    last = max(table["method"], key=lambda method: sort_key("method", method))
    rows = table[table["method"] == last].sort_values("shot_num")
    return next((rows.iloc[::-1] if most else rows).itertuples())


def _format_success(row: Any) -> str:
    """`With 0 shots GRPO, N = 400 solves 66.7 [58.8, 73.7] % of 150`, to be followed by what the problems are."""
    run = format_run(row.method, row.dataset_size).replace(", ", " at ")
    return f"With {format_shot_num(row.shot_num)}, {run} solves {_format_rate(row)} % of {row.n}"


def _format_rate(row: Any) -> str:
    return format_rate(row.success_rate, row.ci_low, row.ci_high)


def _list_domains(table: pd.DataFrame) -> list[str]:
    return sorted(set(table["domain"]), key=lambda domain: sort_key("domain", domain))

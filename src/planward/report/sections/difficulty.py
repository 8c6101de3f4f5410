"""What the difficulty score predicts, and success by bucket with and without constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from planward.analysis.difficulty import LENGTH, SUCCESS
from planward.analysis.names import ALL, format_detectable_note, format_rate, format_run, format_shot_num, sort_key
from planward.params import BUCKETS
from planward.report.sections.breakdown import add_constraint_kind
from planward.report.sections.elements import Table, find_block_starts, format_number

POOLED = "all, within domains"
KINDS = {"unconstrained": "without constraints", "constrained": "with constraints"}  # of problems, in words


def build_correlation_table(difficulty: pd.DataFrame, shot_num: int) -> Table | None:
    """The score's rank correlations on all problems, by domain; None where nothing was measured."""
    part = difficulty[difficulty["problems"] == ALL]
    columns = _list_columns(part, shot_num)
    if not columns:
        return None
    rows = [
        [_name_domain(domain), int(cells["n"].max()), *(_format_cell(cells, *column) for column in columns)]
        for domain, cells in part.groupby("domain", sort=False)
    ]
    head = ["domain", "n", *columns.values()]
    return Table("Rank correlation of the difficulty score", head, rows, note=_format_note(part, columns))


def build_kinds_table(difficulty: pd.DataFrame, shot_num: int) -> Table | None:
    """The score's rank correlations by domain, separately without and with constraints; None without both kinds."""
    part = difficulty[difficulty["problems"] != ALL]
    columns = {key: name for key, name in _list_columns(part, shot_num).items() if key[1] != ALL}
    if not columns:
        return None
    rows: list[list[Any]] = []
    for domain, cells in part.groupby("domain", sort=False):
        rows.append([_name_domain(domain)])
        for kind in KINDS:
            of_kind = cells[cells["problems"] == kind]
            rows[-1] += [max(of_kind["n"], default=0), *(_format_cell(of_kind, *column) for column in columns)]
    groups = [("", 1), *((name, 1 + len(columns)) for name in KINDS.values())]
    head = ["domain", *["n", *columns.values()] * len(KINDS)]
    note = _format_note(part, columns)
    return Table("Rank correlation of the difficulty score by constraints", head, rows, groups=groups, note=note)


def list_difficulty_findings(difficulty: pd.DataFrame, shot_num: int) -> list[str]:
    """In how many domains the score ranks problems as it should; how far, where problems have constraints or not."""
    sentences = []
    every = difficulty[difficulty["problems"] == ALL]
    columns = [key for key in _list_columns(every, shot_num) if key[1] != ALL]
    outcomes = {
        LENGTH: "by the length of the reference plan",
        SUCCESS: f"by failures of base ({format_shot_num(shot_num)})",
    }
    parts = [f"{outcomes[key[0]]} {count}" for key in columns if (count := _count_domains(every, key))]
    if parts:
        sentences.append(f"The score ranks problems {', and '.join(parts)}.")
    pooled_rows = difficulty[(difficulty["domain"] == ALL) & (difficulty["measure"] == SUCCESS)]
    cells = {kind: _format_cell(pooled_rows[pooled_rows["problems"] == kind], SUCCESS, str(shot_num)) for kind in KINDS}
    if all(cells.values()):
        values = " and ".join(f"{cells[kind]} {name}" for kind, name in KINDS.items())
        sentences.append(f"Within domains, its correlation with the success of base is {values}.")
    return sentences


def build_constrained_buckets_table(table: pd.DataFrame, shot_num: int) -> Table | None:
    """Success of every run by bucket, without and with constraints; None where the test set has only one kind."""
    part = add_constraint_kind(table[(table["domain"] == ALL) & (table["shot_num"] == shot_num)])
    if part["constrained"].nunique() < 2:
        return None
    counts = {(c.problems, c.bucket): c.n for c in part.itertuples()}
    columns = sorted(counts, key=lambda key: (list(KINDS.values()).index(key[0]), sort_key("bucket", key[1])))
    rows, methods = [], []
    for (method, size), run in part.groupby(["method", "dataset_size"], sort=False):
        methods.append(method)
        rates = {(c.problems, c.bucket): format_rate(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()}
        rows.append([format_run(str(method), int(size)), *(rates[column] for column in columns)])
    widths = [(name, sum(kind == name for kind, _ in columns)) for name in KINDS.values()]
    return Table(
        f"Success in percent by bucket, without and with constraints, {format_shot_num(shot_num)}",
        ["method", *(f"{bucket} (n = {counts[kind, bucket]})" for kind, bucket in columns)],
        rows,
        groups=[("", 1), *widths],
        note=format_detectable_note(part["detectable_difference"]),
        blocks=find_block_starts(methods),
    )


def build_length_table(metrics: Mapping[str, Any]) -> Table | None:
    """Median and maximum of the lengths of reference plans by domain and bucket; None where stage `score` has none."""
    lengths = {name: row.get("reference_length", {}) for name, row in sorted(metrics.get("domains", {}).items())}
    if not any(lengths.values()):
        return None
    rows = [
        [name, *(format_number(cells.get(b, {}).get(key)) for b in BUCKETS for key in ("median", "max"))]
        for name, cells in lengths.items()
    ]
    groups = [("", 1), *((bucket, 2) for bucket in BUCKETS)]
    head = ["domain", *["median", "maximum"] * len(BUCKETS)]
    return Table("Actions of reference plans by bucket, training split", head, rows, groups=groups)


def _list_columns(table: pd.DataFrame, shot_num: int) -> dict[tuple[str, str], str]:
    """The measures that a table has, each with its shot_num, and what they are called."""
    titles = {
        (LENGTH, ""): "reference plan's length",
        (SUCCESS, str(shot_num)): f"success of base, {format_shot_num(shot_num)}",
    }
    titles[SUCCESS, ALL] = "success of base, share over all numbers of examples"
    pairs = set(zip(table["measure"], table["shot_num"], strict=True))
    if sum(measure == SUCCESS for measure, _ in pairs) < 3:  # one shot_num: its share is the success itself
        del titles[SUCCESS, ALL]
    return {key: title for key, title in titles.items() if key in pairs}


def _select_cells(table: pd.DataFrame, measure: str, shot_num: str) -> pd.DataFrame:
    return table[(table["measure"] == measure) & (table["shot_num"] == shot_num)]


def _format_cell(table: pd.DataFrame, measure: str, shot_num: str) -> str:
    """The correlation with its interval, or why it is undefined; '' where the table has no such row."""
    for cell in _select_cells(table, measure, shot_num).itertuples():
        if cell.correlation == cell.correlation:
            return f"{cell.correlation:+.2f} [{cell.ci_low:+.2f}, {cell.ci_high:+.2f}]"
        return "undefined" if cell.domain == ALL else f"undefined: {cell.undefined}"
    return ""


def _format_note(table: pd.DataFrame, columns: Mapping[tuple[str, str], str]) -> str:
    """The domains that the first row leaves out."""
    pooled_rows = table[table["domain"] == ALL]
    reasons = [
        f"{columns[key]}{f', {KINDS[cell.problems]}' if cell.problems in KINDS else ''} ({cell.undefined})"
        for key in columns
        for cell in _select_cells(pooled_rows, *key).itertuples()
        if cell.undefined
    ]
    return f"Left out of the first row: {'; '.join(reasons)}." if reasons else ""


def _count_domains(table: pd.DataFrame, key: tuple[str, str]) -> str:
    """In how many of the domains with a correlation it has the sign that a good score gives it; '' without any."""
    cells = _select_cells(table[table["domain"] != ALL], *key).dropna(subset=["correlation"])
    sign = 1 if key[0] == LENGTH else -1
    right = (sign * cells["correlation"] > 0).sum()
    certain = (cells["ci_low"] > 0).sum() if sign > 0 else (cells["ci_high"] < 0).sum()
    side = "above" if sign > 0 else "below"
    return f"in {right} of {len(cells)} domains ({certain} with the whole interval {side} 0)" if len(cells) else ""


def _name_domain(domain: object) -> str:
    return POOLED if domain == ALL else str(domain)

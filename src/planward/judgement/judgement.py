"""Judges a file of completions: verdicts, quarantine, metrics, tables and a page in one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from planward.core.files import open_atomic, write_json
from planward.core.lines import OUTSIDE, Line
from planward.core.parallel import map_chunks
from planward.core.tables import write_table
from planward.core.verdicts import Label
from planward.judgement.lines import read_chunks
from planward.judgement.page import render_page
from planward.judgement.problems import ProblemIndex
from planward.judgement.tables import Tables, compute_tables
from planward.judgement.tally import Tally
from planward.judgement.verdicts import Judge, Judged, JudgedBy, Rejected, Settings

METRICS_FILE, PAGE_FILE, TABLES = "metrics.json", "page.html", ("success", "paired", "labels")
SUMMARIES = (METRICS_FILE, PAGE_FILE, *(f"{table}.csv" for table in TABLES))


@dataclass(frozen=True)
class Judgement:
    """What was written to the folder."""

    metrics: dict[str, Any]
    tables: Tables


def judge_file(
    path: Path,
    folder: Path,
    index: ProblemIndex,
    settings: Settings,
    *,
    workers: int = 1,
    confidence: float = 0.95,
    advance: Callable[[int], object] = lambda _: None,
) -> Judgement:
    """Write verdicts.jsonl, quarantine.jsonl, metrics.json, success.csv, paired.csv, labels.csv and page.html.

    Memory does not grow with the number of lines, only with that of problems. Verdicts keep the order of the lines;
    the same file gives the same bytes, whatever the number of workers.

    Args:
        advance: called with the number of bytes of each chunk, when it has been read.

    Raises:
        ValueError: no line could be judged; the message shows the first reason.
        VerifierError: VAL is broken, or the verifiers disagree; the message has the line's number.
        OSError: the file cannot be read, or the folder not be written.
        WorkerKilled: one of the processes was killed.
    """
    tally, line_num, blank = Tally(), 0, 0

    def count_lines(chunks: Iterable[list[Line]]) -> Iterator[list[Line]]:
        nonlocal line_num
        for chunk in chunks:
            line_num += len(chunk)
            yield chunk

    with open_atomic(folder / "verdicts.jsonl") as verdicts, open_atomic(folder / "quarantine.jsonl") as quarantine:
        results = map_chunks(partial(Judge, index, settings), count_lines(read_chunks(path, advance)), workers)
        for result in chain.from_iterable(results):
            if isinstance(result, Judged) and (reason := tally.add(result)):
                result = Rejected(result.number, reason, result.raw)
            if isinstance(result, Judged):
                verdicts.write(result.text + "\n")
            elif isinstance(result, Rejected):
                tally.reject(result.number, result.reason)
                quarantine.write(result.text + "\n")
            else:
                blank += 1
        metrics = _compute_metrics(tally, line_num, blank, settings)
    for name in SUMMARIES:
        (folder / name).unlink(missing_ok=True)  # those of earlier verdicts
    if not tally.judged:
        reason = tally.first_reason or "it holds no lines"
        if OUTSIDE in reason:
            reason += "; fix: --root, a folder above all PDDL files"
        raise ValueError(f"{path}: no line could be judged; {reason}; see {folder / 'quarantine.jsonl'}")
    judgement = Judgement(metrics, compute_tables(tally, confidence))
    write_json(folder / METRICS_FILE, judgement.metrics)
    for table in TABLES:
        write_table(folder / f"{table}.csv", getattr(judgement.tables, table))
    with open_atomic(folder / PAGE_FILE) as out:
        out.write(render_page(path.name, judgement.metrics, judgement.tables))
    return judgement


def _compute_metrics(tally: Tally, line_num: int, blank: int, settings: Settings) -> dict[str, Any]:
    """Labels and `judged_by` each sum to judged, reasons to quarantined; raises RuntimeError where a line is lost."""
    counts = {str(label): sum(each[label] for each in tally.labels.values()) for label in Label}
    num_quarantined = tally.reasons.total()
    if blank + tally.judged + num_quarantined != line_num:
        raise RuntimeError(
            f"{line_num} lines read, but {blank} blank, {tally.judged} judged and {num_quarantined} quarantined"
        )
    return {
        "lines": line_num,
        "blank": blank,
        "judged": tally.judged,
        "quarantined": num_quarantined,
        "quarantined_by_reason": dict(sorted(tally.reasons.items())),
        "labels": counts,
        "successes": counts[Label.SUCCESS],
        "models": len({cell.model for cell in tally.cells}),
        "problems": tally.problem_num,
        "domains": len(tally.domains),
        "verifier": str(settings.verifier),
        "judged_by": {name: tally.judged_by[name] for name in get_args(JudgedBy)},
    }

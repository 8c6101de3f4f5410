"""dialects: deal the problems of every split to dialects of their domains, for the selector of worked examples."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from planward.params import Params
from planward.pddl.dialects import MARKERS, Dialect
from planward.records import Meta, Record, read_records, replaced, write_json, write_jsonl, written
from planward.stages.score import OUT as SCORE
from planward.stages.split import SIDES
from planward.tasks import PROBLEMS as PLAIN
from planward.tasks import load_task
from planward.tasks.base import Task
from planward.tasks.planning.sources import dealt_evenly, dialects_of, domain_file, raw_prompt

OUT = Path("results/dialects")
PROBLEMS = OUT / "problems"


def run(params: Params) -> None:
    """Write results/dialects: PDDL files under problems/, records with plans in the dialect, and metrics.json.

    Generated problems that are all in plain words are dealt to `demonstrations.dialects` dialects. Any others, and
    problems without a plan, which nothing could be learnt of a dialect from, are copied as they are.

    Raises:
        ParamsError: a domain has fewer dialects.
        ValueError: a plan does not work in its dialect; the message names the problem.
    """
    shutil.rmtree(PROBLEMS, ignore_errors=True)
    count, task = params.demonstrations.dialects, load_task(params, PROBLEMS)
    dealing = params.problems.source == "generated" and params.problems.dialects == 1 and count > 1
    counts: dict[str, dict[str, Counter[str]]] = {}
    for side in SIDES:
        records = list(read_records(SCORE / f"{side}.jsonl"))
        dealt = dealt_dialects(records, count, params.seed, side) if dealing else {}
        counts[side] = defaultdict(Counter)
        for place, record in enumerate(tqdm(records, desc=f"dialects of {side}", unit="problem")):
            records[place] = spoken(record, dealt[record.id], task) if record.id in dealt else copied(record)
            counts[side][record.domain][dialect_name(records[place])] += 1
        write_jsonl(OUT / f"{side}.jsonl", records)
    write_json(OUT / "metrics.json", metrics(counts))


def dealt_dialects(records: Sequence[Record], count: int, seed: int, side: str) -> dict[str, Dialect]:
    """A dialect for every problem that has a plan, by id: in each domain every dialect as often, or once more."""
    ids: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record.response:
            ids[record.domain].append(record.id)
    dealt = dict[str, Dialect]()
    for domain, own in ids.items():
        dialects = dialects_of(domain, count, seed, "demonstrations.dialects")
        order = dealt_evenly(dialects, Random(f"{seed}:{domain}:{side}:dialects"))
        dealt.update(zip(sorted(own), order, strict=False))
    return dealt


def spoken(record: Record, dialect: Dialect, task: Task) -> Record:
    """The problem in the dialect, its files written; raises ValueError where its plan does not work there."""
    text = marked((PLAIN / record.meta.problem_file).read_text(encoding="utf-8"), dialect)
    for file, content in (domain_file(dialect), dialect.domain_text()), (record.meta.problem_file, text):
        with written(PROBLEMS / file) as out:
            out.write(content)
    meta = {**record.meta.model_dump(), "domain_file": domain_file(dialect), "dialect": dialect.number}
    update = {
        "prompt": raw_prompt(dialect, text),
        "response": "\n".join(dialect.translated((record.response or "").splitlines())),
        "meta": Meta.model_validate(meta),
    }
    translation = record.model_copy(update=update)
    verdict = task.verify(translation, translation.response or "")
    if not verdict.success:
        raise ValueError(
            f"{SCORE}: the plan of problem {record.id} ({record.meta.problem_file}) does not work in dialect "
            f"{dialect.number} of {dialect.domain_name}: {verdict.label}: {verdict.detail}; run `problems` again"
        )
    return translation


def marked(problem_text: str, dialect: Dialect) -> str:
    """A problem's PDDL with the dialect's number at the predicate that shows it."""
    return re.sub(rf"\(\s*{re.escape(MARKERS[dialect.domain_name])}(?=[\s()])", f"({dialect.marker}", problem_text)


def copied(record: Record) -> Record:
    """The record, its files copied."""
    for file in record.meta.domain_file, record.meta.problem_file:
        with replaced(PROBLEMS / file) as partial:
            shutil.copyfile(PLAIN / file, partial)
    return record


def dialect_name(record: Record) -> str:
    """The dialect that a record says it is in; 0, the plain domain, where it says nothing."""
    return str(getattr(record.meta, "dialect", 0))


def metrics(counts: dict[str, dict[str, Counter[str]]]) -> dict[str, Any]:
    return {
        "problems": {side: sum(numbers.total() for numbers in own.values()) for side, own in counts.items()},
        "dialects": {side: {domain: dict(numbers) for domain, numbers in own.items()} for side, own in counts.items()},
    }

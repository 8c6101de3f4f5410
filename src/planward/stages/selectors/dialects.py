"""Stage `dialects`: translate the problems of every split into dialects of their domains."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

from tqdm import tqdm

from planward.core import paths
from planward.core.files import open_atomic, replace_atomic, write_json, write_jsonl
from planward.core.records import Meta, Record, read_records
from planward.core.tasks import Task
from planward.params import ParamsError
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import get_dialect, load_track_task, translates_problems
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.dialects import Dialect, build_dialect
from planward.tasks.planning.domains import GENERATED_DOMAINS
from planward.tasks.planning.sources import format_domain_path, iter_shuffled, render_raw_prompt


def run(params: PlanningParams, config: SelectorsConfig) -> None:
    """Write results/selectors/dialects: PDDL files under problems/, records with translated plans, and metrics.json.

    Generated problems that are all in the plain domain are distributed over `dialects` dialects. Others are copied
    unchanged, and so are problems without a plan, from which nothing could be learned about a dialect.

    Raises:
        ParamsError: a domain has fewer dialects.
        ValueError: a translated plan is not valid; the message names the problem.
    """
    out, score = paths.SELECTORS.dialects, paths.results().score
    shutil.rmtree(paths.SELECTORS.problems, ignore_errors=True)
    task = load_track_task(params, config)
    translates = translates_problems(params, config)
    counts: dict[str, dict[str, Counter[str]]] = {}
    for split in paths.SPLITS:
        records = list(read_records(score / f"{split}.jsonl"))
        dialects = assign_dialects(records, config.dialects, params.seed, split) if translates else {}
        counts[split] = defaultdict(Counter)
        for i, record in enumerate(tqdm(records, desc=f"dialects of {split}", unit="problem")):
            dialect = dialects.get(record.id)
            records[i] = translate_record(record, dialect, task) if dialect else copy_record(record)
            counts[split][record.domain][str(get_dialect(records[i]))] += 1
        write_jsonl(out / f"{split}.jsonl", records)
    write_json(out / "metrics.json", compute_metrics(counts))


def assign_dialects(records: Sequence[Record], count: int, seed: int, split: str) -> dict[str, Dialect]:
    """Assign a dialect to every problem that has a plan, by id; within a domain, dialects are equally frequent.

    Raises:
        ParamsError: a domain has fewer than `count` dialects.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record.response:
            ids[record.domain].append(record.id)
    dialect_by_id = dict[str, Dialect]()
    for domain, domain_ids in ids.items():
        try:
            dialects = [build_dialect(domain, number, seed) for number in range(count)]
        except ValueError as error:
            raise ParamsError(f"{paths.params_file('selectors')}: dialects: {error}; fix: lower it") from None
        order = iter_shuffled(dialects, Random(f"{seed}:{domain}:{split}:dialects"))
        dialect_by_id.update(zip(sorted(domain_ids), order, strict=False))
    return dialect_by_id


def translate_record(record: Record, dialect: Dialect, task: Task) -> Record:
    """Translate a problem and write its PDDL files; raises ValueError where the translated plan is not valid."""
    source, target = paths.results().problems, paths.SELECTORS.problems
    text = mark_dialect((source / record.meta.problem_file).read_text(encoding="utf-8"), dialect)
    for file, content in (format_domain_path(dialect), dialect.render_domain()), (record.meta.problem_file, text):
        with open_atomic(target / file) as out:
            out.write(content)
    meta = {**record.meta.model_dump(), "domain_file": format_domain_path(dialect), "dialect": dialect.number}
    update = {
        "prompt": render_raw_prompt(dialect, text),
        "response": "\n".join(dialect.translate_plan((record.response or "").splitlines())),
        "meta": Meta.model_validate(meta),
    }
    translated_record = record.model_copy(update=update)
    verdict = task.verify(translated_record, translated_record.response or "")
    if not verdict.success:
        raise ValueError(
            f"{paths.results().score}: problem {record.id} ({record.meta.problem_file}): the plan is not valid in "
            f"dialect {dialect.number} of {dialect.domain_name}: {verdict.label}: {verdict.detail}; "
            "fix: run `planward problems` again"
        )
    return translated_record


def mark_dialect(problem_text: str, dialect: Dialect) -> str:
    """Add the dialect's number to the predicate in a problem's PDDL that reveals it."""
    return re.sub(
        rf"\(\s*{re.escape(GENERATED_DOMAINS[dialect.domain_name].MARKER)}(?=[\s()])",
        f"({dialect.marker}",
        problem_text,
    )


def copy_record(record: Record) -> Record:
    """Copy a problem's PDDL files; returns the record unchanged."""
    for file in record.meta.domain_file, record.meta.problem_file:
        with replace_atomic(paths.SELECTORS.problems / file) as partial:
            shutil.copyfile(paths.results().problems / file, partial)
    return record


def compute_metrics(counts: dict[str, dict[str, Counter[str]]]) -> dict[str, Any]:
    """Build metrics.json from the number of problems by split, domain and dialect."""
    return {
        "problems": {split: sum(c.total() for c in domains.values()) for split, domains in counts.items()},
        "dialects": {split: {domain: dict(c) for domain, c in domains.items()} for split, domains in counts.items()},
    }

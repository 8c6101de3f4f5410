"""The run itself: what was run, unexplained failures, time and memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planward.analysis.names import ALL, format_method
from planward.core.runs import SELECTORS
from planward.params import METHODS, Params
from planward.report.data import PageData
from planward.report.sections.curriculum import describe_empty_buckets, find_schedule_differences
from planward.report.sections.elements import Table, flatten, format_number

WARNINGS = {  # by metric: a nonzero value of a metric whose key matches needs an explanation
    r"disagree|verifier_error": "verdicts that VAL did not reach or on which the two verifiers disagree",
    r"fallback": "the schedule found a bucket empty and drew from the nearest one",
    r"unmatched": "file names that match no difficulty pattern: score 0, bucket easy",
    r"not_copied": "test problems that could not be renamed, so that they are not in the table of renamed problems",
    r"shots_dropped": "worked examples dropped from training prompts that were too long",
}
MIN_SHARE = 0.01  # of the processor time; stages that take less are summed up


@dataclass(frozen=True)
class Failure:
    """Something that needs an explanation, and its cause where the results tell it."""

    meaning: str
    occurrences: list[tuple[str, str]]  # value, and the file or run
    cause: str = ""


def list_facts(data: PageData, params: Params) -> list[tuple[str, str]]:
    """What was run, in a few words each."""
    cells = data.shots
    domains = [str(domain) for domain in dict.fromkeys(data.success["domain"]) if domain != ALL]
    methods = [method for method in METHODS if method in set(cells["method"]) and method != "base"]
    constrained_rows = data.constraints[data.constraints["constrained"]]
    with_constraints = f", {constrained_rows['n'].max()} with safety constraints" if len(constrained_rows) else ""
    shots = sorted(cells["shot_num"].unique())
    consecutive = len(shots) > 2 and shots[-1] - shots[0] == len(shots) - 1
    amounts = {"sft": f"{params.sft.epochs} epochs of SFT", "grpo": f"{params.grpo.steps} steps of GRPO"}
    tasks = [params.task, *(name for name, section in data.sections.items() if section)]
    facts = [
        ("tasks", ", ".join(tasks)),
        ("domains", ", ".join(domains)),
        ("models", " → ".join([str(params.model.path), *map(format_method, methods)])),
        ("endpoints", ", ".join(f"{name} ({params.endpoints.models[name].model})" for name in params.endpoints.run)),
        ("training", ", ".join(amounts[method] for method in methods)),
        ("N, training problems", ", ".join(str(size) for size in sorted(set(cells["dataset_size"])) if size)),
        ("seeds of training", ", ".join(map(str, params.seeds)) if methods else ""),
        ("test problems", f"{cells['n'].iloc[0]}{with_constraints}"),
        ("worked examples", f"{shots[0]} to {shots[-1]}" if consecutive else ", ".join(map(str, shots))),
    ]
    return [(name, value) for name, value in facts if value]


def find_failures(data: PageData, params: Params) -> list[Failure]:
    """What needs an explanation; the same from several files is one failure."""
    failures: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, reasons in data.quarantine.items():
        for reason, count in sorted(reasons.items()):
            failures[f"rejected input lines: {reason}"].append((str(count), path))
    for path, values in data.metrics.items():
        if path.endswith("disagreement.json"):
            failures["the two verifiers disagree on a training completion; the case is kept"].append(("1", path))
        for key, value in flatten(values):
            for pattern, meaning in WARNINGS.items():
                if re.search(pattern, key) and isinstance(value, (int, float)) and value:
                    failures[meaning].append((f"{key} = {format_number(value)}", path))
    for path, count in data.short_prompts.items():
        if count:
            failures["prompts with fewer worked examples than requested, to fit"].append((str(count), path))
    for rows, run in find_schedule_differences(data, params):
        failures["training consumed other problems than scheduled"].append((rows, run))
    causes = {WARNINGS["fallback"]: describe_empty_buckets(data)}
    return [Failure(meaning, occurrences, causes.get(meaning, "")) for meaning, occurrences in failures.items()]


def describe_checks(data: PageData) -> str:
    """What was searched for failures: `quarantine files (2), metrics files (34), ...`."""
    counts = {
        "quarantine files": len(data.quarantine),
        "metrics files": len(data.metrics),
        "training verdicts that VAL checked": sum(int(m.get("audited", 0)) for m in data.metrics.values()),
        "records of consumed problems": len(data.consumed),
        "prediction files": len(data.short_prompts),
    }
    return ", ".join(f"{name} ({count})" for name, count in counts.items() if count)


def build_cost_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Times summed over the stages of each kind, most costly first, drawn; memory is that of the largest stage."""
    if not rows:
        return None
    families: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        families[_name_family(row)].append(row)
    total = _sum(rows, "cpu_s")
    small = [name for name, stages in families.items() if _sum(stages, "cpu_s") < MIN_SHARE * total]
    others = [row for name in small for row in families.pop(name)] if len(small) > 1 else []
    sorted_families = sorted(families.items(), key=lambda item: -_sum(item[1], "cpu_s"))
    sorted_families += [(f"{len(small)} others", others)] if others else []
    cpu_s = [_sum(stages, "cpu_s") for _, stages in sorted_families]
    body = [
        [
            *(name, len(stages), f"{seconds:.0f}", f"{100 * seconds / (total or 1):.1f}"),
            *(f"{_sum(stages, 'wall_s'):.0f}", f"{max(row.get('peak_rss_mb') or 0 for row in stages):.0f}"),
        ]
        for (name, stages), seconds in zip(sorted_families, cpu_s, strict=True)
    ]
    body.append(["all", len(rows), f"{total:.0f}", "100", f"{_sum(rows, 'wall_s'):.0f}", ""])
    lengths = [seconds / (max(cpu_s) or 1) for seconds in cpu_s]
    spans = {(place, 2): (0.0, length, length) for place, length in enumerate(lengths)}
    head = ["stages", "count", "processor time, s", "percent", "wall time, s", "peak memory, MB"]
    return Table("Time and memory by kind of stage", head, body, spans=spans, blocks={len(sorted_families)})


def build_timing_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Wall time, processor time and memory of each stage."""
    if not rows:
        return None
    columns = ("wall_s", "cpu_s", "peak_rss_mb")
    body = [[_add_track(row["stage"], row["task"]), *(format_number(row.get(key)) for key in columns)] for row in rows]
    head = ["stage", "wall time, s", "processor time, s", "peak memory, MB"]
    return Table("Time and memory of each stage", head, body)


def _name_family(row: Mapping[str, Any]) -> str:
    """The kind of a stage: `evaluate`, `grpo, selectors`, `ablations`."""
    is_variant = "run" in row and row["run"]["size"] and row["run"]["method"] not in (*METHODS, *SELECTORS)
    return _add_track("ablations" if is_variant else re.split(r"[^a-z]", row["stage"])[0], row["task"])


def _add_track(stage: str, track: str) -> str:
    return stage if track == "planning" else f"{stage}, {track}"


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(row.get(key) or 0 for row in rows))

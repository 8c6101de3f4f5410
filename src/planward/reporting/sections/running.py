"""What a reader must know of the run itself: what was run, troubles, times."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planward.params import Params
from planward.records import METHODS
from planward.reporting.names import ALL, method_title
from planward.reporting.results import Results
from planward.reporting.sections.curriculum import departures, empty_buckets
from planward.reporting.sections.elements import Table, flat, number

TROUBLE = {  # a key of a metrics file that matches and is not zero needs an explanation
    r"disagree|verifier_error": "verdicts that VAL did not reach or on which the two verifiers differ",
    r"fallback": "the curriculum asked for an empty bucket and drew from the nearest one",
    r"unmatched": "file names that match no difficulty pattern: score 0, bucket easy",
    r"shots_dropped": "worked examples left out of training prompts that were too long",
}
SMALL = 0.01  # kinds of stages with a smaller share of the processor time are summed up
STAGE = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Trouble:
    """Something that needs an explanation, and the cause where the results tell it."""

    meaning: str
    found: list[tuple[str, str]]  # value, and the file or run
    cause: str = ""


def facts(results: Results, params: Params) -> list[tuple[str, str]]:
    """What was run, in a few words each."""
    cells = results.shots
    domains = [str(domain) for domain in dict.fromkeys(results.success["domain"]) if domain != ALL]
    methods = [method for method in METHODS if method in set(cells["method"]) and method != "base"]
    asked = results.constraints[results.constraints["constrained"]]
    constrained = f", {asked['n'].max()} with safety constraints" if len(asked) else ""
    shots = sorted(cells["shot_num"].unique())
    gapless = len(shots) > 2 and shots[-1] - shots[0] == len(shots) - 1
    amounts = {"sft": f"{params.sft.epochs} epochs of SFT", "grpo": f"{params.grpo.steps} steps of GRPO"}
    found = [
        ("tasks", "planning, economy" if results.economy else "planning"),
        ("domains", ", ".join(domains)),
        ("models", " → ".join([str(params.model.path), *map(method_title, methods)])),
        ("training", ", ".join(amounts[method] for method in methods)),
        ("N, training problems", ", ".join(str(size) for size in sorted(set(cells["dataset_size"])) if size)),
        ("seeds of training", ", ".join(map(str, params.seeds)) if methods else ""),
        ("test problems", f"{cells['n'].iloc[0]}{constrained}"),
        ("worked examples", f"{shots[0]} to {shots[-1]}" if gapless else ", ".join(map(str, shots))),
    ]
    return [(name, value) for name, value in found if value]


def troubles(results: Results, params: Params) -> list[Trouble]:
    """What needs an explanation, the same from several files together."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for reason, count in sorted(results.quarantine.items()):
        found[f"input lines set apart: {reason}"].append((str(count), "results/split/quarantine.jsonl"))
    for reason, count in sorted(results.economy.quarantine.items() if results.economy else ()):
        found[f"states set apart: {reason}"].append((str(count), "results/economy/split/quarantine.jsonl"))
    for path, values in results.metrics.items():
        if path.endswith("disagreement.json"):
            found["the two verifiers differ on a training completion; the case is kept"].append(("1", path))
        for key, value in flat(values):
            for pattern, meaning in TROUBLE.items():
                if re.search(pattern, key) and isinstance(value, (int, float)) and value:
                    found[meaning].append((f"{key} = {number(value)}", path))
    for path, count in results.short_prompts.items():
        if count:
            found["prompts with fewer worked examples than asked for, to fit"].append((str(count), path))
    for rows, run in departures(results, params):
        found["training consumed other problems than were scheduled"].append((rows, run))
    causes = {TROUBLE["fallback"]: empty_buckets(results)}
    return [Trouble(meaning, places, causes.get(meaning, "")) for meaning, places in found.items()]


def checked(results: Results) -> str:
    """What was looked through for troubles: `the quarantines of the splits, metrics files (34), ...`."""
    counts = {
        "metrics files": len(results.metrics),
        "training verdicts that VAL judged again": sum(int(m.get("audited", 0)) for m in results.metrics.values()),
        "records of what training consumed": len(results.consumed),
        "files of predictions": len(results.short_prompts),
    }
    return ", ".join(["the quarantine of the split", *(f"{name} ({count})" for name, count in counts.items() if count)])


def stages_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Times summed over the stages of each kind, the costliest first and drawn; memory of the largest."""
    if not rows:
        return None
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[_kind(str(row.get("stage", "?")))].append(row)
    total = _sum(rows, "cpu_s")
    small = [kind for kind, found in kinds.items() if _sum(found, "cpu_s") < SMALL * total]
    others = [row for kind in small for row in kinds.pop(kind)] if len(small) > 1 else []
    order = sorted(kinds.items(), key=lambda each: -_sum(each[1], "cpu_s"))
    order += [(f"{len(small)} other kinds", others)] if others else []
    used = [_sum(found, "cpu_s") for _, found in order]
    body = [
        [
            *(kind, len(found), f"{seconds:.0f}", f"{100 * seconds / (total or 1):.1f}"),
            *(f"{_sum(found, 'wall_s'):.0f}", f"{max(row.get('peak_rss_mb') or 0 for row in found):.0f}"),
        ]
        for (kind, found), seconds in zip(order, used, strict=True)
    ]
    body.append(["all", len(rows), f"{total:.0f}", "100", f"{_sum(rows, 'wall_s'):.0f}", ""])
    lengths = [seconds / (max(used) or 1) for seconds in used]
    spans = {(place, 2): (0.0, length, length) for place, length in enumerate(lengths)}
    head = ["kind of stage", "stages", "processor time, s", "percent", "wall time, s", "peak memory, MB"]
    return Table("Time and memory by kind of stage", head, body, spans=spans, blocks={len(order)})


def timing(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Wall time, processor time and memory of each stage."""
    if not rows:
        return None
    columns = ("wall_s", "cpu_s", "peak_rss_mb")
    body = [[row.get("stage", "?"), *(number(row.get(key)) for key in columns)] for row in rows]
    return Table(
        "Time and memory of each stage", ["stage", "wall time, s", "processor time, s", "peak memory, MB"], body
    )


def _kind(stage: str) -> str:
    """What a stage does and for which task: `evaluate`, `grpo, economy`, `ablations`."""
    if "-ablation@" in stage:
        return "ablations"
    name = found[0] if (found := STAGE.match(stage)) else stage
    return f"{name}, economy" if "-economy" in stage else name


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(row.get(key) or 0 for row in rows))

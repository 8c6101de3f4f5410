"""What a reader must know of the run itself: troubles, times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planward.params import Params
from planward.reporting.results import Results
from planward.reporting.sections.curriculum import departures
from planward.reporting.sections.elements import Table, flat, number

TROUBLE = {  # a key of a metrics file that matches and is not zero needs an explanation
    r"disagree|verifier_error": "verdicts that VAL did not reach or on which the two verifiers differ",
    r"fallback": "the curriculum asked for an empty bucket and drew from the nearest one",
    r"unmatched": "file names that match no difficulty pattern: score 0, bucket easy",
    r"shots_dropped": "worked examples left out of training prompts that were too long",
}


def troubles(results: Results, params: Params) -> list[tuple[str, str, str]]:
    """What needs an explanation: value, meaning, file."""
    found = [
        (str(count), f"input lines set apart: {reason}", "results/split/quarantine.jsonl")
        for reason, count in sorted(results.quarantine.items())
    ]
    for path, values in results.metrics.items():
        if path.endswith("disagreement.json"):
            found.append(
                ("a disagreement", "the two verifiers differ on a training completion; the case is kept", path)
            )
        for key, value in flat(values):
            for pattern, meaning in TROUBLE.items():
                if re.search(pattern, key) and isinstance(value, (int, float)) and value:
                    found.append((f"{key} = {number(value)}", meaning, path))
    found += [
        (str(count), "prompts with fewer worked examples than asked for, to fit", path)
        for path, count in results.short_prompts.items()
        if count
    ]
    return found + [
        (rows, "training consumed other problems than were scheduled", run) for rows, run in departures(results, params)
    ]


def timing(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Wall time, processor time and memory of each stage, and the sums of the times."""
    if not rows:
        return None
    columns = ("wall_s", "cpu_s", "peak_rss_mb")
    body = [[row.get("stage", "?"), *(number(row.get(key)) for key in columns)] for row in rows]
    total = [number(sum(row.get(key) or 0 for row in rows)) for key in columns[:2]]
    head = ["stage", "wall time, s", "processor time, s", "peak memory, MB"]
    return Table("Time and memory by stage", head, [*body, ["sum", *total, ""]])

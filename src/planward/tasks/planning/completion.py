"""Extracts the plan from a completion. The rules and their reasons: docs/reference/completions.md."""

from __future__ import annotations

import re

from planward.core.prompts import END

MAX_ACTIONS = 9000  # VAL's parser fails near 10,000
_BREAK = "\n```\n"  # a fence separates two blocks and does not count as prose
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_MARKERS = re.compile(
    r"<\|im_start\|>[ \t]*\w*|<\|start_header_id\|>[^<\n]*<\|end_header_id\|>|<\|[^<>|\n]{1,40}\|>"
    r"|\[/?INST\]|</?s>|" + re.escape(END)
)
_FENCE = re.compile(r"`{3,}[ \t]*[\w+-]*")
_BLANK = " \t\f\v"
# No two adjacent parts may match the same blanks: backtracking on a long line would take exponential time.
# ASCII only: `lower` turns some other letters, such as the Kelvin sign, into ASCII ones.
_ACTION = re.compile(
    r"""(?:\d+(?:\.\d+)?\s*:\s*)?                                   # a timestamp
        \(\s* ([A-Za-z_][\w-]* (?:\s+\w[\w-]*)*) \s*\)              # (name object ...)
        (?:\s*\[\s*\d+(?:\.\d+)?\s*\])? \s* (?:;.*)?                # a duration, a comment
    """,
    re.ASCII | re.VERBOSE,
)


def extract_plan(completion: str) -> list[str] | None:
    """Extract the last contiguous block of action lines, in lower case.

    Thoughts and chat-template markers are replaced by breaks first. Blank and comment lines do not end a block; a
    break, a Markdown fence and any other line do. Timestamps and durations are dropped: the order is that of the lines.

    Returns:
        [] for an empty completion; None for prose without an action and for more than `MAX_ACTIONS` actions.
    """
    text = _THOUGHT.sub(_BREAK, completion.replace("\uff5c", "|"))
    text = _MARKERS.sub(_BREAK, text.rpartition("</think>")[2])
    block, last, blank = list[str](), list[str](), True
    for line in re.split(r"[\r\n]+", text):
        if match := _ACTION.fullmatch(line.strip(_BLANK)):
            block.append(f"({' '.join(match[1].lower().split())})")
        elif line.strip() and not line.lstrip().startswith(";"):
            blank = blank and _FENCE.fullmatch(line.strip()) is not None
            last, block = block or last, []
    plan = block or last
    return plan if len(plan) <= MAX_ACTIONS and (plan or blank) else None

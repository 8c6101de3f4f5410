"""From what a model wrote to the plan in it."""

from __future__ import annotations

import re

from planward.tasks.planning.prompt import END

# A template's markers end a line: what stands on both sides never joins into one action.
_MARKERS = re.compile(
    r"<\|im_start\|>[ \t]*\w*|<\|start_header_id\|>[^<\n]*<\|end_header_id\|>|<\|[^<>|\n]{1,40}\|>"
    r"|\[/?INST\]|</?s>|" + re.escape(END)
)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BLANK = " \t\f\v"
# No two neighbours may match the same blanks: on a long line that would take forever.
_ACTION = re.compile(
    r"""(?:\d+(?:\.\d+)?\s*:\s*)?                                   # a timestamp
        \(\s* ([A-Za-z_][\w-]* (?:\s+\w[\w-]*)*) \s*\)              # (name object ...)
        (?:\s*\[\s*\d+(?:\.\d+)?\s*\])? \s* (?:;.*)?                # a duration, a comment
    """,
    re.ASCII | re.VERBOSE,
)


def extract_plan(completion: str) -> list[str] | None:
    """The plan in a completion: the last contiguous block of action lines, in lower case.

    Thoughts, chat-template markers and Markdown fences are taken out first. Blank and comment lines
    do not break a block; any other line does. Timestamps and durations are dropped: the order is that
    of the lines. Returns [] for a completion with nothing in it, None for prose without an action.
    """
    text = _THOUGHT.sub("\n", completion.replace("\uff5c", "|"))
    text = _MARKERS.sub("\n", text.rpartition("</think>")[2])
    block, last, blank = list[str](), list[str](), True
    for line in re.split(r"[\r\n]+", text):
        if match := _ACTION.fullmatch(line.strip(_BLANK)):
            block.append(f"({' '.join(match[1].lower().split())})")
        elif line.strip() and not line.lstrip().startswith(";"):
            blank = blank and line.strip().startswith("```")
            last, block = block or last, []
    plan = block or last
    return plan if plan or blank else None

"""Extracts the plan from a completion. The rules and their reasons: docs/reference/completions.md."""

from __future__ import annotations

import re
from collections.abc import Iterable

from planward.core.prompts import END

MAX_ACTIONS = 9000  # VAL's parser fails near 10,000
MAX_CHARS = 400_000  # of a completion: 9,000 actions, or thoughts of 100,000 tokens; longer ones take seconds
_BREAK = "\n```\n"  # a fence separates two blocks and does not count as prose
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_MARKERS = re.compile(
    r"<\|im_start\|>[ \t]*\w*|<\|start_header_id\|>[^<\n]*<\|end_header_id\|>|<\|[^<>|\n]{1,40}\|>"
    r"|\[/?INST\]|</?s>|\[PLAN\]|" + re.escape(END)
)
_PLAN_END = re.compile(r"\[(?:PLAN END|/PLAN|STATEMENT)\]")
_FENCE = re.compile(r"`{3,}[ \t]*[\w+-]*")
_BLANK = " \t\f\v"
# No two adjacent parts may match the same blanks: backtracking on a long line would take exponential time.
# ASCII only: `lower` turns some other letters, such as the Kelvin sign, into ASCII ones.
_ACTION_PATTERN = r"""
    \(\s* ([A-Za-z_][\w-]* (?:\s+\w[\w-]*)*) \s*\)              # (name object ...)
    (?:\s*\[\s*\d+(?:\.\d+)?\s*\])? \s* (?:;.*)?                # a duration, a comment
"""
_ACTION = re.compile(r"(?:\d+(?:\.\d+)?\s*:\s*)?" + _ACTION_PATTERN, re.ASCII | re.VERBOSE)  # after a timestamp
_LIST_ITEM = re.compile(r"(?:\d+[.)]\s*|[-*]\s+)?" + _ACTION_PATTERN, re.ASCII | re.VERBOSE)
_SPREAD_ACTION = re.compile(r"^\(\n([\w\s-]*)\n\)", re.ASCII | re.MULTILINE)  # each bracket on a line of its own


def extract_plan(completion: str) -> list[str] | None:
    """Extract the last contiguous block of action lines, in lower case.

    Thoughts and chat-template markers are replaced by breaks first. Blank and comment lines do not end a block; a
    break, a Markdown fence and any other line do. Timestamps, durations and backslashes at the end of a line are
    dropped: the order is that of the lines. Items of a list, and actions whose brackets have lines of their own, count
    where there is no other action line. An end of a plan, such as `[PLAN END]`, hides what follows.

    Returns:
        [] for an empty completion; None for prose without an action, for more than `MAX_ACTIONS` actions, and for more
        than `MAX_CHARS` characters.
    """
    if len(completion) > MAX_CHARS:
        return None
    text = _THOUGHT.sub(_BREAK, completion.replace("\uff5c", "|"))
    text = _MARKERS.sub(_BREAK, text.rpartition("</think>")[2])
    is_blank = True
    for part in _PLAN_END.split(text):
        lines = [line.strip(_BLANK).rstrip(_BLANK + "\\") for line in re.split(r"[\r\n]+", part)]
        plan = _find_last_block(lines, _ACTION)
        if not plan:
            joined_text = _SPREAD_ACTION.sub(lambda match: f"({' '.join(match[1].split())})", "\n".join(lines))
            plan = _find_last_block(joined_text.split("\n"), _LIST_ITEM)
        if plan:
            return plan if len(plan) <= MAX_ACTIONS else None
        is_blank = is_blank and all(_is_ignored(line) or _FENCE.fullmatch(line.strip()) for line in lines)
    return [] if is_blank else None


def _find_last_block(lines: Iterable[str], action: re.Pattern[str]) -> list[str]:
    block, last = list[str](), list[str]()
    for line in lines:
        if match := action.fullmatch(line):
            block.append(f"({' '.join(match[1].lower().split())})")
        elif block and not _is_ignored(line):
            last, block = block, []
    return block or last


def _is_ignored(line: str) -> bool:
    """Whether a line is blank or a comment."""
    return not line.strip() or line.lstrip().startswith(";")

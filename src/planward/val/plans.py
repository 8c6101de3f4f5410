"""Parse plans before VAL reads them.

VAL does not check the format of plans: it skips prose, drops surplus arguments, crashes on missing arguments and on
non-ASCII characters, and needs minutes for a long name. So a grammar parses plans here, and VAL gets only names and
brackets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from planward.val.inputs import Inputs

NUMBER_PATTERN = r"\d{1,9}(?:\.\d{1,9})?"
LINE_PATTERN = re.compile(
    rf"(?:({NUMBER_PATTERN})[ \t]*:)?[ \t]*\(([^()]*)\)[ \t]*(?:\[[ \t]*({NUMBER_PATTERN})[ \t]*\])?", re.ASCII
)
NAME_PATTERN = re.compile(r"[a-z_][a-z0-9_-]*")
MAX_QUOTED_CHARS = 80  # of a plan, in a message


class FormatError(ValueError):
    """The text is not a plan for this domain; the message says why."""


@dataclass(frozen=True)
class TimedStep:
    """One action of a plan: `(name argument ...)` as VAL gets it, in lower case.

    `start` is the time at which VAL runs it; its position where the domain is not temporal.
    """

    action: str
    start: float
    duration: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A parsed plan.

    Attributes:
        steps: in the order of the lines.
        text: what VAL gets.
        line_num: number of lines in `text`, which holds the first of the steps.
        undeclared: the original name of each stand-in for an object that neither file declares.
    """

    steps: tuple[TimedStep, ...]
    text: str
    line_num: int
    undeclared: dict[str, str]

    def find_undeclared_step(self) -> int | None:
        """Return the position of the first step that names an undeclared object."""
        words = ((_split_words(step.action), position) for position, step in enumerate(self.steps, 1))
        return next((position for names, position in words if not self.undeclared.keys().isdisjoint(names)), None)

    def restore_names(self, message: str) -> str:
        """Replace the stand-ins in a message of VAL."""
        for stand_in, original in reversed(self.undeclared.items()):
            message = message.replace(stand_in, _truncate(original))
        return message


def parse_plan(text: str, inputs: Inputs) -> Plan:
    """Parse a plan with one action per line, optional `12:` timestamps, `[1]` durations and `;` comments.

    In a domain without durative actions the lines are in the order of the plan; then all lines or none must have a
    timestamp, and timestamps must rise.

    Raises:
        FormatError: a line is not an action, its action is not the domain's or has the wrong number of arguments, or
            the timestamps contradict the order of the lines.
    """
    steps: list[TimedStep] = []
    lines: list[str] = []
    timestamp_num = 0
    stand_in_by_name: dict[str, str] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.partition(";")[0].strip(" \t\r")
        if not line:
            continue
        # Checked before `lower`, which maps some other letters to ASCII.
        match = LINE_PATTERN.fullmatch(line.lower()) if line.isascii() else None
        if match is None:
            raise FormatError(f"line {number} is not an action: {quote_text(line)}")
        time, body, duration = match.groups()
        words = body.replace("\t", " ").split(" ")
        name, *arguments = [word for word in words if word] or [""]
        if not all(NAME_PATTERN.fullmatch(word) for word in (name, *arguments)):
            raise FormatError(f"line {number} is not an action: {quote_text(line)}")
        if name not in inputs.actions:
            raise FormatError(f"line {number}: unknown action: {quote_text(name)}")
        if len(arguments) != inputs.actions[name]:
            raise FormatError(f"line {number}: {name} takes {inputs.actions[name]} argument(s), got {len(arguments)}")
        for argument in arguments:
            if argument not in inputs.objects and argument not in stand_in_by_name:
                stand_in_by_name[argument] = _build_stand_in(len(stand_in_by_name) + 1, inputs.objects)
        action = f"({' '.join([name, *(stand_in_by_name.get(word, word) for word in arguments)])})"
        timestamp_num += time is not None
        # VAL gives the i-th line without a timestamp the time i.
        start = float(time) if time is not None else float(len(steps) + 1 - timestamp_num)
        steps.append(TimedStep(action, start, float(duration or 0)))
        lines.append(_render_line(action, time, duration) if inputs.temporal else action)
    if not inputs.temporal:
        if timestamp_num not in {0, len(steps)}:
            raise FormatError(f"{timestamp_num} of {len(steps)} actions have a timestamp")
        if any(later.start <= earlier.start for earlier, later in pairwise(steps)):
            raise FormatError("timestamps must rise from line to line")
        steps = [TimedStep(step.action, float(position)) for position, step in enumerate(steps, start=1)]
    stand_ins = {new: old for old, new in stand_in_by_name.items()}
    if stand_ins and not inputs.typed and not inputs.temporal:
        lines = _truncate_lines(lines, stand_ins, inputs)
    return Plan(tuple(steps), "".join(line + "\n" for line in lines), len(lines), stand_ins)


def _truncate_lines(lines: list[str], stand_ins: dict[str, str], inputs: Inputs) -> list[str]:
    """Return the lines up to the first with an undeclared object, and in that line a declared one in its place.

    Without types, VAL treats every object in a plan as one of the problem's, so that quantifiers would range over it.
    The last line is kept for what VAL checks before it; the step fails whatever VAL says about it.
    """
    name = min(inputs.objects, default=None)
    kept_lines: list[str] = []
    for line in lines:
        words = _split_words(line)
        if not stand_ins.keys().isdisjoint(words):
            return [*kept_lines, f"({' '.join(word if word not in stand_ins else name or word for word in words)})"]
        kept_lines.append(line)
    return kept_lines


def _split_words(action: str) -> list[str]:
    return action.strip("()").split()


def quote_text(text: str) -> str:
    """Truncate and escape a model's text for a message."""
    return ascii(_truncate(text))


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."


def _build_stand_in(number: int, taken_names: frozenset[str]) -> str:
    """Return a stand-in for an undeclared object: VAL reserves some words and needs minutes for long names."""
    name = f"undeclared-{number}"
    while name in taken_names:
        name += "x"
    return name


def _render_line(action: str, time: str | None, duration: str | None) -> str:
    return (f"{time}: " if time else "") + action + (f" [{duration}]" if duration else "")

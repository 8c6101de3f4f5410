"""The plan as VAL is to be given it.

VAL's own reading of plans is no format check: it skips prose, drops arguments that are too many,
crashes where arguments are missing or a character is not ASCII, and needs minutes for a long name.
So a plan is read here by a grammar, and VAL is given names and brackets only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from planward.val.inputs import Inputs

NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
LINE = re.compile(rf"(?:({NUMBER})[ \t]*:)?[ \t]*\(([^()]*)\)[ \t]*(?:\[[ \t]*({NUMBER})[ \t]*\])?", re.ASCII)
NAME = re.compile(r"[a-z_][a-z0-9_-]*")
SHOWN = 80  # characters of a plan that a message may quote


class FormatError(ValueError):
    """The text is not a plan for this domain; the message says why."""


@dataclass(frozen=True)
class Step:
    """One action of a plan: `(name argument ...)` as VAL is given it, in lower case.

    `start` is the time at which VAL runs it: the position where the domain is not temporal.
    """

    action: str
    start: float
    duration: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Steps in the order of the lines, and the text that VAL is given: the first `given` of them.

    `undeclared` maps each stand-in for an object that neither file declares to the name as written.
    """

    steps: tuple[Step, ...]
    text: str
    given: int
    undeclared: dict[str, str]

    def undeclared_at(self) -> int | None:
        """Position of the first step that names an undeclared object."""
        words = ((_words(step.action), position) for position, step in enumerate(self.steps, 1))
        return next((position for names, position in words if not self.undeclared.keys().isdisjoint(names)), None)

    def as_written(self, message: str) -> str:
        """A message of VAL's with the stand-ins replaced."""
        for stand_in, written in reversed(self.undeclared.items()):
            message = message.replace(stand_in, written if len(written) <= SHOWN else written[:SHOWN] + "...")
        return message


def read_plan(text: str, inputs: Inputs) -> Plan:
    """Read one action a line, with optional `12:` timestamps, `[1]` durations and `;` comments.

    In a domain without durative actions the order of the lines is the order of the plan; timestamps
    must then be on all lines or on none, and rise from line to line.

    Raises:
        FormatError: a line is no action, or its action is not one of the domain's, or has the wrong
            number of arguments, or the timestamps contradict the order of the lines.
    """
    steps: list[Step] = []
    lines: list[str] = []
    stamped = 0
    undeclared: dict[str, str] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.partition(";")[0].strip(" \t\r")
        if not line:
            continue
        # Before it is put into lower case: that makes ASCII of some letters that are not.
        found = LINE.fullmatch(line.lower()) if line.isascii() else None
        if found is None:
            raise FormatError(f"line {number} is not an action: {shown(line)}")
        time, body, duration = found.groups()
        words = body.replace("\t", " ").split(" ")
        name, *arguments = [word for word in words if word] or [""]
        if not all(NAME.fullmatch(word) for word in (name, *arguments)):
            raise FormatError(f"line {number} is not an action: {shown(line)}")
        if name not in inputs.actions:
            raise FormatError(f"line {number}: unknown action: {shown(name)}")
        if len(arguments) != inputs.actions[name]:
            raise FormatError(f"line {number}: {name} takes {inputs.actions[name]} argument(s), got {len(arguments)}")
        for argument in arguments:
            if argument not in inputs.objects and argument not in undeclared:
                undeclared[argument] = _fresh(len(undeclared) + 1, inputs.objects)
        action = f"({' '.join([name, *(undeclared.get(word, word) for word in arguments)])})"
        stamped += time is not None
        # VAL gives the i-th line without a timestamp the time i.
        start = float(time) if time is not None else float(len(steps) + 1 - stamped)
        steps.append(Step(action, start, float(duration or 0)))
        lines.append(_stamped(action, time, duration) if inputs.temporal else action)
    if not inputs.temporal:
        if stamped not in {0, len(steps)}:
            raise FormatError(f"{stamped} of {len(steps)} actions have a timestamp")
        if any(later.start <= earlier.start for earlier, later in pairwise(steps)):
            raise FormatError("timestamps must rise from line to line")
        steps = [Step(step.action, float(position)) for position, step in enumerate(steps, start=1)]
    stand_ins = {new: old for old, new in undeclared.items()}
    if stand_ins and not inputs.typed and not inputs.temporal:
        lines = _cut(lines, stand_ins, inputs)
    return Plan(tuple(steps), "".join(line + "\n" for line in lines), len(lines), stand_ins)


def _cut(lines: list[str], stand_ins: dict[str, str], inputs: Inputs) -> list[str]:
    """The lines up to the first with an undeclared object, and in its place a declared one.

    Without types, VAL takes every object that a plan names for one of the problem's, and quantifiers would
    range over it. The last line is there for what VAL checks before it: it fails whatever VAL says of it.
    """
    declared = min(inputs.objects, default=None)
    kept: list[str] = []
    for line in lines:
        words = _words(line)
        if not stand_ins.keys().isdisjoint(words):
            return [*kept, f"({' '.join(word if word not in stand_ins else declared or word for word in words)})"]
        kept.append(line)
    return kept


def _words(action: str) -> list[str]:
    return action.strip("()").split()


def shown(text: str) -> str:
    """Text from a model, cut and escaped so that it may stand in a message."""
    return ascii(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def _fresh(number: int, taken: frozenset[str]) -> str:
    """A stand-in for an undeclared object: VAL's lexer reserves words, and long names cost it minutes."""
    name = f"undeclared-{number}"
    while name in taken:
        name += "x"
    return name


def _stamped(action: str, time: str | None, duration: str | None) -> str:
    return (f"{time}: " if time else "") + action + (f" [{duration}]" if duration else "")

"""S-expressions with line numbers: the text level of PDDL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*|\n")


class PddlError(ValueError):
    """PDDL that cannot be used; the message names file, line and fault."""

    def __init__(self, message: str, line: int | None = None, source: str = "") -> None:
        where = ":".join(str(part) for part in (source, line) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.message, self.line = message, line


class Unsupported(PddlError):
    """Sound PDDL outside the language of the in-process checker: VAL must judge it."""


class Symbol(str):
    """A lower-case word and the line it stands on."""

    __slots__ = ("line",)
    line: int


class Form(list["Symbol | Form"]):
    """A parenthesised list and the line it opens on."""

    __slots__ = ("line",)

    def __init__(self, line: int, parts: Iterable[Symbol | Form] = ()) -> None:
        super().__init__(parts)
        self.line = line

    @property
    def head(self) -> str:
        return self[0] if self and isinstance(self[0], Symbol) else ""


Expression = Symbol | Form


def symbol(word: str, line: int) -> Symbol:
    made = Symbol(word)
    made.line = line
    return made


def printed(expression: Expression) -> str:
    """The expression as PDDL, on one line."""
    return f"({' '.join(map(printed, expression))})" if isinstance(expression, Form) else str(expression)


def read_expression(text: str) -> Form:
    """Read the one parenthesised expression that `text` holds.

    Raises:
        PddlError: unbalanced parentheses, text outside them, or none at all.
    """
    line, open_forms, top = 1, list[Form](), None
    new, form = str.__new__, None  # the innermost open form; most of a cold verdict's time is this loop's
    for token in _TOKEN.findall(text.lower()):
        if token == "\n":
            line += 1
        elif token[0] == ";":
            continue
        elif token == "(" and top is None:
            inner = Form(line)
            if form is not None:
                form.append(inner)
            open_forms.append(inner)
            form = inner
        elif form is None:
            if top is not None:
                raise PddlError(f"unexpected {token!r} after the last closing parenthesis", line)
            raise PddlError(f"expected '(' but found {token!r}", line)
        elif token == ")":
            closed = open_forms.pop()
            form = open_forms[-1] if open_forms else None
            top = None if open_forms else closed
        else:
            word = new(Symbol, token)
            word.line = line
            form.append(word)
    if open_forms:
        raise PddlError("this parenthesis is never closed", open_forms[-1].line)
    if top is None:
        raise PddlError("no PDDL here: the text is empty", 1)
    return top


def read_file(path: Path) -> Form:
    """Read a PDDL file.

    Raises:
        PddlError: the file is missing, not UTF-8, or not one S-expression; names file and line.
    """
    try:
        return read_expression(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise PddlError("no such file", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise PddlError(f"not UTF-8 text (byte {error.start})", source=str(path)) from None
    except PddlError as error:
        raise type(error)(error.message, error.line, str(path)) from None

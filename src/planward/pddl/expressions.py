"""S-expressions with line numbers, the syntax level of PDDL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from planward.pddl.limits import MAX_DEPTH, MAX_FILE_BYTES

_TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*|\n")


class PddlError(ValueError):
    """Invalid PDDL; the message names file, line and fault."""

    def __init__(self, message: str, line: int | None = None, source: str = "") -> None:
        location = ":".join(str(part) for part in (source, line) if part)
        super().__init__(f"{location}: {message}" if location else message)
        self.message, self.line = message, line


class UnsupportedError(PddlError):
    """Valid PDDL that the in-process verifier does not support: VAL must judge it."""


class LimitError(PddlError):
    """PDDL that is too large or too deep: `planward.pddl.limits`."""


class Symbol(str):
    """A lower-case word, and the line it is on."""

    __slots__ = ("line",)
    line: int


class Form(list["Symbol | Form"]):
    """A parenthesised list, and the line it opens on."""

    __slots__ = ("line",)

    def __init__(self, line: int, parts: Iterable[Symbol | Form] = ()) -> None:
        super().__init__(parts)
        self.line = line

    @property
    def head(self) -> str:
        """The first word; empty where the form does not begin with one."""
        return self[0] if self and isinstance(self[0], Symbol) else ""


Expression = Symbol | Form


def build_symbol(word: str, line: int) -> Symbol:
    """Return the word with its line."""
    symbol = Symbol(word)
    symbol.line = line
    return symbol


def render_expression(expression: Expression) -> str:
    """Render the expression as PDDL on one line."""
    return f"({' '.join(map(render_expression, expression))})" if isinstance(expression, Form) else str(expression)


def parse_expression(text: str) -> Form:
    """Parse a text that holds one parenthesised expression.

    Raises:
        PddlError: unbalanced parentheses, text outside them, or no expression.
        LimitError: parentheses in more than MAX_DEPTH others.
    """
    line, open_forms, top = 1, list[Form](), None
    new, form = str.__new__, None  # the innermost open form; this loop dominates the time of a first verdict
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
            if len(open_forms) > MAX_DEPTH:
                raise LimitError(f"nested too deeply: at most {MAX_DEPTH} levels of parentheses are allowed")
        elif form is None:
            if top is not None:
                raise PddlError(f"unexpected {token!r} after the last closing parenthesis", line)
            raise PddlError(f"expected '(' but found {token!r}", line)
        elif token == ")":
            closed_form = open_forms.pop()
            form = open_forms[-1] if open_forms else None
            top = None if open_forms else closed_form
        else:
            word = new(Symbol, token)
            word.line = line
            form.append(word)
    if open_forms:
        raise PddlError("this parenthesis is never closed", open_forms[-1].line)
    if top is None:
        raise PddlError("the text is empty: expected PDDL", 1)
    return top


def read_pddl_file(path: Path) -> Form:
    """Read a PDDL file.

    Raises:
        PddlError: the file is missing, not UTF-8, too large, or not one S-expression; the message names file and line.
    """
    try:
        return parse_expression(read_pddl_text(path))
    except FileNotFoundError:
        raise PddlError("no such file", source=str(path)) from None
    except UnicodeDecodeError as error:
        raise PddlError(f"not UTF-8 text (byte {error.start})", source=str(path)) from None
    except PddlError as error:
        raise type(error)(error.message, error.line, str(path)) from None


def read_pddl_text(path: Path) -> str:
    """Read the text of a file; raises LimitError above MAX_FILE_BYTES, OSError or UnicodeDecodeError."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise LimitError(f"more than {MAX_FILE_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8-sig")

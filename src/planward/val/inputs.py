"""What must be known of a domain and a problem before VAL's words can be read.

VAL reads broken PDDL without complaint: it drops what it cannot parse, be it an action or a
misspelt constraint, and judges plans on the rest. So the files are checked before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"[()]|[^\s()]+")
COMPARISONS = {"<", ">", "<=", ">="}
TEMPORAL = {":durative-action", ":process", ":event"}


class InputError(ValueError):
    """A domain or problem file cannot be read: not the plan's fault, nor the verifier's."""


@dataclass(frozen=True)
class Goal:
    """One conjunct of a goal. `atom` is set for a literal, and None for any larger formula."""

    atom: str | None
    positive: bool = True


@dataclass(frozen=True)
class Inputs:
    """A domain and a problem, as far as plans name them; all names are in lower case.

    `actions` maps a name to its number of arguments. `temporal`: plans need timestamps.
    """

    actions: dict[str, int]
    objects: frozenset[str]
    goals: tuple[Goal, ...]
    temporal: bool


def read_inputs(domain: Path, problem: Path) -> Inputs:
    """Scan a domain and a problem; files that did not change are scanned once.

    Raises:
        InputError: a file is missing, is not balanced, or is not a domain or a problem; names the file.
    """
    return _scan(domain, problem, _version(domain), _version(problem))


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _scan(domain: Path, problem: Path, *_versions: tuple[int, int]) -> Inputs:
    domain_sections = _sections(domain, "domain")
    problem_sections = _sections(problem, "problem")
    goal = [section for section in problem_sections if section[0] == ":goal"]
    if len(goal) != 1 or len(goal[0]) != 2:
        raise InputError(f"{problem}: needs one :goal with one formula")
    declarations = [s for s in domain_sections if s[0] == ":constants"]
    declarations += [s for s in problem_sections if s[0] == ":objects"]
    return Inputs(
        actions=dict(_action(s, domain) for s in domain_sections if s[0] in {":action", ":durative-action"}),
        objects=frozenset(name for section in declarations for name in _names(section[1:])),
        goals=tuple(_goals(goal[0][1])),
        temporal=any(section[0] in TEMPORAL for section in domain_sections),
    )


def _sections(path: Path, kind: str) -> list[list[Any]]:
    """The sections of `(define (kind name) section...)`."""
    forms = _forms(path)
    if len(forms) != 1 or not isinstance(forms[0], list) or len(forms[0]) < 2:
        raise InputError(f"{path}: not one (define ({kind} ...) ...)")
    define, head, *sections = forms[0]
    if define != "define" or not isinstance(head, list) or len(head) != 2 or head[0] != kind:
        raise InputError(f"{path}: not one (define ({kind} ...) ...)")
    if not all(isinstance(section, list) and section and isinstance(section[0], str) for section in sections):
        raise InputError(f"{path}: every section of the {kind} must be (:name ...)")
    return sections


def _forms(path: Path) -> list[Any]:
    """The nested lists that a PDDL file holds, comments left out, in lower case."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    stack: list[list[Any]] = [[]]
    for number, line in enumerate(text.splitlines(), start=1):
        for token in TOKEN.findall(line.partition(";")[0].lower()):
            if token == "(":
                stack.append([])
            elif token != ")":
                stack[-1].append(token)
            elif len(stack) == 1:
                raise InputError(f"{path}: line {number}: a closing bracket too many")
            else:
                closed = stack.pop()
                stack[-1].append(closed)
    if len(stack) > 1:
        raise InputError(f"{path}: {len(stack) - 1} closing bracket(s) missing at the end")
    return stack[0]


def _action(section: list[Any], domain: Path) -> tuple[str, int]:
    match section:
        case [_, str() as name, ":parameters", list() as parameters, *_]:
            return name, sum(isinstance(word, str) and word.startswith("?") for word in parameters)
        case _:
            raise InputError(f"{domain}: an action needs a name and :parameters, got {section[1:3]}")


def _names(words: list[Any]) -> Iterator[str]:
    """The names of a typed list, without the types after each dash."""
    is_type = False
    for word in words:
        if not is_type and isinstance(word, str) and word != "-":
            yield word
        is_type = word == "-"


def _goals(formula: Any) -> Iterator[Goal]:
    """The conjuncts as written, nested `and` flattened; soft goals (preferences) are left out."""
    stack = [formula]
    while stack:
        match stack.pop():
            case ["and", *parts]:
                stack.extend(reversed(parts))
            case [] | ["preference", *_]:
                continue
            case ["not", [*words]] if _is_atom(words):
                yield Goal(f"({' '.join(words)})", positive=False)
            case [*words] if _is_atom(words):
                yield Goal(f"({' '.join(words)})")
            case _:
                yield Goal(None)


def _is_atom(words: list[Any]) -> bool:
    return bool(words) and all(isinstance(word, str) for word in words) and words[0] not in COMPARISONS

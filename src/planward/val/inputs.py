"""What must be known of a domain and a problem before VAL's words can be read.

VAL reads broken PDDL without complaint: it drops what it cannot parse, be it an action or a
misspelt constraint, keeps one of two sections of a kind, and judges plans on the rest. So the
files are checked before it runs.
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
REPEATABLE = {":action", ":derived", ":class"} | TEMPORAL
TypedList = list[tuple[str, tuple[str, ...]]]  # names, each with its types: none, one, or those of an `either`


class InputError(ValueError):
    """A domain or problem file cannot be read: not the plan's fault, nor the verifier's."""


@dataclass(frozen=True)
class Goal:
    """One conjunct of a goal, as PDDL. `atom` is set for a literal, and None for any larger formula."""

    formula: str
    atom: str | None = None
    positive: bool = True


@dataclass(frozen=True)
class Inputs:
    """A domain and a problem, as far as plans name them; all names are in lower case.

    `actions` maps a name to its number of arguments. `typed`: the domain declares types. `temporal`: plans
    need timestamps. `soft`: some constraints are preferences.
    """

    actions: dict[str, int]
    objects: frozenset[str]
    goals: tuple[Goal, ...]
    typed: bool
    temporal: bool
    soft: bool


def read_inputs(domain: Path, problem: Path) -> Inputs:
    """Scan a domain and a problem; files that did not change are scanned once.

    Raises:
        InputError: a file is missing, is not balanced, or is not a domain or a problem that VAL reads whole;
            names the file.
    """
    return _scan(domain, problem, _version(domain), _version(problem))


def rewritten(problem: Path, goal: str | None = None) -> str:
    """A problem as PDDL, but for its metric and its preferences; with `goal`, that is its goal, without constraints.

    Raises:
        InputError: as `read_inputs`.
    """
    head: list[Any] = ["define", ["problem", "rewritten"]]
    return _text([*head, *filter(None, (_kept(section, goal) for section in _sections(problem, "problem")))])


def _kept(section: list[Any], goal: str | None) -> list[Any] | None:
    match section[0]:
        case ":goal" if goal is not None:
            return [":goal", goal]
        case ":metric":
            return None
        case ":constraints":
            hard = _hard(section[1]) if goal is None else None
            return hard and [":constraints", hard]
        case _:
            return section


def _hard(constraint: Any) -> Any:
    """A constraint without its preferences; None where nothing is left."""
    match constraint:
        case ["preference", *_]:
            return None
        case ["and", *parts]:
            hard = [part for part in map(_hard, parts) if part is not None]
            return ["and", *hard] if hard else None
        case ["forall", variables, part]:
            hard = _hard(part)
            return hard and ["forall", variables, hard]
        case _:
            return constraint


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
    if not any(section[0] == ":init" for section in problem_sections):
        raise InputError(f"{problem}: needs an :init")
    types = next((_typed_list(section[1:]) for section in domain_sections if section[0] == ":types"), None)
    actions = dict(_action(s, domain) for s in domain_sections if s[0] in {":action", ":durative-action"})
    constants = [pair for s in domain_sections if s[0] == ":constants" for pair in _typed_list(s[1:])]
    objects = [pair for s in problem_sections if s[0] == ":objects" for pair in _typed_list(s[1:])]
    if types is not None:
        _check_hierarchy(types, domain)
        parameters = [pair for action in actions.values() for pair in action]
        for path, pairs in (domain, parameters), (domain, constants), (problem, objects):
            if untyped := next((name for name, its_types in pairs if not its_types), None):
                raise InputError(f"{path}: the domain has types, and {untyped} has none")
    return Inputs(
        actions={name: len(parameters) for name, parameters in actions.items()},
        objects=frozenset(name for name, _ in constants + objects),
        goals=tuple(_goals(goal[0][1])),
        typed=types is not None,
        temporal=any(section[0] in TEMPORAL for section in domain_sections),
        soft=any(section[0] == ":constraints" and "preference" in _text(section) for section in problem_sections),
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
    once = [section[0] for section in sections if section[0] not in REPEATABLE]
    if twice := next((name for name in once if once.count(name) > 1), None):
        raise InputError(f"{path}: the {kind} has two {twice} sections")
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


def _action(section: list[Any], domain: Path) -> tuple[str, TypedList]:
    match section:
        case [_, str() as name, ":parameters", list() as parameters, *_]:
            return name, _typed_list(parameters)
        case _:
            raise InputError(f"{domain}: an action needs a name and :parameters, got {section[1:3]}")


def _typed_list(words: list[Any]) -> TypedList:
    """The names of a typed list with their types: none, one, or those of an `either`."""
    pairs: TypedList = []
    waiting: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            named: Any = next(rest, [])
            types = (named,) if isinstance(named, str) else tuple(n for n in named[1:] if isinstance(n, str))
            pairs += [(name, types) for name in waiting]
            waiting = []
        elif isinstance(word, str):
            waiting.append(word)
    return pairs + [(name, ()) for name in waiting]


def _check_hierarchy(types: TypedList, domain: Path) -> None:
    """Raises InputError where a type is its own supertype: VAL's parser would not come to an end."""
    above: dict[str, set[str]] = {}
    for name, supertypes in types:
        above.setdefault(name, set()).update(supertypes)
    for name in above:
        reached, frontier = set[str](), {name}
        while frontier := {up for below in frontier for up in above.get(below, ())} - reached:
            reached |= frontier
        if name in reached:
            raise InputError(f"{domain}: the type {name} is its own supertype")


def _goals(formula: Any) -> Iterator[Goal]:
    """The conjuncts as written, nested `and` flattened; soft goals (preferences) are left out."""
    stack = [formula]
    while stack:
        match stack.pop():
            case ["and", *parts]:
                stack.extend(reversed(parts))
            case [] | ["preference", *_]:
                continue
            case ["not", [*words]] as formula if _is_atom(words):
                yield Goal(_text(formula), f"({' '.join(words)})", positive=False)
            case [*words] as formula if _is_atom(words):
                yield Goal(_text(formula), f"({' '.join(words)})")
            case formula:
                yield Goal(_text(formula))


def _is_atom(words: list[Any]) -> bool:
    return bool(words) and all(isinstance(word, str) for word in words) and words[0] not in COMPARISONS


def _text(form: Any) -> str:
    """A form as PDDL; without recursion, for formulas may be nested deeply."""
    words, waiting = [], [form]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            words.append(part)
        else:
            words.append("(")
            waiting += [")", *reversed(part)]
    return " ".join(words)

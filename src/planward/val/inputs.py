"""Scan a domain and a problem before VAL judges plans for them.

VAL accepts broken PDDL silently: it drops what it cannot parse, such as an action or a misspelt constraint, keeps one
of two sections with the same name, and judges plans on the rest. So the files are checked before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TOKEN_PATTERN = re.compile(r"[()]|[^\s()]+")
COMPARISONS = {"<", ">", "<=", ">="}
TEMPORAL = {":durative-action", ":process", ":event"}
REPEATABLE_SECTIONS = {":action", ":derived", ":class"} | TEMPORAL
TypedList = list[tuple[str, tuple[str, ...]]]  # names, each with its types: none, one, or those of an `either`


class InputError(ValueError):
    """A domain or problem file is invalid: neither the plan nor the verifier is at fault."""


@dataclass(frozen=True)
class Goal:
    """One conjunct of a goal, as PDDL.

    `atom` is set for a literal, and None for a compound formula and for a derived predicate.
    """

    formula: str
    atom: str | None = None
    positive: bool = True


@dataclass(frozen=True)
class Inputs:
    """What plans and VAL's reports refer to in a domain and a problem; all names are in lower case.

    Attributes:
        actions: the number of arguments of each action.
        typed: whether the domain declares types.
        temporal: whether plans need timestamps.
        has_preferences: whether some constraints are preferences.
    """

    actions: dict[str, int]
    objects: frozenset[str]
    goals: tuple[Goal, ...]
    typed: bool
    temporal: bool
    has_preferences: bool


def read_inputs(domain: Path, problem: Path) -> Inputs:
    """Scan a domain and a problem; unchanged files are scanned once.

    Raises:
        InputError: a file is missing, has unbalanced parentheses, or is not a domain or problem that VAL reads
            completely; the message names the file.
    """
    return _scan(domain, problem, _get_version(domain), _get_version(problem))


def rewrite_problem(problem: Path, goal: str | None = None) -> str:
    """Render a problem without its metric and preferences.

    Args:
        goal: replaces the goal, and drops all constraints.

    Raises:
        InputError: as `read_inputs`.
    """
    head: list[Any] = ["define", ["problem", "rewritten"]]
    return _render_form(
        [*head, *filter(None, (_rewrite_section(section, goal) for section in _read_sections(problem, "problem")))]
    )


def _rewrite_section(section: list[Any], goal: str | None) -> list[Any] | None:
    match section[0]:
        case ":goal" if goal is not None:
            return [":goal", goal]
        case ":metric":
            return None
        case ":constraints":
            hard = _drop_preferences(section[1]) if goal is None else None
            return hard and [":constraints", hard]
        case _:
            return section


def _drop_preferences(constraint: Any) -> Any:
    """Return a constraint without its preferences; None where nothing remains."""
    match constraint:
        case ["preference", *_]:
            return None
        case ["and", *parts]:
            hard = [part for part in map(_drop_preferences, parts) if part is not None]
            return ["and", *hard] if hard else None
        case ["forall", variables, part]:
            hard = _drop_preferences(part)
            return hard and ["forall", variables, hard]
        case _:
            return constraint


def _get_version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _scan(domain: Path, problem: Path, *_versions: tuple[int, int]) -> Inputs:
    domain_sections = _read_sections(domain, "domain")
    problem_sections = _read_sections(problem, "problem")
    goal = [section for section in problem_sections if section[0] == ":goal"]
    if len(goal) != 1 or len(goal[0]) != 2:
        raise InputError(f"{problem}: needs one :goal with one formula")
    if not any(section[0] == ":init" for section in problem_sections):
        raise InputError(f"{problem}: needs an :init")
    types = next((_parse_typed_list(section[1:]) for section in domain_sections if section[0] == ":types"), None)
    derived = set(_iter_derived(domain_sections))
    actions = dict(_parse_action(s, domain) for s in domain_sections if s[0] in {":action", ":durative-action"})
    constants = [pair for s in domain_sections if s[0] == ":constants" for pair in _parse_typed_list(s[1:])]
    objects = [pair for s in problem_sections if s[0] == ":objects" for pair in _parse_typed_list(s[1:])]
    if types is not None:
        _check_hierarchy(types, domain)
        parameters = [pair for action in actions.values() for pair in action]
        for path, pairs in (domain, parameters), (domain, constants), (problem, objects):
            if untyped_name := next((name for name, name_types in pairs if not name_types), None):
                raise InputError(f"{path}: the domain has types, but {untyped_name} has none")
    return Inputs(
        actions={name: len(parameters) for name, parameters in actions.items()},
        objects=frozenset(name for name, _ in constants + objects),
        goals=tuple(_iter_goals(goal[0][1], derived)),
        typed=types is not None,
        temporal=any(section[0] in TEMPORAL for section in domain_sections),
        has_preferences=any(
            section[0] == ":constraints" and "preference" in _render_form(section) for section in problem_sections
        ),
    )


def _read_sections(path: Path, keyword: str) -> list[list[Any]]:
    """Read the sections of `(define (keyword name) section...)`."""
    forms = _read_forms(path)
    if len(forms) != 1 or not isinstance(forms[0], list) or len(forms[0]) < 2:
        raise InputError(f"{path}: not one (define ({keyword} ...) ...)")
    define, head, *sections = forms[0]
    if define != "define" or not isinstance(head, list) or len(head) != 2 or head[0] != keyword:
        raise InputError(f"{path}: not one (define ({keyword} ...) ...)")
    if not all(isinstance(section, list) and section and isinstance(section[0], str) for section in sections):
        raise InputError(f"{path}: every section of the {keyword} must be (:name ...)")
    names = [section[0] for section in sections if section[0] not in REPEATABLE_SECTIONS]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{path}: the {keyword} has two {twice} sections")
    return sections


def _read_forms(path: Path) -> list[Any]:
    """Read a PDDL file as nested lists of lower-case words, without comments."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    stack: list[list[Any]] = [[]]
    for number, line in enumerate(text.split("\n"), start=1):
        for token in TOKEN_PATTERN.findall(line.partition(";")[0].lower()):
            if token == "(":
                stack.append([])
            elif token != ")":
                stack[-1].append(token)
            elif len(stack) == 1:
                raise InputError(f"{path}: line {number}: one closing bracket too many")
            else:
                form = stack.pop()
                stack[-1].append(form)
    if len(stack) > 1:
        raise InputError(f"{path}: {len(stack) - 1} closing bracket(s) missing at the end")
    return stack[0]


def _parse_action(section: list[Any], domain: Path) -> tuple[str, TypedList]:
    match section:
        case [_, str() as name, ":parameters", list() as parameters, *_]:
            return name, _parse_typed_list(parameters)
        case _:
            raise InputError(f"{domain}: an action needs a name and :parameters, got {section[1:3]}")


def _iter_derived(sections: list[list[Any]]) -> Iterator[str]:
    """Yield the names of derived predicates."""
    for section in sections:
        match section:
            case [":derived", [str() as name, *_], *_]:
                yield name


def _parse_typed_list(words: list[Any]) -> TypedList:
    """Parse a typed list: names with their types, which are none, one, or those of an `either`."""
    pairs: TypedList = []
    pending: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            form: Any = next(rest, [])
            types = (form,) if isinstance(form, str) else tuple(n for n in form[1:] if isinstance(n, str))
            pairs += [(name, types) for name in pending]
            pending = []
        elif isinstance(word, str):
            pending.append(word)
    return pairs + [(name, ()) for name in pending]


def _check_hierarchy(types: TypedList, domain: Path) -> None:
    """Raise InputError where a type is its own supertype: VAL's parser would not terminate."""
    supertypes_of: dict[str, set[str]] = {}
    for name, supertypes in types:
        supertypes_of.setdefault(name, set()).update(supertypes)
    for name in supertypes_of:
        ancestors, frontier = set[str](), {name}
        while frontier := {parent for child in frontier for parent in supertypes_of.get(child, ())} - ancestors:
            ancestors |= frontier
        if name in ancestors:
            raise InputError(f"{domain}: the type {name} is its own supertype")


def _iter_goals(formula: Any, derived: set[str]) -> Iterator[Goal]:
    """Yield the conjuncts in order, nested `and` flattened, without preferences.

    Args:
        derived: predicates about which VAL's repair advice does not name the literals that are missed.
    """
    stack = [formula]
    while stack:
        match stack.pop():
            case ["and", *parts]:
                stack.extend(reversed(parts))
            case [] | ["preference", *_]:
                continue
            case ["not", [*words]] as formula if _is_atom(words) and words[0] not in derived:
                yield Goal(_render_form(formula), f"({' '.join(words)})", positive=False)
            case [*words] as formula if _is_atom(words) and words[0] not in derived:
                yield Goal(_render_form(formula), f"({' '.join(words)})")
            case formula:
                yield Goal(_render_form(formula))


def _is_atom(words: list[Any]) -> bool:
    return bool(words) and all(isinstance(word, str) for word in words) and words[0] not in COMPARISONS


def _render_form(form: Any) -> str:
    """Render a form as PDDL; iterative, because formulas may be nested deeply."""
    words, stack = [], [form]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            words.append(part)
        else:
            words.append("(")
            stack += [")", *reversed(part)]
    return " ".join(words)

"""Dialects of a domain: the same world, in which actions go by each other's names or take their arguments reversed.

A dialect shows itself in a problem by its number alone, which stands at one predicate's name (`(handempty-3)`). What
that number means for the actions, only plans in the dialect tell: so a prompt's worked examples decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from planward.pddl.expressions import Expression, Form, Symbol, printed, read_expression, symbol
from planward.pddl.formulas import mapped_form
from planward.pddl.generators import Instance, domain_text, generated_domain
from planward.pddl.language import Domain, Problem, changed, parse_domain
from planward.pddl.signature import Atom, Types, read_typed_list
from planward.pddl.simulation import STEP

# The predicate that shows the dialect: one that stands in the start of every problem of the domain.
MARKERS = {
    "blocksworld": "handempty",
    "ferry": "empty-ferry",
    "grippers": "free",
    "spanner": "loose",
    "delivery": "empty",
}
NUMBERS = range(1, 8)  # of markers that a pretrained model is shown: spanner, the poorest domain, has 7 dialects


class Word(NamedTuple):
    """What a dialect makes of an action."""

    action: str
    name: str
    reversed: bool


Language = tuple[Word, ...]  # one word for each action, in the domain's order


@dataclass(frozen=True)
class Dialect:
    """A way to speak of a domain; number 0 is the domain as it is."""

    domain_name: str
    number: int
    language: Language

    @property
    def marker(self) -> str:
        """The predicate by which a problem shows the dialect."""
        return _marker(self.domain_name, self.number)

    @property
    def domain(self) -> Domain:
        return _domain(self)

    def domain_text(self) -> str:
        """The domain as PDDL."""
        return _domain_text(self)

    def translated(self, plan: Iterable[str]) -> list[str]:
        """A plan of actions `(name object ...)` of the plain domain in the dialect's words; other lines stay."""
        words = {word.action: word for word in self.language}
        return [_translated(line, words) for line in plan]

    def problem(self, plain: Problem) -> Problem:
        """A problem of the plain domain as one of the dialect's domain."""
        return replace(changed(plain, self._marked), domain=self.domain) if self.number else plain

    def instance(self, plain: Instance) -> Instance:
        """The same for a problem that was drawn."""
        return replace(
            plain,
            init=tuple(map(self._marked, plain.init)),
            goal=tuple(map(self._marked, plain.goal)),
            constraints=tuple(printed(mapped_form(read_expression(c), self._marked)) for c in plain.constraints),
        )

    def _marked(self, atom: Atom) -> Atom:
        return (self.marker, *atom[1:]) if atom[0] == _marker(self.domain_name, 0) else atom


def dialect(domain: str, number: int, seed: int) -> Dialect:
    """A generated domain's dialect of that number; those of one seed differ in their languages, 0 is the plain domain.

    Raises:
        ValueError: the domain has no dialect of that number; says how many it has.
    """
    plain, *others = _languages(domain)
    if not 0 <= number <= len(others):
        raise ValueError(f"{domain} has {len(others) + 1} dialects, the plain domain among them")
    order = Random(f"{seed}:{domain}:dialects").sample(others, len(others))
    return Dialect(domain, number, [plain, *order][number])


def random_dialect(domain: str, rng: Random) -> Dialect:
    """Any dialect but the plain domain, under any number: the number tells nothing of the language."""
    return Dialect(domain, rng.choice(NUMBERS), rng.choice(_languages(domain)[1:]))


def marker_names(domain: str) -> list[str]:
    """The marker in the plain domain and in every dialect that `random_dialect` draws."""
    return [_marker(domain, number) for number in (0, *NUMBERS)]


def action_signatures(domain: str) -> list[tuple[str, tuple[Types, ...]]]:
    """Every action name that a plan in some dialect may hold, with the types of its arguments there, sorted."""
    actions = generated_domain(domain).actions
    types = {name: tuple(kinds for _, kinds in action.parameters) for name, action in actions.items()}
    return sorted(
        {
            (word.name, types[word.action][::-1] if word.reversed else types[word.action])
            for language in _languages(domain)
            for word in language
        }
    )


@cache
def _languages(domain: str) -> tuple[Language, ...]:
    """All languages of a domain, the plain one first.

    Actions exchange names where the types of their parameters are the same; any of two parameters and more may be
    reversed.
    """
    actions = generated_domain(domain).actions
    alike: dict[tuple[Types, ...], list[str]] = defaultdict(list)
    for name, action in actions.items():
        alike[tuple(kinds for _, kinds in action.parameters)].append(name)
    names = [[dict(zip(group, order, strict=True)) for order in permutations(group)] for group in alike.values()]
    turns = [(False, True) if len(action.parameters) > 1 else (False,) for action in actions.values()]
    return tuple(
        tuple(Word(action, renamed[action], turn) for action, turn in zip(actions, turned, strict=True))
        for chosen in product(*names)
        for turned in product(*turns)
        for renamed in [{old: new for part in chosen for old, new in part.items()}]
    )


def _marker(domain: str, number: int) -> str:
    return f"{MARKERS[domain]}-{number}" if number else MARKERS[domain]


def _translated(line: str, words: dict[str, Word]) -> str:
    match = STEP.fullmatch(line)
    name, *arguments = match[1].lower().split() if match else [""]
    if name not in words:
        return line
    word = words[name]
    return f"({' '.join([word.name, *(reversed(arguments) if word.reversed else arguments)])})"


@cache
def _domain(dialect: Dialect) -> Domain:
    return parse_domain(dialect.domain_text()) if dialect.number else generated_domain(dialect.domain_name)


@cache
def _domain_text(dialect: Dialect) -> str:
    if not dialect.number:
        return domain_text(dialect.domain_name)
    words, plain = {word.action: word for word in dialect.language}, _marker(dialect.domain_name, 0)
    define, name, *sections = read_expression(domain_text(dialect.domain_name))
    lines = [f"({define} {printed(name)}"]
    for section in (_with_head(section, plain, dialect.marker) for section in sections):
        match section:
            case Form([Symbol() as keyword, Symbol() as action, *parts]) if keyword == ":action":
                lines.append(f"  ({keyword} {words[action].name}")
                for key, value in zip(parts[::2], parts[1::2], strict=True):
                    turned = key == ":parameters" and words[action].reversed
                    lines.append(f"    {key} {_reversed(value) if turned else printed(value)}")
                lines[-1] += ")"
            case _:
                lines.append(f"  {printed(section)}")
    return "\n".join(lines) + ")\n"


def _with_head(expression: Expression, old: str, new: str) -> Expression:
    """The expression with every form that starts with `old` starting with `new`."""
    if not isinstance(expression, Form):
        return expression
    parts = [_with_head(part, old, new) for part in expression]
    if expression.head == old:
        parts[0] = symbol(new, expression.line)
    return Form(expression.line, parts)


def _reversed(parameters: Expression) -> str:
    """A list of parameters from the last to the first, each with its type."""
    assert isinstance(parameters, Form)  # the domain was parsed
    listed: Sequence[tuple[Symbol, Types]] = list(read_typed_list(parameters))[::-1]
    return f"({' '.join(f'{name} - {kinds[0]}' if kinds else str(name) for name, kinds in listed)})"

"""Dialects of a domain: the same states and transitions, with actions renamed or their arguments reversed.

A problem shows its dialect by a number in the name of one predicate (`(handempty-3)`). Only plans show what the number
means for the actions, so a model must learn it from the worked examples in its prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from planward.pddl.expressions import Expression, Form, Symbol, build_symbol, parse_expression, render_expression
from planward.pddl.formulas import map_form_atoms
from planward.pddl.language import Domain, Problem, map_problem_atoms, parse_domain
from planward.pddl.signature import Atom, Types, parse_typed_list
from planward.pddl.simulation import ACTION_PATTERN
from planward.tasks.planning.domains import GENERATED_DOMAINS, load_domain_text, load_generated_domain
from planward.tasks.planning.domains.instances import Instance

SAMPLED_NUMBERS = range(1, 8)  # numbers of `sample_dialect`; 7, for spanner has no more dialects


class ActionRewrite(NamedTuple):
    """How a dialect writes an action."""

    action: str  # name in the plain domain
    name: str
    reversed: bool  # whether the arguments are in reverse order


Rewrites = tuple[ActionRewrite, ...]  # one for each action, in the domain's order


@dataclass(frozen=True)
class Dialect:
    """A dialect of a generated domain; number 0 is the plain domain."""

    domain_name: str
    number: int
    rewrites: Rewrites

    @property
    def marker(self) -> str:
        """The predicate that shows the dialect in a problem."""
        return _marker_name(self.domain_name, self.number)

    @property
    def domain(self) -> Domain:
        """The dialect's domain, parsed."""
        return _parse_dialect_domain(self)

    def render_domain(self) -> str:
        """Render the dialect's domain as PDDL."""
        return _render_dialect_domain(self)

    def translate_plan(self, plan: Iterable[str]) -> list[str]:
        """Translate a plan `(name object ...)` of the plain domain; lines that are no action of it stay unchanged."""
        rewrites = {rewrite.action: rewrite for rewrite in self.rewrites}
        return [_translate_action(line, rewrites) for line in plan]

    def translate_problem(self, problem: Problem) -> Problem:
        """Translate a problem of the plain domain to the dialect's domain."""
        return replace(map_problem_atoms(problem, self._mark), domain=self.domain) if self.number else problem

    def translate_instance(self, instance: Instance) -> Instance:
        """Translate a sampled problem of the plain domain."""
        return replace(
            instance,
            init=tuple(map(self._mark, instance.init)),
            goal=tuple(map(self._mark, instance.goal)),
            constraints=tuple(
                render_expression(map_form_atoms(parse_expression(c), self._mark)) for c in instance.constraints
            ),
        )

    def _mark(self, atom: Atom) -> Atom:
        return (self.marker, *atom[1:]) if atom[0] == GENERATED_DOMAINS[self.domain_name].MARKER else atom


def build_dialect(domain: str, number: int, seed: int) -> Dialect:
    """Build a domain's dialect of that number; 0 is the plain domain. The dialects of one seed all differ.

    Raises:
        ValueError: the domain has no dialect of that number; the message says how many it has.
    """
    plain, *others = _list_rewrites(domain)
    if not 0 <= number <= len(others):
        raise ValueError(f"{domain} has {len(others) + 1} dialects, the plain domain among them")
    order = Random(f"{seed}:{domain}:dialects").sample(others, len(others))
    return Dialect(domain, number, [plain, *order][number])


def sample_dialect(domain: str, rng: Random) -> Dialect:
    """Sample a dialect other than the plain domain, with an independent number: it does not reveal the rewrites."""
    return Dialect(domain, rng.choice(SAMPLED_NUMBERS), rng.choice(_list_rewrites(domain)[1:]))


def list_marker_names(domain: str) -> list[str]:
    """Return the marker's names in the plain domain and in the dialects of `sample_dialect`."""
    return [_marker_name(domain, number) for number in (0, *SAMPLED_NUMBERS)]


def list_action_signatures(domain: str) -> list[tuple[str, tuple[Types, ...]]]:
    """Return all action names of all dialects, each with the types of its arguments, sorted."""
    actions = load_generated_domain(domain).actions
    types = {name: tuple(types for _, types in action.parameters) for name, action in actions.items()}
    return sorted(
        {
            (rewrite.name, types[rewrite.action][::-1] if rewrite.reversed else types[rewrite.action])
            for rewrites in _list_rewrites(domain)
            for rewrite in rewrites
        }
    )


@cache
def _list_rewrites(domain: str) -> tuple[Rewrites, ...]:
    """Return the rewrites of all dialects, the plain domain first.

    Actions exchange names where their parameters have the same types; those with two or more parameters may be
    reversed.
    """
    actions = load_generated_domain(domain).actions
    same_types: dict[tuple[Types, ...], list[str]] = defaultdict(list)
    for name, action in actions.items():
        same_types[tuple(types for _, types in action.parameters)].append(name)
    names = [[dict(zip(group, order, strict=True)) for order in permutations(group)] for group in same_types.values()]
    directions = [(False, True) if len(action.parameters) > 1 else (False,) for action in actions.values()]
    return tuple(
        tuple(ActionRewrite(action, new_names[action], flag) for action, flag in zip(actions, flags, strict=True))
        for name_choice in product(*names)
        for flags in product(*directions)
        for new_names in [{old: new for part in name_choice for old, new in part.items()}]
    )


def _marker_name(domain: str, number: int) -> str:
    marker = GENERATED_DOMAINS[domain].MARKER
    return f"{marker}-{number}" if number else marker


def _translate_action(line: str, rewrites: dict[str, ActionRewrite]) -> str:
    match = ACTION_PATTERN.fullmatch(line)
    name, *arguments = match[1].lower().split() if match else [""]
    if name not in rewrites:
        return line
    rewrite = rewrites[name]
    return f"({' '.join([rewrite.name, *(reversed(arguments) if rewrite.reversed else arguments)])})"


@cache
def _parse_dialect_domain(dialect: Dialect) -> Domain:
    return parse_domain(dialect.render_domain()) if dialect.number else load_generated_domain(dialect.domain_name)


@cache
def _render_dialect_domain(dialect: Dialect) -> str:
    text = load_domain_text(dialect.domain_name)
    if not dialect.number:
        return text
    rewrites = {rewrite.action: rewrite for rewrite in dialect.rewrites}
    plain = GENERATED_DOMAINS[dialect.domain_name].MARKER
    define, name, *sections = parse_expression(text)
    lines = [f"({define} {render_expression(name)}"]
    for section in (_replace_head(section, plain, dialect.marker) for section in sections):
        match section:
            case Form([Symbol() as keyword, Symbol() as action, *parts]) if keyword == ":action":
                lines.append(f"  ({keyword} {rewrites[action].name}")
                for key, value in zip(parts[::2], parts[1::2], strict=True):
                    is_reversed = key == ":parameters" and rewrites[action].reversed
                    lines.append(f"    {key} {_render_reversed(value) if is_reversed else render_expression(value)}")
                lines[-1] += ")"
            case _:
                lines.append(f"  {render_expression(section)}")
    return "\n".join(lines) + ")\n"


def _replace_head(expression: Expression, old: str, new: str) -> Expression:
    """Replace the head `old` of every form in the expression."""
    if not isinstance(expression, Form):
        return expression
    parts = [_replace_head(part, old, new) for part in expression]
    if expression.head == old:
        parts[0] = build_symbol(new, expression.line)
    return Form(expression.line, parts)


def _render_reversed(parameters: Expression) -> str:
    """Render a parameter list from the last to the first, each with its type."""
    assert isinstance(parameters, Form)  # the domain was parsed
    reversed_list: Sequence[tuple[Symbol, Types]] = list(parse_typed_list(parameters))[::-1]
    return f"({' '.join(f'{name} - {types[0]}' if types else str(name) for name, types in reversed_list)})"

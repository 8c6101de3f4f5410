"""Ground operators over bit-mask states: a state is an int, a bit an atom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from planward.pddl.language import Action, Atom, Domain, Literal, Problem, Types


@dataclass(frozen=True)
class Operator:
    """A ground action: applicable where all of `needs` and none of `forbids` is set."""

    name: str  # "(stack b1 b2)"
    needs: int
    forbids: int
    adds: int
    keeps: int  # complement of the deletes

    def apply(self, state: int) -> int:
        return state & self.keeps | self.adds


@dataclass(frozen=True)
class Grounding:
    """All ground operators of a domain over some objects and static facts."""

    operators: tuple[Operator, ...]
    bits: dict[Atom, int]  # fluent atom -> bit mask

    @cached_property
    def successors(self) -> tuple[tuple[int, tuple[Operator, ...]], ...]:
        """Operators grouped by one atom they need, so that most are passed over together."""
        uses: dict[int, int] = defaultdict(int)
        for operator in self.operators:
            for bit in _bits(operator.needs):
                uses[bit] += 1
        groups: dict[int, list[Operator]] = defaultdict(list)
        for operator in self.operators:
            groups[min(_bits(operator.needs), key=lambda bit: (uses[bit], bit), default=0)].append(operator)
        return tuple((bit, tuple(group)) for bit, group in groups.items())

    def applicable(self, state: int) -> Iterator[Operator]:
        for pivot, group in self.successors:
            if state & pivot == pivot:
                for operator in group:
                    if state & operator.needs == operator.needs and not state & operator.forbids:
                        yield operator

    def state(self, atoms: Iterable[Atom]) -> int:
        """The state in which just these atoms hold; static and unreachable ones have no bit."""
        return sum(self.bits.get(atom, 0) for atom in set(atoms))

    def atoms(self, state: int) -> list[Atom]:
        return [atom for atom, bit in self.bits.items() if state & bit]


@dataclass(frozen=True)
class GroundProblem:
    grounding: Grounding
    init: int
    needs: int  # goal atoms that must hold
    forbids: int  # goal atoms that must not
    impossible: bool  # a static part of the goal is false

    def solved(self, state: int) -> bool:
        return not self.impossible and state & self.needs == self.needs and not state & self.forbids


def ground_problem(problem: Problem) -> GroundProblem:
    """Ground a problem; groundings are shared by problems with equal objects and static facts."""
    fluents = problem.domain.fluents
    static = frozenset(atom for atom in problem.init if atom[0] not in fluents)
    grounding = ground(problem.domain, tuple(sorted(problem.objects.items())), static)
    bits = dict(grounding.bits)
    for atom in (*problem.init, *(literal.atom for literal in problem.goal)):
        if atom[0] in fluents:
            bits.setdefault(atom, 1 << len(bits))
    grounding = Grounding(grounding.operators, bits) if len(bits) > len(grounding.bits) else grounding
    needs = forbids = 0
    impossible = False
    for literal in problem.goal:
        if literal.atom[0] not in fluents:
            impossible |= _static_truth(literal, static) is False
        elif literal.positive:
            needs |= bits[literal.atom]
        else:
            forbids |= bits[literal.atom]
    return GroundProblem(grounding, grounding.state(problem.init), needs, forbids, impossible)


class _ByIdentity:
    """Lets a domain be part of a cache key: domains are themselves cached by content."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def __hash__(self) -> int:
        return id(self.domain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.domain is other.domain


def ground(domain: Domain, objects: tuple[tuple[str, Types], ...], static: frozenset[Atom]) -> Grounding:
    """Every operator whose types and static preconditions hold."""
    return _ground(_ByIdentity(domain), objects, static)


@lru_cache(maxsize=256)
def _ground(key: _ByIdentity, objects: tuple[tuple[str, Types], ...], static: frozenset[Atom]) -> Grounding:
    domain, bits, operators = key.domain, dict[Atom, int](), list[Operator]()

    def mask(atoms: Iterable[Atom]) -> int:
        total = 0
        for atom in atoms:
            total |= bits.setdefault(atom, 1 << len(bits))
        return total

    fluents = domain.fluents
    for action in domain.actions.values():
        changing = [literal for literal in action.preconditions if literal.atom[0] in fluents]
        for binding in _bindings(action, domain, objects, static, fluents):

            def bound(atoms: Iterable[Atom], binding: dict[str, str] = binding) -> list[Atom]:
                return [substitute(atom, binding) for atom in atoms]

            adds = mask(bound(action.adds))
            deletes = mask(bound(action.deletes))
            operators.append(
                Operator(
                    name=f"({' '.join([action.name, *binding.values()])})",
                    needs=mask(bound(literal.atom for literal in changing if literal.positive)),
                    forbids=mask(bound(literal.atom for literal in changing if not literal.positive)),
                    adds=adds,
                    keeps=~deletes,
                )
            )
    return Grounding(tuple(operators), bits)


def substitute(atom: Atom, binding: dict[str, str]) -> Atom:
    return tuple(binding.get(part, part) for part in atom)


def _bindings(
    action: Action, domain: Domain, objects: tuple[tuple[str, Types], ...], static: frozenset[Atom], fluents: set[str]
) -> Iterator[dict[str, str]]:
    """Parameter bindings that respect types and static preconditions, checked as soon as they are bound."""
    names = [name for name, _ in action.parameters]
    candidates = [[o for o, kinds in objects if domain.is_a(kinds, wanted)] for _, wanted in action.parameters]
    checks: list[list[Literal]] = [[] for _ in range(len(names) + 1)]
    for literal in action.preconditions:
        if literal.atom[0] not in fluents:
            last = max((names.index(part) + 1 for part in literal.atom[1:] if part in names), default=0)
            checks[last].append(literal)

    def extend(depth: int, binding: dict[str, str]) -> Iterator[dict[str, str]]:
        bound = (Literal(substitute(check.atom, binding), check.positive) for check in checks[depth])
        if not all(_static_truth(check, static) for check in bound):
            return
        if depth == len(names):
            yield dict(binding)
            return
        for value in candidates[depth]:
            binding[names[depth]] = value
            yield from extend(depth + 1, binding)
        binding.pop(names[depth], None)

    return extend(0, {})


def _static_truth(literal: Literal, static: frozenset[Atom]) -> bool:
    predicate, *arguments = literal.atom
    return (arguments[0] == arguments[1] if predicate == "=" else literal.atom in static) == literal.positive


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit

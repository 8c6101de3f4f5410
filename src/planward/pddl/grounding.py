"""Actions and problems without variables, over states that are ints.

An action is ground when a plan first names it, or all of them at once when a search asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

from planward.pddl.conditions import ALWAYS, NEVER, Condition, bits_of, conjunction, disjunction, negation
from planward.pddl.formulas import And, Formula, Literal, Or, Quantified
from planward.pddl.language import Action, Domain, Problem
from planward.pddl.monitors import Monitors, monitors_of
from planward.pddl.signature import Atom, Types, Variables

Binding = dict[str, str]


class Operator(NamedTuple):
    """A ground action."""

    name: str  # "(stack b1 b2)"
    condition: Condition
    adds: int
    keeps: int  # complement of the deletes; an atom both added and deleted holds afterwards
    conditional: tuple[tuple[Condition, int, int], ...] = ()  # condition, adds, keeps

    def apply(self, state: int) -> int:
        if not self.conditional:
            return state & self.keeps | self.adds
        adds, keeps = self.adds, self.keeps
        for condition, more, fewer in self.conditional:
            if condition.holds(state):
                adds |= more
                keeps &= fewer
        return state & keeps | adds


class Grounding:
    """A domain over some objects and static facts.

    Bits are given to atoms as they are met. Only atoms that some action changes have one: the truth of the others
    is known when a formula is ground.
    """

    def __init__(
        self, domain: Domain, objects: dict[str, Types], static: frozenset[Atom], costs: frozenset[Atom]
    ) -> None:
        self.domain, self.objects, self.static, self.costs = domain, objects, static, costs
        self.bits: dict[Atom, int] = {}
        self._members: dict[Types, list[str]] = {}

    def bit(self, atom: Atom) -> int:
        found = self.bits.get(atom)
        if found is None:
            found = self.bits[atom] = 1 << len(self.bits)
        return found

    def members(self, wanted: Types) -> list[str]:
        """The objects that may stand where `wanted` is asked for."""
        if wanted not in self._members:
            is_a = self.domain.signature.is_a
            self._members[wanted] = [name for name, kinds in self.objects.items() if is_a(kinds, wanted)]
        return self._members[wanted]

    def bindings(self, variables: Variables, outer: Binding) -> Iterator[Binding]:
        names = [name for name, _ in variables]
        for values in product(*(self.members(kinds) for _, kinds in variables)):
            yield outer | dict(zip(names, values, strict=True))

    def condition(self, formula: Formula, binding: Binding) -> Condition:
        """The formula over bits, quantifiers spelt out and static parts decided."""
        match formula:
            case Literal(atom, positive):
                atom = substitute(atom, binding)
                if atom[0] in self.domain.fluents:
                    bit = self.bit(atom)
                    return Condition(bit, 0) if positive else Condition(0, bit)
                return ALWAYS if self._static_truth(atom) == positive else NEVER
            case And(parts):
                return conjunction(self.condition(part, binding) for part in parts)
            case Or(parts):
                return disjunction(self.condition(part, binding) for part in parts)
            case Quantified(universal, variables, body):
                ground = (self.condition(body, inner) for inner in self.bindings(variables, binding))
                return conjunction(ground) if universal else disjunction(ground)

    def operator(self, action: Action, binding: Binding) -> Operator:
        """The action under a binding of its parameters, in their order."""
        needed = [self.condition(action.precondition, binding)]
        adds = deletes = 0
        conditional: list[tuple[Condition, int, int]] = []
        for effect in action.effects:
            for inner in self.bindings(effect.variables, binding) if effect.variables else (binding,):
                condition = self.condition(effect.condition, inner)
                if any(substitute(term, inner) not in self.costs for term in effect.costs):
                    needed.append(negation(condition))  # VAL stops at a cost without a value as at a precondition
                more, fewer = self._mask(effect.adds, inner), self._mask(effect.deletes, inner)
                if condition == ALWAYS:
                    adds, deletes = adds | more, deletes | fewer
                elif condition != NEVER and (more or fewer):
                    conditional.append((condition, more, ~fewer))
        name = f"({' '.join([action.name, *binding.values()])})"
        return Operator(name, conjunction(needed), adds, ~deletes, tuple(conditional))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Every operator whose types and static preconditions hold."""
        found = (
            self.operator(action, binding)
            for action in self.domain.actions.values()
            for binding in self._possible_bindings(action)
        )
        return tuple(operator for operator in found if operator.condition != NEVER)

    @cached_property
    def successors(self) -> tuple[tuple[int, tuple[Operator, ...]], ...]:
        """Operators grouped by one atom they need, so that most are passed over together."""
        uses: dict[int, int] = defaultdict(int)
        for operator in self.operators:
            for bit in bits_of(operator.condition.needs):
                uses[bit] += 1
        groups: dict[int, list[Operator]] = defaultdict(list)
        names = {bit: atom for atom, bit in self.bits.items()}  # bits differ from run to run, names do not
        for operator in self.operators:
            needed = bits_of(operator.condition.needs)
            groups[min(needed, key=lambda bit: (uses[bit], names[bit]), default=0)].append(operator)
        return tuple((bit, tuple(group)) for bit, group in groups.items())

    def applicable(self, state: int) -> Iterator[Operator]:
        for pivot, group in self.successors:
            if state & pivot == pivot:
                for operator in group:
                    if operator.condition.holds(state):
                        yield operator

    def state(self, atoms: Iterable[Atom]) -> int:
        """The state in which just these atoms hold, static ones left out."""
        state, fluents = 0, self.domain.fluents
        for atom in atoms:
            if atom[0] in fluents:
                state |= self.bit(atom)
        return state

    def atoms(self, state: int) -> list[Atom]:
        return sorted(atom for atom, bit in self.bits.items() if state & bit and atom[0] in self.domain.fluents)

    def _mask(self, atoms: Iterable[Atom], binding: Binding) -> int:
        mask = 0
        for atom in atoms:
            mask |= self.bit(substitute(atom, binding))
        return mask

    def _static_truth(self, atom: Atom) -> bool:
        return atom[1] == atom[2] if atom[0] == "=" else atom in self.static

    def _possible_bindings(self, action: Action) -> Iterator[Binding]:
        """Bindings that respect types and static preconditions, which are checked as soon as they are bound."""
        names = [name for name, _ in action.parameters]
        candidates = [self.members(kinds) for _, kinds in action.parameters]
        checks: list[list[Literal]] = [[] for _ in range(len(names) + 1)]
        for literal in _literals(action.precondition):
            if literal.atom[0] not in self.domain.fluents:
                last = max((names.index(part) + 1 for part in literal.atom[1:] if part in names), default=0)
                checks[last].append(literal)

        def extend(depth: int, binding: Binding) -> Iterator[Binding]:
            for check in checks[depth]:
                if self._static_truth(substitute(check.atom, binding)) != check.positive:
                    return
            if depth == len(names):
                yield dict(binding)
                return
            for value in candidates[depth]:
                binding[names[depth]] = value
                yield from extend(depth + 1, binding)
            binding.pop(names[depth], None)

        return extend(0, {})


class GroundProblem:
    """A problem over bits. Its states hold the memory of its monitors too."""

    def __init__(self, problem: Problem, grounding: Grounding) -> None:
        self.grounding = grounding
        self.goals = tuple(grounding.condition(goal, {}) for goal in problem.goal)
        self.monitors: Monitors = monitors_of(problem.constraints, grounding)
        self.start = grounding.state(problem.init)
        self.init = self.monitors.start(self.start)  # with the monitors' memory, or VIOLATED
        self.goal = conjunction([*self.goals, self.monitors.final])

    def solved(self, state: int) -> bool:
        """Whether a trajectory without violation may end in this state."""
        return self.goal.holds(state)


def ground_problem(problem: Problem) -> GroundProblem:
    """Ground a problem; groundings are shared by problems with equal objects and static facts."""
    fluents = problem.domain.fluents
    static = frozenset(atom for atom in problem.init if atom[0] not in fluents)
    objects = tuple(sorted(problem.objects.items()))
    return GroundProblem(problem, _grounding(_ByIdentity(problem.domain), objects, static, problem.costs))


class _ByIdentity:
    """Lets a domain be part of a cache key: domains are themselves cached by content."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def __hash__(self) -> int:
        return id(self.domain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.domain is other.domain


@lru_cache(maxsize=128)
def _grounding(
    key: _ByIdentity, objects: tuple[tuple[str, Types], ...], static: frozenset[Atom], costs: frozenset[Atom]
) -> Grounding:
    return Grounding(key.domain, dict(objects), static, costs)


def substitute(atom: Atom, binding: Binding) -> Atom:
    return tuple([binding.get(part, part) for part in atom])


def _literals(formula: Formula) -> Iterator[Literal]:
    """The literals that stand in the formula's outermost conjunction."""
    if isinstance(formula, Literal):
        yield formula
    elif isinstance(formula, And):
        for part in formula.parts:
            yield from _literals(part)

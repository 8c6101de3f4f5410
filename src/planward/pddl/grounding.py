"""Actions and problems without variables, over states that are ints.

An action is ground when a plan first names it, or all of them at once when a search asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from planward.pddl.conditions import ALWAYS, NEVER, Condition, bits_of, conjunction, disjunction, negation
from planward.pddl.formulas import TRUTH, And, Formula, Literal, Or, Quantified, parts_of
from planward.pddl.language import Action, Domain, Effect, Problem
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


Selector = Callable[[tuple[str, ...]], Atom]  # from an action's arguments, then its constants, to one of its atoms


class Schema(NamedTuple):
    """An action whose conjunctive parts are taken apart once, so that its ground forms cost little."""

    constants: tuple[str, ...]
    needs: tuple[Selector, ...]
    forbids: tuple[Selector, ...]
    static: tuple[tuple[Selector, bool], ...]
    rest: Formula  # what else the precondition asks for
    adds: tuple[Selector, ...]
    deletes: tuple[Selector, ...]
    effects: tuple[Effect, ...]  # the conditional, quantified and costly ones


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
        self._schemas = _schemas(_ByIdentity(domain))

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

    def operator(self, action: Action, arguments: tuple[str, ...]) -> Operator:
        schema, bit = self._schemas[action.name], self.bit
        words = arguments + schema.constants
        needs = forbids = adds = deletes = 0
        for select in schema.needs:
            needs |= bit(select(words))
        for select in schema.forbids:
            forbids |= bit(select(words))
        for select in schema.adds:
            adds |= bit(select(words))
        for select in schema.deletes:
            deletes |= bit(select(words))
        condition = NEVER if needs & forbids else Condition(needs, forbids)
        for select, positive in schema.static:
            if self._static_truth(select(words)) != positive:
                condition = NEVER
        conditional: list[tuple[Condition, int, int]] = []
        if schema.rest != TRUTH or schema.effects:
            binding = dict(zip((name for name, _ in action.parameters), arguments, strict=True))
            asked = [condition, self.condition(schema.rest, binding)]
            for effect in schema.effects:
                for inner in self.bindings(effect.variables, binding):
                    when = self.condition(effect.condition, inner)
                    if any(substitute(term, inner) not in self.costs for term in effect.costs):
                        asked.append(negation(when))  # VAL stops at a cost without a value as at a precondition
                    more, fewer = self._mask(effect.adds, inner), self._mask(effect.deletes, inner)
                    if when == ALWAYS:
                        adds, deletes = adds | more, deletes | fewer
                    elif when != NEVER and (more or fewer):
                        conditional.append((when, more, ~fewer))
            condition = conjunction(asked)
        return Operator(f"({' '.join([action.name, *arguments])})", condition, adds, ~deletes, tuple(conditional))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Every operator whose types and static preconditions hold."""
        found = (
            self.operator(action, arguments)
            for action in self.domain.actions.values()
            for arguments in self._possible_arguments(action)
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

    def _possible_arguments(self, action: Action) -> Iterator[tuple[str, ...]]:
        """Arguments that respect types and static preconditions, which are checked as soon as they are bound."""
        count = len(action.parameters)
        candidates = [self.members(kinds) for _, kinds in action.parameters]
        names = [name for name, _ in action.parameters]
        checks: list[list[Literal]] = [[] for _ in range(count + 1)]
        for literal in _literals(action):
            if literal.atom[0] not in self.domain.fluents:
                last = max((names.index(part) + 1 for part in literal.atom[1:] if part in names), default=0)
                checks[last].append(literal)

        def extend(depth: int, binding: Binding) -> Iterator[tuple[str, ...]]:
            for check in checks[depth]:
                if self._static_truth(substitute(check.atom, binding)) != check.positive:
                    return
            if depth == count:
                yield tuple(binding.values())
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


def instantiations(problem: Problem) -> int:
    """Ground actions by type alone: an upper bound, found without grounding."""
    is_a, kinds = problem.domain.signature.is_a, problem.objects.values()
    return sum(
        prod(sum(is_a(kind, wanted) for kind in kinds) for _, wanted in action.parameters)
        for action in problem.domain.actions.values()
    )


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


@lru_cache(maxsize=64)
def _schemas(key: _ByIdentity) -> dict[str, Schema]:
    return {action.name: _schema(action, key.domain.fluents) for action in key.domain.actions.values()}


def _schema(action: Action, fluents: frozenset[str]) -> Schema:
    names = [name for name, _ in action.parameters]
    plain = [effect for effect in action.effects if effect.condition == TRUTH and not effect.variables]
    literals = _literals(action)
    atoms = [literal.atom for literal in literals]
    atoms += [atom for effect in plain for atom in (*effect.adds, *effect.deletes)]
    constants = tuple(dict.fromkeys(word for atom in atoms for word in atom[1:] if word not in names))
    places = {word: place for place, word in enumerate((*names, *constants))}

    def selector(atom: Atom) -> Selector:
        predicate, at = atom[0], [places[word] for word in atom[1:]]
        match at:
            case [one]:
                return lambda words: (predicate, words[one])
            case [one, two]:
                return lambda words: (predicate, words[one], words[two])
            case _:
                return lambda words: (predicate, *[words[place] for place in at])

    changing = [literal for literal in literals if literal.atom[0] in fluents]
    return Schema(
        constants=constants,
        needs=tuple(selector(literal.atom) for literal in changing if literal.positive),
        forbids=tuple(selector(literal.atom) for literal in changing if not literal.positive),
        static=tuple((selector(li.atom), li.positive) for li in literals if li.atom[0] not in fluents),
        rest=_without_literals(action.precondition),
        adds=tuple(selector(atom) for effect in plain for atom in effect.adds),
        deletes=tuple(selector(atom) for effect in plain for atom in effect.deletes),
        effects=(*(e for e in action.effects if e not in plain), *(Effect(costs=e.costs) for e in plain if e.costs)),
    )


def _literals(action: Action) -> list[Literal]:
    """Those that must hold whatever else the precondition asks for."""
    return [part for part in parts_of(action.precondition) if isinstance(part, Literal)]


def substitute(atom: Atom, binding: Binding) -> Atom:
    return tuple([binding.get(part, part) for part in atom])


def _without_literals(formula: Formula) -> Formula:
    """The rest of a formula whose outermost conjunction's literals are seen to elsewhere."""
    match formula:
        case Literal():
            return TRUTH
        case And(parts):
            left = tuple(part for part in map(_without_literals, parts) if part != TRUTH)
            return And(left) if left else TRUTH
        case _:
            return formula

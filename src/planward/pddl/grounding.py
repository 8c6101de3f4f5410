"""Ground actions and problems, over states that are ints.

An action is ground when a plan first names it; a search grounds all of them at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from planward.pddl.caching import DomainKey, cache_by_domain
from planward.pddl.conditions import ALWAYS, NEVER, Condition, conjoin, disjoin, iter_bits, negate
from planward.pddl.expressions import UnsupportedError
from planward.pddl.formulas import TRUTH, And, Formula, Literal, Or, Quantified, iter_conjuncts
from planward.pddl.language import Action, Domain, Effect, Problem
from planward.pddl.limits import MAX_ATOMS
from planward.pddl.monitors import Monitors, build_monitors
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
        """Return the state after the action."""
        if not self.conditional:
            return state & self.keeps | self.adds
        adds, keeps = self.adds, self.keeps
        for condition, conditional_adds, conditional_keeps in self.conditional:
            if condition.holds(state):
                adds |= conditional_adds
                keeps &= conditional_keeps
        return state & keeps | adds


AtomBuilder = Callable[[tuple[str, ...]], Atom]  # from an action's arguments and constants to one of its atoms


class ActionSchema(NamedTuple):
    """An action with its conjunctive parts prepared, so that grounding it is cheap."""

    constants: tuple[str, ...]
    needs: tuple[AtomBuilder, ...]
    forbids: tuple[AtomBuilder, ...]
    static: tuple[tuple[AtomBuilder, bool], ...]
    rest: Formula  # the remaining precondition
    adds: tuple[AtomBuilder, ...]
    deletes: tuple[AtomBuilder, ...]
    effects: tuple[Effect, ...]  # the conditional, quantified and costly ones


class Grounding:
    """A domain over some objects and static facts.

    Atoms get their bits at first use. Only atoms that some action changes have one: others are evaluated when a
    formula is ground.
    """

    def __init__(
        self, domain: Domain, objects: dict[str, Types], static: frozenset[Atom], costs: frozenset[Atom]
    ) -> None:
        self.domain, self.objects, self.static, self.costs = domain, objects, static, costs
        self.bits: dict[Atom, int] = {}
        self._objects_by_type: dict[Types, list[str]] = {}
        self._schemas = _build_schemas(domain)

    def get_bit(self, atom: Atom) -> int:
        """Return the atom's bit, and assign one where it has none; raises UnsupportedError above MAX_ATOMS."""
        bit = self.bits.get(atom)
        if bit is None:
            if len(self.bits) == MAX_ATOMS:
                raise UnsupportedError(f"more than {MAX_ATOMS:,} ground atoms")
            bit = self.bits[atom] = 1 << len(self.bits)
        return bit

    def find_objects(self, types: Types) -> list[str]:
        """Return the objects that may be used where `types` is required."""
        if types not in self._objects_by_type:
            is_a = self.domain.signature.is_a
            self._objects_by_type[types] = [
                name for name, object_types in self.objects.items() if is_a(object_types, types)
            ]
        return self._objects_by_type[types]

    def iter_bindings(self, variables: Variables, outer: Binding) -> Iterator[Binding]:
        """Yield `outer` extended by every assignment of objects to the variables."""
        names = [name for name, _ in variables]
        for values in product(*(self.find_objects(types) for _, types in variables)):
            yield outer | dict(zip(names, values, strict=True))

    def ground_formula(self, formula: Formula, binding: Binding) -> Condition:
        """Ground a formula: expand quantifiers, evaluate static atoms."""
        match formula:
            case Literal(atom, positive):
                atom = substitute(atom, binding)
                if atom[0] in self.domain.fluents:
                    bit = self.get_bit(atom)
                    return Condition(bit, 0) if positive else Condition(0, bit)
                return ALWAYS if self._is_static_fact(atom) == positive else NEVER
            case And(parts):
                return conjoin(self.ground_formula(part, binding) for part in parts)
            case Or(parts):
                return disjoin(self.ground_formula(part, binding) for part in parts)
            case Quantified(universal, variables, body):
                ground = (self.ground_formula(body, inner) for inner in self.iter_bindings(variables, binding))
                return conjoin(ground) if universal else disjoin(ground)

    def ground_action(self, action: Action, arguments: tuple[str, ...]) -> Operator:
        """Ground an action; its condition is NEVER where a static precondition fails."""
        schema, get_bit = self._schemas[action.name], self.get_bit
        words = arguments + schema.constants
        needs = forbids = adds = deletes = 0
        for build_atom in schema.needs:
            needs |= get_bit(build_atom(words))
        for build_atom in schema.forbids:
            forbids |= get_bit(build_atom(words))
        for build_atom in schema.adds:
            adds |= get_bit(build_atom(words))
        for build_atom in schema.deletes:
            deletes |= get_bit(build_atom(words))
        condition = NEVER if needs & forbids else Condition(needs, forbids)
        for build_atom, positive in schema.static:
            if self._is_static_fact(build_atom(words)) != positive:
                condition = NEVER
        conditional: list[tuple[Condition, int, int]] = []
        if schema.rest != TRUTH or schema.effects:
            binding = dict(zip((name for name, _ in action.parameters), arguments, strict=True))
            preconditions = [condition, self.ground_formula(schema.rest, binding)]
            for effect in schema.effects:
                for inner in self.iter_bindings(effect.variables, binding):
                    when = self.ground_formula(effect.condition, inner)
                    if any(substitute(term, inner) not in self.costs for term in effect.costs):
                        preconditions.append(negate(when))  # VAL stops at a cost without value as at a precondition
                    effect_adds, effect_deletes = self._mask(effect.adds, inner), self._mask(effect.deletes, inner)
                    if when == ALWAYS:
                        adds, deletes = adds | effect_adds, deletes | effect_deletes
                    elif when != NEVER and (effect_adds or effect_deletes):
                        conditional.append((when, effect_adds, ~effect_deletes))
            condition = conjoin(preconditions)
        return Operator(f"({' '.join([action.name, *arguments])})", condition, adds, ~deletes, tuple(conditional))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """All operators whose types and static preconditions hold."""
        candidates = (
            self.ground_action(action, arguments)
            for action in self.domain.actions.values()
            for arguments in self._iter_arguments(action)
        )
        return tuple(operator for operator in candidates if operator.condition != NEVER)

    @cached_property
    def operator_index(self) -> tuple[tuple[int, tuple[Operator, ...]], ...]:
        """Operators grouped by one atom that they need, so that a search skips most groups at once."""
        uses: dict[int, int] = defaultdict(int)
        for operator in self.operators:
            for bit in iter_bits(operator.condition.needs):
                uses[bit] += 1
        groups: dict[int, list[Operator]] = defaultdict(list)
        names = {bit: atom for atom, bit in self.bits.items()}  # bits differ between processes, names do not
        for operator in self.operators:
            needed_bits = iter_bits(operator.condition.needs)
            groups[min(needed_bits, key=lambda bit: (uses[bit], names[bit]), default=0)].append(operator)
        return tuple((bit, tuple(group)) for bit, group in groups.items())

    def iter_applicable(self, state: int) -> Iterator[Operator]:
        """Yield the operators whose condition holds in the state."""
        for pivot, group in self.operator_index:
            if state & pivot == pivot:
                for operator in group:
                    if operator.condition.holds(state):
                        yield operator

    def encode_state(self, atoms: Iterable[Atom]) -> int:
        """Return the state in which exactly these atoms hold; static ones have no bits."""
        state, fluents = 0, self.domain.fluents
        for atom in atoms:
            if atom[0] in fluents:
                state |= self.get_bit(atom)
        return state

    def decode_state(self, state: int) -> list[Atom]:
        """Return the atoms that hold in a state, sorted, without static ones and monitors' memory."""
        return sorted(atom for atom, bit in self.bits.items() if state & bit and atom[0] in self.domain.fluents)

    def _mask(self, atoms: Iterable[Atom], binding: Binding) -> int:
        mask = 0
        for atom in atoms:
            mask |= self.get_bit(substitute(atom, binding))
        return mask

    def _is_static_fact(self, atom: Atom) -> bool:
        return atom[1] == atom[2] if atom[0] == "=" else atom in self.static

    def _iter_arguments(self, action: Action) -> Iterator[tuple[str, ...]]:
        """Yield arguments that satisfy types and static preconditions, each checked as soon as it is bound."""
        count = len(action.parameters)
        candidates = [self.find_objects(types) for _, types in action.parameters]
        names = [name for name, _ in action.parameters]
        checks: list[list[Literal]] = [[] for _ in range(count + 1)]
        for literal in _find_literals(action):
            if literal.atom[0] not in self.domain.fluents:
                last = max((names.index(part) + 1 for part in literal.atom[1:] if part in names), default=0)
                checks[last].append(literal)

        def extend(depth: int, binding: Binding) -> Iterator[tuple[str, ...]]:
            for check in checks[depth]:
                if self._is_static_fact(substitute(check.atom, binding)) != check.positive:
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
    """A ground problem, whose states include the memory of its constraint monitors."""

    def __init__(self, problem: Problem, grounding: Grounding) -> None:
        self.grounding = grounding
        self.goals = tuple(grounding.ground_formula(goal, {}) for goal in problem.goal)
        self.monitors: Monitors = build_monitors(problem.constraints, grounding)
        self.initial_facts = grounding.encode_state(problem.init)
        self.initial_state = self.monitors.start(self.initial_facts)  # with the monitors' memory, or VIOLATED
        self.goal = conjoin([*self.goals, self.monitors.final])

    def is_solved(self, state: int) -> bool:
        """Return whether a plan that violated no constraint may end in this state."""
        return self.goal.holds(state)


def ground_problem(problem: Problem) -> GroundProblem:
    """Ground a problem; problems with equal objects and static facts share a grounding."""
    fluents = problem.domain.fluents
    static = frozenset(atom for atom in problem.init if atom[0] not in fluents)
    objects = tuple(sorted(problem.objects.items()))
    return GroundProblem(problem, _build_grounding(DomainKey(problem.domain), objects, static, problem.costs))


def count_instantiations(problem: Problem) -> int:
    """Count ground actions by parameter types alone: an upper bound that needs no grounding."""
    actions = problem.domain.actions.values()
    return _count_bindings(problem, [[types for _, types in action.parameters] for action in actions])


def count_fluents(problem: Problem) -> int:
    """Count the ground atoms that some action may change, by their argument types alone: an upper bound."""
    predicates = problem.domain.signature.predicates
    return _count_bindings(problem, [predicates[name] for name in problem.domain.fluents])


def _count_bindings(problem: Problem, lists: Iterable[Sequence[Types]]) -> int:
    """Count the tuples of objects of the listed types, over all lists."""
    is_a, type_counts = problem.domain.signature.is_a, Counter(problem.objects.values())

    @cache
    def count_objects(types: Types) -> int:
        return sum(count for object_types, count in type_counts.items() if is_a(object_types, types))

    return sum(prod(map(count_objects, types)) for types in lists)


@lru_cache(maxsize=128)
def _build_grounding(
    key: DomainKey, objects: tuple[tuple[str, Types], ...], static: frozenset[Atom], costs: frozenset[Atom]
) -> Grounding:
    return Grounding(key.domain, dict(objects), static, costs)


@cache_by_domain
def _build_schemas(domain: Domain) -> dict[str, ActionSchema]:
    return {action.name: _build_schema(action, domain.fluents) for action in domain.actions.values()}


def _build_schema(action: Action, fluents: frozenset[str]) -> ActionSchema:
    names = [name for name, _ in action.parameters]
    plain = [effect for effect in action.effects if effect.condition == TRUTH and not effect.variables]
    literals = _find_literals(action)
    atoms = [literal.atom for literal in literals]
    atoms += [atom for effect in plain for atom in (*effect.adds, *effect.deletes)]
    constants = tuple(dict.fromkeys(word for atom in atoms for word in atom[1:] if word not in names))
    positions = {word: position for position, word in enumerate((*names, *constants))}

    def compile_atom(atom: Atom) -> AtomBuilder:
        predicate, indices = atom[0], [positions[word] for word in atom[1:]]
        match indices:
            case [first]:
                return lambda words: (predicate, words[first])
            case [first, second]:
                return lambda words: (predicate, words[first], words[second])
            case _:
                return lambda words: (predicate, *[words[index] for index in indices])

    fluent_literals = [literal for literal in literals if literal.atom[0] in fluents]
    return ActionSchema(
        constants=constants,
        needs=tuple(compile_atom(literal.atom) for literal in fluent_literals if literal.positive),
        forbids=tuple(compile_atom(literal.atom) for literal in fluent_literals if not literal.positive),
        static=tuple((compile_atom(li.atom), li.positive) for li in literals if li.atom[0] not in fluents),
        rest=_drop_literals(action.precondition),
        adds=tuple(compile_atom(atom) for effect in plain for atom in effect.adds),
        deletes=tuple(compile_atom(atom) for effect in plain for atom in effect.deletes),
        effects=(*(e for e in action.effects if e not in plain), *(Effect(costs=e.costs) for e in plain if e.costs)),
    )


def _find_literals(action: Action) -> list[Literal]:
    """Return the literals of the precondition's outermost conjunction."""
    return [part for part in iter_conjuncts(action.precondition) if isinstance(part, Literal)]


def substitute(atom: Atom, binding: Binding) -> Atom:
    """Replace the variables of an atom by their values."""
    return tuple([binding.get(part, part) for part in atom])


def _drop_literals(formula: Formula) -> Formula:
    """Remove the literals of the outermost conjunction."""
    match formula:
        case Literal():
            return TRUTH
        case And(parts):
            rest = tuple(part for part in map(_drop_literals, parts) if part != TRUTH)
            return And(rest) if rest else TRUTH
        case _:
            return formula

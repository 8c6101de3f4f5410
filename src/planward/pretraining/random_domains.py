"""Random small planning domains, from which the base model learns to read action schemas that it has never seen.

Half of them are assembled from parts (movement, transport, processing, switches, attributes); half have random actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from planward.pddl.formulas import Literal
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Domain, Problem, build_problem_from_parts, parse_domain
from planward.pddl.search import SearchLimitError, UnsolvableError, find_shortest_plan
from planward.pddl.signature import Atom, Types

MAX_WALK = 12  # random actions, after which some facts become the goal
MAX_GOALS = 3
MAX_STATES = 3000  # of the search for a shortest plan
FREQUENT_LENGTH = 5  # of a plan; shorter ones are kept in proportion to their length, for most walks go in circles
MAX_ATTEMPTS = 40  # to sample a problem of a domain


@dataclass
class DomainDraft:
    """A domain while it is assembled, with the ranges of the numbers of its objects.

    `static` are the predicates that no action changes, with the probability that a fact holds; a predicate in `always`
    holds for one object of its second type per object of its first.
    """

    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # by type
    predicates: dict[str, tuple[str, ...]] = field(default_factory=dict)  # types of the arguments
    actions: list[str] = field(default_factory=list)
    functional: set[str] = field(default_factory=set)  # hold for one value of the last argument, given the others
    initial: dict[str, float] = field(default_factory=dict)  # probability that a fact holds initially

    def add_action(self, name: str, parameters: str, needs: Sequence[str], effects: Sequence[str]) -> None:
        """Add an action; `parameters` are `x:type` words, the literals PDDL without the outer parentheses' `and`."""
        variables = " ".join(f"?{name} - {type_name}" for name, type_name in (p.split(":") for p in parameters.split()))
        self.actions.append(
            f"(:action {name} :parameters ({variables}) :precondition (and {' '.join(needs)}) "
            f":effect (and {' '.join(effects)}))"
        )

    def build(self, rng: Random) -> Domain:
        """Build the domain, with predicates and actions in random order."""
        predicates = [
            f"({' '.join([name, *(f'?v{i} - {type_name}' for i, type_name in enumerate(types))])})"
            for name, types in self.predicates.items()
        ]
        types, actions = rng.sample(list(self.sizes), len(self.sizes)), rng.sample(self.actions, len(self.actions))
        return parse_domain(
            f"(define (domain random) (:types {' '.join(types)}) "
            f"(:predicates {' '.join(rng.sample(predicates, len(predicates)))}) {' '.join(actions)})"
        )

    def sample_objects(self, rng: Random) -> dict[str, Types]:
        """Sample objects of every type."""
        return {f"{t}{i}": (t,) for t, bounds in self.sizes.items() for i in range(rng.randint(*bounds))}

    def sample_init(self, rng: Random, objects: dict[str, Types]) -> frozenset[Atom]:
        """Sample the initial facts."""
        facts = set[Atom]()
        for predicate, types in self.predicates.items():
            values = [[name for name, (t,) in objects.items() if t == type_name] for type_name in types]
            if predicate in self.functional:
                keys = (values[:-1] and [[name] for name in values[0]]) or [[]]
                facts |= {(predicate, *key, rng.choice(values[-1])) for key in keys}
            else:
                combinations: list[tuple[str, ...]] = [()]
                for names in values:
                    combinations = [(*c, name) for c in combinations for name in names if name not in c]
                facts |= {(predicate, *c) for c in combinations if rng.random() < self.initial.get(predicate, 0.0)}
        return frozenset(facts)


def sample_domain(rng: Random) -> tuple[Domain, DomainDraft]:
    """Sample a domain."""
    draft = assemble_draft(rng) if rng.random() < 0.5 else sample_draft(rng)
    return draft.build(rng), draft


def sample_problems(rng: Random, domain: Domain, draft: DomainDraft, count: int) -> Iterator[tuple[Problem, list[str]]]:
    """Yield up to `count` solved problems of a domain; fewer where it has too few."""
    for _ in range(count * MAX_ATTEMPTS):
        if count == 0:
            return
        if solved_problem := _sample_problem(rng, domain, draft):
            count -= 1
            yield solved_problem


def _sample_problem(rng: Random, domain: Domain, draft: DomainDraft) -> tuple[Problem, list[str]] | None:
    """Sample a goal from what a random walk reaches; None where it reaches nothing new, or by chance."""
    objects = draft.sample_objects(rng)
    init = draft.sample_init(rng, objects)
    problem = build_problem_from_parts("random", domain, objects, init, (), [])
    ground = ground_problem(problem)
    state, grounding = ground.initial_facts, ground.grounding
    for _ in range(rng.randint(1, MAX_WALK)):
        operators = list(grounding.iter_applicable(state))
        if not operators:
            break
        state = rng.choice(operators).apply(state)
    reached_atoms = [atom for atom in grounding.decode_state(state) if atom not in init]
    if not reached_atoms:
        return None
    goal = tuple(map(Literal, rng.sample(reached_atoms, min(len(reached_atoms), rng.randint(1, MAX_GOALS)))))
    problem = build_problem_from_parts("random", domain, objects, init, goal, [])
    try:
        plan = find_shortest_plan(ground_problem(problem), MAX_STATES)
    except (SearchLimitError, UnsolvableError):
        return None
    return (problem, plan) if rng.random() * FREQUENT_LENGTH < len(plan) else None


def sample_draft(rng: Random) -> DomainDraft:
    """Sample a domain with random preconditions and effects."""
    draft = DomainDraft()
    types = [f"t{i}" for i in range(rng.randint(1, 3))]
    draft.sizes = dict.fromkeys(types, (2, 4))
    for i in range(rng.randint(3, 6)):
        draft.predicates[f"p{i}"] = tuple(rng.choice(types) for _ in range(rng.choice((0, 1, 1, 1, 2, 2))))
        draft.initial[f"p{i}"] = rng.uniform(0.2, 0.8)
    for i in range(rng.randint(2, 5)):
        parameters = {f"x{j}": rng.choice(types) for j in range(rng.randint(1, 3))}

        def sample_atoms(count: int, parameters: dict[str, str] = parameters) -> list[str]:
            atoms = list[str]()
            for predicate in rng.sample(list(draft.predicates), len(draft.predicates)):
                names = [[n for n, t in parameters.items() if t == type_] for type_ in draft.predicates[predicate]]
                if all(names) and len(atoms) < count:
                    atoms.append(f"({' '.join([predicate, *('?' + rng.choice(n) for n in names)])})")
            return atoms

        needs = sample_atoms(rng.randint(1, 3))
        adds = [atom for atom in sample_atoms(rng.randint(1, 2)) if atom not in needs]
        deletes = rng.sample(needs, rng.randint(0, min(2, len(needs))))
        if adds:
            text = " ".join(f"{name}:{t}" for name, t in parameters.items())
            draft.add_action(f"a{i}", text, needs, [*adds, *(f"(not {atom})" for atom in deletes)])
    return draft if draft.actions else sample_draft(rng)


def assemble_draft(rng: Random) -> DomainDraft:
    """Assemble a domain: an agent among places, and one to three kinds of things that it can do."""
    draft = DomainDraft(sizes={"place": (2, 5), "item": (1, 3)})
    agent, who = ("a:agent ", "?a ") if rng.random() < 0.5 else ("", "")
    if agent:
        draft.sizes["agent"] = (1, 2)
    draft.predicates["here"] = ("agent", "place") if agent else ("place",)
    draft.functional.add("here")
    link = []
    if rng.random() < 0.5:
        draft.predicates["link"], draft.initial["link"], link = ("place", "place"), 0.6, ["(link ?from ?to)"]
    here = f"(here {who}?l)"
    effects = [f"(here {who}?to)", f"(not (here {who}?from))"]
    draft.add_action("move", f"{agent}from:place to:place", [f"(here {who}?from)", *link], effects)
    parts = [_add_transport, _add_processing, _add_switches, _add_attributes]
    for add_part in rng.sample(parts, rng.randint(1, 3)):
        add_part(rng, draft, agent, who, here)
    return draft


def _add_transport(rng: Random, draft: DomainDraft, agent: str, who: str, here: str) -> None:
    """The agent carries items: one at a time where it has a capacity."""
    _place_items(draft)
    draft.predicates["holding"] = ("agent", "item") if agent else ("item",)
    free = []
    if rng.random() < 0.6:
        draft.predicates["free"], draft.initial["free"] = ("agent",) if agent else (), 1.0
        free = [f"(free {who.strip()})" if agent else "(free)"]
    holding = f"(holding {who}?x)"
    draft.add_action(
        "pick",
        f"{agent}x:item l:place",
        ["(at ?x ?l)", here, *free],
        [holding, "(not (at ?x ?l))", *(f"(not {atom})" for atom in free)],
    )
    draft.add_action("drop", f"{agent}x:item l:place", [holding, here], ["(at ?x ?l)", *free, f"(not {holding})"])


def _add_processing(rng: Random, draft: DomainDraft, agent: str, who: str, here: str) -> None:
    """Items are processed where there is a tool, in one or two stages."""
    _place_items(draft)
    draft.predicates |= {"tool": ("place",), "done": ("item",)}
    draft.initial["tool"] = 0.6
    where = "(at ?x ?l)"
    if "holding" in draft.predicates and rng.random() < 0.5:
        where = f"(holding {who}?x)"
    draft.add_action("process", f"{agent}x:item l:place", [here, where, "(tool ?l)"], ["(done ?x)"])
    if rng.random() < 0.4:
        draft.predicates["finished"] = ("item",)
        effects = ["(finished ?x)", "(not (done ?x))"] if rng.random() < 0.5 else ["(finished ?x)"]
        draft.add_action("finish", f"{agent}x:item l:place", [here, where, "(done ?x)"], effects)


def _add_switches(rng: Random, draft: DomainDraft, agent: str, _who: str, here: str) -> None:
    """Places can be lit, and perhaps darkened again."""
    draft.predicates |= {"dark": ("place",), "lit": ("place",)}
    draft.initial["dark"] = 0.8
    draft.add_action("light", f"{agent}l:place", [here, "(dark ?l)"], ["(lit ?l)", "(not (dark ?l))"])
    if rng.random() < 0.4:
        draft.add_action("darken", f"{agent}l:place", [here, "(lit ?l)"], ["(dark ?l)", "(not (lit ?l))"])


def _add_attributes(rng: Random, draft: DomainDraft, agent: str, _who: str, here: str) -> None:
    """Items change their colour at places that offer it."""
    _place_items(draft)
    draft.sizes["colour"] = (2, 3)
    draft.predicates |= {"has": ("item", "colour"), "offers": ("place", "colour")}
    draft.functional.add("has")
    draft.initial["offers"] = 0.6
    needs = ["(has ?x ?old)", "(offers ?l ?new)", here, *(["(at ?x ?l)"] if rng.random() < 0.5 else [])]
    effects = ["(has ?x ?new)", "(not (has ?x ?old))"]
    draft.add_action("paint", f"{agent}x:item l:place old:colour new:colour", needs, effects)


def _place_items(draft: DomainDraft) -> None:
    draft.predicates["at"] = ("item", "place")
    draft.functional.add("at")

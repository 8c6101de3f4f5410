"""Candidate plans for one problem, sampled to provoke every verdict: docs/reference/agreement.md lists their kinds.

Good plans come from search and random walks; the others break such plans, or the text that a plan is extracted from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random

from planward.pddl.grounding import GroundProblem, count_instantiations, ground_problem
from planward.pddl.language import Problem
from planward.pddl.monitors import VIOLATED
from planward.pddl.search import SearchLimitError, UnsolvableError, find_shortest_plan
from planward.pddl.signature import Types
from planward.tasks.planning.completion import extract_plan

MAX_STATES = 20_000  # of one search; a problem with more ground actions is not searched
MAX_ACTIONS = 60  # of a plan before it is changed; VAL's time grows with the plan
MAX_REPEATS = 1000  # known plans in a row before the problem counts as exhausted
MAX_SEARCHES = 40  # for a problem, besides the one for the reference plan

UNDECLARED = ("zzz", "b-1", "_", "undeclared-1", "x" * 200)
KEYWORDS = (
    *("and", "or", "not", "imply", "forall", "exists", "when", "either", "object", "define", "domain", "problem"),
    *("always", "sometime", "within", "preference", "at", "over", "all", "start", "end", "increase", "assign"),
    *("number", "total-cost", "total-time", "is-violated", "minimize"),
)
ODD_NAMES = (
    *("?x", "=", "-", "1x", "b1'", "x.y", "a:b", "#t", "@", "é", "b１"),
    "\u212a1",  # a Kelvin sign, whose lower case is the letter k
)
CHARACTERS = "()()()ab1-_ \n\t;:.,?[]0'\"\u212aé\u200b"
DECORATIONS = (
    "{at}: {step}",
    "{at}.5: {step} [1]",
    "\t{step} ; step {at}",
    " {step}\r",
    "{step}\n; then\n",
    "- {step}",
)
SURROUNDINGS = (
    "```pddl\n{plan}\n```",
    "<think>\n(noop)\n</think>\n{plan}",
    "<|im_start|>assistant\n{plan}<|im_end|>",
    "[INST] plan [/INST] {plan}</s>",
    "Here is the plan:\n{plan}\nIt reaches the goal.",
    "{plan}\n<think>(noop)",
    "(noop)\nno, better:\n{plan}",
)
# A line that both verifiers read as one action, valid or not. Other blanks, timestamps and comments never reach the
# in-process verifier, because `extract_plan` removes them.
LINE_PATTERN = re.compile(r"\([^\s;]+(?: [^\s;]+)*\)")


@dataclass(frozen=True)
class Candidate:
    """A plan as both verifiers get it, with lines `(name object ...)`, and the kind of its construction."""

    kind: str
    plan: tuple[str, ...]


def iter_distinct_plans(problem: Problem, rng: Random, max_states: int = MAX_STATES) -> Iterator[Candidate]:
    """Yield the reference plan, the empty plan, then plans of all kinds, until no new ones are found.

    Equal states of `rng` give equal plans. A problem whose search needs more than `max_states` states gets plans from
    walks; one with more ground actions than that gets plans of random actions.
    """
    sampler, digests, repeats = CandidateSampler(problem, rng, max_states), set[bytes](), 0
    for candidate in sampler.iter_candidates():
        digest = blake2b("\n".join(candidate.plan).encode("utf-8", "surrogatepass"), digest_size=12).digest()
        repeats = repeats + 1 if digest in digests else 0
        if not repeats:
            digests.add(digest)
            yield candidate
        elif repeats > MAX_REPEATS:
            return


def sample_loop_free_walk(rng: Random, problem: GroundProblem, length: int) -> tuple[list[str], int]:
    """Sample up to `length` actions that never reach a state twice and violate no constraint.

    Constraints may still require something at the end. Returns the actions and the end state.
    """
    state, visited_states, plan = problem.initial_state, {problem.initial_state, VIOLATED}, list[str]()
    while len(plan) < length and state != VIOLATED:
        operators = problem.grounding.iter_applicable(state)
        steps = ((operator, problem.monitors.observe(state, operator.apply(state))) for operator in operators)
        choices = [(operator, after) for operator, after in steps if after not in visited_states]
        if not choices:
            break
        operator, state = rng.choice(choices)
        visited_states.add(state)
        plan.append(operator.name)
    return plan, state


class ActionSampler:
    """Samples actions and walks for one problem, and searches for plans."""

    def __init__(self, problem: Problem, rng: Random, max_states: int) -> None:
        self.problem, self.rng, self.max_states = problem, rng, max_states
        self.objects = list(problem.objects)
        self.ground = ground_problem(problem) if count_instantiations(problem) <= max_states else None
        self.operators = (
            {operator.name: operator for operator in self.ground.grounding.operators} if self.ground else {}
        )
        self._objects_by_type: dict[Types, list[str]] = {}

    def sample_action(self) -> str:
        """Sample an action with objects of the right types, applicable anywhere or not."""
        action = self.rng.choice(list(self.problem.domain.actions.values()))
        objects = [self.rng.choice(self._find_objects(types)) for _, types in action.parameters]
        return render_action(action.name, objects)

    def sample_actions(self) -> list[str]:
        """Sample a short sequence of such actions."""
        return [self.sample_action() for _ in range(self.rng.randint(1, 8))]

    def replace_object(self, step: str) -> str:
        """Replace one argument of an action by an object of the right type."""
        name, *arguments = step.strip("()").split()
        action = self.problem.domain.actions[name]
        if arguments:
            at = self.rng.randrange(len(arguments))
            arguments[at] = self.rng.choice(self._find_objects(action.parameters[at][1]))
        return render_action(name, arguments)

    def sample_walk(self, length: int) -> tuple[list[str], int]:
        """Sample up to `length` applicable actions, without regard to constraints.

        Returns the actions, and the end state without the monitors' memory.
        """
        if self.ground is None:
            return self.sample_actions(), 0
        plan, state = list[str](), self.ground.initial_facts
        while len(plan) < length and (choices := list(self.ground.grounding.iter_applicable(state))):
            operator = self.rng.choice(choices)
            plan.append(operator.name)
            state = operator.apply(state)
        return plan, state

    def keep_applicable(self, steps: list[str]) -> tuple[list[str], int]:
        """Drop the steps that are not applicable after the previous ones; returns the rest and the end state."""
        if self.ground is None:
            return steps, 0
        plan, state = list[str](), self.ground.initial_facts
        for step in steps:
            operator = self.operators.get(step)
            if operator and operator.condition.holds(state):
                plan.append(step)
                state = operator.apply(state)
        return plan, state

    def find_plan(self, problem: Problem, state: int | None = None) -> list[str] | None:
        """Find a shortest plan from a state, by default the initial one; None where the search finds none."""
        if self.ground is None:
            return None
        if state is not None:
            grounding = self.ground.grounding
            problem = replace(problem, init=grounding.static | frozenset(grounding.decode_state(state)))
        try:
            return find_shortest_plan(ground_problem(problem), self.max_states)
        except (SearchLimitError, UnsolvableError):
            return None

    def _find_objects(self, types: Types) -> list[str]:
        if types not in self._objects_by_type:
            is_a = self.problem.domain.signature.is_a
            names = [name for name, object_types in self.problem.objects.items() if is_a(object_types, types)]
            self._objects_by_type[types] = names or self.objects or ["zzz"]
        return self._objects_by_type[types]


class CandidateSampler:
    """Samples plans of all kinds for one problem."""

    def __init__(self, problem: Problem, rng: Random, max_states: int = MAX_STATES) -> None:
        self.rng, self.actions = rng, ActionSampler(problem, rng, max_states)
        self.ground = self.actions.ground
        self.unconstrained = replace(problem, constraints=(), constraint_forms=())
        self.good_plans = [plan for plan in (self.actions.find_plan(problem),) if plan is not None]
        self.detours: list[list[str]] = []
        self.search_num = 0
        # Weights of the kinds. About a sixth of the plans are format errors, for which VAL need not run.
        self.kinds: dict[str, tuple[Callable[[], list[str] | None], int]] = {
            "prefix": (self.sample_prefix, 4),
            "walk": (self.sample_loop_free_walk, 4),
            "wandering": (self.sample_free_walk, 6),
            "walk_and_any": (self.sample_walk_and_action, 8),
            "any_actions": (self.actions.sample_actions, 1),
            "detour": (self.sample_detour, 10),
            "mutated": (self.sample_mutated, 16),
            "reordered": (self.sample_reordered, 6),
            "joined": (self.sample_joined, 5),
            "executable": (self.sample_executable, 16),
            "near_success": (self.sample_near_success, 8),
            "misnamed": (self.sample_misnamed, 8),
            "misshapen": (self.sample_misshapen, 5),
            "completion": (self.sample_completion, 8),
            "spoilt": (self.sample_spoilt, 8),
            "raw": (self.sample_raw, 5),
        }

    def iter_candidates(self) -> Iterator[Candidate]:
        """Yield plans without end, many of them repeatedly."""
        yield from (Candidate("reference", tuple(plan)) for plan in self.good_plans)
        yield Candidate("empty", ())
        kinds, weights = list(self.kinds), [weight for _, weight in self.kinds.values()]
        while True:
            (kind,) = self.rng.choices(kinds, weights)
            plan = self.kinds[kind][0]()
            if plan is not None:
                yield Candidate(kind, tuple(plan))

    # Plans whose actions are all well-formed.

    def sample_base(self) -> list[str]:
        """Sample a plan to start from: the reference plan, a detour or a walk."""
        if self.good_plans and self.rng.random() < 0.6:
            return list(self.rng.choice(self.good_plans))
        return self.sample_detour() if self.rng.random() < 0.3 else self.sample_free_walk()

    def sample_prefix(self) -> list[str]:
        plan = self.sample_base()
        return plan[: self.rng.randint(0, len(plan))]

    def sample_loop_free_walk(self) -> list[str]:
        """Sample a walk without a repeated state that violates no constraint."""
        if self.ground is None:
            return self.actions.sample_actions()
        return sample_loop_free_walk(self.rng, self.ground, self.rng.randint(1, 12))[0]

    def sample_free_walk(self) -> list[str]:
        """Sample a walk that may repeat states and violate constraints."""
        return self.actions.sample_walk(self.rng.choice((2, 5, 10, 20)))[0]

    def sample_walk_and_action(self) -> list[str]:
        """Sample an applicable beginning, then one action that may not be applicable: it tests preconditions."""
        beginning = self.sample_prefix() if self.rng.random() < 0.5 else self.sample_free_walk()
        return [*beginning, self.actions.sample_action()]

    def sample_detour(self) -> list[str]:
        """Sample a walk and a shortest plan from its end to the goal; both ignore constraints."""
        if self.ground is None:
            return self.actions.sample_actions()
        if self.search_num < MAX_SEARCHES:
            walk, state = self.actions.sample_walk(self.search_num % 6 * 2)
            self.search_num += 1
            if (rest := self.actions.find_plan(self.unconstrained, state)) is not None:
                self.detours.append(walk + rest)
        return list(self.rng.choice(self.detours)) if self.detours else self.sample_loop_free_walk()

    def sample_mutated(self) -> list[str]:
        """Drop, double, swap, move, insert or replace actions of a plan, or replace objects."""
        plan = self.sample_base()[:MAX_ACTIONS]
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            at = self.rng.randrange(len(plan)) if plan else 0
            match self.rng.randrange(8) if plan else 0:
                case 0:
                    plan.insert(at, self.actions.sample_action())
                case 1:
                    plan.pop(at)
                case 2:
                    plan[at] = self.actions.sample_action()
                case 3:
                    plan.insert(self.rng.choice((at, self.rng.randint(0, len(plan)))), plan[at])
                case 4:
                    other = self.rng.randrange(len(plan))
                    plan[at], plan[other] = plan[other], plan[at]
                case 5:
                    plan.insert(self.rng.randrange(len(plan)), plan.pop(at))
                case _:
                    plan[at] = self.actions.replace_object(plan[at])
        return plan

    def sample_reordered(self) -> list[str]:
        plan = self.sample_base()[:MAX_ACTIONS]
        match self.rng.randrange(4):
            case 0:
                return plan[::-1]
            case 1:
                return self.rng.sample(plan, len(plan))
            case 2 if len(plan) > 1:  # two neighbours, which are often independent
                at = self.rng.randrange(len(plan) - 1)
                plan[at], plan[at + 1] = plan[at + 1], plan[at]
                return plan
            case _:
                offset = self.rng.randint(0, len(plan))
                return plan[offset:] + plan[:offset]

    def sample_joined(self) -> list[str]:
        """Join a plan with itself, its reverse, or another plan."""
        plan = self.sample_base()[:MAX_ACTIONS]
        match self.rng.randrange(3):
            case 0:
                return plan + plan
            case 1:
                return plan + plan[::-1]
            case _:
                return plan + self.sample_base()[:MAX_ACTIONS]

    def sample_executable(self) -> list[str]:
        """Sample a broken plan and drop the actions that are not applicable."""
        sample = self.rng.choice((self.sample_mutated, self.sample_reordered, self.sample_joined))
        return self.actions.keep_applicable(sample())[0]

    def sample_near_success(self) -> list[str]:
        """Sample a plan that reaches the goal where it is one step away and goes on, or stops one step before it."""
        plan, state = self.actions.sample_walk(self.rng.randint(0, 10))
        if self.ground is None:
            return plan
        if self.good_plans and self.rng.random() < 0.5:
            plan, state = self.actions.keep_applicable(self.rng.choice(self.good_plans)[: -self.rng.randint(1, 2)])
        for _ in range(self.rng.randint(1, 3)):
            choices = [(o.name, o.apply(state)) for o in self.ground.grounding.iter_applicable(state)]
            best = [choice for choice in choices if all(goal.holds(choice[1]) for goal in self.ground.goals)]
            if not choices:
                break
            name, state = self.rng.choice(best or choices)
            plan.append(name)
        return plan

    # Plans with a line that is not an action of the problem.

    def sample_misnamed(self) -> list[str] | None:
        """Replace an argument (by any object, an undeclared one, a keyword, odd characters) or the action's name."""
        plan = self.sample_base()[:MAX_ACTIONS] or [self.actions.sample_action()]
        at = self.rng.randrange(len(plan))
        name, *arguments = plan[at].strip("()").split()
        names = self.rng.choice((self.actions.objects, UNDECLARED, UNDECLARED, KEYWORDS, ODD_NAMES))
        new = self.rng.choice(names or UNDECLARED)
        if arguments and self.rng.random() < 0.85:
            arguments[self.rng.randrange(len(arguments))] = new
        else:
            name = self.rng.choice(("fly", "noop", "and", name[:-1], name + "s", new))
        plan[at] = render_action(name, arguments)
        return plan if LINE_PATTERN.fullmatch(plan[at]) else None

    def sample_misshapen(self) -> list[str]:
        """Remove or add an argument, double an action on its line, double brackets, or remove all arguments."""
        plan = self.sample_base()[:MAX_ACTIONS] or [self.actions.sample_action()]
        at = self.rng.randrange(len(plan))
        name, *arguments = plan[at].strip("()").split()
        match self.rng.randrange(5):
            case 0 if arguments:
                arguments.pop(self.rng.randrange(len(arguments)))
                plan[at] = render_action(name, arguments)
            case 1:
                plan[at] = f"({plan[at]})"
            case 2:
                plan[at] += plan[at]
            case 3:
                plan[at] = render_action(name, [])
            case _:
                position = self.rng.randint(0, len(arguments))
                arguments.insert(position, self.rng.choice([*self.actions.objects, "zzz"]))
                plan[at] = render_action(name, arguments)
        return plan

    # Plans extracted from text.

    def sample_completion(self) -> list[str] | None:
        """Sample a plan in the form of a model's completion."""
        plan = (self.sample_mutated() if self.rng.random() < 0.5 else self.sample_base())[:MAX_ACTIONS]
        decoration = self.rng.choice(DECORATIONS)
        text = "\n".join(decoration.format(at=at, step=step) for at, step in enumerate(plan))
        return extract_plan(self.rng.choice((*SURROUNDINGS, "{plan}")).replace("{plan}", text))

    def sample_spoilt(self) -> list[str] | None:
        """Extract a plan from a text after dropping, changing or adding characters."""
        return extract_plan(self._corrupt("\n".join(self.sample_base()[:MAX_ACTIONS])))

    def sample_raw(self) -> list[str] | None:
        """Corrupt one line without extracting the plan; None where the in-process verifier could not get that line."""
        plan = self.sample_base()[:MAX_ACTIONS] or [self.actions.sample_action()]
        at = self.rng.randrange(len(plan))
        plan[at] = plan[at].upper() if self.rng.random() < 0.2 else self._corrupt(plan[at])
        return plan if LINE_PATTERN.fullmatch(plan[at]) else None

    def _corrupt(self, text: str) -> str:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            at = self.rng.randint(0, len(text))
            character = self.rng.choice(CHARACTERS)
            match self.rng.randrange(7):
                case 0:
                    text = text[:at] + text[at + 1 :]
                case 1:
                    text = text[:at] + character + text[at:]
                case 2:
                    text = text[:at] + character + text[at + 1 :]
                case 3:
                    text = text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
                case 4:
                    end = self.rng.randint(at, len(text))
                    text = text[:at] + text[at:end].upper() + text[end:]
                case 5:
                    text = text[:at] + text[at:].replace(*self.rng.choice((("(", "(("), (")", "))"))), 1)
                case _:
                    text = text[:at] + text[at:].replace(self.rng.choice("()\n -_"), self.rng.choice(("", " ")), 1)
        return text


def render_action(name: str, arguments: Iterable[str]) -> str:
    """Render an action as a line of a plan."""
    return f"({' '.join([name, *arguments])})"

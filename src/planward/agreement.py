"""Whether both verifiers say the same of a plan, on plans made to set them at odds.

A verifier that agrees with VAL on good plans alone proves little. So plans are made in many ways: by search, by
random walks, by breaking both, and by spoiling the text that a plan is taken from. What is compared, and what is
not: docs/reference/agreement.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random

from planward import val
from planward.pddl.generators import GENERATORS, Instance, generated_problem
from planward.pddl.grounding import ground_problem, instantiations
from planward.pddl.language import Problem
from planward.pddl.safety import constrained
from planward.pddl.search import SearchLimit, Unsolvable, shortest_plan
from planward.pddl.signature import Types
from planward.pddl.simulation import PlanChecker
from planward.pddl.walks import loop_free_walk
from planward.records import Label, Outcome
from planward.tasks.planning.completion import extract_plan
from planward.val.inputs import read_inputs
from planward.val.plans import FormatError, read_plan

MAX_STATES = 20_000  # of one search; a problem with more ground actions than that is not searched at all
LONGEST = 60  # actions; VAL's time grows with the plan
DRAWS = 100  # problems, until one is as wanted
REPEATS = 1000  # plans in a row that were made before: the problem has no more to offer
SEARCHES = 40  # a problem, beyond the reference plan's

UNDECLARED = ("zzz", "b-1", "_", "undeclared-1", "x" * 200)
KEYWORDS = (
    *("and", "or", "not", "imply", "forall", "exists", "when", "either", "object", "define", "domain", "problem"),
    *("always", "sometime", "within", "preference", "at", "over", "all", "start", "end", "increase", "assign"),
    *("number", "total-cost", "total-time", "is-violated", "minimize"),
)
ODD = ("?x", "=", "-", "1x", "b1'", "x.y", "a:b", "#t", "@", "é", "b１", "\u212a1")  # the last is no K, but lowers to k
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
# What both verifiers take for one line of a plan, sound or not. The in-process one is never given blanks of other
# kinds, timestamps and comments: `extract_plan` takes them out.
LINE = re.compile(r"\([^\s;]+(?: [^\s;]+)*\)")


@dataclass(frozen=True)
class Candidate:
    """A plan to judge, as the lines `(name object ...)` that both verifiers are given, and how it was made."""

    kind: str
    plan: tuple[str, ...]


@dataclass(frozen=True)
class Disagreement:
    """A plan on which the verifiers differ. Where one of them raised an error, its text is the outcome."""

    candidate: Candidate
    in_process: Outcome | str
    by_val: Outcome | str

    def __str__(self) -> str:
        sides = (("in-process", self.in_process), ("VAL", self.by_val))
        verdicts = "".join(f"\n    {name}: {' '.join(map(str, essence(side)))}" for name, side in sides)
        return f"{self.candidate.kind}: {' '.join(map(ascii, self.candidate.plan))}{verdicts}"


@dataclass
class Agreement:
    """What came of comparing many plans: how many there were of each kind, VAL's labels, and the disagreements.

    `val_runs` of the plans went through VAL's process; the rest are format errors that `planward.val` sees by itself.
    """

    plans: int = 0
    val_runs: int = 0
    labels: Counter[Label] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)

    def __iadd__(self, other: Agreement) -> Agreement:
        self.plans += other.plans
        self.val_runs += other.val_runs
        self.labels += other.labels
        self.kinds += other.kinds
        self.disagreements += other.disagreements
        return self


def compare(
    problem: Problem,
    domain_file: Path,
    problem_file: Path,
    candidates: Iterable[Candidate],
    timeout: float = val.TIMEOUT,
) -> Agreement:
    """Judge every plan twice: in-process by `problem`, and by VAL, one process at a time, with the files.

    `timeout` is in seconds, for one run of VAL.

    Raises:
        Unsupported: only VAL can judge the problem.
        InputError: the files' brackets or sections are at fault; what VAL's own parser finds comes as an outcome.
    """
    found, checker, inputs = Agreement(), PlanChecker(problem), read_inputs(domain_file, problem_file)
    for candidate in candidates:
        text = "\n".join(candidate.plan)
        by_val = _judged(partial(val.validate, domain_file, problem_file, text, timeout))
        in_process = _judged(partial(checker.check, candidate.plan))
        found.plans += 1
        found.kinds[candidate.kind] += 1
        if isinstance(by_val, Outcome):
            found.labels[by_val.label] += 1
        try:
            read_plan(text, inputs)
            found.val_runs += 1
        except FormatError:
            pass
        if essence(in_process) != essence(by_val):
            found.disagreements.append(Disagreement(candidate, in_process, by_val))
    return found


def essence(outcome: Outcome | str) -> tuple[object, ...]:
    """All of an outcome that the verifiers must agree on: everything but the words that explain it."""
    if isinstance(outcome, str):
        return (outcome,)
    return outcome.label, outcome.failing_step, outcome.plan_size, outcome.goals_satisfied, outcome.goals_total


def drawn_instance(
    rng: Random, domain: str, sizes: Mapping[str, tuple[int, int]], safety: bool, max_states: int
) -> Instance:
    """A generated problem whose goal is open at the start; with `safety`, under constraints that a plan can keep.

    `sizes` are the smallest and largest of each size, as params.yaml's `problems.generated` has them.

    Raises:
        SearchLimit: no problem of these sizes could be had whose plan is found among `max_states` states.
    """
    for _ in range(DRAWS):
        instance = GENERATORS[domain](rng, {name: rng.randint(*bounds) for name, bounds in sizes.items()})
        if set(instance.init) >= set(instance.goal):
            continue
        if not safety:
            return instance
        with suppress(SearchLimit, Unsolvable):
            plan = shortest_plan(ground_problem(generated_problem(domain, instance)), max_states)
            if found := constrained(rng, domain, instance, plan, max_states):
                return found[0]
    raise SearchLimit(f"{domain}: {DRAWS} problems drawn, none open at the start and solvable in {max_states} states")


def completed_plans(completions: Iterable[str]) -> list[Candidate]:
    """The distinct plans that are found in what models wrote; a completion without a plan reaches no verifier."""
    plans = dict.fromkeys(tuple(plan) for text in completions if (plan := extract_plan(text)) is not None)
    return [Candidate("model", plan) for plan in plans]


def distinct_plans(problem: Problem, rng: Random, max_states: int = MAX_STATES) -> Iterator[Candidate]:
    """The reference plan, the empty one, then plans of all kinds mixed, for as long as there are new ones.

    The same ones for the same state of `rng`. A problem whose search needs more than `max_states` states gets plans
    from walks, and one with more ground actions than that gets plans of actions drawn at random.
    """
    maker, seen, repeats = PlanMaker(problem, rng, max_states), set[bytes](), 0
    for candidate in maker.stream():
        digest = blake2b("\n".join(candidate.plan).encode("utf-8", "surrogatepass"), digest_size=12).digest()
        repeats = repeats + 1 if digest in seen else 0
        if not repeats:
            seen.add(digest)
            yield candidate
        elif repeats > REPEATS:
            return


class PlanMaker:
    """Makes plans for one problem: good ones, and such as go wrong in every way that a verifier must notice."""

    def __init__(self, problem: Problem, rng: Random, max_states: int = MAX_STATES) -> None:
        self.problem, self.rng, self.max_states = problem, rng, max_states
        self.objects = list(problem.objects)
        self.fitting: dict[Types, list[str]] = {}
        self.ground = ground_problem(problem) if instantiations(problem) <= max_states else None
        self.operators = (
            {operator.name: operator for operator in self.ground.grounding.operators} if self.ground else {}
        )
        self.free = replace(problem, constraints=(), constraint_forms=())
        self.good = [plan for plan in (self._searched(problem),) if plan is not None]
        self.free_good: list[list[str]] = []
        self.searches = 0
        # How often each way is taken. About a sixth of the plans are format errors, which VAL need not run for.
        self.ways: dict[Callable[[], list[str] | None], int] = {
            self.prefix: 4,
            self.walk: 4,
            self.wandering: 6,
            self.walk_and_any: 8,
            self.any_actions: 1,
            self.detour: 10,
            self.mutated: 16,
            self.reordered: 6,
            self.joined: 5,
            self.executable: 16,
            self.near_success: 8,
            self.misnamed: 8,
            self.misshapen: 5,
            self.completion: 8,
            self.spoilt: 8,
            self.raw: 5,
        }

    def stream(self) -> Iterator[Candidate]:
        """Plans without end, many of them more than once."""
        yield from (Candidate("reference", tuple(plan)) for plan in self.good)
        yield Candidate("empty", ())
        ways, weights = list(self.ways), list(self.ways.values())
        while True:
            (way,) = self.rng.choices(ways, weights)
            plan = way()
            if plan is not None:
                yield Candidate(way.__name__, tuple(plan))

    # Plans of actions that are all as they should be, though the plan may not be.

    def base(self) -> list[str]:
        """A plan to start from: as good as there is, or a walk."""
        if self.good and self.rng.random() < 0.6:
            return list(self.rng.choice(self.good))
        return self.detour() if self.rng.random() < 0.3 else self.wandering()

    def prefix(self) -> list[str]:
        plan = self.base()
        return plan[: self.rng.randint(0, len(plan))]

    def walk(self) -> list[str]:
        """A walk that never returns, and that breaks no constraint."""
        if self.ground is None:
            return self.any_actions()
        return loop_free_walk(self.rng, self.ground, self.rng.randint(1, 12))[0]

    def wandering(self) -> list[str]:
        """A walk that returns as it likes and heeds no constraint."""
        return self._wander(self.rng.choice((2, 5, 10, 20)))[0]

    def walk_and_any(self) -> list[str]:
        """An applicable beginning, then one action that may not be: its precondition is what is judged."""
        return [*(self.prefix() if self.rng.random() < 0.5 else self.wandering()), self.any_action()]

    def any_actions(self) -> list[str]:
        return [self.any_action() for _ in range(self.rng.randint(1, 8))]

    def detour(self) -> list[str]:
        """A walk, and a shortest plan from there to the goal: both blind to constraints, which it may break."""
        if self.ground is None:
            return self.any_actions()
        if self.searches < SEARCHES:
            walked, state = self._wander(self.searches % 6 * 2)
            self.searches += 1
            if (rest := self._searched(self.free, state)) is not None:
                self.free_good.append(walked + rest)
        return list(self.rng.choice(self.free_good)) if self.free_good else self.walk()

    def mutated(self) -> list[str]:
        """A plan with actions dropped, doubled, swapped, moved, inserted or replaced, or with other objects."""
        plan = self.base()[:LONGEST]
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            at = self.rng.randrange(len(plan)) if plan else 0
            match self.rng.randrange(8) if plan else 0:
                case 0:
                    plan.insert(at, self.any_action())
                case 1:
                    plan.pop(at)
                case 2:
                    plan[at] = self.any_action()
                case 3:
                    plan.insert(self.rng.choice((at, self.rng.randint(0, len(plan)))), plan[at])
                case 4:
                    other = self.rng.randrange(len(plan))
                    plan[at], plan[other] = plan[other], plan[at]
                case 5:
                    plan.insert(self.rng.randrange(len(plan)), plan.pop(at))
                case _:
                    plan[at] = self._with_another_object(plan[at])
        return plan

    def reordered(self) -> list[str]:
        plan = self.base()[:LONGEST]
        match self.rng.randrange(4):
            case 0:
                return plan[::-1]
            case 1:
                return self.rng.sample(plan, len(plan))
            case 2 if len(plan) > 1:  # two neighbours, which often can do without their order
                at = self.rng.randrange(len(plan) - 1)
                plan[at], plan[at + 1] = plan[at + 1], plan[at]
                return plan
            case _:
                turn = self.rng.randint(0, len(plan))
                return plan[turn:] + plan[:turn]

    def joined(self) -> list[str]:
        """Two plans, or one twice, or there and back."""
        plan = self.base()[:LONGEST]
        match self.rng.randrange(3):
            case 0:
                return plan + plan
            case 1:
                return plan + plan[::-1]
            case _:
                return plan + self.base()[:LONGEST]

    def executable(self) -> list[str]:
        """A broken plan without the actions that cannot be applied where they stand."""
        return self._followed(self.rng.choice((self.mutated, self.reordered, self.joined))())[0]

    def near_success(self) -> list[str]:
        """A walk that takes the goal where it stands next to it, and goes on, or stops one short of it."""
        plan, state = self._wander(self.rng.randint(0, 10))
        if self.ground is None:
            return plan
        if self.good and self.rng.random() < 0.5:
            plan, state = self._followed(self.rng.choice(self.good)[: -self.rng.randint(1, 2)])
        for _ in range(self.rng.randint(1, 3)):
            choices = [(o.name, o.apply(state)) for o in self.ground.grounding.applicable(state)]
            best = [choice for choice in choices if all(goal.holds(choice[1]) for goal in self.ground.goals)]
            if not choices:
                break
            name, state = self.rng.choice(best or choices)
            plan.append(name)
        return plan

    # Plans with a line that is no action of the problem.

    def misnamed(self) -> list[str] | None:
        """An argument of a wrong type, an undeclared one, a keyword, a name of odd characters, or no such action."""
        plan = self.base()[:LONGEST] or [self.any_action()]
        at = self.rng.randrange(len(plan))
        name, *arguments = plan[at].strip("()").split()
        new = self.rng.choice(self.rng.choice((self.objects, UNDECLARED, UNDECLARED, KEYWORDS, ODD)) or UNDECLARED)
        if arguments and self.rng.random() < 0.85:
            arguments[self.rng.randrange(len(arguments))] = new
        else:
            name = self.rng.choice(("fly", "noop", "and", name[:-1], name + "s", new))
        plan[at] = _line(name, arguments)
        return plan if LINE.fullmatch(plan[at]) else None

    def misshapen(self) -> list[str]:
        """An argument missing or too many, an action that stands twice on a line, brackets doubled or none."""
        plan = self.base()[:LONGEST] or [self.any_action()]
        at = self.rng.randrange(len(plan))
        name, *arguments = plan[at].strip("()").split()
        match self.rng.randrange(5):
            case 0 if arguments:
                arguments.pop(self.rng.randrange(len(arguments)))
                plan[at] = _line(name, arguments)
            case 1:
                plan[at] = f"({plan[at]})"
            case 2:
                plan[at] += plan[at]
            case 3:
                plan[at] = _line(name, [])
            case _:
                arguments.insert(self.rng.randint(0, len(arguments)), self.rng.choice([*self.objects, "zzz"]))
                plan[at] = _line(name, arguments)
        return plan

    # Plans as they come out of text.

    def completion(self) -> list[str] | None:
        """A plan dressed as models write it."""
        plan = (self.mutated() if self.rng.random() < 0.5 else self.base())[:LONGEST]
        decoration = self.rng.choice(DECORATIONS)
        text = "\n".join(decoration.format(at=at, step=step) for at, step in enumerate(plan))
        return extract_plan(self.rng.choice((*SURROUNDINGS, "{plan}")).replace("{plan}", text))

    def spoilt(self) -> list[str] | None:
        """What is taken out of a plan's text with some characters lost, changed or added."""
        return extract_plan(self._spoilt("\n".join(self.base()[:LONGEST])))

    def raw(self) -> list[str] | None:
        """Spoilt lines as they stand, where the in-process verifier may be given them at all."""
        plan = self.base()[:LONGEST] or [self.any_action()]
        at = self.rng.randrange(len(plan))
        plan[at] = plan[at].upper() if self.rng.random() < 0.2 else self._spoilt(plan[at])
        return plan if LINE.fullmatch(plan[at]) else None

    # What plans are made of.

    def any_action(self) -> str:
        """An action of the domain with objects that fit, whether or not it can ever be applied."""
        action = self.rng.choice(list(self.problem.domain.actions.values()))
        return _line(action.name, [self.rng.choice(self._fitting(kinds)) for _, kinds in action.parameters])

    def _with_another_object(self, step: str) -> str:
        """The action with one of its arguments replaced by one that fits as well."""
        name, *arguments = step.strip("()").split()
        action = self.problem.domain.actions[name]
        if arguments:
            at = self.rng.randrange(len(arguments))
            arguments[at] = self.rng.choice(self._fitting(action.parameters[at][1]))
        return _line(name, arguments)

    def _fitting(self, kinds: Types) -> list[str]:
        if kinds not in self.fitting:
            is_a = self.problem.domain.signature.is_a
            names = [name for name, own in self.problem.objects.items() if is_a(own, kinds)]
            self.fitting[kinds] = names or self.objects or ["zzz"]
        return self.fitting[kinds]

    def _wander(self, length: int) -> tuple[list[str], int]:
        """A walk of up to `length` applicable actions, and the state it ends in, without the monitors' memory."""
        if self.ground is None:
            return self.any_actions(), 0
        plan, state = list[str](), self.ground.start
        while len(plan) < length and (choices := list(self.ground.grounding.applicable(state))):
            operator = self.rng.choice(choices)
            plan.append(operator.name)
            state = operator.apply(state)
        return plan, state

    def _followed(self, steps: list[str]) -> tuple[list[str], int]:
        """Those steps that are applicable after the ones before them, and the state they end in."""
        if self.ground is None:
            return steps, 0
        plan, state = list[str](), self.ground.start
        for step in steps:
            operator = self.operators.get(step)
            if operator and operator.condition.holds(state):
                plan.append(step)
                state = operator.apply(state)
        return plan, state

    def _searched(self, problem: Problem, state: int | None = None) -> list[str] | None:
        """A shortest plan from a state, or from the start; None where none is found."""
        if self.ground is None:
            return None
        if state is not None:
            grounding = self.ground.grounding
            problem = replace(problem, init=grounding.static | frozenset(grounding.atoms(state)))
        try:
            return shortest_plan(ground_problem(problem), self.max_states)
        except (SearchLimit, Unsolvable):
            return None

    def _spoilt(self, text: str) -> str:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            at = self.rng.randint(0, len(text))
            some = self.rng.choice(CHARACTERS)
            match self.rng.randrange(7):
                case 0:
                    text = text[:at] + text[at + 1 :]
                case 1:
                    text = text[:at] + some + text[at:]
                case 2:
                    text = text[:at] + some + text[at + 1 :]
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


def _line(name: str, arguments: Iterable[str]) -> str:
    return f"({' '.join([name, *arguments])})"


def _judged(judge: Callable[[], Outcome]) -> Outcome | str:
    """An outcome, or what was raised in its place: a verifier that breaks on a plan is a finding, not an end."""
    try:
        return judge()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

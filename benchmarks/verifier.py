"""How fast plans are judged in-process, by VAL as a subprocess, and by the package unified-planning.

    python benchmarks/verifier.py                                    everything
    python benchmarks/verifier.py --only groups cold unified growth search
    python benchmarks/verifier.py --quick                            a smoke test; its figures mean nothing

Everything runs on one core, to which this process and VAL's are bound, and all verifiers judge the same plans. They
are made as docs/reference/agreement.md says; format errors that VAL is not even started for are left out. Times are
medians over repeats. Each repeat parses the domains anew, so that nothing is met that an earlier repeat worked out.

in-process     planward.pddl; each section says what of reading, parsing and grounding is inside the time
Validate       VAL's program alone: `Validate -v` started on a plan file that is there already, its report collected
planward.val   VAL as the pipeline uses it: plan file written, Validate run, report read; in `cold`, VAL's `Parser` as
               well, which the pipeline has read each problem once
unified        unified-planning's PDDLReader and SequentialPlanValidator

Plans/s are by the clock. `x Validate`, `x p.val` and `x unified` say how many times as many plans in-process judges
by the clock; `by CPU` compares the CPU time of Validate's process alone (or of unified) with the CPU time in-process.

groups    many completions a problem: each problem read, parsed and ground once, its domain parsed before
cold      one plan a problem, each read, parsed and ground: with the domain parsed before, and each time
unified   against unified-planning, on problems without trajectory constraints, which it does not read
growth    plans of 10, 100 and 1000 actions, problems of 10, 100 and 1000 objects, with and without constraints
search    reference plans by breadth-first search, problems of the sizes of params.yaml
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, pairwise, product
from pathlib import Path
from random import Random
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from warnings import catch_warnings

from planward import val
from planward.agreement import distinct_plans, drawn_instance
from planward.params import load_params
from planward.pddl.generators import GENERATORS, domain_text, problem_text
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Domain, load_problem, parse_domain
from planward.pddl.search import shortest_plan
from planward.pddl.simulation import PlanChecker
from planward.records import Label, Outcome
from planward.val.inputs import read_inputs
from planward.val.plans import FormatError, read_plan

PARAMS = load_params(Path(__file__).resolve().parent.parent / "params.yaml").problems
NAME = 29  # width of a row's name

Plan = tuple[str, ...]
Work = Callable[[], object]


@dataclass(frozen=True)
class Scale:
    """Problems a domain in each section, and repeats: of what runs in-process, and of the slow others."""

    groups: int = 4
    cold: int = 30
    unified: int = 4
    search: int = 60
    sizes: tuple[int, ...] = (10, 100, 1000)
    repeats: int = 15
    slow_repeats: int = 3


QUICK = Scale(groups=1, cold=2, unified=1, search=2, sizes=(10, 100), repeats=1, slow_repeats=1)


@dataclass(frozen=True)
class Task:
    domain_file: Path
    problem_file: Path
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Seconds:
    """By the clock, of CPU in this process, and of CPU in its children."""

    wall: float = 0.0
    cpu: float = 0.0
    children: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu, self.children + other.children)


def main() -> None:
    sections = {"groups": groups, "cold": cold, "unified": unified, "growth": growth, "search": search}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything, once")
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections), metavar="SECTION")
    parser.add_argument("--seed", type=int, default=1, help="of problems and plans")
    options = parser.parse_args()
    say(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores, of which one is used")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in options.only:
        with TemporaryDirectory(prefix="planward-verifier-") as folder:
            sections[name](Path(folder), QUICK if options.quick else Scale(), options.seed)


# The sections.


def groups(folder: Path, scale: Scale, seed: int) -> None:
    for size in (8, 64):
        say(f"\nGroups of {size} plans: each problem read, parsed and ground once, its domain parsed before")
        against_val(tasks_by_domain(folder, scale.groups, size, seed), in_process_apart, validate_wrapped, scale)


def cold(folder: Path, scale: Scale, seed: int) -> None:
    say("\nCold, one plan a problem: each problem read, parsed and ground; its domain parsed once, before")
    against_val(tasks_by_domain(folder, scale.cold, 1, seed), in_process_together, validate_wrapped_afresh, scale)
    say("\nCold, one plan a problem: each problem read, parsed and ground, and its domain with it")
    against_val(tasks_by_domain(folder, scale.cold, 1, seed), in_process_afresh, validate_wrapped_afresh, scale)


def unified(folder: Path, scale: Scale, seed: int) -> None:
    if find_spec("unified_planning") is None:
        say("\nunified-planning is left out, as it is not installed: pip install unified-planning")
        return
    for size in (1, 8, 64):
        say(f"\nunified-planning, {size} plan(s) a problem: domain and problem read and parsed once a problem by both")
        say("`equal` counts plans that both call valid or both invalid; plans that unified cannot read are left out")
        say(row("", "plans", "in-process", "unified", "x unified", "by CPU", "equal"))
        total, total_theirs, plans, equals = Seconds(), Seconds(), 0, 0
        problems = scale.unified * (5 if size == 1 else 1)
        for name, made in tasks_by_domain(folder, problems, size, seed, sorts=("",)):
            tasks = [readable(task) for task in made]
            mine = timed(partial(in_process_afresh, tasks), scale.repeats)
            theirs = timed(partial(unified_planning, tasks), scale.slow_repeats)
            ours = [check.label is Label.SUCCESS for task in tasks for check in outcomes(task)]
            equal = sum(a == b for a, b in zip(ours, unified_verdicts(tasks), strict=True))
            say(unified_row(name, len(ours), mine, theirs, equal))
            total, total_theirs, plans, equals = total + mine, total_theirs + theirs, plans + len(ours), equals + equal
        say(unified_row("all", plans, total, total_theirs, equals))


def growth(folder: Path, scale: Scale, seed: int) -> None:
    say("\nGrowth: a ferry with as many cars as places; microseconds by the clock, for one plan")
    say("`ready`: problem read, parsed and ground; `first`: a plan of actions that were not met before; `again`: the")
    say(
        "same plan once more; `an action`: the time to its left by the plan's length; Validate reads the files as well."
    )
    say("*: with a `sometime-before` for each ten objects; **: with an `always` for each car as well, and every")
    say("boarding changes what they all speak of")
    say(row("", "ready", "first", "an action", "again", "an action", "Validate"))
    for marks in ("", "*", "**"):
        for objects, length in product(scale.sizes, scale.sizes):
            task = ferry_task(folder, Random(f"{seed}:{objects}:{length}"), objects, length, len(marks))
            ready = timed(partial(reading, task), scale.repeats).wall
            first = timed(partial(checking, task, met=False), scale.repeats).wall
            again = timed(partial(checking, task, met=True), scale.repeats).wall
            theirs = timed(partial(validate_alone, [task]), scale.slow_repeats).wall
            times = (ready, first, first / length, again, again / length, theirs)
            say(row(f"{objects} objects, {length} actions{marks}", *(f"{seconds * 1e6:.1f}" for seconds in times)))


def search(folder: Path, scale: Scale, seed: int) -> None:
    say("\nReference plans: each problem read, parsed, ground and searched; the domain parsed once, before")
    say(row("", "problems", "actions", "plans/s", "slowest"))
    total, problems = Seconds(), 0
    for name, tasks in tasks_by_domain(folder, scale.search, 0, seed):
        lengths, times = list[int](), list[float]()
        seconds = timed(partial(searching, tasks, lengths, times), scale.slow_repeats)
        say(row(name, len(tasks), f"{mean(lengths):.1f}", rate(len(tasks), seconds), f"{max(times) * 1e3:.0f} ms"))
        total, problems = total + seconds, problems + len(tasks)
    say(row("all", problems, "", rate(problems, total), ""))


def against_val(
    made: Iterator[tuple[str, list[Task]]],
    in_process: Callable[[list[Task]], Work],
    wrapped: Callable[[list[Task]], Work],
    scale: Scale,
) -> None:
    """Measure each domain and print its row, and one for all."""
    say(row("", "plans", "in-process", "Validate", "planward.val", "x Validate", "by CPU", "x p.val"))
    total = [Seconds(), Seconds(), Seconds()]
    plans = 0
    for name, tasks in made:
        times = [
            timed(partial(in_process, tasks), scale.repeats),
            timed(partial(validate_alone, tasks), scale.slow_repeats),
            timed(partial(wrapped, tasks), scale.slow_repeats),
        ]
        number = sum(len(task.plans) for task in tasks)
        say(val_row(name, number, *times))
        total, plans = [a + b for a, b in zip(total, times, strict=True)], plans + number
    say(val_row("all", plans, *total))


# What is timed: each function returns the work, after preparations that are no part of it.


def timed(prepare: Callable[[], Work], repeats: int) -> Seconds:
    """Medians over the repeats."""
    measured: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        work = prepare()
        gc.collect()  # of what others have left
        starts = (perf_counter(), process_time(), children_time())
        work()
        ends = (perf_counter(), process_time(), children_time())
        measured.append((ends[0] - starts[0], ends[1] - starts[1], ends[2] - starts[2]))
    return Seconds(*(median(column) for column in zip(*measured, strict=True)))


def children_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_process_apart(tasks: list[Task]) -> Work:
    """A domain of its own for each problem, so that problems of one domain share nothing."""
    return partial(judge, tasks, [fresh_domain(task) for task in tasks])


def in_process_together(tasks: list[Task]) -> Work:
    """One domain for all, as the pipeline has it: problems with equal objects and static facts share their actions."""
    return partial(judge, tasks, [fresh_domain(tasks[0])] * len(tasks))


def in_process_afresh(tasks: list[Task]) -> Work:
    return partial(judge, tasks, [None] * len(tasks))


def judge(tasks: Sequence[Task], domains: Sequence[Domain | None]) -> None:
    """Judge all plans; where there is no domain, it is parsed in passing."""
    for task, domain in zip(tasks, domains, strict=True):
        checker = PlanChecker(load_problem(task.problem_file, domain or fresh_domain(task)))
        for plan in task.plans:
            checker.check(plan)


def reading(task: Task) -> Work:
    domain = fresh_domain(task)
    return lambda: PlanChecker(load_problem(task.problem_file, domain))


def checking(task: Task, met: bool) -> Work:
    checker = PlanChecker(load_problem(task.problem_file, fresh_domain(task)))
    if met:
        checker.check(task.plans[0])
    return partial(checker.check, task.plans[0])


def searching(tasks: list[Task], lengths: list[int], times: list[float]) -> Work:
    """Find all plans; their lengths and seconds are put into the lists."""
    domain = fresh_domain(tasks[0])

    def work() -> None:
        for task in tasks:
            start = perf_counter()
            problem = ground_problem(load_problem(task.problem_file, domain))
            lengths.append(len(shortest_plan(problem, PARAMS.max_states)))
            times.append(perf_counter() - start)

    return work


def validate_alone(tasks: list[Task]) -> Work:
    commands: list[list[str]] = []
    for task in tasks:
        for number, plan in enumerate(task.plans):
            file = task.problem_file.with_suffix(f".{number}.plan")
            file.write_text("".join(f"{step.lower()}\n" for step in plan), encoding="utf-8")
            commands.append([str(val.binary()), "-v", str(task.domain_file), str(task.problem_file), str(file)])

    def work() -> None:
        for command in commands:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    return work


def validate_wrapped(tasks: list[Task]) -> Work:
    for task in tasks:
        val.validate(task.domain_file, task.problem_file, "")  # from here on the files are known to be sound
    return partial(validate_all, tasks)


def validate_wrapped_afresh(tasks: list[Task]) -> Work:
    for task in tasks:
        task.problem_file.touch()  # so it is read and checked again
    return partial(validate_all, tasks)


def validate_all(tasks: list[Task]) -> None:
    for task in tasks:
        for plan in task.plans:
            val.validate(task.domain_file, task.problem_file, "\n".join(plan))


def unified_planning(tasks: list[Task]) -> Work:
    return partial(unified_verdicts, tasks)


def unified_verdicts(tasks: Sequence[Task]) -> list[bool | None]:
    """Whether unified-planning calls each plan valid; None where it cannot read the plan."""
    io, engines, shortcuts = (import_module(f"unified_planning.{name}") for name in ("io", "engines", "shortcuts"))
    shortcuts.get_environment().credits_stream = None
    shortcuts.get_environment().error_used_name = False  # delivery's object `truck` is named as its type
    found: list[bool | None] = []
    for task in tasks:
        reader, validator = io.PDDLReader(), engines.SequentialPlanValidator()
        with catch_warnings(action="ignore"):
            problem = reader.parse_problem(str(task.domain_file), str(task.problem_file))
        for plan in task.plans:
            try:
                read = reader.parse_plan_string(problem, "\n".join(plan))
            except Exception:  # undeclared objects end in AssertionError, among others
                found.append(None)
            else:
                found.append(validator.validate(problem, read).status.name == "VALID")
    return found


# Problems and plans.


def tasks_by_domain(
    folder: Path, problems: int, plans: int, seed: int, sorts: Sequence[str] = ("", "safety")
) -> Iterator[tuple[str, list[Task]]]:
    """For each domain and sort of problems its name, and problems of the default sizes with `plans` plans each."""
    for domain in GENERATORS:
        ranges = PARAMS.generated[domain].items()
        sizes = {name: bounds for name, bounds in ranges if not isinstance(bounds, int)}
        domain_file = folder / f"{domain}.pddl"
        domain_file.write_text(domain_text(domain), encoding="utf-8")
        for sort in sorts:
            rng, tasks = Random(f"{seed}:{domain}:{sort}"), []
            for number in range(problems):
                instance = drawn_instance(rng, domain, sizes, sort == "safety", PARAMS.max_states)
                file = folder / f"{domain}{sort}{plans}-{number}.pddl"
                file.write_text(problem_text(domain, instance), encoding="utf-8")
                tasks.append(with_plans(Task(domain_file, file, ()), rng, plans))
            yield f"{domain} {sort}".rstrip(), tasks


def with_plans(task: Task, rng: Random, number: int) -> Task:
    """The task with plans of all kinds that VAL is run for."""
    if not number:
        return task
    inputs = read_inputs(task.domain_file, task.problem_file)

    def is_run(plan: Plan) -> bool:
        try:
            read_plan("\n".join(plan), inputs)
        except FormatError:
            return False
        return True

    problem = load_problem(task.problem_file, fresh_domain(task))
    plans = (candidate.plan for candidate in distinct_plans(problem, rng) if is_run(candidate.plan))
    some = list(islice(plans, max(number, 20)))  # the reference plan comes first: one plan would always be that
    return Task(task.domain_file, task.problem_file, tuple(rng.sample(some, min(number, len(some)))))


def readable(task: Task) -> Task:
    """The task with the plans that unified-planning can read."""
    verdicts = zip(task.plans, unified_verdicts([task]), strict=True)
    return Task(task.domain_file, task.problem_file, tuple(plan for plan, verdict in verdicts if verdict is not None))


def ferry_task(folder: Path, rng: Random, objects: int, length: int, constraints: int) -> Task:
    """A problem of any size with one plan, which a rule makes: sail to a car, board it, sail elsewhere, debark it.

    `constraints`: 0 for none, 1 for orders of boarding, 2 for a rule on every car as well.
    """
    places, cars = ([f"{letter}{i}" for i in range(objects // 2)] for letter in "lc")
    at = {car: rng.choice(places) for car in cars}
    ferry, plan, boarded = rng.choice(places), list[str](), dict[str, None]()
    init = [f"(at-ferry {ferry})", "(empty-ferry)", *(f"(at {car} {place})" for car, place in at.items())]
    while len(plan) < length:
        car, goal = rng.choice(cars), rng.choice(places)
        sails = [f"(sail {here} {there})" for here, there in ((ferry, at[car]), (at[car], goal)) if here != there]
        trip = [
            *sails[: ferry != at[car]],
            f"(board {car} {at[car]})",
            *sails[ferry != at[car] :],
            f"(debark {car} {goal})",
        ]
        if len(plan) + len(trip) > length:  # what is left is filled by sailing about
            there = rng.choice([place for place in places if place != ferry])
            plan.append(f"(sail {ferry} {there})")
            ferry = there
            continue
        plan += trip
        boarded.setdefault(car)
        ferry = at[car] = goal
    goals = [f"(at {car} {place})" for car, place in at.items()]
    # Cars that are never boarded come last: no order can be broken by them.
    order = [*boarded, *(car for car in cars if car not in boarded)]
    rules = [f"(sometime-before (on {later}) (on {earlier}))" for earlier, later in pairwise(order)][: objects // 10]
    if constraints == 2:
        rules.append("(forall (?c - car) (always (imply (on ?c) (not (empty-ferry)))))")
    name = f"ferry-{objects}-{length}-{constraints}"
    text = (
        f"(define (problem {name}) (:domain ferry)\n (:objects {' '.join(places)} - location {' '.join(cars)} - car)\n"
        f" (:init {' '.join(init)})\n (:goal (and {' '.join(goals)}))\n"
        + (f" (:constraints (and {' '.join(rules)}))" if constraints else "")
        + ")\n"
    )
    domain_file, problem_file = folder / "ferry.pddl", folder / f"{name}.pddl"
    domain_file.write_text(domain_text("ferry"), encoding="utf-8")
    problem_file.write_text(text, encoding="utf-8")
    task = Task(domain_file, problem_file, (tuple(plan),))
    (outcome,) = outcomes(task)
    assert outcome.label is Label.SUCCESS, outcome
    assert val.validate(domain_file, problem_file, "\n".join(plan), timeout=600).label is Label.SUCCESS
    return task


def fresh_domain(task: Task) -> Domain:
    """The domain, parsed now: `load_domain` would return one that has worked things out already."""
    return parse_domain(task.domain_file.read_text(encoding="utf-8"))


def outcomes(task: Task) -> list[Outcome]:
    checker = PlanChecker(load_problem(task.problem_file, fresh_domain(task)))
    return [checker.check(plan) for plan in task.plans]


# What is printed.


def val_row(name: str, plans: int, mine: Seconds, alone: Seconds, wrapped: Seconds) -> str:
    rates = [rate(plans, seconds) for seconds in (mine, alone, wrapped)]
    ratios = (alone.wall / mine.wall, alone.children / mine.cpu, wrapped.wall / mine.wall)
    return row(name, plans, *rates, *(f"{ratio:.0f}" for ratio in ratios))


def unified_row(name: str, plans: int, mine: Seconds, theirs: Seconds, equal: int) -> str:
    ratios = (f"{theirs.wall / mine.wall:.0f}", f"{theirs.cpu / mine.cpu:.0f}")
    return row(name, plans, rate(plans, mine), rate(plans, theirs), *ratios, f"{equal}/{plans}")


def rate(number: int, seconds: Seconds) -> str:
    return f"{number / seconds.wall:.1f}"


def row(name: str, *cells: object) -> str:
    return f"{name:{NAME}}" + "".join(f" {cell!s:>12}" for cell in cells)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

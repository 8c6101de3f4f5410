"""Measure how fast plans are judged in-process, by VAL as a subprocess, and by the package unified-planning.

    python benchmarks/verifier.py                                    everything
    python benchmarks/verifier.py --only groups cold unified growth search
    python benchmarks/verifier.py --quick                            a smoke test; its figures mean nothing

This process and VAL's run on one core, and all verifiers judge the same plans, without format errors for which VAL
does not run; docs/reference/agreement.md describes the plans. Times are medians over repeats. Each repeat parses the
domains again, so that no repeat uses the caches of an earlier one.

in-process     planward.pddl; each section says how much of prepare_reading, parsing and grounding is measure_time
Validate       VAL's program alone: `Validate -v` started on an existing plan file, its report collected
planward.val   VAL as the pipeline uses it: plan file written, Validate run, report parsed; in `cold` also VAL's
               `Parser`, which the pipeline runs once for each problem
unified        unified-planning's PDDLReader and SequentialPlanValidator

Plans/s are wall-clock. `x Validate`, `x p.val` and `x unified` are wall-clock speed-ups of in-process; `by CPU`
compares the CPU time of Validate's process alone (or of unified) with the CPU time in-process.

groups    many completions for a problem: each problem read, parsed and ground once, its domain parsed before
cold      one plan for a problem, which is read, parsed and ground: with the domain parsed before, and each time
unified   comparison with unified-planning, on problems without trajectory constraints, which it cannot read
growth    plans of 10, 100 and 1000 actions, problems of 10, 100 and 1000 objects, with and without constraints
search    reference plans by breadth-first search, for problems of the sizes in params.yaml
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

from candidate_plans import iter_distinct_plans
from planward import val
from planward.core.registry import load_params
from planward.core.verdicts import Label, Outcome
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Domain, load_problem, parse_domain
from planward.pddl.search import find_shortest_plan
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.domains import GENERATED_DOMAINS, load_domain_text, render_problem
from planward.val.inputs import read_inputs
from planward.val.plans import FormatError, parse_plan
from verifier_agreement import sample_instance

_PARAMS = load_params(root=Path(__file__).resolve().parent.parent)
assert isinstance(_PARAMS, PlanningParams)
PARAMS = _PARAMS.problems
NAME_WIDTH = 29  # of a table

Plan = tuple[str, ...]
Work = Callable[[], object]


@dataclass(frozen=True)
class Scale:
    """Problems for each domain in each section, and repeats of in-process (`repeats`) and slower work."""

    groups: int = 4
    cold: int = 30
    unified: int = 4
    search: int = 60
    sizes: tuple[int, ...] = (10, 100, 1000)
    repeats: int = 15
    slow_repeats: int = 3


QUICK = Scale(groups=1, cold=2, unified=1, search=2, sizes=(10, 100), repeats=1, slow_repeats=1)


@dataclass(frozen=True)
class Workload:
    """A problem and the plans to judge."""

    domain_file: Path
    problem_file: Path
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time, CPU time of this process, and CPU time of its children."""

    wall: float = 0.0
    cpu: float = 0.0
    children: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu, self.children + other.children)


def main() -> None:
    """Run the sections."""
    sections = {
        "groups": measure_groups,
        "cold": measure_cold,
        "unified": measure_unified,
        "growth": measure_growth,
        "search": measure_search,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of each section, once")
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections), metavar="SECTION")
    parser.add_argument("--seed", type=int, default=1, help="for problems and plans")
    options = parser.parse_args()
    print_line(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores, one of them used")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in options.only:
        with TemporaryDirectory(prefix="planward-verifier-") as folder:
            sections[name](Path(folder), QUICK if options.quick else Scale(), options.seed)


# Sections


def measure_groups(folder: Path, scale: Scale, seed: int) -> None:
    for size in (8, 64):
        print_line(f"\nGroups of {size} plans: each problem read, parsed and ground once, its domain parsed before")
        workloads = iter_workloads(folder, scale.groups, size, seed)
        compare_with_val(workloads, prepare_separate_domains, prepare_wrapped, scale)


def measure_cold(folder: Path, scale: Scale, seed: int) -> None:
    print_line("\nCold, one plan for a problem: problem read, parsed and ground; domain parsed once, before")
    workloads = iter_workloads(folder, scale.cold, 1, seed)
    compare_with_val(workloads, prepare_shared_domain, prepare_wrapped_uncached, scale)
    print_line("\nCold, one plan for a problem: problem and domain read, parsed and ground")
    workloads = iter_workloads(folder, scale.cold, 1, seed)
    compare_with_val(workloads, prepare_without_domain, prepare_wrapped_uncached, scale)


def measure_unified(folder: Path, scale: Scale, seed: int) -> None:
    if find_spec("unified_planning") is None:
        print_line("\nunified-planning is not installed: left out; fix: pip install unified-planning")
        return
    for size in (1, 8, 64):
        print_line(f"\nunified-planning, {size} plan(s) for a problem: domain and problem read and parsed once by both")
        print_line("`equal` counts plans with equal verdicts; plans that unified cannot read are left out")
        print_line(format_row("", "plans", "in-process", "unified", "x unified", "by CPU", "equal"))
        total, total_unified, plans, equals = Seconds(), Seconds(), 0, 0
        problems = scale.unified * (5 if size == 1 else 1)
        for name, all_workloads in iter_workloads(folder, problems, size, seed, sorts=("",)):
            workloads = [keep_readable(workload) for workload in all_workloads]
            in_process = measure_time(partial(prepare_without_domain, workloads), scale.repeats)
            by_unified = measure_time(partial(prepare_unified, workloads), scale.slow_repeats)
            verdicts = [o.label is Label.SUCCESS for workload in workloads for o in verify_workload(workload)]
            equal = sum(a == b for a, b in zip(verdicts, validate_unified(workloads), strict=True))
            print_line(format_unified_row(name, len(verdicts), in_process, by_unified, equal))
            total, total_unified = total + in_process, total_unified + by_unified
            plans, equals = plans + len(verdicts), equals + equal
        print_line(format_unified_row("all", plans, total, total_unified, equals))


def measure_growth(folder: Path, scale: Scale, seed: int) -> None:
    print_line("\nGrowth: a ferry with as many cars as locations; wall-clock microseconds for one plan")
    print_line("`ready`: problem read, parsed and ground; `first`: a plan of actions not yet ground; `again`: the same")
    print_line(
        "plan again; `an action`: the time to its left divided by the plan's length; Validate reads the files too."
    )
    print_line(
        "*: with a `sometime-before` for each ten objects; **: also an `always` for each car, all of which depend"
    )
    print_line("on every boarding")
    print_line(format_row("", "ready", "first", "an action", "again", "an action", "Validate"))
    for marks in ("", "*", "**"):
        for objects, length in product(scale.sizes, scale.sizes):
            workload = build_ferry_workload(folder, Random(f"{seed}:{objects}:{length}"), objects, length, len(marks))
            ready = measure_time(partial(prepare_reading, workload), scale.repeats).wall
            first = measure_time(partial(prepare_verification, workload, is_cached=False), scale.repeats).wall
            again = measure_time(partial(prepare_verification, workload, is_cached=True), scale.repeats).wall
            validate = measure_time(partial(prepare_validate, [workload]), scale.slow_repeats).wall
            times = (ready, first, first / length, again, again / length, validate)
            name = f"{objects} objects, {length} actions{marks}"
            print_line(format_row(name, *(f"{seconds * 1e6:.1f}" for seconds in times)))


def measure_search(folder: Path, scale: Scale, seed: int) -> None:
    print_line("\nReference plans: each problem read, parsed, ground and searched; the domain parsed once, before")
    print_line(format_row("", "problems", "actions", "plans/s", "slowest"))
    total, problems = Seconds(), 0
    for name, workloads in iter_workloads(folder, scale.search, 0, seed):
        lengths, times = list[int](), list[float]()
        seconds = measure_time(partial(prepare_search, workloads, lengths, times), scale.slow_repeats)
        rate, slowest = format_rate(len(workloads), seconds), f"{max(times) * 1e3:.0f} ms"
        print_line(format_row(name, len(workloads), f"{mean(lengths):.1f}", rate, slowest))
        total, problems = total + seconds, problems + len(workloads)
    print_line(format_row("all", problems, "", format_rate(problems, total), ""))


def compare_with_val(
    workloads_by_domain: Iterator[tuple[str, list[Workload]]],
    in_process: Callable[[list[Workload]], Work],
    prepare_wrapper: Callable[[list[Workload]], Work],
    scale: Scale,
) -> None:
    """Measure each domain; print a row for each, and one for all."""
    print_line(format_row("", "plans", "in-process", "Validate", "planward.val", "x Validate", "by CPU", "x p.val"))
    total = [Seconds(), Seconds(), Seconds()]
    plans = 0
    for name, workloads in workloads_by_domain:
        times = [
            measure_time(partial(in_process, workloads), scale.repeats),
            measure_time(partial(prepare_validate, workloads), scale.slow_repeats),
            measure_time(partial(prepare_wrapper, workloads), scale.slow_repeats),
        ]
        number = sum(len(workload.plans) for workload in workloads)
        print_line(format_val_row(name, number, *times))
        total, plans = [a + b for a, b in zip(total, times, strict=True)], plans + number
    print_line(format_val_row("all", plans, *total))


# Timed work: each function does untimed preparation, and returns the work to time.


def measure_time(prepare: Callable[[], Work], repeats: int) -> Seconds:
    """Return medians over the repeats."""
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        work = prepare()
        gc.collect()
        starts = (perf_counter(), process_time(), read_children_cpu_s())
        work()
        ends = (perf_counter(), process_time(), read_children_cpu_s())
        times.append((ends[0] - starts[0], ends[1] - starts[1], ends[2] - starts[2]))
    return Seconds(*(median(column) for column in zip(*times, strict=True)))


def read_children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def prepare_separate_domains(workloads: list[Workload]) -> Work:
    """Parse the domain for each problem, so that problems of one domain share no cache."""
    return partial(verify_all, workloads, [parse_domain_again(workload) for workload in workloads])


def prepare_shared_domain(workloads: list[Workload]) -> Work:
    """Parse the domain once, as the pipeline does: problems with equal objects and static facts share operators."""
    return partial(verify_all, workloads, [parse_domain_again(workloads[0])] * len(workloads))


def prepare_without_domain(workloads: list[Workload]) -> Work:
    return partial(verify_all, workloads, [None] * len(workloads))


def verify_all(workloads: Sequence[Workload], domains: Sequence[Domain | None]) -> None:
    """Verify all plans; a domain that is None is parsed here."""
    for workload, domain in zip(workloads, domains, strict=True):
        verifier = PlanVerifier(load_problem(workload.problem_file, domain or parse_domain_again(workload)))
        for plan in workload.plans:
            verifier.verify(plan)


def prepare_reading(workload: Workload) -> Work:
    domain = parse_domain_again(workload)
    return lambda: PlanVerifier(load_problem(workload.problem_file, domain))


def prepare_verification(workload: Workload, is_cached: bool) -> Work:
    verifier = PlanVerifier(load_problem(workload.problem_file, parse_domain_again(workload)))
    if is_cached:
        verifier.verify(workload.plans[0])
    return partial(verifier.verify, workload.plans[0])


def prepare_search(workloads: list[Workload], lengths: list[int], times: list[float]) -> Work:
    """Search for all plans; appends their lengths and seconds to the lists."""
    domain = parse_domain_again(workloads[0])

    def work() -> None:
        for workload in workloads:
            start = perf_counter()
            problem = ground_problem(load_problem(workload.problem_file, domain))
            lengths.append(len(find_shortest_plan(problem, PARAMS.max_states)))
            times.append(perf_counter() - start)

    return work


def prepare_validate(workloads: list[Workload]) -> Work:
    commands: list[list[str]] = []
    for workload in workloads:
        for number, plan in enumerate(workload.plans):
            file = workload.problem_file.with_suffix(f".{number}.plan")
            file.write_text("".join(f"{step.lower()}\n" for step in plan), encoding="utf-8")
            commands.append(
                [str(val.find_binary()), "-v", str(workload.domain_file), str(workload.problem_file), str(file)]
            )

    def work() -> None:
        for command in commands:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    return work


def prepare_wrapped(workloads: list[Workload]) -> Work:
    for workload in workloads:
        val.validate(workload.domain_file, workload.problem_file, "")  # so that the files are checked before
    return partial(validate_all, workloads)


def prepare_wrapped_uncached(workloads: list[Workload]) -> Work:
    for workload in workloads:
        workload.problem_file.touch()  # so that it is read and checked again
    return partial(validate_all, workloads)


def validate_all(workloads: list[Workload]) -> None:
    for workload in workloads:
        for plan in workload.plans:
            val.validate(workload.domain_file, workload.problem_file, "\n".join(plan))


def prepare_unified(workloads: list[Workload]) -> Work:
    return partial(validate_unified, workloads)


def validate_unified(workloads: Sequence[Workload]) -> list[bool | None]:
    """Return unified-planning's verdict on each plan; None where it cannot read the plan."""
    io, engines, shortcuts = (import_module(f"unified_planning.{name}") for name in ("io", "engines", "shortcuts"))
    shortcuts.get_environment().credits_stream = None
    shortcuts.get_environment().error_used_name = False  # delivery's object `truck` has the name of its type
    verdicts: list[bool | None] = []
    for workload in workloads:
        reader, validator = io.PDDLReader(), engines.SequentialPlanValidator()
        with catch_warnings(action="ignore"):
            problem = reader.parse_problem(str(workload.domain_file), str(workload.problem_file))
        for plan in workload.plans:
            try:
                sequential_plan = reader.parse_plan_string(problem, "\n".join(plan))
            except Exception:  # such as AssertionError for undeclared objects
                verdicts.append(None)
            else:
                verdicts.append(validator.validate(problem, sequential_plan).status.name == "VALID")
    return verdicts


# Problems and plans


def iter_workloads(
    folder: Path, problems: int, plans: int, seed: int, sorts: Sequence[str] = ("", "safety")
) -> Iterator[tuple[str, list[Workload]]]:
    """Yield name and problems of each domain and sort, of the default sizes, each with `plans` plans."""
    for domain in GENERATED_DOMAINS:
        ranges = PARAMS.generated[domain].items()
        sizes = {name: bounds for name, bounds in ranges if not isinstance(bounds, int)}
        domain_file = folder / f"{domain}.pddl"
        domain_file.write_text(load_domain_text(domain), encoding="utf-8")
        for sort in sorts:
            rng, workloads = Random(f"{seed}:{domain}:{sort}"), []
            for number in range(problems):
                instance = sample_instance(rng, domain, sizes, sort == "safety")
                file = folder / f"{domain}{sort}{plans}-{number}.pddl"
                file.write_text(render_problem(domain, instance), encoding="utf-8")
                workloads.append(add_plans(Workload(domain_file, file, ()), rng, plans))
            yield f"{domain} {sort}".rstrip(), workloads


def add_plans(workload: Workload, rng: Random, number: int) -> Workload:
    """Return the workload with plans of all kinds for which VAL runs."""
    if not number:
        return workload
    inputs = read_inputs(workload.domain_file, workload.problem_file)

    def reaches_val(plan: Plan) -> bool:
        try:
            parse_plan("\n".join(plan), inputs)
        except FormatError:
            return False
        return True

    problem = load_problem(workload.problem_file, parse_domain_again(workload))
    plans = (candidate.plan for candidate in iter_distinct_plans(problem, rng) if reaches_val(candidate.plan))
    pool = list(islice(plans, max(number, 20)))  # the first one alone would always be the reference plan
    return Workload(workload.domain_file, workload.problem_file, tuple(rng.sample(pool, min(number, len(pool)))))


def keep_readable(workload: Workload) -> Workload:
    """Drop the plans that unified-planning cannot read."""
    verdicts = zip(workload.plans, validate_unified([workload]), strict=True)
    plans = tuple(plan for plan, verdict in verdicts if verdict is not None)
    return Workload(workload.domain_file, workload.problem_file, plans)


def build_ferry_workload(folder: Path, rng: Random, objects: int, length: int, constraints: int) -> Workload:
    """Build a problem of any size with one plan: repeatedly sail to a car, board it, sail elsewhere, debark it.

    Args:
        constraints: 0 for none, 1 for orders of boarding, 2 for a rule on every car as well.
    """
    locations, cars = ([f"{letter}{i}" for i in range(objects // 2)] for letter in "lc")
    at = {car: rng.choice(locations) for car in cars}
    ferry, plan, boarding_order = rng.choice(locations), list[str](), dict[str, None]()
    init = [f"(at-ferry {ferry})", "(empty-ferry)", *(f"(at {car} {location})" for car, location in at.items())]
    while len(plan) < length:
        car, goal = rng.choice(cars), rng.choice(locations)
        sails = [f"(sail {here} {there})" for here, there in ((ferry, at[car]), (at[car], goal)) if here != there]
        trip = [
            *sails[: ferry != at[car]],
            f"(board {car} {at[car]})",
            *sails[ferry != at[car] :],
            f"(debark {car} {goal})",
        ]
        if len(plan) + len(trip) > length:  # fill up with sailing
            there = rng.choice([name for name in locations if name != ferry])
            plan.append(f"(sail {ferry} {there})")
            ferry = there
            continue
        plan += trip
        boarding_order.setdefault(car)
        ferry = at[car] = goal
    goals = [f"(at {car} {location})" for car, location in at.items()]
    # Cars that are never boarded come last, so that they violate no order.
    order = [*boarding_order, *(car for car in cars if car not in boarding_order)]
    rules = [f"(sometime-before (on {later}) (on {earlier}))" for earlier, later in pairwise(order)][: objects // 10]
    if constraints == 2:
        rules.append("(forall (?c - car) (always (imply (on ?c) (not (empty-ferry)))))")
    name = f"ferry-{objects}-{length}-{constraints}"
    text = (
        f"(define (problem {name}) (:domain ferry)\n"
        f" (:objects {' '.join(locations)} - location {' '.join(cars)} - car)\n"
        f" (:init {' '.join(init)})\n (:goal (and {' '.join(goals)}))\n"
        + (f" (:constraints (and {' '.join(rules)}))" if constraints else "")
        + ")\n"
    )
    domain_file, problem_file = folder / "ferry.pddl", folder / f"{name}.pddl"
    domain_file.write_text(load_domain_text("ferry"), encoding="utf-8")
    problem_file.write_text(text, encoding="utf-8")
    workload = Workload(domain_file, problem_file, (tuple(plan),))
    (outcome,) = verify_workload(workload)
    assert outcome.label is Label.SUCCESS, outcome
    assert val.validate(domain_file, problem_file, "\n".join(plan), timeout=600).label is Label.SUCCESS
    return workload


def parse_domain_again(workload: Workload) -> Domain:
    """Parse the domain: `load_domain` would return a cached one."""
    return parse_domain(workload.domain_file.read_text(encoding="utf-8"))


def verify_workload(workload: Workload) -> list[Outcome]:
    verifier = PlanVerifier(load_problem(workload.problem_file, parse_domain_again(workload)))
    return [verifier.verify(plan) for plan in workload.plans]


# Output


def format_val_row(name: str, plans: int, in_process: Seconds, validate: Seconds, wrapper: Seconds) -> str:
    rates = [format_rate(plans, seconds) for seconds in (in_process, validate, wrapper)]
    ratios = (
        validate.wall / in_process.wall,
        validate.children / in_process.cpu,
        wrapper.wall / in_process.wall,
    )
    return format_row(name, plans, *rates, *(f"{ratio:.0f}" for ratio in ratios))


def format_unified_row(name: str, plans: int, in_process: Seconds, by_unified: Seconds, equal: int) -> str:
    rates = (format_rate(plans, in_process), format_rate(plans, by_unified))
    ratios = (f"{by_unified.wall / in_process.wall:.0f}", f"{by_unified.cpu / in_process.cpu:.0f}")
    return format_row(name, plans, *rates, *ratios, f"{equal}/{plans}")


def format_rate(number: int, seconds: Seconds) -> str:
    return f"{number / seconds.wall:.1f}"


def format_row(name: str, *cells: object) -> str:
    return f"{name:{NAME_WIDTH}}" + "".join(f" {cell!s:>12}" for cell in cells)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

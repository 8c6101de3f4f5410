"""Throughput of a Ray cluster on this machine, next to the pool of VAL processes that the pipeline uses.

    python benchmarks/ray_engine.py                     everything
    python benchmarks/ray_engine.py --only verdicts chunks overhead
    python benchmarks/ray_engine.py --quick             a smoke test; its figures mean nothing

Needs the extra `cluster`. The problems are those that `planward problems` generates, a few per domain; completions come
from `candidate_plans.iter_distinct_plans`, and all engines judge the same ones. Engines take turns; the first round, in
which workers start and files are read, is not counted. Values are medians over rounds of wall time; `x` is the
throughput relative to the pool with one VAL process in the same round.

verdicts  the pool with one and two VAL processes; Ray with one and two CPUs
chunks    Ray with two CPUs, by completions per task
overhead  milliseconds per task that does nothing, without inputs and with a chunk of completions and files
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

from candidate_plans import iter_distinct_plans
from planward.core.registry import load_params, load_task
from planward.integrations.ray import engine
from planward.integrations.ray.connection import connect
from planward.integrations.ray.engine import Pair, RayTask, build_chunk, run_remote, split_into_chunks
from planward.params import Params
from planward.pddl.language import load_domain, load_problem
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.sources import generate_domain_records

PARAMS = cast(PlanningParams, load_params(root=Path(__file__).resolve().parent.parent))
NAME_WIDTH = 34
BASELINE = "pool, one VAL process"

JudgeFunction = Callable[[list[Pair]], Any]


@dataclass(frozen=True)
class Scale:
    """Sizes of the measurements."""

    problems: int = 12  # per domain
    completions: int = 8  # per problem
    rounds: int = 3  # counted ones
    tasks: int = 500  # that do nothing
    chunk_sizes: tuple[int, ...] = (1, 4, 16, 64)


QUICK = Scale(problems=2, completions=4, rounds=1, tasks=20, chunk_sizes=(1, 16))


def main() -> None:
    sections = {"verdicts": measure_verdicts, "chunks": measure_chunks, "overhead": measure_overhead}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a little of everything, once")
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections), metavar="SECTION")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    with TemporaryDirectory(prefix="planward-bench-") as name:
        pairs = build_pairs(Path(name), scale)
        print_line(f"{len(pairs)} completions, {scale.problems} problems a domain; medians over {scale.rounds} rounds")
        for section in options.only:
            print_line("")
            sections[section](Path(name), pairs, scale)


def measure_verdicts(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """The pool and Ray, each with one and two CPUs; the pool is measured again in the rounds of both clusters."""
    print_line(format_row("verdicts", "verdicts/s", "x"))
    pools = {
        BASELINE: load_task(limit_val_workers(1), root).judge,
        "pool, two VAL processes": load_task(limit_val_workers(2), root).judge,
    }
    times, ratios = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with hide_progress():
        expected = pools[BASELINE](pairs)
    for cpus in 1, 2:
        with connect("local", cpus) as ray:
            judge_on_ray = RayTask(load_task(PARAMS, root), PARAMS, root, ray).judge
            with hide_progress():
                assert judge_on_ray(pairs) == expected
            engines = pools | {f"Ray, {'one CPU' if cpus == 1 else 'two CPUs'}": judge_on_ray}
            for _ in range(scale.rounds):
                round_times = {name: measure_seconds(judge, pairs) for name, judge in engines.items()}
                for name, seconds in round_times.items():
                    times[name].append(seconds)
                    ratios[name].append(round_times[BASELINE] / seconds)
    for name, seconds_list in times.items():
        print_line(format_row(name, f"{len(pairs) / median(seconds_list):.0f}", f"{median(ratios[name]):.2f}"))


def measure_chunks(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """Ray with two CPUs, by the size of a task."""
    print_line(format_row("completions per task", "verdicts/s"))
    default, times = engine.CHUNK_SIZE, {size: list[float]() for size in scale.chunk_sizes}
    try:
        with connect("local", 2) as ray:
            judge_on_ray = RayTask(load_task(PARAMS, root), PARAMS, root, ray).judge
            measure_seconds(judge_on_ray, pairs)
            for _ in range(scale.rounds):
                for size, seconds in times.items():
                    engine.CHUNK_SIZE = size
                    seconds.append(measure_seconds(judge_on_ray, pairs))
    finally:
        engine.CHUNK_SIZE = default
    for size, seconds in times.items():
        print_line(format_row(str(size), f"{len(pairs) / median(seconds):.0f}"))


def measure_overhead(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """Tasks that do nothing, on one CPU, so that they run one after another."""
    print_line(format_row("a task that does nothing", "ms"))

    def do_nothing(*_: object) -> None:
        return None

    chunk = build_chunk([pairs[index] for index in split_into_chunks(pairs)[0]], root)
    with connect("local", 1) as ray:
        for name, arguments in ("without inputs", ()), (f"with {len(chunk.pairs)} completions", (chunk,)):
            times = []
            for _ in range(scale.rounds + 1):
                start = perf_counter()
                for _ in run_remote(ray, do_nothing, (arguments for _ in range(scale.tasks))):
                    pass
                times.append(perf_counter() - start)
            print_line(format_row(name, f"{1000 * median(times[1:]) / scale.tasks:.2f}"))


def build_pairs(root: Path, scale: Scale) -> list[Pair]:
    """Problems of params.yaml's sizes, whose files are written below `root`, with completions of all kinds."""
    domains = {name: sizes | {"count": scale.problems} for name, sizes in PARAMS.problems.generated.items()}
    params = PARAMS.model_copy(update={"problems": PARAMS.problems.model_copy(update={"generated": domains})})
    pairs: list[Pair] = []
    with hide_progress():
        for record in chain.from_iterable(generate_domain_records(params, domain, root) for domain in domains):
            domain = load_domain(root / record.meta.domain_file)
            plans = iter_distinct_plans(load_problem(root / record.meta.problem_file, domain), Random(str(record.meta)))
            pairs += [(record, "\n".join(each.plan)) for each in islice(plans, scale.completions)]
    Random(1).shuffle(pairs)
    return pairs


def limit_val_workers(workers: int) -> Params:
    return PARAMS.model_copy(update={"val": PARAMS.val.model_copy(update={"workers": workers})})


def measure_seconds(judge: JudgeFunction, pairs: list[Pair]) -> float:
    start = perf_counter()
    with hide_progress():
        judge(pairs)
    return perf_counter() - start


def hide_progress() -> redirect_stderr[StringIO]:
    """Keep progress bars out of the output."""
    return redirect_stderr(StringIO())


def format_row(name: str, *cells: object) -> str:
    return f"{name:{NAME_WIDTH}}" + "".join(f" {cell!s:>12}" for cell in cells)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

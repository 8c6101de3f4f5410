"""How fast a Ray cluster on this machine judges completions, beside the pool of VAL processes that the pipeline uses.

    python benchmarks/ray_engine.py                     everything
    python benchmarks/ray_engine.py --only verdicts chunks overhead
    python benchmarks/ray_engine.py --quick             a smoke test; its figures mean nothing

Needs the extra `cluster`. Problems are those that `planward problems` would generate, some a domain; completions are
made as docs/reference/agreement.md says, and all engines judge the same. An engine's repeats take turns with the
others', and the first turn, in which workers start and files are checked, is not counted. Times are medians over
turns, by the clock; `x` is how many times as many verdicts a second as the pool with one VAL process, in the same turn.

verdicts  the pool with one and two VAL processes; Ray with one and two CPUs
chunks    Ray with two CPUs, by completions a task
overhead  tasks that do nothing, alone and with a chunk's completions and files on board: milliseconds each
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from planward.agreement import distinct_plans
from planward.clusters import engine
from planward.clusters.connection import connected
from planward.clusters.engine import Pair, RayTask, chunk, completed, places_of_chunks
from planward.params import Params, load_params
from planward.pddl.language import load_domain, load_problem
from planward.tasks import load_task
from planward.tasks.planning.sources import generated_records

PARAMS = load_params(Path(__file__).resolve().parent.parent / "params.yaml")
NAME = 34  # width of a row's name
ALONE = "pool, one VAL process"

Judge = Callable[[list[Pair]], Any]


@dataclass(frozen=True)
class Scale:
    """Problems a domain, completions a problem, and turns that are counted; tasks that do nothing."""

    problems: int = 12
    completions: int = 8
    turns: int = 3
    tasks: int = 500
    sizes: tuple[int, ...] = (1, 4, 16, 64)


QUICK = Scale(problems=2, completions=4, turns=1, tasks=20, sizes=(1, 16))


def main() -> None:
    sections = {"verdicts": verdicts, "chunks": chunks, "overhead": overhead}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything, once")
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections), metavar="SECTION")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    with TemporaryDirectory(prefix="planward-bench-") as name:
        pairs = completions(Path(name), scale)
        say(f"{len(pairs)} completions on {scale.problems} problems a domain; medians over {scale.turns} turns")
        for section in options.only:
            say("")
            sections[section](Path(name), pairs, scale)


def verdicts(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """The pool and Ray, each with one and two CPUs; the pool's turns lie beside those of both clusters."""
    say(row("verdicts", "verdicts/s", "x"))
    pools = {name: load_task(pooled(n), root).judge for n, name in ((1, ALONE), (2, "pool, two VAL processes"))}
    times, ratios = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with quietly():
        expected = pools[ALONE](pairs)
    for cpus in 1, 2:
        with connected("local", cpus) as ray:
            on_ray = RayTask(load_task(PARAMS, root), PARAMS, root, ray).judge
            with quietly():
                assert on_ray(pairs) == expected
            engines = pools | {f"Ray, {'one CPU' if cpus == 1 else 'two CPUs'}": on_ray}
            for _ in range(scale.turns):
                turn = {name: seconds(judge, pairs) for name, judge in engines.items()}
                for name, taken in turn.items():
                    times[name].append(taken)
                    ratios[name].append(turn[ALONE] / taken)
    for name, taken in times.items():
        say(row(name, f"{len(pairs) / median(taken):.0f}", f"{median(ratios[name]):.2f}"))


def chunks(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """Ray with two CPUs, by the size of a task."""
    say(row("completions a task", "verdicts/s"))
    usual, times = engine.CHUNK, {size: list[float]() for size in scale.sizes}
    try:
        with connected("local", 2) as ray:
            on_ray = RayTask(load_task(PARAMS, root), PARAMS, root, ray).judge
            seconds(on_ray, pairs)
            for _ in range(scale.turns):
                for size, taken in times.items():
                    engine.CHUNK = size
                    taken.append(seconds(on_ray, pairs))
    finally:
        engine.CHUNK = usual
    for size, taken in times.items():
        say(row(str(size), f"{len(pairs) / median(taken):.0f}"))


def overhead(root: Path, pairs: list[Pair], scale: Scale) -> None:
    """Tasks that do nothing, on one CPU, so that none is hidden behind another."""
    say(row("a task that does nothing", "ms"))

    def nothing(*_: object) -> None:
        return None

    full = chunk([pairs[place] for place in places_of_chunks(pairs)[0]], root)
    with connected("local", 1) as ray:
        for name, arguments in ("empty", ()), (f"with {len(full.pairs)} completions", (full,)):
            taken = []
            for _ in range(scale.turns + 1):
                start = perf_counter()
                for _ in completed(ray, nothing, (arguments for _ in range(scale.tasks))):
                    pass
                taken.append(perf_counter() - start)
            say(row(name, f"{1000 * median(taken[1:]) / scale.tasks:.2f}"))


def completions(root: Path, scale: Scale) -> list[Pair]:
    """Completions of all kinds on problems of params.yaml's sizes, whose files are written below `root`."""
    domains = {name: sizes | {"count": scale.problems} for name, sizes in PARAMS.problems.generated.items()}
    few = PARAMS.problems.model_copy(update={"generated": domains})
    found: list[Pair] = []
    with quietly():
        for record in generated_records(PARAMS.model_copy(update={"problems": few}), root):
            domain = load_domain(root / record.meta.domain_file)
            plans = distinct_plans(load_problem(root / record.meta.problem_file, domain), Random(str(record.meta)))
            found += [(record, "\n".join(each.plan)) for each in islice(plans, scale.completions)]
    Random(1).shuffle(found)
    return found


def pooled(workers: int) -> Params:
    return PARAMS.model_copy(update={"val": PARAMS.val.model_copy(update={"workers": workers})})


def seconds(judge: Judge, pairs: list[Pair]) -> float:
    start = perf_counter()
    with quietly():
        judge(pairs)
    return perf_counter() - start


def quietly() -> redirect_stderr[StringIO]:
    """No progress bars among the figures."""
    return redirect_stderr(StringIO())


def row(name: str, *cells: object) -> str:
    return f"{name:{NAME}}" + "".join(f" {cell!s:>12}" for cell in cells)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

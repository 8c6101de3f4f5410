"""How many plans a second VAL judges, with one worker and with two: python benchmarks/val.py"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from planward.val import validate_many

PLANS = 400
DOMAIN = """(define (domain switches) (:predicates (on ?s) (off ?s))
 (:action press :parameters (?s) :precondition (off ?s) :effect (and (on ?s) (not (off ?s))))
 (:action release :parameters (?s) :precondition (on ?s) :effect (and (off ?s) (not (on ?s)))))"""
PROBLEM = "(define (problem p) (:domain switches) (:objects s) (:init (off s)) (:goal (on s)))"


def plans_per_second(jobs: list[tuple[Path, Path, str]], workers: int) -> float:
    start = perf_counter()
    validate_many(jobs, workers=workers)
    return len(jobs) / (perf_counter() - start)


def main() -> None:
    with TemporaryDirectory() as folder:
        domain, problem = Path(folder, "domain.pddl"), Path(folder, "problem.pddl")
        domain.write_text(DOMAIN, encoding="utf-8")
        problem.write_text(PROBLEM, encoding="utf-8")
        # Comments make the jobs differ, so that none is left out as a repetition.
        jobs = [(domain, problem, "(press s)\n(release s)\n" * 10 + f"(press s) ; {n}") for n in range(PLANS)]
        one, two = (plans_per_second(jobs, workers) for workers in (1, 2))
    sys.stdout.write(f"1 worker: {one:.0f} plans/s; 2 workers: {two:.0f} plans/s; ratio {two / one:.2f}\n")


if __name__ == "__main__":
    main()

"""Measure VAL's throughput in plans/s with one worker and with two: python benchmarks/val.py"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from planward.val import validate_many

PLAN_NUM = 400
DOMAIN = """(define (domain switches) (:predicates (on ?s) (off ?s))
 (:action press :parameters (?s) :precondition (off ?s) :effect (and (on ?s) (not (off ?s))))
 (:action release :parameters (?s) :precondition (on ?s) :effect (and (off ?s) (not (on ?s)))))"""
PROBLEM = "(define (problem p) (:domain switches) (:objects s) (:init (off s)) (:goal (on s)))"


def measure_throughput(jobs: list[tuple[Path, Path, str]], workers: int) -> float:
    """Return the plans judged per second."""
    start = perf_counter()
    validate_many(jobs, workers=workers)
    return len(jobs) / (perf_counter() - start)


def main() -> None:
    with TemporaryDirectory() as folder:
        domain, problem = Path(folder, "domain.pddl"), Path(folder, "problem.pddl")
        domain.write_text(DOMAIN, encoding="utf-8")
        problem.write_text(PROBLEM, encoding="utf-8")
        # Comments make the jobs differ, because equal jobs run once.
        jobs = [(domain, problem, "(press s)\n(release s)\n" * 10 + f"(press s) ; {n}") for n in range(PLAN_NUM)]
        one, two = (measure_throughput(jobs, workers) for workers in (1, 2))
    sys.stdout.write(f"1 worker: {one:.0f} plans/s; 2 workers: {two:.0f} plans/s; ratio {two / one:.2f}\n")


if __name__ == "__main__":
    main()

"""Validate plans with VAL, one or many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from planward.core.verdicts import Label, Outcome, VerifierError
from planward.val import temporary
from planward.val.inputs import InputError, Inputs, read_inputs, rewrite_problem
from planward.val.plans import FormatError, Plan, parse_plan
from planward.val.process import ProcessError, check_inputs, find_binary, run_program
from planward.val.report import UnreadableReportError, ends_undefined, is_goal_met, parse_report

DEFAULT_TIMEOUT_S = 10.0  # the pipeline passes `val.timeout` of params.yaml
MAX_ATTEMPTS = 2
Job = tuple[Path, Path, str]
T = TypeVar("T")


def validate(domain: Path, problem: Path, plan: str, timeout: float = DEFAULT_TIMEOUT_S) -> Outcome:
    """Validate an extracted plan, with one action per line.

    A plan that `plans.parse_plan` rejects is a format error, and VAL does not run. For a plan that misses a goal with
    compound formulas, VAL runs once more for each of them.

    Args:
        timeout: seconds for one run of VAL.

    Raises:
        InputError: the domain or the problem is invalid; the message names the file.
        VerifierError: VAL is missing, was killed, timed out or printed an unknown report, twice.
        CannotWriteError: the disk of the folder for temporary files is full.
    """
    inputs = read_inputs(domain, problem)

    def judge(program: Path) -> Outcome:
        check_inputs(program, domain, problem, timeout)
        try:
            steps = parse_plan(plan, inputs)
        except FormatError as error:
            return Outcome(Label.FORMAT, _count_lines(plan), goals_total=len(inputs.goals), detail=str(error))
        return _run_val(program, domain, problem, steps, inputs, timeout)

    return _retry(judge, domain, problem)


def check_files(domain: Path, problem: Path, timeout: float = DEFAULT_TIMEOUT_S) -> None:
    """Check that VAL reads a domain and a problem completely; raises as `validate`."""
    read_inputs(domain, problem)
    _retry(lambda program: check_inputs(program, domain, problem, timeout), domain, problem)


def _retry(run: Callable[[Path], T], domain: Path, problem: Path) -> T:
    """Call `run` with the path of `Validate`, up to MAX_ATTEMPTS times; raises VerifierError where all fail."""
    reason = ""
    for _ in range(MAX_ATTEMPTS):
        try:
            return run(find_binary())
        except (VerifierError, ProcessError, UnreadableReportError) as failure:
            reason = str(failure)
    raise VerifierError(
        f"no verdict on a plan for {problem} (domain {domain}), tried {MAX_ATTEMPTS} times: {reason}; fix: "
        "check that VAL runs by itself, that memory suffices and that val.timeout in params.yaml is long enough"
    )


def validate_many(
    jobs: Iterable[Job], timeout: float = DEFAULT_TIMEOUT_S, workers: int = 1, progress: str | None = None
) -> list[Outcome]:
    """Validate many (domain, problem, plan); returns outcomes in their order. Equal jobs run once.

    Args:
        workers: number of VAL processes at once.
        progress: caption of a progress bar on standard error; None for no bar.

    Raises:
        InputError, VerifierError: as `validate`, for the first job that fails; no further one is started.
    """
    job_list = list(jobs)
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        futures = {job: pool.submit(validate, *job, timeout) for job in dict.fromkeys(job_list)}
        for future in _track_progress(futures.values(), progress):
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [futures[job].result() for job in job_list]


def _track_progress(futures: Iterable[Future[Outcome]], caption: str | None) -> Iterable[Future[Outcome]]:
    pending = list(futures)
    finished_futures: Iterator[Future[Outcome]] = as_completed(pending)
    if caption is None:
        return finished_futures
    return track(finished_futures, description=caption, total=len(pending), console=Console(stderr=True))


@dataclass(frozen=True)
class _ValRun:
    """Files for runs of VAL on one plan; rewritten problems go to `folder`."""

    program: Path
    domain: Path
    problem: Path
    plan: Path
    folder: Path
    timeout: float

    def run(self) -> str:
        """Run VAL and return its report; raises ProcessError where it does not end normally."""
        files = (self.domain.absolute(), self.problem.absolute(), self.plan)
        status, report = run_program([str(self.program), "-v", *map(str, files)], self.timeout)
        if status < 0:
            raise ProcessError(f"it was ended by signal {-status}")
        return report

    def with_rewritten_problem(self, goal: str | None = None) -> _ValRun:
        """Return the run for a rewritten copy of the problem; see `inputs.rewrite_problem`."""
        copy = self.folder / "problem.pddl"
        temporary.write_file(copy, rewrite_problem(self.problem, goal))
        return replace(self, problem=copy)


def _run_val(program: Path, domain: Path, problem: Path, plan: Plan, inputs: Inputs, timeout: float) -> Outcome:
    with temporary.open_folder() as folder:
        file = folder / "plan"
        temporary.write_file(file, plan.text)
        val_run = _ValRun(program, domain, problem, file, folder, timeout)
        # VAL reports a failed preference as it reports a failed constraint.
        report = (val_run.with_rewritten_problem() if inputs.has_preferences else val_run).run()
        if ends_undefined(report):
            report = val_run.with_rewritten_problem().run()  # without the metric, which does not affect the verdict
        try:
            outcome = parse_report(report, plan, inputs)
        except InputError as error:
            raise InputError(f"{problem} (domain {domain}): {error}") from None
        return _count_goals(outcome, val_run, inputs) if outcome.label is Label.GOAL else outcome


def _count_goals(outcome: Outcome, val_run: _ValRun, inputs: Inputs) -> Outcome:
    """Count the satisfied conjuncts of a missed goal, with one run of VAL for each compound formula."""
    num_known = outcome.goals_satisfied
    if num_known is None:
        unknown = list(inputs.goals)
    else:
        unknown = [goal for goal in inputs.goals if goal.atom is None]
        if len(unknown) == 1 and num_known == len(inputs.goals) - 1:
            return outcome  # the only candidate for the missed conjunct
    num_satisfied = sum(is_goal_met(val_run.with_rewritten_problem(goal.formula).run()) for goal in unknown)
    return replace(outcome, goals_satisfied=(num_known or 0) + num_satisfied)


def _count_lines(plan: str) -> int:
    """Return the size of a text that is not a plan: its lines other than blank ones and comments."""
    return sum(bool(line.partition(";")[0].strip()) for line in plan.split("\n"))

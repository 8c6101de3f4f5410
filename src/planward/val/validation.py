"""From a plan to an outcome, by VAL; one plan, or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track

from planward.records import Label, Outcome, VerifierError
from planward.val.inputs import InputError, Inputs, read_inputs, rewritten
from planward.val.plans import FormatError, Plan, read_plan
from planward.val.process import ProcessError, binary, check_inputs, run
from planward.val.report import UnreadableReportError, breaks_off, holds, read_report

TIMEOUT = 10.0  # seconds; the pipeline passes params.yaml's val.timeout
ATTEMPTS = 2
Job = tuple[Path, Path, str]


def validate(domain: Path, problem: Path, plan: str, timeout: float = TIMEOUT) -> Outcome:
    """VAL's verdict on an extracted plan: one action a line.

    `timeout` is in seconds, for one run of VAL. A plan that cannot be one (see `plans.read_plan`) is
    a format error without VAL's help. For a plan that misses a goal with formulas larger than literals,
    VAL is run once more for each of them.

    Raises:
        InputError: the domain or the problem cannot be read; names the file.
        VerifierError: VAL is missing, was killed, timed out or printed something unknown, twice.
    """
    inputs = read_inputs(domain, problem)
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            program = binary()
            check_inputs(program, domain, problem, timeout)
            try:
                steps = read_plan(plan, inputs)
            except FormatError as error:
                return Outcome(Label.FORMAT, _lines(plan), goals_total=len(inputs.goals), detail=str(error))
            return _verdict(program, domain, problem, steps, inputs, timeout)
        except (VerifierError, ProcessError, UnreadableReportError) as failure:
            reason = str(failure)
    raise VerifierError(
        f"no verdict on a plan for {problem} (domain {domain}), tried {ATTEMPTS} times: {reason}; mend: "
        "see that VAL runs by itself, that memory suffices and that val.timeout in params.yaml is long enough"
    )


def validate_many(
    jobs: Iterable[Job], timeout: float = TIMEOUT, workers: int = 1, progress: str | None = None
) -> list[Outcome]:
    """VAL's verdicts on many (domain, problem, plan), in their order; equal jobs are run once.

    `workers` is the number of VAL processes at once; `progress` the caption of a progress bar on
    standard error, or None for no bar.

    Raises:
        InputError, VerifierError: as `validate`, for the first job that fails; no further one is started.
    """
    wanted = list(jobs)
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        futures = {job: pool.submit(validate, *job, timeout) for job in dict.fromkeys(wanted)}
        for future in _watched(futures.values(), progress):
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [futures[job].result() for job in wanted]


def _watched(futures: Iterable[Future[Outcome]], caption: str | None) -> Iterable[Future[Outcome]]:
    waiting = list(futures)
    done: Iterator[Future[Outcome]] = as_completed(waiting)
    if caption is None:
        return done
    return track(done, description=caption, total=len(waiting), console=Console(stderr=True))


@dataclass(frozen=True)
class _Run:
    """VAL, started with a plan for a problem of a domain; copies of the problem go to `folder`."""

    program: Path
    domain: Path
    problem: Path
    plan: Path
    folder: Path
    timeout: float

    def report(self) -> str:
        """What VAL prints; raises ProcessError where it comes to no regular end."""
        files = (self.domain.absolute(), self.problem.absolute(), self.plan)
        status, report = run([str(self.program), "-v", *map(str, files)], self.timeout)
        if status < 0:
            raise ProcessError(f"it was ended by signal {-status}")
        return report

    def rewritten(self, goal: str | None = None) -> _Run:
        """The same for a copy of the problem; see `inputs.rewritten`."""
        copy = self.folder / "problem.pddl"
        copy.write_text(rewritten(self.problem, goal), encoding="utf-8")
        return replace(self, problem=copy)


def _verdict(program: Path, domain: Path, problem: Path, plan: Plan, inputs: Inputs, timeout: float) -> Outcome:
    with TemporaryDirectory(prefix="planward-val-") as name:
        folder = Path(name)
        file = folder / "plan"
        file.write_text(plan.text, encoding="ascii", newline="\n")
        asked = _Run(program, domain, problem, file, folder, timeout)
        # Of a preference that fails VAL prints what it prints of a constraint.
        report = (asked.rewritten() if inputs.soft else asked).report()
        if breaks_off(report):
            report = asked.rewritten().report()  # without the metric, which decides nothing
        try:
            outcome = read_report(report, plan, inputs)
        except InputError as error:
            raise InputError(f"{problem} (domain {domain}): {error}") from None
        return _counted(outcome, asked, inputs) if outcome.label is Label.GOAL else outcome


def _counted(outcome: Outcome, asked: _Run, inputs: Inputs) -> Outcome:
    """An outcome with a missed goal, its satisfied conjuncts counted: larger formulas each by a run of VAL."""
    known = outcome.goals_satisfied
    if known is None:
        doubtful = list(inputs.goals)
    else:
        doubtful = [goal for goal in inputs.goals if goal.atom is None]
        if len(doubtful) == 1 and known == len(inputs.goals) - 1:
            return outcome  # what else should be missing
    found = sum(holds(asked.rewritten(goal.formula).report()) for goal in doubtful)
    return replace(outcome, goals_satisfied=(known or 0) + found)


def _lines(plan: str) -> int:
    """Size of a text that is no plan: its lines that are not blank or comments."""
    return sum(bool(line.partition(";")[0].strip()) for line in plan.split("\n"))

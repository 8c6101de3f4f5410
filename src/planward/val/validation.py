"""From a plan to an outcome, by VAL; one plan, or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track

from planward.records import Label, Outcome, VerifierError
from planward.val.inputs import InputError, Inputs, read_inputs
from planward.val.plans import FormatError, Plan, read_plan
from planward.val.process import ProcessError, binary, check_inputs, run
from planward.val.report import UnreadableReportError, read_report

TIMEOUT = 10.0  # seconds; the pipeline passes params.yaml's val.timeout
ATTEMPTS = 2
Job = tuple[Path, Path, str]


def validate(domain: Path, problem: Path, plan: str, timeout: float = TIMEOUT) -> Outcome:
    """VAL's verdict on an extracted plan: one action a line.

    `timeout` is in seconds, for one run of VAL. A plan that cannot be one (see `plans.read_plan`) is
    a format error without VAL's help.

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


def _verdict(program: Path, domain: Path, problem: Path, plan: Plan, inputs: Inputs, timeout: float) -> Outcome:
    with TemporaryDirectory(prefix="planward-val-") as folder:
        file = Path(folder, "plan")
        file.write_text(plan.text, encoding="ascii", newline="\n")
        command = [str(program), "-v", str(domain.absolute()), str(problem.absolute()), str(file)]
        status, report = run(command, timeout)
    if status < 0:
        raise ProcessError(f"it was ended by signal {-status}")
    try:
        return read_report(report, plan, inputs)
    except InputError as error:
        raise InputError(f"{problem} (domain {domain}): {error}") from None


def _lines(plan: str) -> int:
    """Size of a text that is no plan: its lines that are not blank or comments."""
    return sum(bool(line.partition(";")[0].strip()) for line in plan.split("\n"))

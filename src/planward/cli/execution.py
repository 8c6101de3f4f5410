"""How a command runs: errors in plain words, threads, and the timing of stages."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from planward.cli.code import read_sources, warn_of_changed_code
from planward.cli.parameters import ParametersChanged, find_pipeline, guard_parameters
from planward.cli.processes import StageIsRunning, end_with_parent, is_slurm_job, lock_stage, wait_for_slurm
from planward.core import paths
from planward.core.files import write_json
from planward.core.parallel import WorkerKilled
from planward.core.registry import load_params
from planward.core.runs import Run
from planward.core.verdicts import VerifierError
from planward.params import METHODS, ParamsError
from planward.pddl.expressions import PddlError
from planward.pddl.search import SearchLimitError
from planward.training.termination import EXIT_STATUS, Terminated

FAULTS = (ParamsError, PddlError, SearchLimitError, ValueError, OSError)  # of input, configuration and machine
EXPECTED_ERRORS = (*FAULTS, ParametersChanged, StageIsRunning, VerifierError, WorkerKilled)
LOCKS = Path(".locks")  # of the stages that run


def run_stage(
    stage: str,
    function: Callable[[Any], None],
    task: str = "planning",
    *,
    track: str | None = None,
    run: Run | None = None,
) -> None:
    """Check what a stage needs, run it with its task's parameters, and write its wall time, processor time and memory.

    Args:
        stage: its name in the pipeline, `grpo@400-3407`.
        track: whose results/TRACK/timing the measurement goes to; by default the task's.
        run: the run that the stage belongs to.
    """
    from planward.preflight.checks import check_stage
    from planward.preflight.stages import StageNeeds

    limit_threads()
    end_with_parent()
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes
    pipeline, sources = find_pipeline(track or task), read_sources()
    with report_errors(), ExitStack() as stack:
        start = time.perf_counter()
        with guard_parameters(pipeline) if is_first else nullcontext():
            params = load_params(task)
            if is_first:  # not before: outside a project nothing is written
                stack.enter_context(lock_stage(LOCKS / f"{track or task}-{stage}"))
            check_stage(StageNeeds(stage, track or task, run), params)
            function(params)
        if is_first:
            own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            measurement: dict[str, Any] = {
                "stage": stage,
                "task": track or task,
                "wall_s": round(time.perf_counter() - start, 2),
                "cpu_s": round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 2),
                "peak_rss_mb": round(own.ru_maxrss / 1024),
            }
            if run is not None:
                measurement["run"] = run.as_dict(track or task)
            if changed_code := warn_of_changed_code(sources, pipeline):
                measurement["changed_code"] = changed_code
            write_json(paths.results(track or task).timing / f"{stage}.json", measurement)


@contextmanager
def hold_stage(name: str, pipeline: Path) -> Iterator[None]:
    """End with DVC, hold the stage's lock, and fail where its parameters are edited; outside a project write nothing.

    Warns where its code is edited.

    Args:
        name: of the lock: the track and the stage, `planning-report`.
        pipeline: the stage's dvc.yaml.

    Raises:
        StageIsRunning: see `lock_stage`.
        ParametersChanged: see `guard_parameters`.
    """
    end_with_parent()
    sources = read_sources()
    with guard_parameters(pipeline), lock_stage(LOCKS / name) if pipeline.is_file() else nullcontext():
        yield
    warn_of_changed_code(sources, pipeline)


def format_stage(command: str, run: Run) -> str:
    """The pipeline's name of the stage that runs a command for a run: `grpo@400-3407`, `evaluate-base`."""
    if run.method == "base":
        return f"{command}-base"
    suffix = "" if run.method in METHODS else "-ablation"
    key = run.name if command in ("evaluate", "sample") or suffix else f"{run.size}-{run.seed}"
    return f"{command}{suffix}@{key}"


def limit_threads() -> None:
    """Give torch as many threads as the stage got from its scheduler; by default one."""
    os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("PLANWARD_THREADS", "1"))


@contextmanager
def report_errors() -> Iterator[None]:
    """Print faults of input, configuration and machine in plain words, with exit status 2."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        raise
    except EXPECTED_ERRORS as error:
        if os.environ.get("PLANWARD_TRACEBACK"):
            raise
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False, highlight=False)
        console.print("(PLANWARD_TRACEBACK=1 shows the traceback)", style="dim")
        raise typer.Exit(2) from None
    except Terminated as end:
        print(end, flush=True)
        if is_slurm_job():
            wait_for_slurm()
        raise typer.Exit(EXIT_STATUS) from None

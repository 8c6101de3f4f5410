"""Reference plans, from breadth-first search or Fast Downward; the split verifies them before training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from planward.core.verdicts import VerifierError
from planward.pddl.grounding import count_fluents, count_instantiations, ground_problem
from planward.pddl.language import load_domain, load_problem
from planward.pddl.search import SearchLimitError, UnsolvableError, find_shortest_plan
from planward.tasks.planning.config import ProblemsConfig

MAX_SEARCH_EXPANSION = 2_000_000  # atoms of all ground actions, quantifiers expanded
MAX_SEARCH_BITS = 1 << 31  # of all ground actions: each is a few numbers with a bit for every atom


def find_reference_plan(domain: Path, problem: Path, params: ProblemsConfig) -> list[str]:
    """Find a plan with the planner named in params.yaml, one action per element.

    Raises:
        PddlError: the files are unusable.
        UnsolvableError: the goal is unreachable.
        SearchLimitError: the planner reached its limit.
        VerifierError: Fast Downward is not installed.
    """
    if params.planner == "fast-downward":
        return run_fast_downward(domain, problem, params.planner_timeout)
    parsed_problem = load_problem(problem, load_domain(domain))
    if (count := count_instantiations(parsed_problem)) > params.max_states:
        raise SearchLimitError(f"its actions have up to {count} instantiations, more than max_states")
    if (
        count * parsed_problem.expansion > MAX_SEARCH_EXPANSION
        or count * count_fluents(parsed_problem) > MAX_SEARCH_BITS
    ):
        raise SearchLimitError(f"its {count} actions are too large to search; fix: a reference plan in the line")
    return find_shortest_plan(ground_problem(parsed_problem), params.max_states)


def run_fast_downward(domain: Path, problem: Path, timeout: float) -> list[str]:
    """Find a plan with Fast Downward's lama-first; raises as `find_reference_plan`."""
    driver = _find_fast_downward()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        command = [sys.executable, str(driver), "--alias", "lama-first", "--plan-file", str(plan)]
        command += [str(domain.resolve()), str(problem.resolve())]
        try:
            status, output = _run_driver(command, Path(folder), timeout)
        except subprocess.TimeoutExpired:
            raise SearchLimitError(f"Fast Downward found no plan in {timeout:g} s") from None
        if plan.exists():
            lines = plan.read_text(encoding="utf-8").splitlines()
            return [line.strip() for line in lines if not line.startswith(";")]
        if status in (10, 11, 12):  # the driver's exit codes for unsolvable problems
            raise UnsolvableError("the goal is unreachable (Fast Downward)")
        last = output.strip().splitlines()[-1:]
        raise SearchLimitError(f"Fast Downward failed (exit status {status}): {' '.join(last)}")


def _run_driver(command: list[str], folder: Path, timeout: float) -> tuple[int, str]:
    """Run the driver in `folder`; returns its exit status, and its standard error, or else its standard output.

    When this ends early, so does the search, which is a process that the driver starts; raises TimeoutExpired after
    `timeout` seconds.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, errors or output


def _find_fast_downward() -> Path:
    from importlib.util import find_spec

    spec = find_spec("up_fast_downward")
    if spec is None or not spec.submodule_search_locations:
        raise VerifierError(
            "problems.planner: fast-downward needs the package up-fast-downward; fix: install it or set `search`"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "downward" / "fast-downward.py"

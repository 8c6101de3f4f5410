"""Reference plans: found by search or by Fast Downward, checked before anyone learns from them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from planward.params import Problems
from planward.pddl.grounding import ground_problem, instantiations
from planward.pddl.language import load_domain, load_problem
from planward.pddl.search import SearchLimit, Unsolvable, shortest_plan
from planward.records import VerifierError


def reference_plan(domain: Path, problem: Path, params: Problems) -> list[str]:
    """A plan by the planner that params.yaml names, one action an element.

    Raises:
        PddlError: the files are unusable.
        Unsolvable: the goal is unreachable.
        SearchLimit: the planner gave up.
        VerifierError: Fast Downward is not installed.
    """
    if params.planner == "fast-downward":
        return fast_downward_plan(domain, problem, params.planner_timeout)
    parsed = load_problem(problem, load_domain(domain))
    if (ways := instantiations(parsed)) > params.max_states:
        raise SearchLimit(f"its actions can be instantiated in up to {ways} ways, more than max_states")
    return shortest_plan(ground_problem(parsed), params.max_states)


def fast_downward_plan(domain: Path, problem: Path, timeout: float) -> list[str]:
    """The first plan that Fast Downward's lama-first finds; raises as `reference_plan` does."""
    driver = _fast_downward()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan"
        command = [sys.executable, str(driver), "--alias", "lama-first", "--plan-file", str(plan)]
        command += [str(domain.resolve()), str(problem.resolve())]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise SearchLimit(f"Fast Downward found no plan in {timeout:g} s") from None
        if plan.exists():
            lines = plan.read_text(encoding="utf-8").splitlines()
            return [line.strip() for line in lines if not line.startswith(";")]
        if done.returncode in (10, 11, 12):  # the driver's exit codes for "proved or found unsolvable"
            raise Unsolvable("the goal is unreachable, says Fast Downward")
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise SearchLimit(f"Fast Downward gave up (exit {done.returncode}): {' '.join(last)}")


def _fast_downward() -> Path:
    from importlib.util import find_spec

    spec = find_spec("up_fast_downward")
    if spec is None or not spec.submodule_search_locations:
        raise VerifierError("planner: fast-downward needs the package up-fast-downward; install it or use `search`")
    return Path(next(iter(spec.submodule_search_locations))) / "downward" / "fast-downward.py"

"""Costs of valid plans: the value of the problem's metric as VAL computes it, else the number of actions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planward.pddl.expressions import Form, PddlError, read_pddl_file
from planward.val import find_binary
from planward.val.inputs import read_inputs
from planward.val.plans import parse_plan
from planward.val.process import ProcessError, run_program

VALUE_PATTERN = re.compile(r"^Final value: (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """What a valid plan costs.

    Attributes:
        value: of the metric, or the number of actions.
        unit: it is the number of actions.
        maximised: higher values are better.
    """

    value: float
    unit: bool = True
    maximised: bool = False

    @property
    def rank(self) -> float:
        """Lower is better."""
        return -self.value if self.maximised else self.value


def measure_cost(domain: Path, problem: Path, plan: str, timeout: float) -> Cost:
    """Measure the cost of a valid plan, one action per line; its size where VAL gives the metric no value."""
    size = Cost(len(plan.splitlines()))
    direction = _read_metric(problem)
    if direction is None:
        return size
    with TemporaryDirectory(prefix="planward-cost-") as folder:
        file = Path(folder, "plan")
        file.write_text(parse_plan(plan, read_inputs(domain, problem)).text, encoding="ascii", newline="\n")
        command = [str(find_binary()), "-v", str(domain.absolute()), str(problem.absolute()), str(file)]
        try:
            match = VALUE_PATTERN.search(run_program(command, timeout)[1])
        except ProcessError:
            return size
    return Cost(float(match[1]), unit=False, maximised=direction == "maximize") if match else size


def _read_metric(problem: Path) -> str | None:
    """Return `minimize` or `maximize`; None where the problem has no metric."""
    if b":metric" not in problem.read_bytes().lower():
        return None
    try:
        sections = read_pddl_file(problem)
    except PddlError:
        return None
    for section in sections:
        if isinstance(section, Form) and len(section) > 1 and section[0] == ":metric":
            return str(section[1])
    return None

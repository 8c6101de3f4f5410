"""Random walks through a problem's states: cheap plans whose goal is where they end."""

from __future__ import annotations

from random import Random

from planward.pddl.grounding import GroundProblem
from planward.pddl.monitors import VIOLATED


def loop_free_walk(rng: Random, problem: GroundProblem, length: int) -> tuple[list[str], int]:
    """Up to `length` random actions from the start that never meet a state twice; actions and end state.

    No constraint is violated on the way, though one may ask for more at the end.
    """
    state, visited, plan = problem.init, {problem.init, VIOLATED}, list[str]()
    while len(plan) < length and state != VIOLATED:
        steps = ((o, problem.monitors.observe(state, o.apply(state))) for o in problem.grounding.applicable(state))
        choices = [(operator, after) for operator, after in steps if after not in visited]
        if not choices:
            break
        operator, state = rng.choice(choices)
        visited.add(state)
        plan.append(operator.name)
    return plan, state

"""Random walks through a problem's states: cheap plans whose goal is where they end."""

from __future__ import annotations

from random import Random

from planward.pddl.grounding import GroundProblem


def loop_free_walk(rng: Random, problem: GroundProblem, length: int) -> tuple[list[str], int]:
    """Up to `length` random actions from the start that never meet a state twice; actions and end state."""
    state, visited, plan = problem.init, {problem.init}, list[str]()
    while len(plan) < length:
        choices = [(o, s) for o in problem.grounding.applicable(state) if (s := o.apply(state)) not in visited]
        if not choices:
            break
        operator, state = rng.choice(choices)
        visited.add(state)
        plan.append(operator.name)
    return plan, state

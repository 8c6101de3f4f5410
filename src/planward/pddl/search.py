"""Shortest plans by breadth-first search, over states and the memory of the constraints' monitors."""

from __future__ import annotations

from planward.pddl.conditions import NEVER
from planward.pddl.grounding import GroundProblem, Operator
from planward.pddl.monitors import VIOLATED


class Unsolvable(ValueError):
    """The whole reachable space holds no goal state."""


class SearchLimit(RuntimeError):
    """The search gave up: the problem may or may not have a plan."""


def shortest_plan(problem: GroundProblem, max_states: int) -> list[str]:
    """A shortest plan, as ground action names; the same one on every run. It violates no constraint.

    Raises:
        Unsolvable: no plan exists.
        SearchLimit: `max_states` states were met without an answer.
    """
    if problem.init == VIOLATED:
        raise Unsolvable("the initial state violates a constraint")
    if problem.solved(problem.init):
        return []
    reached: dict[int, tuple[int, str]] = {problem.init: (-1, "")}
    frontier = [problem.init] if problem.goal != NEVER else []
    # `Grounding.applicable`, `Operator.apply` and `solved`, written out: this loop is all the search's time.
    groups = [(pivot, [_unpacked(o) for o in group]) for pivot, group in problem.grounding.successors]
    wanted, unwanted, choices = problem.goal
    watched, observe = problem.monitors.watched, problem.monitors.observe
    while frontier:
        following: list[int] = []
        for state in frontier:
            for pivot, group in groups:
                if state & pivot != pivot:
                    continue
                for needs, forbids, keeps, adds, name, rich in group:
                    if state & needs != needs or state & forbids:
                        continue
                    if rich is None:
                        successor = state & keeps | adds
                    elif rich.condition.holds(state):
                        successor = rich.apply(state)
                    else:
                        continue
                    if (state ^ successor) & watched and (successor := observe(state, successor)) == VIOLATED:
                        continue
                    if successor in reached:
                        continue
                    reached[successor] = (state, name)
                    open_goals = successor & wanted != wanted or successor & unwanted
                    if not open_goals and (not choices or problem.solved(successor)):
                        return _trace(reached, successor)
                    following.append(successor)
            if len(reached) > max_states:
                raise SearchLimit(f"no plan among the first {max_states} states")
        frontier = following
    raise Unsolvable("the goal is unreachable: every reachable state was searched")


def _unpacked(operator: Operator) -> tuple[int, int, int, int, str, Operator | None]:
    """The operator's masks, and itself where they do not say everything."""
    needs, forbids, choices = operator.condition
    rich = operator if choices or operator.conditional else None
    return needs, forbids, operator.keeps, operator.adds, operator.name, rich


def _trace(reached: dict[int, tuple[int, str]], state: int) -> list[str]:
    plan = []
    while (step := reached[state])[1]:
        plan.append(step[1])
        state = step[0]
    return plan[::-1]

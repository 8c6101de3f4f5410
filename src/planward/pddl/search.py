"""Shortest plans by breadth-first search over states that include the memory of constraint monitors."""

from __future__ import annotations

from planward.pddl.conditions import NEVER
from planward.pddl.grounding import GroundProblem, Operator
from planward.pddl.monitors import VIOLATED


class UnsolvableError(ValueError):
    """No reachable state satisfies goal and constraints."""


class SearchLimitError(RuntimeError):
    """The search gave up: the problem may or may not have a plan."""


def find_shortest_plan(problem: GroundProblem, max_states: int) -> list[str]:
    """Find a shortest plan that satisfies the constraints, as ground action names; the same one on every run.

    Raises:
        UnsolvableError: no plan exists.
        SearchLimitError: no plan among the first `max_states` states.
    """
    if problem.initial_state == VIOLATED:
        raise UnsolvableError("the initial state violates a constraint")
    if problem.is_solved(problem.initial_state):
        return []
    predecessors: dict[int, tuple[int, str]] = {problem.initial_state: (-1, "")}
    frontier = [problem.initial_state] if problem.goal != NEVER else []
    # Inlines `Grounding.iter_applicable`, `Operator.apply` and `is_solved`: this loop dominates the search's time.
    groups = [(pivot, [_unpack_operator(o) for o in group]) for pivot, group in problem.grounding.operator_index]
    goal_needs, goal_forbids, goal_choices = problem.goal
    watched_bits, observe = problem.monitors.watched_bits, problem.monitors.observe
    while frontier:
        next_frontier: list[int] = []
        for state in frontier:
            for pivot, group in groups:
                if state & pivot != pivot:
                    continue
                for needs, forbids, keeps, adds, name, operator in group:
                    if state & needs != needs or state & forbids:
                        continue
                    if operator is None:
                        successor = state & keeps | adds
                    elif operator.condition.holds(state):
                        successor = operator.apply(state)
                    else:
                        continue
                    if (state ^ successor) & watched_bits and (successor := observe(state, successor)) == VIOLATED:
                        continue
                    if successor in predecessors:
                        continue
                    predecessors[successor] = (state, name)
                    is_open = successor & goal_needs != goal_needs or successor & goal_forbids
                    if not is_open and (not goal_choices or problem.is_solved(successor)):
                        return _trace_plan(predecessors, successor)
                    next_frontier.append(successor)
            if len(predecessors) > max_states:
                raise SearchLimitError(f"no plan among the first {max_states} states")
        frontier = next_frontier
    raise UnsolvableError("the goal is unreachable: every reachable state was searched")


def _unpack_operator(operator: Operator) -> tuple[int, int, int, int, str, Operator | None]:
    """Return the operator's masks and name, and the operator itself where the masks are not all of it."""
    needs, forbids, choices = operator.condition
    complex_operator = operator if choices or operator.conditional else None
    return needs, forbids, operator.keeps, operator.adds, operator.name, complex_operator


def _trace_plan(predecessors: dict[int, tuple[int, str]], state: int) -> list[str]:
    plan = []
    while (step := predecessors[state])[1]:
        plan.append(step[1])
        state = step[0]
    return plan[::-1]

"""Shortest plans by breadth-first search."""

from __future__ import annotations

from planward.pddl.grounding import GroundProblem


class Unsolvable(ValueError):
    """The whole reachable space holds no goal state."""


class SearchLimit(RuntimeError):
    """The search gave up: the problem may or may not have a plan."""


def shortest_plan(problem: GroundProblem, max_states: int) -> list[str]:
    """A shortest plan, as ground action names; the same one on every run.

    Raises:
        Unsolvable: no plan exists.
        SearchLimit: `max_states` states were met without an answer.
    """
    if problem.solved(problem.init):
        return []
    reached: dict[int, tuple[int, str]] = {problem.init: (-1, "")}
    frontier = [problem.init]
    # `Grounding.applicable` and `GroundProblem.solved`, written out: this loop is all the search's time.
    groups = [
        (pivot, [(o.needs, o.forbids, o.keeps, o.adds, o.name) for o in group])
        for pivot, group in problem.grounding.successors
    ]
    wanted, unwanted = problem.needs, problem.forbids
    while frontier and not problem.impossible:
        following: list[int] = []
        for state in frontier:
            for pivot, group in groups:
                if state & pivot != pivot:
                    continue
                for needs, forbids, keeps, adds, name in group:
                    if state & needs != needs or state & forbids:
                        continue
                    successor = state & keeps | adds
                    if successor in reached:
                        continue
                    reached[successor] = (state, name)
                    if successor & wanted == wanted and not successor & unwanted:
                        return _trace(reached, successor)
                    following.append(successor)
            if len(reached) > max_states:
                raise SearchLimit(f"no plan among the first {max_states} states")
        frontier = following
    raise Unsolvable("the goal is unreachable: every reachable state was searched")


def _trace(reached: dict[int, tuple[int, str]], state: int) -> list[str]:
    plan = []
    while (step := reached[state])[1]:
        plan.append(step[1])
        state = step[0]
    return plan[::-1]

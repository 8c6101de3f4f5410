"""Plans as strips of pictures: the start, the state after each action, and the goal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from markupsafe import Markup

from planward.pddl.formulas import Literal, text
from planward.pddl.grounding import GroundProblem, ground_problem
from planward.pddl.language import Problem
from planward.pddl.simulation import Misfit, read_step
from planward.reporting.scenes import State, World, world

MOST = 24  # frames of a strip; what is left out lies in the middle


class Mark(StrEnum):
    """What is wrong with a step, as the page says it."""

    NONE = ""
    UNREADABLE = "cannot be read"
    IMPOSSIBLE = "cannot be done"
    VIOLATION = "breaks a constraint"


@dataclass(frozen=True)
class Frame:
    """One picture; `svg` is empty for a frame that stands for `left_out` others."""

    svg: Markup
    caption: str  # the action; start | goal
    number: int | None = None  # of the step, from 1
    mark: Mark = Mark.NONE
    left_out: int = 0

    @property
    def undone(self) -> bool:
        """The step changed nothing."""
        return self.mark in (Mark.UNREADABLE, Mark.IMPOSSIBLE)


@dataclass(frozen=True)
class Strip:
    """A plan. `met` and `missed` are goals, both empty where the plan did not run to its end."""

    frames: tuple[Frame, ...]
    not_run: int = 0  # steps behind the one at fault
    met: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Album:
    """Several plans for one problem; `symbols` is what their pictures refer to and must stand on the page once."""

    symbols: Markup
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Trajectory:
    """States from the start on, one more than steps that ran; `mark` is of the last line of `lines`, if any."""

    states: tuple[State, ...]
    lines: tuple[str, ...]
    mark: Mark
    not_run: int
    final: int  # the last state as the grounding writes it


def pictures(problem: Problem, plans: Sequence[tuple[Sequence[str], int | None]], key: str) -> Album | None:
    """The plans' pictures; None for a problem of whose domain there are none.

    Args:
        plans: the actions `(name object ...)` of each plan, and the number of its failing step, if it has one. A plan
            is drawn as far as it runs.
        key: the problem's id, which keeps its symbols apart from those of others on the page.
    """
    ground = ground_problem(problem)
    runs = [trajectory(ground, plan, failing_step) for plan, failing_step in plans]
    goal = frozenset(part.atom for part in problem.goal if isinstance(part, Literal) and part.positive)
    shown = [*(state for run in runs for state in run.states), goal]
    found = world(problem, shown, f"p{hashlib.sha256(key.encode()).hexdigest()[:6]}")
    if found is None:
        return None
    return Album(found.symbols, tuple(_strip(problem, ground, found, run, goal) for run in runs))


def trajectory(ground: GroundProblem, plan: Sequence[str], failing_step: int | None) -> Trajectory:
    """Run a plan up to the step at fault.

    A step that cannot be done leaves the state as it was and adds none; at a `failing_step` that can be done, a
    constraint is broken.
    """
    state, static = ground.start, ground.grounding.static
    states = [frozenset(ground.grounding.atoms(state)) | static]
    mark, number = Mark.NONE, 0
    for number, line in enumerate(plan, 1):
        step = read_step(line, ground.grounding)
        if isinstance(step, Misfit):
            mark = Mark.UNREADABLE
        elif not step.operator.condition.holds(state):
            mark = Mark.IMPOSSIBLE
        else:
            state = step.operator.apply(state)
            states.append(frozenset(ground.grounding.atoms(state)) | static)
            mark = Mark.VIOLATION if number == failing_step else Mark.NONE
        if mark:
            break
    return Trajectory(tuple(states), tuple(plan[:number]), mark, len(plan) - number, state)


def _strip(problem: Problem, ground: GroundProblem, found: World, run: Trajectory, goal: State) -> Strip:
    states = run.states
    frames = [_frame(found, "start", states[0], states[0])]
    for number, line in enumerate(run.lines, 1):
        before, after = states[number - 1], states[min(number, len(states) - 1)]
        mark = run.mark if number == len(run.lines) else Mark.NONE
        frames.append(_frame(found, line, before, after, number, mark))
    if len(frames) > MOST:
        left_out = len(frames) - MOST + 1
        frames[MOST // 2 : MOST // 2 + left_out] = [Frame(Markup(), "", left_out=left_out)]
    frames.append(_frame(found, "goal", goal, goal))
    if run.mark:
        return Strip(tuple(frames), run.not_run)
    held = [condition.holds(run.final) for condition in ground.goals]
    met, missed = (
        tuple(text(part) for part, holds in zip(problem.goal, held, strict=True) if holds == wanted)
        for wanted in (True, False)
    )
    return Strip(tuple(frames), 0, met, missed)


def _frame(
    found: World,
    caption: str,
    before: State,
    after: State,
    number: int | None = None,
    mark: Mark = Mark.NONE,
) -> Frame:
    places = found.places(before)
    moved = frozenset(thing for thing, place in found.places(after).items() if places.get(thing) != place)
    said = f"after {caption}" if number and mark in (Mark.NONE, Mark.VIOLATION) else caption
    title = f"{said}{f', which {mark}' if mark else ''}: {found.words(after)}"
    svg = Markup('<svg class="scene" role="img" width="{}" height="{}"><title>{}</title>{}</svg>').format(
        found.width, found.height, title, found.shapes(after, moved)
    )
    return Frame(svg, caption, number, mark)

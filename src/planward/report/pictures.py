"""Plans as strips of pictures: the initial state, the state after each action, and the goal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from markupsafe import Markup

from planward.pddl.formulas import Literal, render_formula
from planward.pddl.grounding import GroundProblem, ground_problem
from planward.pddl.language import Problem
from planward.pddl.simulation import InvalidStep, parse_step
from planward.report.scenes import Scene, State, build_scene

MAX_FRAMES = 24  # of a strip; frames in the middle are left out


class Mark(StrEnum):
    """The fault of a step, as the page prints it."""

    NONE = ""
    INVALID = "no valid action"
    INAPPLICABLE = "not applicable"
    VIOLATION = "violates a constraint"


@dataclass(frozen=True)
class Frame:
    """One picture; `svg` is empty for a frame that replaces `left_out` others."""

    svg: Markup
    caption: str  # the action; start | goal
    number: int | None = None  # of the step, from 1
    mark: Mark = Mark.NONE
    left_out: int = 0

    @property
    def undone(self) -> bool:
        """Whether the step changed nothing."""
        return self.mark in (Mark.INVALID, Mark.INAPPLICABLE)


@dataclass(frozen=True)
class Strip:
    """A plan. `satisfied` and `missed` are goals, both empty where the plan was not executed to its end."""

    frames: tuple[Frame, ...]
    not_executed: int = 0  # steps after the failing one
    satisfied: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanPictures:
    """Several plans for one problem; `symbols`, which the pictures refer to, must be on the page once."""

    symbols: Markup
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Trajectory:
    """The states of an execution, one more than steps executed; `mark` belongs to the last of `lines`."""

    states: tuple[State, ...]
    lines: tuple[str, ...]
    mark: Mark
    not_executed: int
    final: int  # last state, as a bit set of the grounding


def draw_plans(problem: Problem, plans: Sequence[tuple[Sequence[str], int | None]], key: str) -> PlanPictures | None:
    """Draw plans; None for a domain without a scene.

    Args:
        plans: the actions `(name object ...)` of each plan and the number of its failing step, counted from 1, if
            it has one. A plan is drawn up to its fault.
        key: the problem's id, which makes the ids of its symbols unique on the page.
    """
    ground = ground_problem(problem)
    runs = [simulate_plan(ground, plan, failing_step) for plan, failing_step in plans]
    goal = frozenset(part.atom for part in problem.goal if isinstance(part, Literal) and part.positive)
    states = [*(state for run in runs for state in run.states), goal]
    scene = build_scene(problem, states, f"p{hashlib.sha256(key.encode()).hexdigest()[:6]}")
    if scene is None:
        return None
    return PlanPictures(scene.symbols, tuple(_draw_strip(problem, ground, scene, run, goal) for run in runs))


def simulate_plan(ground: GroundProblem, plan: Sequence[str], failing_step: int | None) -> Trajectory:
    """Execute a plan up to its first fault.

    An invalid or inapplicable step adds no state. An applicable `failing_step` violates a constraint.
    """
    state, static = ground.initial_facts, ground.grounding.static
    states = [frozenset(ground.grounding.decode_state(state)) | static]
    mark, number = Mark.NONE, 0
    for number, line in enumerate(plan, 1):
        step = parse_step(line, ground.grounding)
        if isinstance(step, InvalidStep):
            mark = Mark.INVALID
        elif not step.operator.condition.holds(state):
            mark = Mark.INAPPLICABLE
        else:
            state = step.operator.apply(state)
            states.append(frozenset(ground.grounding.decode_state(state)) | static)
            mark = Mark.VIOLATION if number == failing_step else Mark.NONE
        if mark:
            break
    return Trajectory(tuple(states), tuple(plan[:number]), mark, len(plan) - number, state)


def _draw_strip(problem: Problem, ground: GroundProblem, scene: Scene, run: Trajectory, goal: State) -> Strip:
    states = run.states
    frames = [_draw_frame(scene, "start", states[0], states[0])]
    for number, line in enumerate(run.lines, 1):
        before, after = states[number - 1], states[min(number, len(states) - 1)]
        mark = run.mark if number == len(run.lines) else Mark.NONE
        frames.append(_draw_frame(scene, line, before, after, number, mark))
    if len(frames) > MAX_FRAMES:
        left_out = len(frames) - MAX_FRAMES + 1
        frames[MAX_FRAMES // 2 : MAX_FRAMES // 2 + left_out] = [Frame(Markup(), "", left_out=left_out)]
    frames.append(_draw_frame(scene, "goal", goal, goal))
    if run.mark:
        return Strip(tuple(frames), run.not_executed)
    is_true = [condition.holds(run.final) for condition in ground.goals]
    satisfied_goals, missed_goals = (
        tuple(render_formula(part) for part, holds in zip(problem.goal, is_true, strict=True) if holds == value)
        for value in (True, False)
    )
    return Strip(tuple(frames), 0, satisfied_goals, missed_goals)


def _draw_frame(
    scene: Scene,
    caption: str,
    before: State,
    after: State,
    number: int | None = None,
    mark: Mark = Mark.NONE,
) -> Frame:
    places = scene.find_places(before)
    moved_items = frozenset(item for item, place in scene.find_places(after).items() if places.get(item) != place)
    subject = f"after {caption}" if number and mark in (Mark.NONE, Mark.VIOLATION) else caption
    title = f"{subject}{f' ({mark})' if mark else ''}: {scene.describe(after)}"
    svg = Markup('<svg class="scene" role="img" width="{}" height="{}"><title>{}</title>{}</svg>').format(
        scene.width, scene.height, title, scene.render_shapes(after, moved_items)
    )
    return Frame(svg, caption, number, mark)

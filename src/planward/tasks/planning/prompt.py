"""Prompts for planning problems, in two styles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planward.core.prompts import END
from planward.core.tasks import Messages
from planward.pddl.expressions import render_expression
from planward.pddl.formulas import render_formula
from planward.pddl.language import Problem
from planward.tasks.planning.domains.instances import split_numbers

INSTRUCTION = (
    "You are a planner. Read the PDDL domain and problem, then answer with a plan that reaches the goal "
    "and respects every constraint. Write one action a line, as (action object ...), in the order in which "
    "they are carried out, and nothing else."
)


def render_compact_problem(problem: Problem) -> str:
    """Render objects, initial state, goal and constraints as atoms, up to where the plan begins.

    Objects and facts are sorted, so that prompts do not depend on their order in a file; goals and constraints are not.
    """
    lines = [
        problem.domain.name,
        " ".join(["objects", *sorted(problem.objects, key=split_numbers)]),
        " ".join(["init", *(f"({' '.join(atom)})" for atom in sorted(problem.init))]),
        " ".join(["goal", *map(render_formula, problem.goal)]),
    ]
    if problem.constraint_forms:
        lines.append(" ".join(["constraints", *map(render_expression, problem.constraint_forms)]))
    return "\n".join([*lines, "plan\n"])


def render_compact_prompt(problem: Problem, examples: Iterable[tuple[Problem, str]]) -> str:
    """Render worked examples with their plans, one action per line, then the problem, in their own names."""
    return join_compact_prompt(
        [(render_compact_problem(example), plan) for example, plan in examples], render_compact_problem(problem)
    )


def join_compact_prompt(examples: Iterable[tuple[str, str]], problem: str) -> str:
    """Join rendered examples, with their plans, and the problem."""
    return "".join([*(f"{example}{plan}\n{END}\n" for example, plan in examples), problem])


def render_full_prompt(domain_text: str, problem_text: str, examples: Sequence[tuple[str, str]]) -> Messages:
    """Build chat messages: instruction and domain, worked examples as earlier turns, then the problem."""
    messages = [{"role": "system", "content": f"{INSTRUCTION}\n\nDomain:\n{domain_text.strip()}"}]
    for example_text, plan in examples:
        messages += [_build_user_message(example_text), {"role": "assistant", "content": plan}]
    return [*messages, _build_user_message(problem_text)]


def _build_user_message(problem_text: str) -> dict[str, str]:
    return {"role": "user", "content": f"Problem:\n{problem_text.strip()}\n\nPlan:"}

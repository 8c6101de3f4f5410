"""Prompts for planning problems, in two styles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planward.pddl.formulas import text
from planward.pddl.language import Problem
from planward.tasks.base import Messages

END = "<end>"  # closes a plan in the compact style; the tiny base's end-of-sequence token

INSTRUCTION = (
    "You are a planner. Read the PDDL domain and problem, then answer with a plan that reaches the goal "
    "and respects every constraint. Write one action a line, as (action object ...), in the order in which "
    "they are carried out, and nothing else."
)


def compact_problem(problem: Problem) -> str:
    """Objects, start, goal and constraints as atoms; ends where the plan begins.

    Facts are sorted, so that the order in a file does not reach the model.
    """
    lines = [
        problem.domain.name,
        " ".join(["objects", *problem.objects]),
        " ".join(["init", *(f"({' '.join(atom)})" for atom in sorted(problem.init))]),
        " ".join(["goal", *sorted(map(text, problem.goal))]),
    ]
    if problem.constraint_forms:
        lines.append(" ".join(["constraints", *sorted(map(_text, problem.constraint_forms))]))
    return "\n".join([*lines, "plan\n"])


def compact_prompt(problem: Problem, shots: Iterable[tuple[Problem, str]]) -> str:
    """Worked examples, then the problem; an example's plan has one action a line."""
    examples = [f"{compact_problem(example)}{plan}\n{END}\n" for example, plan in shots]
    return "".join([*examples, compact_problem(problem)])


def full_prompt(domain_text: str, problem_text: str, shots: Sequence[tuple[str, str]]) -> Messages:
    """Chat messages: instruction and domain, worked examples as earlier turns, then the problem."""
    messages = [{"role": "system", "content": f"{INSTRUCTION}\n\nDomain:\n{domain_text.strip()}"}]
    for example_text, plan in shots:
        messages += [_user(example_text), {"role": "assistant", "content": plan}]
    return [*messages, _user(problem_text)]


def _user(problem_text: str) -> dict[str, str]:
    return {"role": "user", "content": f"Problem:\n{problem_text.strip()}\n\nPlan:"}


def _text(expression: object) -> str:
    return f"({' '.join(map(_text, expression))})" if isinstance(expression, list) else str(expression)

"""Compact prompts, and the texts of which templates of chat prompts are made."""

from __future__ import annotations

from collections.abc import Iterable

from planward.core.prompts import END
from planward.pddl.expressions import render_expression
from planward.pddl.formulas import render_formula
from planward.pddl.language import Problem
from planward.tasks.planning.domains.instances import split_numbers

INSTRUCTION = (
    "You are a planner. Read the PDDL domain and problem, then answer with a plan that reaches the goal "
    "and respects every constraint. Write one action a line, as (action object ...), in the order in which "
    "they are carried out, and nothing else."
)


FACTS = ("objects", "init", "goal", "constraints")


def render_facts(problem: Problem) -> dict[str, str]:
    """Render objects, initial state, goal and constraints as atoms, by the names in `FACTS`.

    Objects and facts are sorted, so that prompts do not depend on their order in a file; goals and constraints are not.
    """
    parts = (
        sorted(problem.objects, key=split_numbers),
        [f"({' '.join(atom)})" for atom in sorted(problem.init)],
        map(render_formula, problem.goal),
        map(render_expression, problem.constraint_forms),
    )
    return {name: " ".join(words) for name, words in zip(FACTS, parts, strict=True)}


def join_facts(problem: Problem) -> str:
    """Join the domain's name and the facts, one line each; without constraints, they have no line."""
    facts = render_facts(problem)
    lines = [f"{name} {text}".rstrip() for name, text in facts.items() if text or name != "constraints"]
    return "\n".join([problem.domain.name, *lines])


def render_compact_problem(problem: Problem) -> str:
    """Render a problem as facts, up to where the plan begins."""
    return f"{join_facts(problem)}\nplan\n"


def render_compact_prompt(problem: Problem, examples: Iterable[tuple[Problem, str]]) -> str:
    """Render worked examples with their plans, one action per line, then the problem, in their own names."""
    return join_compact_prompt(
        [(render_compact_problem(example), plan) for example, plan in examples], render_compact_problem(problem)
    )


def join_compact_prompt(examples: Iterable[tuple[str, str]], problem: str) -> str:
    """Join rendered examples, with their plans, and the problem."""
    return "".join([*(f"{example}{plan}\n{END}\n" for example, plan in examples), problem])

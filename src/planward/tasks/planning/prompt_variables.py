"""The variables of prompt templates: what a template can say about a problem or a worked example."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from planward.core.prompt_templates import PromptTemplateError
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Renaming
from planward.pddl.expressions import UnsupportedError
from planward.pddl.language import Problem
from planward.pddl.renaming import rename_problem, rename_problem_text
from planward.tasks.planning.prompt import join_facts, render_facts


class ProblemVariables:
    """A problem in the names of its prompt; every public property is a variable."""

    def __init__(
        self, record: Record, root: Path, load: Callable[[Record], Problem], renaming: Renaming = NO_RENAMING
    ) -> None:
        self._record, self._root, self._load, self._renaming = record, root, load, renaming

    @property
    def prompt(self) -> str:
        """The record's own prompt; raises PromptTemplateError where the renaming changes a name in it."""
        words = set(re.findall(r"[\w-]+", self._record.prompt.lower()))
        if renamed_words := sorted(words & self._renaming.keys()):
            raise PromptTemplateError(
                f"problem {self._record.id}: its own `prompt` names {renamed_words[0]}, which is renamed; "
                "fix: set sft.renaming and grpo.renaming to false, or use `problem` in prompt.template"
            )
        return self._record.prompt

    @property
    def domain_name(self) -> str:
        return self._record.domain

    @property
    def domain(self) -> str:
        """The domain's PDDL."""
        return self._read(self._record.meta.domain_file)

    @property
    def problem(self) -> str:
        """The problem's PDDL."""
        return rename_problem_text(self._read(self._record.meta.problem_file), self._renaming)

    @property
    def objects(self) -> str:
        """The names of the objects."""
        return self._facts["objects"]

    @property
    def init(self) -> str:
        """The atoms of the initial state."""
        return self._facts["init"]

    @property
    def goal(self) -> str:
        """The conjuncts of the goal."""
        return self._facts["goal"]

    @property
    def constraints(self) -> str:
        """The conjuncts of the constraints; empty where there are none."""
        return self._facts["constraints"]

    @property
    def facts(self) -> str:
        """The domain's name, and the four above as lines."""
        return join_facts(self._parsed)

    @property
    def actions(self) -> str:
        """The actions of the domain with their parameters, one a line."""
        actions = self._parsed.domain.actions.values()
        return "\n".join(f"({' '.join([action.name, *(name for name, _ in action.parameters)])})" for action in actions)

    @cached_property
    def _facts(self) -> dict[str, str]:
        return render_facts(self._parsed)

    @cached_property
    def _parsed(self) -> Problem:
        try:
            problem = self._load(self._record)
        except UnsupportedError as error:
            raise PromptTemplateError(
                f"{error}, so that only VAL reads this problem; fix: of the variables in prompt.template, use "
                "`domain`, `problem` and `prompt`"
            ) from None
        return rename_problem(problem, self._renaming) if self._renaming else problem

    def _read(self, file: str) -> str:
        return (self._root / file).read_text(encoding="utf-8").strip()


class ExampleVariables(ProblemVariables):
    """A worked example."""

    def __init__(self, record: Record, root: Path, load: Callable[[Record], Problem], plan: str) -> None:
        super().__init__(record, root, load)
        self._plan = plan

    @property
    def plan(self) -> str:
        """The reference plan, one action a line."""
        return self._plan

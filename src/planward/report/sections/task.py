"""Sections of further tasks: the interface that a task's own section implements, and the section of a task without one.

`TaskSpec.load_section` of a task returns a module with

    def build_section(params: Params, results: paths.Results) -> TaskSection | None

which reads the task's result files and returns None where the task has not run. `report.reading` has readers for files
that every task has, `report.markup.build_environment` renders a template of the task's package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from markupsafe import Markup

from planward.core import paths
from planward.core.registry import task_spec
from planward.params import Params
from planward.report.markup import build_environment
from planward.report.reading import read_curves_by_run, read_table
from planward.report.sections.findings import build_headline_table, format_uncertainty_note, list_findings
from planward.report.sections.learning import build_learning_panels


@dataclass(frozen=True)
class TaskSection:
    """What the page shows of a further task, below the heading `title`."""

    title: str
    html: Markup  # tables, figures, samples; headings from <h3> on; ids begin with the task's name
    introduction: Markup | str = ""
    findings: Sequence[str] = ()  # sentences, shown between introduction and html


class SectionModule(Protocol):
    """What `TaskSpec.load_section` returns."""

    def build_section(self, params: Params, results: paths.Results) -> TaskSection | None: ...


def build_task_section(task: str, params: Params) -> TaskSection | None:
    """Build the section of `task` from its results; None where it has not run.

    Args:
        params: those of the task.
    """
    spec, results = task_spec(task), paths.results(task)
    if spec.load_section is None:
        return build_section(spec.title, params, results)
    module: SectionModule = spec.load_section()
    return module.build_section(params, results)


def build_section(title: str, params: Params, results: paths.Results) -> TaskSection | None:
    """The section of a task that has none of its own: findings, success of every run, learning curves."""
    if not (results.tables / "shots.csv").exists():
        return None
    cells, pairs = read_table(results.tables / "shots.csv"), read_table(results.tables / "paired.csv")
    template = build_environment().get_template("task.html.j2")
    html = template.render(
        headline=build_headline_table(cells, f"{title}: success in percent"),
        uncertainty=format_uncertainty_note(cells, params.compare.confidence),
        learning=build_learning_panels(read_curves_by_run(results, params)),
        title=title,
    )
    return TaskSection(title, Markup(html), findings=list_findings(pairs, cells, 1 - params.compare.confidence))

"""The code that dvc.yaml lists for a stage is the code that the stage runs."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import grimp
import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage

from support import ROOT

# Values enter as `params`, loggers change no result, and the package itself holds its version only.
EXEMPT = {"planward.params", "planward.loggers", "planward"}
HOOKS = {"analyse": "reporting.analysis", "adapter": "adapter"}  # modules of a task that these stages load by name
SOURCES = Path("src")


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph("planward")


def list_stages() -> dict[str, PipelineStage]:
    """One stage of each entry of every dvc.yaml."""
    with Repo(str(ROOT)) as repo:
        families = {stage.addressing.partition("@")[0]: stage for stage in repo.index.stages}
    return {name: stage for name, stage in families.items() if isinstance(stage, PipelineStage)}


STAGES = list_stages()


def entry_modules(stage: PipelineStage) -> set[str]:
    """The stage's module, and the task's where it loads one by name."""
    command = [word for word in shlex.split(stage.cmd)[1:] if not word.startswith("-")]
    path = command[:2] if command[0] in ("endpoints", "selectors", "transfer") else command[:1]
    module = f"planward.stages.{'.'.join(path)}"
    task = stage.cmd.partition("--task ")[2].split(" ")[0] or "planning"
    entries = {module}
    if loads_task(module):
        entries.add(f"planward.tasks.{task}.task")
    if command[0] in HOOKS:
        entries.add(f"planward.tasks.{task}.{HOOKS[command[0]]}")
    if command[0] == "report":
        entries |= {"planward.tasks.planning", "planward.tasks.economy"}  # and their sections
    return entries


def loads_task(module: str) -> bool:
    return any("load_task(" in source(name) for name in closure({module}) - {"planward.core.registry"})


def source(module: str) -> str:
    path = SOURCES.joinpath(*module.split("."))
    file = path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")
    return (ROOT / file).read_text(encoding="utf-8")


def closure(modules: set[str]) -> set[str]:
    """These modules and all that they import, directly or not, inside functions too."""
    return modules.union(*(import_graph().find_upstream_modules(module) for module in modules)) - EXEMPT


def list_code(stage: PipelineStage) -> dict[str, set[str]]:
    """The stage's folders and modules under src/, with the modules that each stands for."""
    code = {}
    for dep in map(str, stage.deps):
        path = Path(dep)
        path = path.relative_to(ROOT) if path.is_absolute() else path
        if path.is_relative_to(SOURCES) and path.suffix in ("", ".py"):
            name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
            code[dep] = {m for m in import_graph().modules if m == name or m.startswith(f"{name}.")}
    return code


@pytest.mark.parametrize("name", sorted(STAGES))
def test_code_dependencies_are_those_of_the_imports(name: str) -> None:
    stage = STAGES[name]
    imports, code = closure(entry_modules(stage)), list_code(stage)
    packages = {module for module in imports if not source(module).split('"""')[-1].strip()}  # only a docstring
    missing = imports - packages - set().union(*code.values())
    needless_deps = [dep for dep, modules in code.items() if not modules & imports]
    assert not missing, f"{name}: not in deps: {sorted(missing)}"
    assert not needless_deps, f"{name}: nothing imports {needless_deps}"


@pytest.mark.parametrize("name", sorted(STAGES))
def test_stages_that_build_prompts_depend_on_the_template(name: str) -> None:
    stage = STAGES[name]
    keys = {key for dep in stage.deps if isinstance(dep, ParamsDependency) for key in dep.params}
    templates = [dep for dep in map(str, stage.deps) if dep.endswith(".jinja")]
    assert len(templates) == ("prompt" in keys)

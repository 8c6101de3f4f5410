"""The tasks that Planward knows, and the parameters of each.

A task is one package whose `SPEC` says how to load it. Tasks in other distributions register under the entry point
group `planward.tasks`; those in this one are listed in `TASKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planward.core import paths
from planward.core.adapters import AdapterSources
from planward.params import MAIN_ONLY, SHARED, Params, ParamsError, read_yaml, validate_section

if TYPE_CHECKING:
    import pandas as pd

    from planward.core.tasks import Task

GROUP = "planward.tasks"
TASKS = {
    "planning": "planward.tasks.planning",
    "economy": "planward.tasks.economy",
}


# From parameters and paths of a task to its tables by file name, and their metrics.
AnalysisFunction = Callable[[Any, paths.Results], "tuple[dict[str, pd.DataFrame], dict[str, Any]]"]

# From parameters, a seed and the task's own keys of models/params.yaml to the training data of an adapter.
AdapterFunction = Callable[[Any, int, Mapping[str, Any]], AdapterSources]


@dataclass(frozen=True)
class TaskSpec:
    """How a task takes part in the pipeline.

    Attributes:
        params: the class of its parameters.
        load: builds the task from its parameters and the folder of its problem files.
        title: what pages call it.
        success_title: what pages call a completion that counts as a success.
        resampling_unit: key of a problem's `meta` whose problems are resampled together in intervals and tests
            (a household, say); None where problems are independent.
        load_section: returns the module that renders its section of the report (see `report.sections`); None for
            the generic one.
        load_analysis: returns the function behind `planward analyse`; None where the task has no analysis.
        load_adapter: returns the function behind `planward adapter`; None where the task has no adapter on models/base.
    """

    params: type[Params]
    load: Callable[[Any, Path], Task]
    title: str
    success_title: str = "success"
    resampling_unit: str | None = None
    load_section: Callable[[], Any] | None = None
    load_analysis: Callable[[], AnalysisFunction] | None = None
    load_adapter: Callable[[], AdapterFunction] | None = None


def task_names() -> list[str]:
    """Names of all tasks, planning first."""
    return [*TASKS, *(entry.name for entry in entry_points(group=GROUP) if entry.name not in TASKS)]


def task_spec(name: str) -> TaskSpec:
    """The task's specification.

    Raises:
        ParamsError: there is no such task.
    """
    if name in TASKS:
        module = TASKS[name]
    else:
        module = next((entry.value for entry in entry_points(group=GROUP) if entry.name == name), "")
    if not module:
        raise ParamsError(f"task {name}: unknown; there are {', '.join(task_names())}")
    spec: TaskSpec = import_module(module).SPEC
    return spec


def load_task(params: Params, root: Path | None = None) -> Task:
    """Load the task that `params.task` names; its problem files lie under `root`, by default results/.../problems."""
    return task_spec(params.task).load(params, paths.results(params.task).problems if root is None else root)


def load_params(task: str = "planning", root: Path = Path()) -> Params:
    """Read and check the parameters of a task: params.yaml and, except for planning, workflow/TASK/params.yaml.

    Raises:
        ParamsError: a file is missing, is not YAML, or has an unknown key or a wrong value; the message names the
            file and each key at fault.
    """
    main, file = read_yaml(root / paths.params_file("planning")), root / paths.params_file(task)
    return build_params(task, main, main if task == "planning" else read_yaml(file), str(file))


def build_params(task: str, main: Any, document: Any, source: str) -> Params:
    """Validate parsed parameter files of a task; `source` names them in errors.

    Another task than planning takes the sections `SHARED` from params.yaml, without `split.held_out_domains`, and
    everything else from its own file.

    Args:
        main: the content of params.yaml.
        document: the content of the task's file; for planning, that of params.yaml again.

    Raises:
        ParamsError: as `load_params`.
    """
    for content in main, document:
        if not isinstance(content, Mapping):
            raise ParamsError(f"{source}: expected keys and values")
        if "task" in content:
            raise ParamsError(f"{source}: task: unknown key")
    if task != "planning" and (keys := [key for key in MAIN_ONLY if key in document]):
        faults = (f"{key}: belongs to params.yaml; fix: take it out here, and set it there" for key in keys)
        raise ParamsError(f"{source}: {'; '.join(faults)}")
    sections = {} if task == "planning" else {key: main[key] for key in SHARED if key in main}
    if isinstance(sections.get("split"), Mapping):  # the held-out domains are planning's
        sections["split"] = {key: value for key, value in sections["split"].items() if key != "held_out_domains"}
    params = validate_section(task_spec(task).params, {**sections, **document, "task": task}, source)
    if (
        params.grpo.start == "base" and Path(params.model.path).is_absolute()
    ):  # unlike variants, by how dvc.yaml names it
        raise ParamsError(
            f"{source}: grpo.from: base: DVC cannot track {params.model.path} as start weights, since model.path is "
            "absolute; fix: copy the folder into models/, and set model.path: models/NAME"
        )
    return params


def parse_params(raw: Any, source: str) -> Params:
    """Validate complete parameters of the task that their key `task` names, by default planning.

    Raises:
        ParamsError: as `load_params`.
    """
    task = raw.get("task", "planning") if isinstance(raw, Mapping) else "planning"
    return validate_section(task_spec(str(task)).params, raw, source)

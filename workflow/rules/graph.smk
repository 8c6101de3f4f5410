"""DVC's stages, their graph and what of it is stale; the stages of one dvc.yaml entry form a family."""

import os
import re
import uuid
from functools import cache
from pathlib import Path

import networkx as nx
from dvc.dependency import ParamsDependency
from dvc.dvcfile import load_file
from dvc.repo import Repo
from dvc.scm import NoSCM, SCMError
from dvc.stage import PipelineStage
from snakemake.exceptions import WorkflowError

from planward.core.dvc_locks import list_lock_faults
from planward.core.paths import list_tracks
from planward.core.recipes import check_params
from planward.params import ParamsError

ITEM = re.compile(r"\$\{(?:item\.)?(\w+)\}")  # a value of a matrix or foreach in the text of a dvc.yaml

if workflow.is_main_process:  # not again in every job
    try:  # before DVC, which writes out whatever aliases stand for
        for track in list_tracks():
            check_params(track)
    except ParamsError as error:
        raise WorkflowError(error) from None
    if faults := list_lock_faults():
        raise WorkflowError("\n".join(faults))


def open_repo():
    """The project as DVC sees it; DVC and DVCLive need a Git repository with a commit."""
    fix = "fix: git clone the project, or in its folder: git init && git add . && git commit -m start"
    try:
        repo = Repo(_wait_for_lock=True)
        if not isinstance(repo.scm, NoSCM) and repo.scm.no_commits:
            raise WorkflowError(f"{repo.root_dir}: its Git repository has no commit; {fix}")
    except SCMError as error:
        raise WorkflowError(f"{error}; {fix}") from None
    return repo


repo = open_repo()
changed_stages = find_changed(repo) if workflow.is_main_process else set()
graph = repo.index.graph  # an edge leads from a stage to one that it needs

# Of two stages that could run, the one with the longer path to the end goes first.
path_length = {}
for stage in nx.topological_sort(graph):  # those that need a stage come before it
    path_length[stage] = 1 + max((path_length[later] for later in graph.predecessors(stage)), default=0)

# File times decide nothing: stages that DVC finds stale, and all that follow, get an input newer than their outputs;
# the inputs of all others are marked as ancient.
now = Path(".snakemake/now")
stale = set()
if workflow.is_main_process:
    for stage in graph:
        if stage.addressing in changed_stages:
            stale |= {stage, *nx.ancestors(graph, stage)}
    now.parent.mkdir(exist_ok=True)
    now.write_text(uuid.uuid4().hex)


@cache
def load_resolver(file):
    """DVC's parser of a dvc.yaml, with its parameters."""
    return load_file(repo, file).resolver


class Family:
    """The stages of one entry of a dvc.yaml: one, or one for each combination of its wildcards' values."""

    def __init__(self, file, name, stages):
        resolver = load_resolver(file)
        definition = resolver.definitions[name]
        track = os.path.relpath(os.path.dirname(file), repo.root_dir)
        self.rule = (name if track == "." else f"{os.path.basename(track)}_{name}").replace("-", "_")
        self.stages = {stage.name.partition("@")[2]: stage for stage in stages}  # by key: what follows the @
        self.longest_path = max(path_length[stage] for stage in stages)

        items = getattr(definition, "normalized_iterable", {})  # the wildcards' values by key
        self.values = {key: item if isinstance(item, dict) else {"item": item} for key, item in items.items()}
        for key, values in self.values.items():
            values["key"] = key
        template = getattr(definition, "template", None) or definition.definition
        outs = [out for section in ("outs", "metrics") for out in template.get(section, ()) if not self._is_kept(out)]
        texts = [self._path(out) for out in outs]
        self.outputs = [resolver.context.resolve(ITEM.sub(self._wildcard, text)) for text in texts]
        names = dict.fromkeys(re.findall(r"\{(\w+)\}", " ".join(self.outputs)))
        self.constraints = {
            name: "|".join(dict.fromkeys(re.escape(str(values[name])) for values in self.values.values()))
            for name in names
        }

    def _path(self, out):
        return out if isinstance(out, str) else next(iter(out))

    def _is_kept(self, out):
        """Whether the stage continues the file (`persist`), which Snakemake would delete before and after a failure."""
        return isinstance(out, dict) and next(iter(out.values())).get("persist", False)

    def _wildcard(self, match):
        is_item = any(match[1] in values for values in self.values.values())
        return "{" + match[1] + "}" if is_item else match[0]

    @property
    def settings(self):
        """Threads and resources: `meta.snakemake` of the entry."""
        return (next(iter(self.stages.values())).meta or {}).get("snakemake", {})

    def stage(self, wildcards):
        """The stage that these wildcards stand for."""
        wildcard_values = dict(wildcards.items())
        keys = (
            key
            for key, values in self.values.items()
            if all(str(values[name]) == value for name, value in wildcard_values.items())
        )
        return self.stages[next(keys, "")]

    def inputs(self, wildcards):
        """The stage's dependencies; a folder of other stages' outputs counts as those."""
        stage = self.stage(wildcards)
        upstream_outs = [str(out) for upstream in graph.successors(stage) for out in upstream.outs]
        paths = []
        for dep in stage.deps:
            if not isinstance(dep, ParamsDependency):
                inside = [out for out in upstream_outs if Path(out).is_relative_to(str(dep))]
                paths += inside or [str(dep)]
        paths.append(str(now))  # always, so that the set of inputs does not change
        return paths if stage in stale | find_followers() else [ancient(path) for path in paths]


def list_families():
    """All families whose stages may run; models/base is frozen: its own pipeline rebuilds it.

    What `dvc add` tracks is a stage without a command.
    """
    groups = {}
    for stage in graph:
        if isinstance(stage, PipelineStage) and not stage.frozen:
            groups.setdefault((stage.path, stage.name.partition("@")[0]), []).append(stage)
    return [Family(file, name, stages) for (file, name), stages in groups.items()]


families = list_families()


@cache
def find_forced():
    """The stages that -R, -f or -F names; the main process passes them on to the jobs' own processes.

    To be called when Snakemake knows its targets, which is after it has read the rules.
    """
    if workflow.is_main_process and workflow.dag_settings:
        settings = workflow.dag_settings
        names = {*map(str, settings.forcerun), *(map(str, settings.targets) if settings.forcetargets else ())}
        os.environ["PLANWARD_FORCED_STAGES"] = " ".join(
            stage.addressing
            for family in families
            for stage in family.stages.values()
            if settings.forceall or family.rule in names or not names.isdisjoint(map(str, stage.outs))
        )
    addresses = os.environ.get("PLANWARD_FORCED_STAGES", "").split()
    return {stage for stage in graph if stage.addressing in addresses}


@cache
def find_followers():
    """The stages after those that are forced; as `stale`, only in the main process."""
    return {later for stage in find_forced() for later in nx.ancestors(graph, stage) if workflow.is_main_process}

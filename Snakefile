"""Runs the pipeline that dvc.yaml defines: every rule is one DVC stage.

DVC says what a stage is and whether it is out of date, and records what came out;
Snakemake says when and where it runs. See docs/decisions/engines.md.
"""

import shutil
import uuid
from pathlib import Path

import networkx as nx
from dvc.dependency import ParamsDependency
from dvc.repo import Repo

dvc = Repo(_wait_for_lock=True)
graph = dvc.index.graph  # an edge leads from a stage to one that it needs
has_gpu = shutil.which("nvidia-smi") is not None

# Of two stages that could run, the one with the longer way to the end goes first.
way = {}
for stage in nx.topological_sort(graph):  # those that need a stage come before it
    way[stage] = 1 + max((way[later] for later in graph.predecessors(stage)), default=0)

# What DVC finds stale, and all that follows, gets an input newer than its outputs;
# everything else gets its inputs marked as ancient: file times decide nothing.
now = Path(".snakemake/now")
stale = set()
if workflow.is_main_process:  # not again in every job
    changed = dvc.status()
    for stage in graph:
        if stage.addressing in changed and not stage.frozen:
            stale |= {stage, *nx.ancestors(graph, stage)}
    now.parent.mkdir(exist_ok=True)
    now.write_text(uuid.uuid4().hex)


def needs(stage):
    """The stage's dependencies; a folder of other stages' outputs counts as those."""
    made = [str(out) for upstream in graph.successors(stage) for out in upstream.outs]
    for dep in stage.deps:
        if not isinstance(dep, ParamsDependency):
            inside = [out for out in made if Path(out).is_relative_to(str(dep))]
            for path in inside or [str(dep)]:
                yield path if stage in stale else ancient(path)
    if stage in stale:
        yield str(now)


def makes(stage):
    """The stage's outputs; those without a suffix are directories."""
    for out in map(str, stage.outs):
        yield out if Path(out).suffix else directory(out)


def declare(stage):
    options = (stage.meta or {}).get("snakemake", {})
    resources = {name: n for name, n in options.get("resources", {}).items() if name != "gpu" or has_gpu}

    rule:
        name: stage.name
        input: list(needs(stage))
        output: list(makes(stage))
        log: f"logs/{stage.name}.log"
        threads: options.get("threads", 1)
        priority: way[stage]
        resources: **resources
        shell: f"PLANWARD_THREADS={{threads}} dvc --wait-for-lock repro --single-item {stage.name} > {{log}} 2>&1"


for stage in graph:
    if not stage.frozen:  # models/base is shipped; its own pipeline rebuilds it
        declare(stage)

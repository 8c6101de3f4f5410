"""What each stage of the pipeline uses that may be missing."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from enum import Flag, auto
from itertools import pairwise
from pathlib import Path
from typing import Any

from planward.core.paths import list_tracks
from planward.core.recipes import check_params
from planward.core.runs import Run

SELECTORS_TRACK = "selectors"
SUFFIXES = ("-base", "-ablation", "-rules")  # of stages that do what the stage without it does


class Need(Flag):
    NOTHING = 0
    PLANNER = auto()  # of reference plans
    VAL = auto()
    PROMPTS = auto()  # the prompt template, and the model's chat template
    WEIGHTS = auto()
    TRAINING = auto()  # checkpoints, and a model as output
    LOGGERS = auto()
    ENDPOINT = auto()
    PROBLEMS = auto()  # enough of them for a training set


TRAINING = Need.PROBLEMS | Need.PROMPTS | Need.WEIGHTS | Need.TRAINING | Need.LOGGERS
EVALUATION = Need.PROMPTS | Need.WEIGHTS | Need.VAL
NEEDS = {
    "problems": Need.PLANNER,
    "split": Need.VAL,
    "schedule": Need.PROBLEMS,
    "sft": TRAINING,
    "grpo": TRAINING | Need.VAL,
    "evaluate": EVALUATION,
    "sample": EVALUATION,
    "endpoints-evaluate": Need.PROMPTS | Need.VAL | Need.ENDPOINT,
    "transfer-problems": Need.PLANNER | Need.VAL,
    "transfer-evaluate": EVALUATION,
    "selectors-embed": Need.WEIGHTS,
    "selectors-beams": Need.WEIGHTS | Need.PROMPTS,
    "selectors-sft": Need.WEIGHTS | Need.PROMPTS | Need.LOGGERS,
    "selectors-rce": Need.WEIGHTS | Need.PROMPTS | Need.LOGGERS,
    "selectors-grpo": Need.WEIGHTS | Need.PROMPTS | Need.LOGGERS,
    "selectors-evaluate": EVALUATION,
}


@dataclass(frozen=True)
class StageNeeds:
    """A stage of the pipeline.

    Attributes:
        name: as in dvc.yaml, `grpo@400-3407`.
        track: the task, or `selectors`.
        run: the run that it belongs to; an endpoint is a method.
    """

    name: str
    track: str = "planning"
    run: Run | None = None

    @property
    def task(self) -> str:
        return "planning" if self.track == SELECTORS_TRACK else self.track

    @property
    def family(self) -> str:
        """What it does: a key of `NEEDS`, if it needs anything."""
        family = self.name.partition("@")[0]
        for suffix in SUFFIXES:
            family = family.removesuffix(suffix)
        return f"{SELECTORS_TRACK}-{family}" if self.track == SELECTORS_TRACK else family

    @property
    def needs(self) -> Need:
        return NEEDS.get(self.family, Need.NOTHING)

    @property
    def label(self) -> str:
        """Its name, after the track's where that is not planning."""
        return self.name if self.track == "planning" else f"{self.track} {self.name}"


def read_stages(addresses: Collection[str] = ()) -> list[StageNeeds]:
    """Return the stages at these addresses; without any, those of the main dvc.yaml and all that these depend on.

    So tracks that params.yaml does not name are left out, and stages that are frozen or not Planward's.

    Raises:
        ParamsError: a parameter file is wrong; DVC reads them too, and writes out whatever aliases stand for.
        ValueError: there is no stage at an address, or DVC cannot read the pipeline.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from networkx import descendants

    for track in list_tracks():
        check_params(track)
    try:
        repo = Repo()
        graph, root = repo.index.graph, Path(repo.root_dir)
    except DvcException as error:
        raise ValueError(f"DVC cannot read the pipeline: {error}") from None
    with repo:
        main = {stage for stage in graph if Path(stage.path).parent == root}
        if addresses:
            dvc_stages = {stage for stage in graph if stage.addressing in addresses}
        else:
            dvc_stages = main.union(*(descendants(graph, stage) for stage in main))
        if unknown := sorted(set(addresses) - {stage.addressing for stage in dvc_stages}):
            raise ValueError(f"no stage {', '.join(unknown)}; fix: one that `dvc stage list --all` shows")
        sorted_stages = sorted(dvc_stages, key=lambda stage: str(stage.addressing))
        stages = [_parse_stage(stage, root) for stage in sorted_stages if not stage.frozen]
    return [stage for stage in stages if stage is not None]


def _parse_stage(stage: Any, root: Path) -> StageNeeds | None:
    words = shlex.split(stage.cmd) if isinstance(stage.cmd, str) else []  # other than text: of a .dvc file, or several
    if "planward" not in words:
        return None
    words = words[words.index("planward") + 1 :]
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    folder = Path(stage.path).resolve().parent.relative_to(root.resolve())
    track = folder.name if folder.parts else "planning"
    run = None
    if words[:2] == ["endpoints", "evaluate"]:
        run = Run(words[2], 0, 0)
    elif "--size" in options or "--method" in options:
        method = options.get("--method", words[0])
        run = Run(method, int(options.get("--size", 0)), int(options.get("--seed", 0)))
    return StageNeeds(stage.name, track, run)

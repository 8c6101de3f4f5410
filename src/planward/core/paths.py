"""Where the pipeline keeps what it reads and writes; every path below results/ is built here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planward.core.runs import Run

RESULTS = Path("results")
PAGE = RESULTS / "report.html"
WORKFLOW = Path("workflow")
MODELS = Path("models")  # those that are shipped, and fetched ones; models/dvc.yaml makes the shipped ones
CHECKPOINTS = Path(".checkpoints")  # outside results/: DVC deletes a stage's outputs before it runs the stage
SPLITS = ("train", "validation", "test")
HELD_OUT = "held_out"  # the file of all problems of domains that are in no split


@dataclass(frozen=True)
class Results:
    """The files of a task or track below `root`. Files of a run are named after it."""

    root: Path

    @property
    def problems(self) -> Path:
        return self.root / "problems"

    @property
    def split(self) -> Path:
        return self.root / "split"

    @property
    def score(self) -> Path:
        return self.root / "score"

    @property
    def schedules(self) -> Path:
        return self.root / "schedules"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def training(self) -> Path:
        return self.root / "training"

    @property
    def predictions(self) -> Path:
        return self.root / "predictions"

    @property
    def samples(self) -> Path:
        return self.root / "samples"

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def analysis(self) -> Path:
        return self.root / "analysis"

    @property
    def timing(self) -> Path:
        return self.root / "timing"

    @property
    def transfer(self) -> TransferResults:
        return TransferResults(self.root / "transfer")

    @property
    def tracks(self) -> Path:
        """What the report shows of other tracks: one file for each of `tracks`."""
        return self.tables / "tracks"

    def schedule(self, run: Run) -> Path:
        return self.schedules / f"{run.name}.parquet"

    def start(self, run: Run) -> Path:
        """What the weights are that GRPO starts from, by content."""
        return self.root / "starts" / f"{run.size}-{run.seed}.json"

    def model(self, run: Run) -> Path:
        return self.models / run.name

    def curves(self, run: Run) -> Path:
        return self.training / run.name

    def answers(self, run: Run) -> Path:
        return self.predictions / f"{run.name}.jsonl"

    def sampled_answers(self, run: Run) -> Path:
        return self.samples / f"{run.name}.jsonl"

    def export(self, run: Run) -> Path:
        """The folder that `planward export verl` writes; no stage reads it."""
        return self.root / "verl" / run.name


@dataclass(frozen=True)
class TransferResults(Results):
    """Problems that are unlike those of training, and the models' predictions on them."""

    @property
    def records(self) -> Path:
        """The records of all kinds; their PDDL files are in `problems`."""
        return self.root / "problems.jsonl"


@dataclass(frozen=True)
class SelectorResults(Results):
    """The files of the selectors track."""

    @property
    def dialects(self) -> Path:
        """Problems in dialects, their PDDL files under `problems/`."""
        return self.root / "dialects"

    @property
    def problems(self) -> Path:
        return self.dialects / "problems"

    @property
    def embeddings(self) -> Path:
        return self.root / "embeddings.safetensors"

    @property
    def beams(self) -> Path:
        return self.root / "beams"


def results(task: str = "planning") -> Results:
    """The results of a task: results/ for planning, results/TASK/ for another."""
    return Results(RESULTS if task == "planning" else RESULTS / task)


SELECTORS = SelectorResults(RESULTS / "selectors")


def params_file(track: str) -> Path:
    """The parameter file of a task or track."""
    return Path("params.yaml") if track == "planning" else WORKFLOW / track / "params.yaml"


def list_tracks(root: Path = Path()) -> list[str]:
    """Planning, and every folder of workflow/ with parameters of its own."""
    return ["planning", *sorted(file.parent.name for file in (root / WORKFLOW).glob("*/params.yaml"))]

"""Experiment loggers: what each library stored of SFT, GRPO and a selector's training, read back without network."""

from __future__ import annotations

import csv
import importlib
import json
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import letters
import training_runs
from planward.core import paths
from planward.core.runs import Run
from planward.loggers import LOGGERS, list_missing
from planward.params import LoggingConfig, ParamsError
from planward.selectors.config import SelectorsConfig
from planward.stages import grpo, problems, schedule, score, sft, split
from planward.stages.selectors import beams, dialects, embed, train
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values

LOGGING = {"report_to": list(LOGGERS), "project": "trial"}
SFT, GRPO, POINTER = Run("sft", 8, 5), Run("grpo", 8, 5), Run("pointer-sft", 8, 5)
Curve = list[tuple[int, float]]
pytestmark = pytest.mark.skipif(
    bool(list_missing(LoggingConfig.model_validate(LOGGING))), reason="the extra `loggers` is not installed"
)


@dataclass
class Stored:
    """What a library stored of a run; parameters under dotted keys, with values as text."""

    params: dict[str, str]
    curves: dict[str, Curve] = field(default_factory=lambda: defaultdict(list))

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.curves[name].append((step, value))


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    small: Callable[..., PlanningParams],
    shipped_selectors: SelectorsConfig,
) -> Iterator[Path]:
    """The current folder: a project with runs of SFT, GRPO and a selector, and a GRPO run that was interrupted."""
    folder = tmp_path_factory.mktemp("loggers")
    params = small(
        dataset_sizes=[8],
        problems={
            "generated": {
                "blocksworld": {"count": 16, "blocks": [3, 4]},
                "ferry": {"count": 16, "locations": [3, 4], "cars": [1, 2]},
            }
        },
        split={"validation": 0.2, "test": 0.2},
        model={"path": str(ROOT / "models/base")},
        sft={"epochs": 1, "batch_size": 4, "validation_steps": 1},
        grpo={"steps": 3, "num_generations": 2},
        validation={"steps": 2, "problems": 2},
        logging=LOGGING,
    )
    changes = {
        "model": str(ROOT / "models/base"),
        "shot_num": 1,
        "pool": 4,
        "beams": 2,
        "validation": 2,
        "batch_size": 4,
        "pointer": {"hidden": 16, "layers": 1, "heads": 2},
        "sft": {"epochs": 2},
    }
    config = SelectorsConfig.model_validate(merge_values(shipped_selectors.model_dump(), changes))
    torch.set_num_threads(1)
    with chdir(folder), pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        move_trackio(folder / "trackio", environment)
        environment.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        environment.delenv("MLFLOW_TRACKING_URI", raising=False)
        for stage in (problems, split, score):
            stage.run(params)
        schedule.run(params, GRPO)
        sft.run(params, SFT)
        grpo.run(params, GRPO)
        dialects.run(params, config)
        embed.run(params, config)
        beams.run(params, config, "train")
        train.run(params, config, POINTER)
        run_interrupted()
        yield folder


def move_trackio(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """Do what the variable TRACKIO_DIR does before trackio is imported; TRL may have imported it already."""
    importlib.import_module("trackio")
    for name, module in list(sys.modules.items()):
        if name.startswith("trackio.") and hasattr(module, "TRACKIO_DIR"):
            environment.setattr(module, "TRACKIO_DIR", folder)


def run_interrupted() -> None:
    """Train `resumed` on the letters task: killed in the fourth of five steps, resumed after the second."""
    letters.write_base(Path("base"))
    params = letters.build_params(grpo={"steps": 5, "save_steps": 2}, logging=LOGGING)
    with pytest.raises(training_runs.Killed):
        training_runs.run_grpo("resumed", params, callbacks=[training_runs.KillAfter(4)])
    training_runs.run_grpo("resumed", params)


def find_name(prefix: str) -> str:
    """Return the name of the only run whose name starts so; the digest of its checkpoints follows."""
    [path] = Path("runs", "trial").glob(f"{prefix}-*")
    return path.name


def read_wandb(project: str, name: str) -> Stored:
    from wandb.proto.wandb_internal_pb2 import Record

    logs = Stored({})
    for file in sorted(Path("wandb").glob(f"offline-run-*-{name}/run-{name}.wandb")):
        for data in iter_wandb_records(file.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                assert (record.run.project, record.run.display_name) == (project, name)
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                logs.params |= dict(iter_flat(config))
            if record.HasField("history"):
                items = {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                logs.add(items.pop("step"), {key: items[key] for key in items if not key.startswith("_")})
    return logs


def iter_wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    block_size, position, record = 32768, 7, b""
    while position < len(data):
        if block_size - position % block_size < 7:  # too few for a record's header: zeros
            position += block_size - position % block_size
            continue
        _, length, part = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def read_tensorboard(project: str, name: str) -> Stored:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    events = EventAccumulator(str(Path("runs", project, name)), {"scalars": 0})
    events.Reload()
    start = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = parse_session_start_info_plugin_data(start).hparams
    logs = Stored({key: str(getattr(value, value.WhichOneof("kind"))) for key, value in values.items()})
    for name in events.Tags()["scalars"]:
        logs.curves[name] = [(event.step, event.value) for event in events.Scalars(name)]
    return logs


def read_trackio(project: str, name: str) -> Stored:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    [run] = [run for run in trackio.Api().runs(project) if run.name == name]
    logs = Stored(dict(iter_flat(run.config)))
    for row in SQLiteStorage.get_logs(project, name, run_id=run.id):
        logs.add(row.pop("step"), row)
    return logs


def read_mlflow(project: str, name: str) -> Stored:
    from mlflow import MlflowClient

    client = MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name(project)
    [run] = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    assert run.info.status == "FINISHED"
    logs = Stored(run.data.params)
    for key in run.data.metrics:
        logs.curves[key] = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]
    return logs


def iter_flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from iter_flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def read_curves(training: Path) -> dict[str, Curve]:
    """Read curves/**.tsv."""
    curves = {}
    for file in training.glob("curves/**/*.tsv"):
        rows = list(csv.reader(file.read_text().splitlines(), delimiter="\t"))[1:]
        curves[str(file.relative_to(training / "curves").with_suffix(""))] = [(int(a), float(b)) for a, b in rows]
    return curves


def read_tables(training: Path) -> dict[str, Curve]:
    """Read the tables of a selector's training as curves."""
    curves: dict[str, Curve] = defaultdict(list)
    for table, number in (("steps", "step"), ("epochs", "epoch")):
        for row in csv.DictReader((training / f"{table}.csv").read_text().splitlines()):
            values = {name: value for name, value in row.items() if value and name not in ("step", "epoch", "kept")}
            for name, value in values.items():
                curves[f"{table}/{name}"].append((int(row[number]), float(value)))
    return curves


READERS = {"wandb": read_wandb, "tensorboard": read_tensorboard, "trackio": read_trackio, "mlflow": read_mlflow}


def assert_equal(logger_curves: dict[str, Curve], curves: dict[str, Curve]) -> None:
    assert logger_curves.keys() == curves.keys()
    for name, curve in curves.items():
        assert dict(logger_curves[name]) == pytest.approx(dict(curve), rel=1e-5), name  # steps.csv has 6 digits


@pytest.mark.parametrize("logger", READERS)
@pytest.mark.parametrize("run", [SFT, GRPO])
def test_each_logger_stores_parameters_and_all_curves(folder: Path, logger: str, run: Run) -> None:  # noqa: ARG001
    logs = READERS[logger]("trial", find_name(run.name))
    expected = {"run.method": run.method, "run.task": "planning", "seed": "5", "model.path": str(ROOT / "models/base")}
    assert {key: logs.params[key].removesuffix(".0") for key in expected} == expected
    curves = read_curves(paths.results().curves(run))
    names = {"loss", "validation_success"}
    if run == GRPO:
        names |= {"reward_by_domain/ferry", "reward_by_domain/blocksworld", "reward_by_bucket/easy"}
    assert names <= curves.keys()
    assert_equal(logs.curves, curves)
    assert {name: len(curve) for name, curve in logs.curves.items()} == {name: len(curves[name]) for name in curves}


@pytest.mark.parametrize("logger", READERS)
def test_each_logger_stores_the_training_of_a_selector(folder: Path, logger: str) -> None:  # noqa: ARG001
    logs = READERS[logger]("trial", find_name("selectors-pointer-sft-8-5"))
    expected = {"run.method": "pointer-sft", "run.task": "selectors", "sft.epochs": "2", "pointer.hidden": "16"}
    assert {key: logs.params[key].removesuffix(".0") for key in expected} == expected
    curves = read_tables(paths.SELECTORS.curves(POINTER))
    assert {"steps/loss", "epochs/validation_success"} <= curves.keys()
    assert_equal(logs.curves, curves)


@pytest.mark.parametrize("logger", READERS)
def test_a_resumed_run_is_continued(folder: Path, logger: str) -> None:  # noqa: ARG001
    logs = READERS[logger]("trial", find_name("letters-grpo"))
    assert logs.params["run.task"] == "letters"
    assert_equal(logs.curves, read_curves(Path("training/resumed")))
    assert [step for step, _ in logs.curves["loss"]] == [0, 1, 2, 2, 3, 4]  # the third was lost with its checkpoint


def test_a_missing_package_stops_the_run_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    with pytest.raises(ParamsError, match=r"logging\.report_to: no package trackio; fix: .*\[loggers\]"):
        training_runs.run_sft("missing", letters.build_params(logging=LOGGING))
    assert not (folder / "training" / "missing").exists()

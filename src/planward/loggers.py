"""Experiment loggers: a training run's name, parameters and curves in Weights & Biases, TensorBoard, Trackio, MLflow.

Where a library keeps its runs is its own setting: WANDB_MODE, TRACKIO_DIR, MLFLOW_TRACKING_URI and so on in the
environment. A run that exists already is continued; steps may then be logged twice, with the same values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from planward.params import LoggingConfig, ParamsError, Section

TENSORBOARD_FOLDER = Path("runs")
MLFLOW_BATCH_SIZE = 100  # parameters in one request


class RunLogger(Protocol):
    """A training run in one library."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log quantities of a step; steps need not rise."""

    def close(self) -> None:
        """End the run; everything logged is stored by then."""


class WandbLogger:
    def __init__(self, project: str, name: str, params: Mapping[str, Any]) -> None:
        import wandb

        self.run = wandb.init(
            project=project, id=name, name=name, config=dict(params), resume="allow", reinit="finish_previous"
        )
        self.run.define_metric("*", step_metric="step")  # wandb's own step drops rows that are not later than the last

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self) -> None:
        self.run.finish()


class TensorboardLogger:
    def __init__(self, project: str, name: str, params: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(TENSORBOARD_FOLDER / project / name))
        values = {key: value if isinstance(value, (int, float)) else str(value) for key, value in _flatten(params)}
        self.writer.add_hparams(values, {}, run_name=".")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class TrackioLogger:
    def __init__(self, project: str, name: str, params: Mapping[str, Any]) -> None:
        import trackio

        self.run = trackio.init(project=project, name=name, config=dict(params), resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MlflowLogger:
    def __init__(self, project: str, name: str, params: Mapping[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Param

        self.client = mlflow.MlflowClient()
        experiment = mlflow.set_experiment(project).experiment_id  # creates it where another process has not
        runs = self.client.search_runs([experiment], f"attributes.run_name = '{name}'", max_results=1)
        run = runs[0] if runs else self.client.create_run(experiment, run_name=name)
        self.run_id: str = run.info.run_id
        rows = [Param(key, str(value)) for key, value in _flatten(params) if key not in run.data.params]  # never change
        for start in range(0, len(rows), MLFLOW_BATCH_SIZE):
            self.client.log_batch(self.run_id, params=rows[start : start + MLFLOW_BATCH_SIZE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run_id, [Metric(key, value, now, step) for key, value in values.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


LOGGERS: dict[str, Callable[[str, str, Mapping[str, Any]], RunLogger]] = {
    "wandb": WandbLogger,
    "tensorboard": TensorboardLogger,
    "trackio": TrackioLogger,
    "mlflow": MlflowLogger,
}


def list_missing(config: LoggingConfig) -> list[str]:
    """Return the loggers of `report_to` whose packages are not installed."""
    specs = {name: find_spec(name) for name in config.report_to}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]  # ./wandb has no origin


def check_installed(config: LoggingConfig) -> None:
    """Raise ParamsError if the package of a logger is missing."""
    if missing := list_missing(config):
        raise ParamsError(f"logging.report_to: no package {', '.join(missing)}; fix: pip install -e '.[loggers]'")


def open_loggers(config: LoggingConfig, run: Mapping[str, Any], name: str, params: Section) -> list[RunLogger]:
    """Open, or continue, a training run in each logger of `report_to`.

    Args:
        run: its identity (task, method, size, seed), logged with the parameters.
        name: of its checkpoints, which ends with a digest of what a resumed run must share; other tasks than planning
            put theirs in front.
    """
    full_name = name if run["task"] == "planning" else f"{run['task']}-{name}"
    values = {"run": dict(run), **params.model_dump(mode="json")}
    return [LOGGERS[logger](config.project, full_name, values) for logger in config.report_to]


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value under its dotted key."""
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

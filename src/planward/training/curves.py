"""Curves of a run: one TSV per quantity, written by DVCLive, and their last values in metrics.json."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from dvclive import Live
from dvclive.plots.metric import Metric
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from planward.core.files import name_write_errors, write_json
from planward.loggers import RunLogger
from planward.training.checkpoints import Journal


class _Curve(Metric):
    """DVCLive's metric, written to curves/NAME.tsv."""

    subfolder = "curves"


class CurveLogger(TrainerCallback):
    """Logs each optimizer step, counted from 0, to `folder`, after the steps that the journal holds.

    The main process writes folder/curves/**.tsv (columns `step` and the quantity's name) and folder/metrics.json.

    Args:
        trainer_curves: the curve's name for each key of the trainer's log to keep; all other keys, such as wall times,
            are dropped.
        compute_metrics: returns further quantities of a step.
        loggers: of the main process; they get the same rows, but not again those that the journal holds.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        trainer_curves: Mapping[str, str],
        compute_metrics: Callable[[int], Mapping[str, float]] = lambda _: {},
        loggers: Sequence[RunLogger] = (),
    ) -> None:
        self.journal = journal
        self.trainer_curves = trainer_curves
        self.compute_metrics = compute_metrics
        self.loggers = loggers
        self.live: Live | None = None
        if PartialState().is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
            self.live = Live(str(folder), save_dvc_exp=False, dvcyaml=None, report=None)
            for row in journal.curves:
                self._write(row)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" not in logs:  # the summary at the end: wall times
            return
        step = state.global_step - 1
        row = {"step": step}
        row |= {name: logs[key] for key, name in self.trainer_curves.items() if logs.get(key) is not None}
        self.log({**row, **self.compute_metrics(step)})

    def log(self, row: Mapping[str, Any]) -> None:
        """Log quantities of a step: `step`, and a value for each."""
        self.journal.curves.append(dict(row))
        self._write(row)
        for logger in self.loggers:
            logger.log(row["step"], {name: value for name, value in row.items() if name != "step"})

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write metrics.json: the last value of every curve, and `summary`; end the run in every logger."""
        if self.live is not None:
            self.live.summary.update(summary)
            self.live.end()
            write_json(Path(self.live.metrics_file), self.live.summary)  # sorted: resumed or not, the same file
        for logger in self.loggers:
            logger.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.live is None:
            return
        self.live.step = row["step"]
        with name_write_errors(Path(self.live.dir)):
            for name, value in row.items():
                if name != "step":
                    self.live._metrics.setdefault(name, _Curve(name, self.live.dir))
                    self.live.log_metric(name, value)
            self.live.make_summary()


class ProgressBar(ProgressCallback):
    """A progress bar with a few quantities beside it, and no log line per step.

    Args:
        labels: the label of each key of the trainer's log to show.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self.labels = labels

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            values = {label: f"{logs[key]:.3g}" for key, label in self.labels.items() if key in logs}
            self.training_bar.set_postfix(values, refresh=False)


def replace_progress_bar(trainer: Any, labels: Mapping[str, str]) -> None:
    """Replace the trainer's progress bar and printed log by `ProgressBar`."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(ProgressBar(labels))

"""Curves of a run: one TSV a quantity, through DVCLive, and the last values in metrics.json."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from dvclive import Live
from dvclive.plots.metric import Metric
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from planward.records import write_json
from planward.training.checkpoints import Journal


class _Curve(Metric):
    """DVCLive's metric, written to curves/NAME.tsv."""

    subfolder = "curves"


class Curves(TrainerCallback):
    """Logs each optimizer step, counted from 0, to `folder`; steps that the journal holds come first.

    Writes folder/curves/**.tsv (columns step and the quantity's name) and folder/metrics.json, in the main
    process only.

    Args:
        trained: maps a quantity in the trainer's own log to the curve's name; the rest of that log is dropped,
            wall times among it.
        measured: returns further quantities of a step.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        trained: Mapping[str, str],
        measured: Callable[[int], Mapping[str, float]] = lambda _: {},
    ) -> None:
        self.journal = journal
        self.trained = trained
        self.measured = measured
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
        row |= {name: logs[key] for key, name in self.trained.items() if logs.get(key) is not None}
        self.add({**row, **self.measured(step)})

    def add(self, row: Mapping[str, Any]) -> None:
        """Log some of the quantities of a step: `step`, and a value for each."""
        self.journal.curves.append(dict(row))
        self._write(row)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write metrics.json: the last value of every curve, and `summary`."""
        if self.live is not None:
            self.live.summary.update(summary)
            self.live.end()
            write_json(Path(self.live.metrics_file), self.live.summary)  # sorted: resumed or not, the same file

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.live is None:
            return
        self.live.step = row["step"]
        for name, value in row.items():
            if name != "step":
                self.live._metrics.setdefault(name, _Curve(name, self.live.dir))
                self.live.log_metric(name, value)
        self.live.make_summary()


class Bar(ProgressCallback):
    """A progress bar that shows a few quantities beside it, and no line a step."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        super().__init__()
        self.shown = shown

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is not None and "loss" in logs:
            values = {name: f"{logs[key]:.3g}" for key, name in self.shown.items() if key in logs}
            self.training_bar.set_postfix(values, refresh=False)


def show_progress(trainer: Any, shown: Mapping[str, str]) -> None:
    """Replace the trainer's own progress bar and printed log with `Bar`."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Bar(shown))

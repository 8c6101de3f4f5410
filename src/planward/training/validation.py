"""Validation during training: greedy success on held-out problems, without worked examples, judged in-process.

The weights of the best validation are kept, and training stops early where no better one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from planward.core.files import replace_atomic
from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Task
from planward.curriculum.training_sets import select_balanced
from planward.inference.decoding import generate_greedy
from planward.params import Params
from planward.training.curves import CurveLogger

CURVE = "validation_success"
PREFIX = "best-"  # of the name of the file with the best weights
History = Sequence[tuple[int, float]]  # steps and their success


class ValidationCallback(TrainerCallback):
    """Validates after 0, `interval`, ... optimizer steps and after the last one; keeps the best weights.

    The trained weights do not depend on it, unless it stops training: it draws no random number and restores the
    model's mode. The main process validates, and the others get its result. The best weights are beside the
    checkpoints, named by the journal.

    Args:
        folder: of the checkpoints.
        interval: 0: never.
        compute_metrics: returns further quantities of a model in evaluation mode on the problems.

    Raises:
        PromptTooLong: a problem does not fit.
        VerifierError: during training; no verdict could be reached.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        problems: Iterable[Record],
        params: Params,
        curves: CurveLogger,
        folder: Path,
        *,
        interval: int,
        compute_metrics: Callable[[Any, Sequence[Record]], Mapping[str, float]] = lambda *_: {},
    ) -> None:
        self.task, self.tokenizer, self.params, self.curves, self.folder = task, tokenizer, params, curves, folder
        self.interval, self.compute_metrics = interval, compute_metrics
        self.problems = select_balanced(problems, params.validation.problems) if interval else []
        self.prompts = list[list[int]]()

        def encode(prompt: str | Messages) -> list[int]:
            return encode_prompt(tokenizer, prompt, params.prompt.chat_template_options)

        for problem in self.problems:
            prompt, _ = fit_prompt(task, problem, [], lambda text: len(encode(text)), params.prompt.max_tokens)
            self.prompts.append(encode(prompt))

    @property
    def history(self) -> History:
        return [(row["step"], row[CURVE]) for row in self.curves.journal.curves if CURVE in row]

    @property
    def stop_step(self) -> int | None:
        """The number of optimizer steps after which `validation.patience` ended training, if it did."""
        return find_stop(self.history, self.params.validation.patience)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 0:  # a resumed run has logged it already
            self._validate(0, model)

    def on_step_end(self, _args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        step = state.global_step
        if step == state.max_steps or (self.interval and step % self.interval == 0):
            self._validate(step, model)
            if self.stop_step is not None:
                control.should_training_stop = control.should_save = True

    def restore_best(self, model: Any) -> None:
        """Load the best weights into the model; without `validation.keep: best` or a success it keeps its own."""
        step = select_best(self.history) if self._keeps_best else None
        if step is None:
            return
        weights = load_file(self._best_file(step))
        with torch.no_grad():
            for name, parameter in _iter_trained(model):
                parameter.copy_(weights[name])

    def summarize(self) -> dict[str, Any]:
        """Return the first, the best and the last success rate, and the steps of the kept weights and of an early stop.

        A step that does not apply is left out; without validation the summary is empty.
        """
        history = self.history
        if not history:
            return {}
        values = [success for _, success in history]
        summary: dict[str, Any] = {CURVE: {"first": values[0], "best": max(values), "last": values[-1]}}
        if self._keeps_best:
            best = select_best(history)
            summary["best_step"] = history[-1][0] if best is None else best
        if self.stop_step is not None:
            summary["stop_step"] = self.stop_step
        return summary

    @property
    def _keeps_best(self) -> bool:
        return self.params.validation.keep == "best"

    def _best_file(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step}.safetensors"

    def _validate(self, step: int, model: Any) -> None:
        if not self.problems:
            return
        row = self._measure(step, model) if PartialState().is_main_process else None
        [row] = broadcast_object_list([row])  # every process decides alike whether to stop
        self.curves.log(row)
        if self._keeps_best and select_best(self.history) == step and PartialState().is_main_process:
            self._save_best(step, model)

    def _measure(self, step: int, model: Any) -> dict[str, Any]:
        was_training = model.training
        model.eval()
        completions = generate_greedy(
            model,
            self.tokenizer,
            self.prompts,
            self.params.prompt.max_completion_tokens,
            self.params.validation.batch_size,
            generation=self.params.model.generation,
            progress=False,
        )
        metrics = self.compute_metrics(model, self.problems)
        model.train(was_training)
        pairs = zip(self.problems, completions, strict=True)
        success = [self.task.verify(problem, text, NO_RENAMING).success for problem, text in pairs]
        return {"step": step, CURVE: fmean(success), **metrics}

    def _save_best(self, step: int, model: Any) -> None:
        """Write the weights; the earlier best ones stay until a checkpoint's journal names these."""
        weights = {name: parameter.detach().cpu().contiguous() for name, parameter in _iter_trained(model)}
        file, journal = self._best_file(step), self.curves.journal
        with replace_atomic(file) as partial:
            save_file(weights, partial)
        journal.files = [*(name for name in journal.files if not name.startswith(PREFIX)), file.name]


def select_best(history: History) -> int | None:
    """Return the step with the highest success, among equals the earlier; None if none has any."""
    highest = max((success for _, success in history), default=0)
    return next((step for step, success in history if success == highest), None) if highest else None


def find_stop(history: History, patience: int | None) -> int | None:
    """Return the first step that is the last of `patience` validations in a row without a better one, if any."""
    highest, num_waited = -1.0, 0
    for step, success in history:
        highest, num_waited = (success, 0) if success > highest else (highest, num_waited + 1)
        if num_waited == patience:
            return step
    return None


def _iter_trained(model: Any) -> Iterable[tuple[str, torch.Tensor]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)

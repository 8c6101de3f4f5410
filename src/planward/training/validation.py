"""Success on held-out problems during training: greedy, without worked examples, judged in-process."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.tasks import Task
from planward.curriculum.training_sets import select_balanced
from planward.inference.decoding import generate_greedy
from planward.params import Params
from planward.training.curves import CurveLogger

CURVE = "validation_success"


class ValidationCallback(TrainerCallback):
    """Logs the success rate after 0, `validation.steps`, ... optimizer steps and after the last one.

    The trained weights do not depend on it: it draws no random number and restores the model's mode. Runs in the main
    process.

    Raises:
        PromptTooLong: a problem does not fit.
        VerifierError: during training; no verdict could be reached.
    """

    def __init__(
        self, task: Task, tokenizer: Any, problems: Iterable[Record], params: Params, curves: CurveLogger
    ) -> None:
        self.task, self.tokenizer, self.params, self.curves = task, tokenizer, params, curves
        settings, max_tokens = params.validation, params.prompt.max_tokens
        self.problems = select_balanced(problems, settings.problems) if settings.steps else []
        self.prompts = list[list[int]]()
        for problem in self.problems:
            prompt, _ = fit_prompt(task, problem, [], lambda text: len(encode_prompt(tokenizer, text)), max_tokens)
            self.prompts.append(encode_prompt(tokenizer, prompt))

    def on_train_begin(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 0:  # a resumed run has logged it already
            self._validate(0, model)

    def on_step_end(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        step, interval = state.global_step, self.params.validation.steps
        if step == state.max_steps or (interval and step % interval == 0):
            self._validate(step, model)

    def summarize(self) -> dict[str, dict[str, float]]:
        """Return the first, the best and the last success rate; empty without validation."""
        values = [row[CURVE] for row in self.curves.journal.curves if CURVE in row]
        return {CURVE: {"first": values[0], "best": max(values), "last": values[-1]}} if values else {}

    def _validate(self, step: int, model: Any) -> None:
        if not self.problems or not PartialState().is_main_process:
            return
        was_training = model.training
        completions = generate_greedy(
            model,
            self.tokenizer,
            self.prompts,
            self.params.prompt.max_completion_tokens,
            self.params.grpo.micro_batch_size,
            progress=False,
        )
        model.train(was_training)
        verdicts = map(self.task.verify, self.problems, completions)
        self.curves.log({"step": step, CURVE: fmean(verdict.success for verdict in verdicts)})

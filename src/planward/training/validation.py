"""Success on held-out problems while training goes on: greedy, without worked examples, judged in-process."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from planward.curriculum.sets import balanced
from planward.evaluation.generation import greedy_completions
from planward.params import Params
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.fitting import encode, fit
from planward.training.curves import Curves

CURVE = "validation_success"


class Validation(TrainerCallback):
    """Adds the share of problems solved after 0, `validation.steps`, ... optimizer steps and after the last one.

    Training is the same with it and without: it draws no random number and leaves the model in the mode it was in.
    The main process does it.

    Raises:
        PromptTooLong: a problem does not fit.
        VerifierError: while training goes on; no verdict could be reached.
    """

    def __init__(self, task: Task, tokenizer: Any, problems: Iterable[Record], params: Params, curves: Curves) -> None:
        self.task, self.tokenizer, self.params, self.curves = task, tokenizer, params, curves
        self.problems = balanced(problems, params.validation.problems) if params.validation.steps else []
        self.prompts = list[list[int]]()
        for problem in self.problems:
            prompt, _ = fit(task, problem, [], lambda text: len(encode(tokenizer, text)), params.prompt.max_tokens)
            self.prompts.append(encode(tokenizer, prompt))

    def on_train_begin(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 0:  # not where an interrupted run goes on
            self._measure(0, model)

    def on_step_end(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        step, every = state.global_step, self.params.validation.steps
        if step == state.max_steps or (every and step % every == 0):
            self._measure(step, model)

    def summary(self) -> dict[str, dict[str, float]]:
        """The first, the best and the last value; empty where there is none."""
        values = [row[CURVE] for row in self.curves.journal.curves if CURVE in row]
        return {CURVE: {"first": values[0], "best": max(values), "last": values[-1]}} if values else {}

    def _measure(self, step: int, model: Any) -> None:
        if not self.problems or not PartialState().is_main_process:
            return
        training, limits = model.training, self.params.prompt
        completions = greedy_completions(
            model,
            self.tokenizer,
            self.prompts,
            limits.max_completion_tokens,
            self.params.grpo.micro_batch_size,
            progress=False,
        )
        model.train(training)
        verdicts = map(self.task.verify, self.problems, completions)
        self.curves.add({"step": step, CURVE: fmean(verdict.success for verdict in verdicts)})

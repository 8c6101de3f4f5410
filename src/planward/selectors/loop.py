"""The pointer's training loop, one for all methods: steps, epochs, validation, checkpoints.

After every epoch success on validation problems is measured, and the epoch with the highest is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from planward.core.files import replace_atomic
from planward.core.fingerprints import compute_code_digest
from planward.loggers import RunLogger
from planward.selectors.config import SelectorsConfig, SelectorTrainingConfig
from planward.selectors.dataset import BeamGroup, compute_moments
from planward.selectors.methods import Method, Objective, Row, build_objective, select_informative_groups
from planward.selectors.objectives import compute_learning_rate
from planward.selectors.pointer import Pointer
from planward.selectors.validation import PACKAGES

Weights = dict[str, torch.Tensor]
CHECKPOINT_FILE = "checkpoint.safetensors"


@dataclass
class History:
    """The log of a training run.

    Attributes:
        epochs: epoch, loss (mean over its steps), validation_success, kept, and for GRPO kl (over all beams, at its
            end). Epoch 0 is the initial weights.
        steps: step, epoch, loss, learning_rate, grad_norm; for RCE temperature; for GRPO kl, beta (as used in the
            step), advantage (mean magnitude), clipped (share of beams), left_out (groups of the batch whose rewards
            are all equal).
        left_out: groups that were not trained on at all.
        best: the epoch that was kept.
    """

    epochs: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    left_out: int = 0
    best: int = 0

    @property
    def best_row(self) -> Row:
        return next(row for row in self.epochs if row["epoch"] == self.best)

    def summarise(self) -> Row:
        """Summarise the run: the kept epoch's values, the number of epochs, of steps, and of groups left out."""
        values = {name: value for name, value in self.best_row.items() if name not in ("epoch", "kept", "loss")}
        epochs = max(row["epoch"] for row in self.epochs)
        return {
            "best_epoch": self.best,
            "epochs": epochs,
            "steps": len(self.steps),
            "left_out": self.left_out,
            **values,
        }


def train_pointer(
    method: Method,
    pointer: Pointer,
    groups: Sequence[BeamGroup],
    config: SelectorsConfig,
    seed: int,
    validate: Callable[[Pointer], float],
    reference: Pointer | None,
    checkpoints: Path,
    loggers: Sequence[RunLogger] = (),
    validation: str = "",
) -> History:
    """Train `pointer` in place; afterwards it holds the best epoch's weights and is in evaluation mode.

    The best epoch has the highest `validate`. Among equals the earlier one is kept; for GRPO one whose KL is within
    kl_target goes first. For RCE and GRPO epoch 0, the initial weights, takes part, so on the validation problems no
    method ends below its start. This is a selection on those problems: the success of the kept weights on them is
    biased upwards. Test problems are not used. Training stops after `patience` epochs without a better one. Where GRPO
    finds no group to learn from, only epoch 0 is recorded.

    Data order and dropout depend on seed, method and epoch alone. After each epoch a checkpoint is written; a run with
    the same inputs resumes from it to bit-identical weights, and one of other inputs overwrites it. The caller removes
    the folder after saving the pointer.

    Args:
        validate: returns success on validation problems; it gets the pointer in evaluation mode.
        reference: frozen policy for GRPO's ratio and KL, None for other methods. If it has the initial weights, ratios
            start at 1; otherwise clipping may set in at the first step.
        loggers: get each new row of the history: `steps/NAME` at its step, `epochs/NAME` at its epoch.
        validation: digest of what `validate` depends on; another one is another run.

    Raises:
        ValueError: no groups, beams of different lengths, or for GRPO no reference or an unknown success.
        FloatingPointError: a loss is not finite.
    """
    if not groups:
        raise ValueError(f"{method}: no queries to train the selector on; fix: build beams for the training set first")
    if (method == "grpo") != (reference is not None):
        raise ValueError(f"{method}: a frozen reference is needed by GRPO, and by no other method")
    training_config: SelectorTrainingConfig = getattr(config, method)
    fingerprint = compute_fingerprint(method, seed, config, groups, pointer, reference, validation)
    if method == "sft":
        pointer.set_whitening(*compute_moments(groups))
    informative = select_informative_groups(groups, config.grpo) if method == "grpo" else groups
    if not informative:
        row = {
            "epoch": 0,
            "loss": None,
            "validation_success": float(validate(pointer.eval())),
            "kl": None,
            "kept": True,
        }
        _log(loggers, "epochs", 0, row)
        return History(epochs=[row], left_out=len(groups))
    objective = build_objective(method, informative, config, reference)
    optimizer = torch.optim.AdamW(pointer.build_parameter_groups(), lr=training_config.learning_rate)
    training = _Training(pointer, optimizer, objective, loggers)
    training.history.left_out = len(groups) - len(informative)
    training.load_checkpoint(checkpoints / CHECKPOINT_FILE, fingerprint)
    steps = training_config.epochs * -(-len(informative) // config.batch_size)
    first_epoch = training.next_epoch(first=1 if method == "sft" else 0)
    with tqdm(total=steps, initial=len(training.history.steps), desc=f"selector {method}", unit="step") as bar:
        for epoch in range(first_epoch, training_config.epochs + 1):
            if epoch > training.history.best + training_config.patience:
                break
            if epoch:
                pointer.train(objective.dropout)
                with torch.random.fork_rng():
                    torch.manual_seed(_epoch_seed(seed, method, epoch))
                    order = torch.randperm(len(informative)).tolist()
                    for start in range(0, len(order), config.batch_size):
                        training.run_step(
                            order[start : start + config.batch_size], epoch, steps, training_config, config
                        )
                        bar.update()
            training.end_epoch(epoch, validate, config.grpo.kl_target)
            training.save_checkpoint(checkpoints / CHECKPOINT_FILE, fingerprint)
    return training.finish()


def is_better(row: Row, best: Row, kl_target: tuple[float, float]) -> bool:
    """Whether an epoch replaces the best one: more success or, where equal, KL within the target unlike the best's."""

    def is_within(row: Row) -> bool:
        return "kl" in row and kl_target[0] <= row["kl"] <= kl_target[1]

    success, best_success = row["validation_success"], best["validation_success"]
    return bool(success > best_success or (success == best_success and is_within(row) and not is_within(best)))


class _Training:
    """A run in progress: weights, optimizer, log, best weights so far."""

    def __init__(
        self, pointer: Pointer, optimizer: torch.optim.Optimizer, objective: Objective, loggers: Sequence[RunLogger]
    ) -> None:
        self.pointer, self.optimizer, self.objective, self.loggers = pointer, optimizer, objective, loggers
        self.history = History()
        self.best_weights = _copy_weights(pointer)

    def next_epoch(self, first: int) -> int:
        return int(self.history.epochs[-1]["epoch"]) + 1 if self.history.epochs else first

    def run_step(
        self,
        indices: Sequence[int],
        epoch: int,
        steps: int,
        training_config: SelectorTrainingConfig,
        config: SelectorsConfig,
    ) -> None:
        """Run an optimizer step on the groups `indices` and log it; `steps` is the number planned for all epochs."""
        step = len(self.history.steps)
        learning_rate = compute_learning_rate(step, steps, training_config.learning_rate, config.warmup_ratio)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate * parameters["lr_factor"]
        loss, metrics = self.objective.compute_loss(self.pointer, indices, step, steps)
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"step {step + 1}: the loss is {loss.item()}; fix: lower learning_rate")
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(self.pointer.parameters(), config.max_grad_norm).item()
        if norm > 0:  # without a gradient, momentum alone must not change weights
            self.optimizer.step()
        row = {"step": step + 1, "epoch": epoch, "loss": loss.item(), "learning_rate": learning_rate, "grad_norm": norm}
        self.history.steps.append(row | metrics)
        _log(self.loggers, "steps", step + 1, row | metrics)

    def end_epoch(self, epoch: int, validate: Callable[[Pointer], float], kl_target: tuple[float, float]) -> None:
        """Validate and log an epoch, and keep its weights if it is the best."""
        self.pointer.eval()
        losses = [row["loss"] for row in self.history.steps if row["epoch"] == epoch]
        row = {"epoch": epoch, "loss": sum(losses) / len(losses) if losses else None}
        row |= {"validation_success": float(validate(self.pointer))} | self.objective.evaluate(self.pointer)
        if not self.history.epochs or is_better(row, self.history.best_row, kl_target):
            self.history.best, self.best_weights = epoch, _copy_weights(self.pointer)
        self.history.epochs.append(row)
        _log(self.loggers, "epochs", epoch, row)

    def save_checkpoint(self, path: Path, fingerprint: str) -> None:
        """Write everything into one file, so that all of it is of one epoch."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.pointer.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": tensor for name, tensor in moments.items()}
        log = json.dumps({"history": asdict(self.history), "state": self.objective.state})
        metadata = {"fingerprint": fingerprint, "log": log, "digest": _compute_digest(log, tensors)}
        with replace_atomic(path) as partial:
            save_file(tensors, partial, metadata)

    def load_checkpoint(self, path: Path, fingerprint: str) -> None:
        """Restore what `save_checkpoint` wrote, if the file exists and its inputs were the same.

        A file with other content is set aside, as `unusable-checkpoint.safetensors`. There is no earlier one, so
        training starts again.
        """
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            is_intact = metadata.get("digest") == _compute_digest(metadata.get("log", ""), tensors)
        except SafetensorError:
            is_intact = False
        if not is_intact:
            aside = path.replace(path.with_name(f"unusable-{path.name}"))
            reason = "it is damaged or was not written by Planward"
            print(f"warning: {path} is not used: {reason}; it is now {aside.name}", flush=True)
            return
        if metadata["fingerprint"] != fingerprint:
            return
        log = json.loads(metadata["log"])
        self.history, self.objective.state = History(**log["history"]), log["state"]
        self.pointer.load_state_dict(_select_prefix(tensors, "weights"))
        self.best_weights = _select_prefix(tensors, "best")
        state: dict[int, Weights] = {}
        for name, tensor in _select_prefix(tensors, "optimizer").items():
            number, _, moment = name.partition("/")
            state.setdefault(int(number), {})[moment] = tensor
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})

    def finish(self) -> History:
        """Load the best weights into the pointer; returns the log with `kept` filled in."""
        self.pointer.load_state_dict(self.best_weights)
        self.pointer.eval()
        for row in self.history.epochs:
            row["kept"] = row["epoch"] == self.history.best
        return self.history


def compute_fingerprint(
    method: Method,
    seed: int,
    config: SelectorsConfig,
    groups: Sequence[BeamGroup],
    pointer: Pointer,
    reference: Pointer | None,
    validation: str = "",
) -> str:
    """Digest of all inputs that an interrupted run must share with the one that resumes it, Planward's code included.

    Args:
        validation: as for `train_pointer`.
    """
    digest = hashlib.sha256(compute_code_digest(PACKAGES))
    digest.update(json.dumps([method, seed, validation, config.model_dump(mode="json")]).encode())
    for group in groups:
        tensors = {name: tensor.contiguous() for name, tensor in vars(group).items() if tensor is not None}
        digest.update(save(tensors))
    for policy in (pointer, reference):
        digest.update(save(_copy_weights(policy)) if policy else b"")
    return digest.hexdigest()


def _log(loggers: Sequence[RunLogger], table: str, number: int, row: Row) -> None:
    """Log the row of a step or an epoch, without what identifies it."""
    values = {name: value for name, value in row.items() if name not in ("step", "epoch", "kept") and value is not None}
    for logger in loggers:
        logger.log(number, {f"{table}/{name}": value for name, value in values.items()})


def _epoch_seed(seed: int, method: Method, epoch: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {method} {epoch}".encode()).digest()[:8], "big", signed=True)


def _compute_digest(log: str, tensors: Weights) -> str:
    """Return a digest of a checkpoint's content."""
    digest = hashlib.sha256(log.encode())
    digest.update(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    return digest.hexdigest()


def _select_prefix(tensors: Weights, prefix: str) -> Weights:
    return {
        name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")
    }


def _copy_weights(pointer: Pointer) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in pointer.state_dict().items()}

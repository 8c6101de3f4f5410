"""Training of the pointer selector in three phases: imitation, reward-weighted imitation (RCE), policy gradient (GRPO).

One loop serves them all; a phase brings its loss. After every epoch the caller measures success on validation problems,
and the epoch with the highest is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from planward.demonstrations import objectives
from planward.demonstrations.beams import QueryBeams
from planward.demonstrations.pointer import Pointer, padded_pools
from planward.params import Demonstrations, SelectorGrpo, SelectorPhase, SelectorSft
from planward.records import replaced

Phase = Literal["sft", "rce", "grpo"]
Row = dict[str, Any]
Weights = dict[str, torch.Tensor]
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Example:
    """A query with its candidates and the beams that a search found for it.

    query: embedding [D]. pool: embeddings of the candidates [P, D]. beams: places in the pool [B, K], the shot next to
    the query first: so a selector chooses.
    scores: info scores [B]. success: 1 where the model solved the query with the beam's examples, else 0 [B]; NaN where
    nobody knows, which only GRPO minds. alone: info score of each candidate by itself [P], -inf where it does not fit;
    None where unknown.

    Raises:
        ValueError: shapes or places do not fit, a beam repeats an example, a score or an embedding is not finite.
    """

    query: torch.Tensor
    pool: torch.Tensor
    beams: torch.Tensor
    scores: torch.Tensor
    success: torch.Tensor
    alone: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shapes = [tuple(tensor.shape) for tensor in (self.query, self.pool, self.beams, self.scores, self.success)]
        query, pool, beams, scores, success = shapes
        if (
            [len(shape) for shape in shapes] != [1, 2, 2, 1, 1]
            or query != pool[1:]
            or not beams[:1] == scores == success
        ):
            raise ValueError(f"query, pool, beams, scores, success must be [D], [P, D], [B, K], [B], [B], not {shapes}")
        if self.alone is not None and tuple(self.alone.shape) != pool[:1]:
            raise ValueError(f"there are scores of {len(self.alone)} candidates, but {pool[0]} candidates")
        if 0 in (*pool, *beams):
            raise ValueError(f"a query needs candidates and beams, and has {pool[0]} and {beams[0]}")
        if int(self.beams.min()) < 0 or int(self.beams.max()) >= len(self.pool):
            raise ValueError(f"a beam names a place outside its pool of {len(self.pool)}")
        if any(len(set(beam)) < len(beam) for beam in self.beams.tolist()):
            raise ValueError("a beam chooses an example twice")
        if not all(bool(tensor.isfinite().all()) for tensor in (self.query, self.pool, self.scores)):
            raise ValueError("scores and embeddings must be finite numbers")

    @classmethod
    def of(cls, found: QueryBeams, embeddings: Mapping[str, torch.Tensor]) -> Example:
        """The example that a query's beams make, given embeddings [D] by problem id.

        Raises:
            ValueError: an embedding is missing, a beam has an example that the pool lacks, or as for the class.
        """
        places = {name: place for place, name in enumerate(found.pool)}
        if missing := [name for name in (found.query, *found.pool) if name not in embeddings]:
            raise ValueError(f"{found.query}: no embedding of {missing[0]}; run `planward embed` anew")
        if lacking := [shot for beam in found.beams for shot in beam.shots if shot not in places]:
            raise ValueError(f"{found.query}: a beam chose {lacking[0]}, which is not in the pool; build beams anew")
        unknown = float("nan")
        try:
            return cls(
                query=embeddings[found.query],
                pool=torch.stack([embeddings[name] for name in found.pool]),
                beams=torch.tensor([[places[shot] for shot in reversed(beam.shots)] for beam in found.beams]),
                scores=torch.tensor([beam.score for beam in found.beams], dtype=torch.float64),
                success=torch.tensor(
                    [unknown if beam.success is None else float(beam.success) for beam in found.beams]
                ),
                alone=None
                if found.pool_scores is None
                else torch.tensor([-torch.inf if score is None else score for score in found.pool_scores]),
            )
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{found.query}: {error}") from error


@dataclass(frozen=True)
class Groups:
    """The beams of N queries, padded to the most that one has. Padding repeats a query's first beam."""

    beams: torch.Tensor  # [N, B, K]
    mask: torch.Tensor  # [N, B]
    scores: torch.Tensor  # [N, B], in double precision like success
    success: torch.Tensor  # [N, B]

    def at(self, places: Sequence[int], device: torch.device) -> Groups:
        chosen = torch.tensor(places, dtype=torch.long)
        return Groups(*(part[chosen].to(device) for part in (self.beams, self.mask, self.scores, self.success)))

    @property
    def ranks(self) -> torch.Tensor:
        """Each beam's rank by score within its query [N, B]; the best has 0."""
        scores = self.scores.masked_fill(~self.mask, -torch.inf)
        return scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def grouped(examples: Sequence[Example]) -> Groups:
    """The examples' beams.

    Raises:
        ValueError: beams differ in length.
    """
    lengths = {example.beams.shape[1] for example in examples}
    if len(lengths) != 1:
        raise ValueError(f"all beams must have one length, not {sorted(lengths)}: build them anew, or leave some out")
    most = max(len(example.beams) for example in examples)
    counts = torch.tensor([len(example.beams) for example in examples])
    mask = torch.arange(most) < counts[:, None]
    rows = torch.arange(most) * mask  # 0 for padding
    return Groups(
        beams=torch.stack([example.beams[row] for example, row in zip(examples, rows, strict=True)]),
        mask=mask,
        scores=torch.stack([example.scores.double()[row] for example, row in zip(examples, rows, strict=True)]),
        success=torch.stack([example.success.double()[row] for example, row in zip(examples, rows, strict=True)]),
    )


def padded(examples: Sequence[Example], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [Q, D], pools padded to the largest [Q, P, D], and where these hold candidates [Q, P]."""
    pool, mask = padded_pools([example.pool for example in examples])
    query = torch.stack([example.query for example in examples])
    return query.to(device), pool.to(device), mask.to(device)


@dataclass
class History:
    """What a phase did.

    epochs: epoch, loss (mean of its steps'), validation_success, kept, and for GRPO kl (over all beams, at its end).
    Epoch 0 is what came in. steps: step, epoch, loss, learning_rate, grad_norm; for RCE temperature; for GRPO kl, beta
    (which the step used), advantage (mean magnitude), clipped (share of beams), left_out (groups of the batch whose
    rewards are all equal). left_out: groups that the whole phase did without. best: the epoch that was kept.
    """

    epochs: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    left_out: int = 0
    best: int = 0

    def summary(self) -> Row:
        """The phase in a few numbers: the kept epoch's figures, epochs and steps that were run, groups left out."""
        figures = {name: value for name, value in _row(self).items() if name not in ("epoch", "kept", "loss")}
        run = max(row["epoch"] for row in self.epochs)
        return {"best_epoch": self.best, "epochs": run, "steps": len(self.steps), "left_out": self.left_out, **figures}


class Objective(Protocol):
    """What a phase makes small. `state` must outlive an interruption; `dropout`: whether it is on."""

    dropout: bool
    state: dict[str, float]

    def loss(self, pointer: Pointer, places: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        """Loss of the examples at `places`, a scalar, and the figures of a step counted from 0."""

    def measured(self, pointer: Pointer) -> Row:
        """Figures of the pointer at the end of an epoch."""


class Imitation:
    """SFT: cross-entropy with softened labels, all beams alike. RCE: beams weighted by score, plain labels.

    Args:
        softness: of SFT's labels; None for RCE.
        temperatures: first and last of RCE; None for SFT.
    """

    dropout = True

    def __init__(
        self, examples: Sequence[Example], softness: SelectorSft | None, temperatures: tuple[float, float] | None
    ) -> None:
        self.examples, self.groups = examples, grouped(examples)
        self.softness, self.temperatures = softness, temperatures
        self.state: dict[str, float] = {}

    def loss(self, pointer: Pointer, places: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        candidates = padded([self.examples[place] for place in places], _device(pointer))
        groups = self.groups.at(places, _device(pointer))
        weights, figures = objectives.even_weights(groups.mask), Row()
        if self.temperatures:
            figures["temperature"] = objectives.temperature(step / max(steps - 1, 1), self.temperatures)
            weights = objectives.softmax_weights(groups.scores, figures["temperature"], groups.mask)
        log_probs = pointer.sequence_log_probs(*candidates, groups.beams)
        soft = None
        if self.softness:
            alone = _alone([self.examples[place] for place in places], log_probs.shape[-1]).to(log_probs)
            soft = objectives.soft_labels(log_probs, alone, self.softness)
        losses = objectives.cross_entropy(log_probs, groups.beams, soft)
        return objectives.rce_loss(losses, weights.to(losses.dtype)), figures

    def measured(self, pointer: Pointer) -> Row:  # noqa: ARG002
        return {}


class PolicyGradient:
    """GRPO on beams that were found before: a query's are a group. Rewards are fixed, the reference is frozen.

    Dropout is off, so that the ratio to a reference of the same weights is 1 until they move.

    Args:
        batch_size: queries at once where nothing is learnt.
    """

    dropout = False

    def __init__(
        self, examples: Sequence[Example], settings: SelectorGrpo, reference: Pointer, batch_size: int
    ) -> None:
        self.examples, self.groups = examples, grouped(examples)
        self.settings, self.batch_size = settings, batch_size
        self.rewards = rewards(examples, self.groups, settings)
        self.reference = self._log_probs(reference)
        self.state = {"beta": settings.beta}

    def loss(self, pointer: Pointer, places: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        settings, device = self.settings, _device(pointer)
        groups = self.groups.at(places, device)
        found, reference = self.rewards[list(places)].to(device), self.reference[list(places)].to(device)
        mask = groups.mask
        if step < settings.early_until * steps:
            mask = mask & (groups.ranks < settings.early_beams)
        idle = objectives.level(found, mask)
        mask = mask & ~idle[:, None]
        candidates = padded([self.examples[place] for place in places], device)
        log_ratio = _sequence_log_probs(pointer, candidates, groups.beams) - reference
        advantages = objectives.advantages(found, settings.advantage_limit, mask).to(log_ratio.dtype)
        kl, beta = objectives.kl_estimate(log_ratio, mask), self.state["beta"]
        loss = objectives.policy_loss(log_ratio, advantages, settings.clip, mask) + beta * kl
        self.state["beta"] = objectives.adapted_beta(
            beta, kl.item(), settings.kl_target, settings.beta_factor, settings.beta_bounds
        )
        return loss, {
            "kl": kl.item(),
            "beta": beta,
            "advantage": float(advantages.abs().sum() / mask.sum().clamp(min=1)),
            "clipped": objectives.clipped_share(log_ratio, advantages, settings.clip, mask).item(),
            "left_out": int(idle.sum()),
        }

    def measured(self, pointer: Pointer) -> Row:
        return {"kl": objectives.kl_estimate(self._log_probs(pointer) - self.reference, self.groups.mask).item()}

    @torch.no_grad()
    def _log_probs(self, pointer: Pointer) -> torch.Tensor:
        """Log-probability of every beam [N, B]."""
        pointer.eval()
        rows = []
        for start in range(0, len(self.examples), self.batch_size):
            places = range(start, min(start + self.batch_size, len(self.examples)))
            candidates = padded([self.examples[place] for place in places], _device(pointer))
            beams = self.groups.at(places, _device(pointer)).beams
            rows.append(_sequence_log_probs(pointer, candidates, beams).cpu())
        return torch.cat(rows)


def rewards(examples: Sequence[Example], groups: Groups, settings: SelectorGrpo) -> torch.Tensor:
    """Rewards [N, B] of the examples' beams."""
    if settings.reward == "correctness":
        return groups.success
    spread = torch.zeros_like(groups.scores)
    if settings.diversity_weight:
        found = [objectives.diversity(example.pool, row) for example, row in zip(examples, groups.beams, strict=True)]
        spread = torch.stack(found).to(spread)
    weights = (settings.quality_weight, settings.correctness_weight, settings.diversity_weight)
    return objectives.combined_reward(objectives.quality(groups.scores, groups.mask), groups.success, spread, weights)


def teaching(examples: Sequence[Example], settings: SelectorGrpo) -> list[Example]:
    """The examples whose beams GRPO can learn from: rewards differ, and not all are wrong with low scores.

    Raises:
        ValueError: whether a beam succeeds is not known.
    """
    groups = grouped(examples)
    if bool(groups.success.isnan().any()):
        raise ValueError("GRPO needs each beam's success, and some is unknown: let the model answer under the beams")
    idle = objectives.level(rewards(examples, groups, settings), groups.mask)
    idle = idle | objectives.hopeless(groups.scores, groups.success, groups.mask, settings.low_score)
    return [example for example, left_out in zip(examples, idle.tolist(), strict=True) if not left_out]


def train(
    phase: Phase,
    pointer: Pointer,
    examples: Sequence[Example],
    settings: Demonstrations,
    seed: int,
    validate: Callable[[Pointer], float],
    reference: Pointer | None,
    checkpoints: Path,
) -> History:
    """Train `pointer` in place for one phase; it holds the best epoch's weights afterwards, in evaluation mode.

    The best epoch is the one with the highest `validate`. Among equals the earlier one; for GRPO before that one whose
    KL is inside kl_target. For RCE and GRPO epoch 0, the weights that came in, takes part: so on the validation
    problems no phase ends below its start. That is a selection on those problems, and success on them under the kept
    weights is too high an estimate for it; test problems are not touched. Training stops after `patience` epochs
    without a better one. Where GRPO finds no group to learn from, epoch 0 is all.

    Data order and dropout depend on seed, phase and epoch alone. After each epoch everything that the next one needs
    is written into `checkpoints`, and a run with the same inputs goes on from there to the same weights, bit for bit;
    a checkpoint of other inputs is overwritten. The caller removes the folder when it has saved the pointer.

    Args:
        validate: success on validation problems. It gets the pointer in evaluation mode.
        reference: frozen policy of GRPO's ratio and KL; the others take None. With the weights that came in, ratios
            start at 1; with others the clip may hold from the first step.

    Raises:
        ValueError: no examples, beams of different length, or for GRPO no reference or a success that is unknown.
        FloatingPointError: a loss is not finite.
    """
    if not examples:
        raise ValueError(f"{phase}: no queries to train the selector on; build beams for the training set first")
    if (phase == "grpo") != (reference is not None):
        raise ValueError(f"{phase}: a frozen reference is what GRPO needs, and no other phase takes")
    options: SelectorPhase = getattr(settings, phase)
    mark = _fingerprint(phase, seed, settings, examples, pointer, reference)
    if phase == "sft":
        pointer.whiten(*_moments(examples))
    useful = teaching(examples, settings.grpo) if phase == "grpo" else examples
    if not useful:
        row = {
            "epoch": 0,
            "loss": None,
            "validation_success": float(validate(pointer.eval())),
            "kl": None,
            "kept": True,
        }
        return History(epochs=[row], left_out=len(examples))
    objective = _objective(phase, useful, settings, reference)
    run = _Run(pointer, torch.optim.AdamW(pointer.paces(), lr=options.learning_rate), objective)
    run.history.left_out = len(examples) - len(useful)
    run.restore(checkpoints / CHECKPOINT, mark)
    steps = options.epochs * -(-len(useful) // settings.batch_size)
    with tqdm(total=steps, initial=len(run.history.steps), desc=f"selector {phase}", unit="step") as bar:
        for epoch in range(run.next_epoch(first=1 if phase == "sft" else 0), options.epochs + 1):
            if epoch > run.history.best + options.patience:
                break
            if epoch:
                pointer.train(objective.dropout)
                with torch.random.fork_rng():
                    torch.manual_seed(_epoch_seed(seed, phase, epoch))
                    order = torch.randperm(len(useful)).tolist()
                    for start in range(0, len(order), settings.batch_size):
                        run.step(order[start : start + settings.batch_size], epoch, steps, options, settings)
                        bar.update()
            run.judge(epoch, validate, settings.grpo.kl_target)
            run.save(checkpoints / CHECKPOINT, mark)
    return run.ended()


def better(row: Row, best: Row, kl_target: tuple[float, float]) -> bool:
    """Whether an epoch takes the best one's place: more success or, where equal, a KL inside the target unlike its."""

    def inside(row: Row) -> bool:
        return "kl" in row and kl_target[0] <= row["kl"] <= kl_target[1]

    success, so_far = row["validation_success"], best["validation_success"]
    return bool(success > so_far or (success == so_far and inside(row) and not inside(best)))


class _Run:
    """A phase under way: what one step or epoch hands to the next."""

    def __init__(self, pointer: Pointer, optimizer: torch.optim.Optimizer, objective: Objective) -> None:
        self.pointer, self.optimizer, self.objective = pointer, optimizer, objective
        self.history = History()
        self.best = _copied(pointer)

    def next_epoch(self, first: int) -> int:
        return int(self.history.epochs[-1]["epoch"]) + 1 if self.history.epochs else first

    def step(
        self, places: Sequence[int], epoch: int, steps: int, options: SelectorPhase, settings: Demonstrations
    ) -> None:
        step = len(self.history.steps)
        rate = objectives.learning_rate(step, steps, options.learning_rate, settings.warmup_ratio)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["pace"]
        loss, figures = self.objective.loss(self.pointer, places, step, steps)
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"the selector's loss is {loss.item()} at step {step + 1}: lower learning_rate")
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(self.pointer.parameters(), settings.max_grad_norm).item()
        if norm > 0:  # else momentum would move weights by a batch that says nothing
            self.optimizer.step()
        row = {"step": step + 1, "epoch": epoch, "loss": loss.item(), "learning_rate": rate, "grad_norm": norm}
        self.history.steps.append(row | figures)

    def judge(self, epoch: int, validate: Callable[[Pointer], float], kl_target: tuple[float, float]) -> None:
        """Measure an epoch, and take its weights for the best where they are."""
        self.pointer.eval()
        losses = [row["loss"] for row in self.history.steps if row["epoch"] == epoch]
        row = {"epoch": epoch, "loss": sum(losses) / len(losses) if losses else None}
        row |= {"validation_success": float(validate(self.pointer))} | self.objective.measured(self.pointer)
        if not self.history.epochs or better(row, _row(self.history), kl_target):
            self.history.best, self.best = epoch, _copied(self.pointer)
        self.history.epochs.append(row)

    def save(self, path: Path, mark: str) -> None:
        """Write all of it into one file, so that no part can be of another epoch."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.pointer.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": tensor for name, tensor in moments.items()}
        journal = {"history": asdict(self.history), "state": self.objective.state}
        with replaced(path) as partial:
            save_file(tensors, partial, {"fingerprint": mark, "journal": json.dumps(journal)})

    def restore(self, path: Path, mark: str) -> None:
        """Go back to where `save` was, if the file is there and of the same inputs."""
        if not path.exists():
            return
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("fingerprint") != mark:
                return
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        journal = json.loads(about["journal"])
        self.history, self.objective.state = History(**journal["history"]), journal["state"]
        self.pointer.load_state_dict(_below(tensors, "weights"))
        self.best = _below(tensors, "best")
        state: dict[int, Weights] = {}
        for name, tensor in _below(tensors, "optimizer").items():
            number, _, moment = name.partition("/")
            state.setdefault(int(number), {})[moment] = tensor
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})

    def ended(self) -> History:
        self.pointer.load_state_dict(self.best)
        self.pointer.eval()
        for row in self.history.epochs:
            row["kept"] = row["epoch"] == self.history.best
        return self.history


def _row(history: History) -> Row:
    """The best epoch's."""
    return next(row for row in history.epochs if row["epoch"] == history.best)


def _objective(
    phase: Phase, examples: Sequence[Example], settings: Demonstrations, reference: Pointer | None
) -> Objective:
    if phase == "sft":
        return Imitation(examples, settings.sft, None)
    if reference is None:
        return Imitation(examples, None, settings.rce.temperature)
    return PolicyGradient(examples, settings.grpo, reference, settings.batch_size)


def _alone(examples: Sequence[Example], size: int) -> torch.Tensor:
    """Scores of the candidates by themselves [Q, P], -inf for padding; all NaN where a query's are unknown."""
    rows = torch.full((len(examples), size), -torch.inf)
    for row, example in zip(rows, examples, strict=True):
        row[: len(example.pool)] = torch.nan if example.alone is None else example.alone
    return rows


def _sequence_log_probs(
    pointer: Pointer, candidates: tuple[torch.Tensor, torch.Tensor, torch.Tensor], beams: torch.Tensor
) -> torch.Tensor:
    """Log-probability [Q, B] of each whole beam."""
    return objectives.chosen_log_probs(pointer.sequence_log_probs(*candidates, beams), beams).sum(-1)


def _moments(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [D] and covariance [D, D] of all embeddings, each as often as it occurs."""
    total, count = torch.zeros_like(examples[0].query, dtype=torch.float64), 0
    for example in examples:
        total, count = total + example.query + example.pool.sum(0, dtype=torch.float64), count + 1 + len(example.pool)
    mean, products = total / count, torch.zeros(len(total), len(total), dtype=torch.float64)
    for example in examples:
        apart = torch.cat([example.query[None], example.pool]).double() - mean
        products.addmm_(apart.T, apart)
    return mean, products / count


def _fingerprint(
    phase: Phase,
    seed: int,
    settings: Demonstrations,
    examples: Sequence[Example],
    pointer: Pointer,
    reference: Pointer | None,
) -> str:
    """Changes with anything that an interrupted run must share with the one that takes it up."""
    digest = hashlib.sha256(json.dumps([phase, seed, torch.__version__, settings.model_dump(mode="json")]).encode())
    for example in examples:
        known = {name: tensor for name, tensor in vars(example).items() if tensor is not None}
        digest.update(save({name: tensor.contiguous() for name, tensor in known.items()}))
    for policy in (pointer, reference):
        digest.update(save(_copied(policy)) if policy else b"")
    return digest.hexdigest()


def _epoch_seed(seed: int, phase: Phase, epoch: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {phase} {epoch}".encode()).digest()[:8], "big", signed=True)


def _below(tensors: Weights, folder: str) -> Weights:
    return {
        name.removeprefix(f"{folder}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{folder}/")
    }


def _copied(pointer: Pointer) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in pointer.state_dict().items()}


def _device(pointer: Pointer) -> torch.device:
    return pointer.mean.device

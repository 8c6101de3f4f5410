"""The pointer's training methods: imitation (SFT), reward-weighted imitation (RCE), policy gradient (GRPO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch

from planward.selectors import objectives
from planward.selectors.config import SelectorGrpoConfig, SelectorsConfig, SelectorSftConfig
from planward.selectors.dataset import BeamBatch, BeamGroup, pad_candidates, pad_pool_scores, stack_beams
from planward.selectors.pointer import Pointer

Method = Literal["sft", "rce", "grpo"]
Row = dict[str, Any]


class Objective(Protocol):
    """What a method minimises. `state` belongs into checkpoints; `dropout`: whether it is on in training."""

    dropout: bool
    state: dict[str, float]

    def compute_loss(self, pointer: Pointer, indices: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        """Compute the loss of the groups `indices`, a scalar, and the values to log; steps are counted from 0."""

    def evaluate(self, pointer: Pointer) -> Row:
        """Compute the values to log at the end of an epoch."""


class Imitation:
    """SFT: cross-entropy with softened labels, all beams alike. RCE: beams weighted by score, hard labels.

    Args:
        label_config: how SFT softens labels; None for RCE.
        temperatures: first and last of RCE; None for SFT.
    """

    dropout = True

    def __init__(
        self,
        groups: Sequence[BeamGroup],
        label_config: SelectorSftConfig | None,
        temperatures: tuple[float, float] | None,
    ) -> None:
        self.groups, self.batch = groups, stack_beams(groups)
        self.label_config, self.temperatures = label_config, temperatures
        self.state: dict[str, float] = {}

    def compute_loss(self, pointer: Pointer, indices: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        groups = [self.groups[i] for i in indices]
        candidates = pad_candidates(groups, _get_device(pointer))
        batch = self.batch.select(indices, _get_device(pointer))
        weights, metrics = objectives.compute_even_weights(batch.mask), Row()
        if self.temperatures:
            metrics["temperature"] = objectives.compute_temperature(step / max(steps - 1, 1), self.temperatures)
            weights = objectives.compute_softmax_weights(batch.scores, metrics["temperature"], batch.mask)
        log_probs = pointer.compute_log_probs(*candidates, batch.beams)
        soft_labels = None
        if self.label_config:
            pool_scores = pad_pool_scores(groups, log_probs.shape[-1]).to(log_probs)
            soft_labels = objectives.compute_soft_labels(log_probs, pool_scores, self.label_config)
        losses = objectives.compute_cross_entropy(log_probs, batch.beams, soft_labels)
        return objectives.compute_rce_loss(losses, weights.to(losses.dtype)), metrics

    def evaluate(self, pointer: Pointer) -> Row:  # noqa: ARG002
        return {}


class PolicyGradient:
    """GRPO on beams found in advance: those of a query are a group. Rewards are fixed, the reference is frozen.

    Dropout is off, so the ratio to a reference of the same weights is 1 until they change.

    Args:
        batch_size: queries at once where no gradient is needed.
    """

    dropout = False

    def __init__(
        self, groups: Sequence[BeamGroup], config: SelectorGrpoConfig, reference: Pointer, batch_size: int
    ) -> None:
        self.groups, self.batch = groups, stack_beams(groups)
        self.config, self.batch_size = config, batch_size
        self.rewards = compute_rewards(groups, self.batch, config)
        self.reference_log_probs = self._compute_all_log_probs(reference)
        self.state = {"beta": config.beta}

    def compute_loss(self, pointer: Pointer, indices: Sequence[int], step: int, steps: int) -> tuple[torch.Tensor, Row]:
        config, device = self.config, _get_device(pointer)
        batch = self.batch.select(indices, device)
        rewards = self.rewards[list(indices)].to(device)
        reference_log_probs = self.reference_log_probs[list(indices)].to(device)
        mask = batch.mask
        if step < config.early_until * steps:
            mask = mask & (batch.ranks < config.early_beams)
        without_signal = objectives.are_equal(rewards, mask)
        mask = mask & ~without_signal[:, None]
        candidates = pad_candidates([self.groups[i] for i in indices], device)
        log_ratio = _compute_beam_log_probs(pointer, candidates, batch.beams) - reference_log_probs
        advantages = objectives.compute_advantages(rewards, config.advantage_limit, mask).to(log_ratio.dtype)
        kl, beta = objectives.estimate_kl(log_ratio, mask), self.state["beta"]
        loss = objectives.compute_policy_loss(log_ratio, advantages, config.clip, mask) + beta * kl
        self.state["beta"] = objectives.adapt_beta(
            beta, kl.item(), config.kl_target, config.beta_factor, config.beta_bounds
        )
        return loss, {
            "kl": kl.item(),
            "beta": beta,
            "advantage": float(advantages.abs().sum() / mask.sum().clamp(min=1)),
            "clipped": objectives.compute_clipped_share(log_ratio, advantages, config.clip, mask).item(),
            "left_out": int(without_signal.sum()),
        }

    def evaluate(self, pointer: Pointer) -> Row:
        log_ratio = self._compute_all_log_probs(pointer) - self.reference_log_probs
        return {"kl": objectives.estimate_kl(log_ratio, self.batch.mask).item()}

    @torch.no_grad()
    def _compute_all_log_probs(self, pointer: Pointer) -> torch.Tensor:
        """Log-probability of every beam [N, B]."""
        pointer.eval()
        parts = []
        for start in range(0, len(self.groups), self.batch_size):
            indices = range(start, min(start + self.batch_size, len(self.groups)))
            candidates = pad_candidates([self.groups[i] for i in indices], _get_device(pointer))
            beams = self.batch.select(indices, _get_device(pointer)).beams
            parts.append(_compute_beam_log_probs(pointer, candidates, beams).cpu())
        return torch.cat(parts)


def build_objective(
    method: Method, groups: Sequence[BeamGroup], config: SelectorsConfig, reference: Pointer | None
) -> Objective:
    """Build a method's objective; GRPO needs a `reference`."""
    if method == "sft":
        return Imitation(groups, config.sft, None)
    if reference is None:
        return Imitation(groups, None, config.rce.temperature)
    return PolicyGradient(groups, config.grpo, reference, config.batch_size)


def compute_rewards(groups: Sequence[BeamGroup], batch: BeamBatch, config: SelectorGrpoConfig) -> torch.Tensor:
    """Compute the rewards [N, B] of the groups' beams, which are stacked in `batch`."""
    if config.reward == "correctness":
        return batch.success
    diversities = torch.zeros_like(batch.scores)
    if config.diversity_weight:
        rows = [
            objectives.compute_diversity(group.pool, beams) for group, beams in zip(groups, batch.beams, strict=True)
        ]
        diversities = torch.stack(rows).to(diversities)
    weights = (config.quality_weight, config.correctness_weight, config.diversity_weight)
    quality = objectives.compute_quality(batch.scores, batch.mask)
    return objectives.combine_rewards(quality, batch.success, diversities, weights)


def select_informative_groups(groups: Sequence[BeamGroup], config: SelectorGrpoConfig) -> list[BeamGroup]:
    """Select the groups that GRPO can learn from: rewards differ, and not all beams fail with low scores.

    Raises:
        ValueError: the success of a beam is unknown.
    """
    batch = stack_beams(groups)
    if bool(batch.success.isnan().any()):
        raise ValueError(
            "GRPO needs the success of each beam, but some is unknown; fix: `planward selectors beams --split train`"
        )
    skip_mask = objectives.are_equal(compute_rewards(groups, batch, config), batch.mask)
    skip_mask = skip_mask | objectives.find_failures(batch.scores, batch.success, batch.mask, config.low_score)
    return [group for group, skip in zip(groups, skip_mask.tolist(), strict=True) if not skip]


def _compute_beam_log_probs(
    pointer: Pointer, candidates: tuple[torch.Tensor, torch.Tensor, torch.Tensor], beams: torch.Tensor
) -> torch.Tensor:
    """Log-probability [Q, B] of each whole beam."""
    return objectives.gather_log_probs(pointer.compute_log_probs(*candidates, beams), beams).sum(-1)


def _get_device(pointer: Pointer) -> torch.device:
    return pointer.mean.device

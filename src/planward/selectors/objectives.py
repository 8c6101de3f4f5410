"""Losses, rewards and schedules of the selector's training, as functions of tensors.

Shapes: Q queries, B beams of a query, K steps of a beam, P candidates of a query. Masks are false for padding. The
beams of one query form a group.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import normalize

from planward.selectors.config import SelectorSftConfig

MIN_SCORE = -1e4  # nats: of a candidate that does not fit; finite, so that a softmax over such candidates is not NaN


def are_equal(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Tell for each query whether its values [Q, B] are all equal, up to rounding: [Q]."""
    low, high = _compute_range(values, mask)
    return (high - low <= torch.finfo(values.dtype).eps * torch.maximum(low.abs(), high.abs()))[:, 0]


def compute_quality(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rescale scores [Q, B] to their query's range: lowest 0, highest 1; 0.5 if all are equal, 0 for padding."""
    low, high = _compute_range(scores, mask)
    equal = are_equal(scores, mask)[:, None]
    quality = (scores - low) / torch.where(equal, torch.ones_like(low), high - low)
    return torch.where(equal, torch.full_like(quality, 0.5), quality).masked_fill(~mask, 0.0)


def compute_z_scores(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Standardise values [Q, B] within their query (population deviation); 0 where all are equal, and for padding.

    Scores may be of the order of 1e-7, so no epsilon is added to the deviation; the range is scaled to 1 instead.
    """
    quality, count = compute_quality(values, mask), mask.sum(1, keepdim=True).clamp(min=1)
    centred_quality = (quality - quality.sum(1, keepdim=True) / count).masked_fill(~mask, 0.0)
    deviation = (centred_quality.square().sum(1, keepdim=True) / count).sqrt()
    equal = are_equal(values, mask)[:, None]
    divisor = torch.where(equal, torch.ones_like(quality), deviation)
    return torch.where(equal, torch.zeros_like(centred_quality), centred_quality / divisor)


def compute_softmax_weights(scores: torch.Tensor, temperature: float, mask: torch.Tensor) -> torch.Tensor:
    """Compute weights [Q, B] = softmax(z-score / temperature) within each query; they sum to 1, padding has 0."""
    return (compute_z_scores(scores, mask) / temperature).masked_fill(~mask, -torch.inf).softmax(-1)


def compute_even_weights(mask: torch.Tensor) -> torch.Tensor:
    """Give each of a query's beams the same weight [Q, B]; they sum to 1, padding has 0."""
    return mask / mask.sum(1, keepdim=True)


def compute_temperature(progress: float, ends: tuple[float, float]) -> float:
    """Interpolate linearly from the first of `ends` (progress 0) to the last (progress 1)."""
    return ends[0] + (ends[1] - ends[0]) * progress


def gather_log_probs(log_probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Gather the log-probability [Q, B, K] of each chosen candidate [Q, B, K] from log_probs [Q, B, K, P]."""
    return log_probs.gather(-1, chosen[..., None])[..., 0]


def compute_soft_labels(
    log_probs: torch.Tensor, candidate_scores: torch.Tensor, config: SelectorSftConfig
) -> torch.Tensor:
    """Compute the share [Q, B, K, P] of every label that does not go to the beam's choice; its sum over P is below 1.

    `label_smoothing` is spread evenly over the candidates that are still available at the step: those with a
    log-probability [Q, B, K, P] above -inf. `pool_weight` is spread over them by the softmax of their own info scores
    `candidate_scores` [Q, P], in nats, over `pool_temperature`. A beam says which few candidates are good; these
    scores say of all of them how good, and above all which do harm. They are skipped for queries with a NaN, whose
    scores are unknown.
    """
    available = log_probs.detach() > -torch.inf
    even = available.to(log_probs.dtype) / available.sum(-1, keepdim=True)
    is_known = ~candidate_scores.isnan().any(-1)
    scores = (
        candidate_scores.where(is_known[:, None], 0.0).clamp(min=MIN_SCORE)[:, None, None] / config.pool_temperature
    )
    by_score = scores.masked_fill(~available, -torch.inf).softmax(-1) * is_known[:, None, None, None]
    return config.label_smoothing * even + config.pool_weight * by_score


def compute_cross_entropy(
    log_probs: torch.Tensor, chosen: torch.Tensor, soft_labels: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the cross-entropy [Q, B] of each beam, averaged over its steps, in nats.

    Args:
        log_probs: of every candidate at every step [Q, B, K, P].
        chosen: the beams' choices [Q, B, K].
        soft_labels: the share of the labels [Q, B, K, P] that goes to other candidates (`compute_soft_labels`); the
            choice has the rest of 1.
    """
    chosen_log_probs = gather_log_probs(log_probs, chosen)
    if soft_labels is None:
        return -chosen_log_probs.mean(-1)
    others = (soft_labels * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)
    return -((1 - soft_labels.sum(-1)) * chosen_log_probs + others).mean(-1)


def compute_rce_loss(cross_entropies: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Reward-weighted cross-entropy: sum over a query's beams of weight times cross-entropy, mean over queries.

    Both are [Q, B]. With even weights it is the loss of SFT.
    """
    return (weights * cross_entropies).sum(-1).mean()


def compute_diversity(pool: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    """Compute the share [B] of each beam's examples whose nearest neighbour in the pool is not in the beam too.

    Nearest by cosine within the pool [P, D], so no threshold is needed: in some embeddings all cosines are close to 1.
    Beams [B, K] hold indices into the pool. In a pool of one candidate the diversity is 1.
    """
    unit = normalize(pool, dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(-1)
    has_neighbour = (nearest[beams][..., None] == beams[:, None]).any(-1) & (nearest[beams] != beams)
    return 1 - has_neighbour.to(pool.dtype).mean(-1)


def combine_rewards(
    qualities: torch.Tensor,
    success: torch.Tensor,
    diversities: torch.Tensor,
    weights: tuple[float, float, float],
) -> torch.Tensor:
    """Sum quality, success and diversity [Q, B], all between 0 and 1, weighted by `weights` in that order [Q, B]."""
    return weights[0] * qualities + weights[1] * success + weights[2] * diversities


def find_failures(scores: torch.Tensor, success: torch.Tensor, mask: torch.Tensor, low_score: float) -> torch.Tensor:
    """Find queries [Q] with no success [Q, B] whose best score is below the `low_score` quantile of all best scores."""
    best = _compute_range(scores, mask)[1][:, 0]
    no_success = ~((success > 0) & mask).any(1)
    return no_success & (best < best.quantile(low_score))


def compute_advantages(rewards: torch.Tensor, limit: float, mask: torch.Tensor) -> torch.Tensor:
    """Compute z-scores [Q, B] of rewards within their query, clamped to +-`limit`; 0 where all are equal.

    No z-score of B values lies beyond sqrt(B - 1), so a limit of 5 affects only groups of more than 26.
    """
    return compute_z_scores(rewards, mask).clamp(-limit, limit)


def compute_policy_loss(
    log_ratio: torch.Tensor, advantages: torch.Tensor, clip: float, mask: torch.Tensor
) -> torch.Tensor:
    """-E[min(r A, clip(r, 1 - clip, 1 + clip) A)], the mean over beams of PPO's clipped surrogate (arXiv:1707.06347).

    r = exp(log_ratio) is a ratio of probabilities of *whole sequences* [Q, B]: a product over K steps. A shift of each
    step's log-probability by d moves log r by K d, so a longer sequence is clipped sooner than a shorter one: with
    four steps and clip 0.2, from about 5 % per step.
    """
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -_masked_mean(gain, mask)


def compute_clipped_share(
    log_ratio: torch.Tensor, advantages: torch.Tensor, clip: float, mask: torch.Tensor
) -> torch.Tensor:
    """Compute the share of beams [Q, B] without gradient in `compute_policy_loss`, as they have moved far enough."""
    ratio = log_ratio.exp()
    is_clipped = ((advantages > 0) & (ratio > 1 + clip)) | ((advantages < 0) & (ratio < 1 - clip))
    return _masked_mean(is_clipped.to(ratio.dtype), mask)


def estimate_kl(log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of r - 1 - log r over beams [Q, B], r = exp(log_ratio) = pi / pi_sft: estimates KL(pi_sft || pi).

    For beams sampled from pi_sft, E[r] = 1, so the mean is E[-log r] = E[log pi_sft - log pi]: the divergence of pi
    *from* pi_sft, which is weighted by what the reference would choose. (The estimator k3 of Schulman, "Approximating
    KL divergence", 2020; with samples of pi it would estimate KL(pi || pi_sft) only if r were pi_sft / pi.) The beams
    here come from a search and not from pi_sft, so this is not an unbiased estimate but a penalty: never negative, and
    zero only where no beam's probability has changed.
    """
    return _masked_mean(torch.expm1(log_ratio) - log_ratio, mask)


def adapt_beta(
    beta: float, kl: float, target: tuple[float, float], factor: float, bounds: tuple[float, float]
) -> float:
    """Adapt the weight of the KL term: times `factor` above the target range, over `factor` below, within bounds.

    A weight of 0 stays 0: the term is off.
    """
    if beta == 0:
        return 0.0
    new_beta = beta * factor if kl > target[1] else beta / factor if kl < target[0] else beta
    return min(max(new_beta, bounds[0]), bounds[1])


def compute_learning_rate(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Compute the learning rate of a step, counted from 0: linear warmup to `peak`, then cosine decay to 0."""
    warmup = math.ceil(warmup_ratio * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def _compute_range(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest of each query's values, [Q, 1] each."""
    low = values.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    high = values.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    return low, high


def _masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)

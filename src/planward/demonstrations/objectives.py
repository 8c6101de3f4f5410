"""Losses, rewards and schedules of the selector's training, as functions of tensors.

Letters in shapes: Q queries, B beams of a query, K steps of a beam, P candidates of a query. A mask is true for what
counts and false for padding. Beams of one query form a group.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import normalize

from planward.params import SelectorSft

LOWEST = -1e4  # nats: as bad as a candidate that does not fit; finite, so that a softmax over such ones is a number


def level(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Whether a query's values [Q, B] are all equal, up to their rounding: [Q]."""
    low, high = _ends(values, mask)
    return (high - low <= torch.finfo(values.dtype).eps * torch.maximum(low.abs(), high.abs()))[:, 0]


def quality(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Place of each score between its query's lowest, 0, and highest, 1 [Q, B]; 0.5 if all are equal, 0 for padding."""
    low, high = _ends(scores, mask)
    flat = level(scores, mask)[:, None]
    place = (scores - low) / torch.where(flat, torch.ones_like(low), high - low)
    return torch.where(flat, torch.full_like(place, 0.5), place).masked_fill(~mask, 0.0)


def standardised(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Z-scores [Q, B] of values within their query (population deviation); 0 where all are equal, and for padding.

    Scores may be of the order of 1e-7, so no small number is added to the deviation.
    """
    place, number = quality(values, mask), mask.sum(1, keepdim=True).clamp(min=1)
    centred = (place - place.sum(1, keepdim=True) / number).masked_fill(~mask, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / number).sqrt()
    flat = level(values, mask)[:, None]
    return torch.where(flat, torch.zeros_like(centred), centred / torch.where(flat, torch.ones_like(place), deviation))


def softmax_weights(scores: torch.Tensor, temperature: float, mask: torch.Tensor) -> torch.Tensor:
    """Weights [Q, B] = softmax(standardised score / temperature) within each query; they sum to 1, padding has 0."""
    return (standardised(scores, mask) / temperature).masked_fill(~mask, -torch.inf).softmax(-1)


def even_weights(mask: torch.Tensor) -> torch.Tensor:
    """The same weight for each of a query's beams [Q, B]; they sum to 1, padding has 0."""
    return mask / mask.sum(1, keepdim=True)


def temperature(progress: float, ends: tuple[float, float]) -> float:
    """Temperature at a progress between 0 and 1: from the first of `ends` to the last in a straight line."""
    return ends[0] + (ends[1] - ends[0]) * progress


def chosen_log_probs(log_probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Log-probability [Q, B, K] of each chosen candidate [Q, B, K] under log_probs [Q, B, K, P]."""
    return log_probs.gather(-1, chosen[..., None])[..., 0]


def soft_labels(log_probs: torch.Tensor, alone: torch.Tensor, settings: SelectorSft) -> torch.Tensor:
    """The part [Q, B, K, P] of every label that is not the beam's own choice; it sums to less than 1 over P.

    `label_smoothing` is spread evenly over the candidates that can be chosen at the step, which are those with a
    log-probability [Q, B, K, P] above -inf. `pool_weight` goes to them by what each helps by itself: the softmax of
    its info score `alone` [Q, P], in nats, over `pool_temperature`. A beam says which few candidates are good, this
    says of all how good, and above all which do harm. Queries with NaN, whose scores are unknown, have no such part.
    """
    available = log_probs.detach() > -torch.inf
    even = available.to(log_probs.dtype) / available.sum(-1, keepdim=True)
    known = ~alone.isnan().any(-1)
    scores = alone.where(known[:, None], 0.0).clamp(min=LOWEST)[:, None, None] / settings.pool_temperature
    helpful = scores.masked_fill(~available, -torch.inf).softmax(-1) * known[:, None, None, None]
    return settings.label_smoothing * even + settings.pool_weight * helpful


def cross_entropy(log_probs: torch.Tensor, chosen: torch.Tensor, soft: torch.Tensor | None = None) -> torch.Tensor:
    """Cross-entropy [Q, B] of each beam, averaged over its steps, in nats.

    Args:
        log_probs: of every candidate at every step [Q, B, K, P].
        chosen: the beams' choices [Q, B, K].
        soft: the part of the labels [Q, B, K, P] that goes to others (`soft_labels`); the choice has the rest of 1.
    """
    own = chosen_log_probs(log_probs, chosen)
    if soft is None:
        return -own.mean(-1)
    others = (soft * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)
    return -((1 - soft.sum(-1)) * own + others).mean(-1)


def rce_loss(cross_entropies: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Reward-weighted cross-entropy: sum over a query's beams of weight times cross-entropy, mean over queries.

    Both are [Q, B]. With even weights it is the loss of SFT.
    """
    return (weights * cross_entropies).sum(-1).mean()


def diversity(pool: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    """Share [B] of each beam's examples whose nearest other candidate, by cosine, the beam has not chosen too.

    Nearest within the pool [P, D], so that no threshold is needed: in some embeddings all cosines are close to 1.
    Beams [B, K] hold places in the pool. A pool of one candidate has nothing to copy: 1.
    """
    unit = normalize(pool, dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(-1)
    copied = (nearest[beams][..., None] == beams[:, None]).any(-1) & (nearest[beams] != beams)
    return 1 - copied.to(pool.dtype).mean(-1)


def combined_reward(
    qualities: torch.Tensor,
    success: torch.Tensor,
    diversities: torch.Tensor,
    weights: tuple[float, float, float],
) -> torch.Tensor:
    """Sum of quality, success and diversity [Q, B], all between 0 and 1, weighted by `weights` in that order [Q, B]."""
    return weights[0] * qualities + weights[1] * success + weights[2] * diversities


def hopeless(scores: torch.Tensor, success: torch.Tensor, mask: torch.Tensor, low_score: float) -> torch.Tensor:
    """Queries [Q] with no success [Q, B] whose best score is below the `low_score` quantile of all queries' best."""
    best = _ends(scores, mask)[1][:, 0]
    wrong = ~((success > 0) & mask).any(1)
    return wrong & (best < best.quantile(low_score))


def advantages(rewards: torch.Tensor, limit: float, mask: torch.Tensor) -> torch.Tensor:
    """Z-scores [Q, B] of rewards within their query, no further from 0 than `limit`; 0 where all are equal.

    No z-score of B values lies beyond sqrt(B - 1), so a limit of 5 touches only groups of more than 26.
    """
    return standardised(rewards, mask).clamp(-limit, limit)


def policy_loss(log_ratio: torch.Tensor, advantage: torch.Tensor, clip: float, mask: torch.Tensor) -> torch.Tensor:
    """-E[min(r A, clip(r, 1 - clip, 1 + clip) A)], the mean over beams of PPO's clipped surrogate (arXiv:1707.06347).

    r = exp(log_ratio) is a ratio of probabilities of *whole sequences* [Q, B]: a product over K steps. A shift of each
    step's log-probability by d moves log r by K d, so the clip holds a longer sequence back sooner than a shorter one:
    with four steps and clip 0.2, from about 5 % a step.
    """
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -_mean(gain, mask)


def clipped_share(log_ratio: torch.Tensor, advantage: torch.Tensor, clip: float, mask: torch.Tensor) -> torch.Tensor:
    """Share of beams [Q, B] that the clip takes out of `policy_loss`: what they call for has been done already."""
    ratio = log_ratio.exp()
    clipped = ((advantage > 0) & (ratio > 1 + clip)) | ((advantage < 0) & (ratio < 1 - clip))
    return _mean(clipped.to(ratio.dtype), mask)


def kl_estimate(log_ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of r - 1 - log r over beams [Q, B], r = exp(log_ratio) = pi / pi_sft: estimates KL(pi_sft || pi).

    For beams drawn from pi_sft, E[r] = 1, so that the mean is E[-log r] = E[log pi_sft - log pi]: the divergence of
    pi *from* pi_sft, which weighs what the reference would choose. (The estimator k3 of Schulman, "Approximating KL
    divergence", 2020; with samples of pi it would estimate KL(pi || pi_sft) only if r were pi_sft / pi.) The beams here
    come from a search and not from pi_sft, so it is a penalty that is never negative and zero only where no beam's
    probability has moved, rather than an unbiased estimate.
    """
    return _mean(torch.expm1(log_ratio) - log_ratio, mask)


def adapted_beta(
    beta: float, kl: float, target: tuple[float, float], factor: float, bounds: tuple[float, float]
) -> float:
    """Weight of the KL term after a step: times `factor` above the target range, over `factor` below, within bounds.

    A weight of 0 stays 0: it switches the term off.
    """
    if beta == 0:
        return 0.0
    changed = beta * factor if kl > target[1] else beta / factor if kl < target[0] else beta
    return min(max(changed, bounds[0]), bounds[1])


def learning_rate(step: int, steps: int, peak: float, warmup_ratio: float) -> float:
    """Learning rate of a step, counted from 0: up to `peak` in a straight line, then down to 0 as a cosine."""
    warmup = math.ceil(warmup_ratio * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def _ends(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest of each query's values, [Q, 1] each."""
    low = values.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    high = values.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    return low, high


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)

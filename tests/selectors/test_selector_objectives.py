"""Losses, rewards and schedules of the selector's training, compared with closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planward.selectors import objectives
from planward.selectors.config import SelectorSftConfig

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
GROUP = st.lists(FINITE, min_size=1, max_size=6)


def build_row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def full_mask(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def pad(values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The values followed by padding of extreme values, and the mask."""
    row = torch.tensor([[*values, 1e9, -1e9]], dtype=torch.float64)
    return row, torch.tensor([[True] * len(values) + [False] * 2])


def test_z_scores() -> None:
    torch.testing.assert_close(
        objectives.compute_z_scores(build_row(1, 2, 3), full_mask(build_row(1, 2, 3))),
        build_row(-(1.5**0.5), 0, 1.5**0.5),
    )


def test_z_scores_do_not_depend_on_scale() -> None:
    scores = build_row(0.046, 0.045, 0.037, 0.031, 0.02)
    for factor in (1e-7, 1e-300, 1e100):
        z_scores = objectives.compute_z_scores(scores * factor, full_mask(scores))
        torch.testing.assert_close(z_scores, objectives.compute_z_scores(scores, full_mask(scores)))


@given(GROUP)
def test_z_scores_have_mean_0_and_deviation_1_or_are_all_0(values: list[float]) -> None:
    scores, mask = pad(values)
    z_scores = objectives.compute_z_scores(scores, mask)[mask]
    assert abs(float(z_scores.mean())) < 1e-6
    equal = bool(objectives.are_equal(scores, mask))
    assert float(z_scores.square().mean()) == pytest.approx(0.0 if equal else 1.0)


@given(st.floats(0.01, 10), GROUP)
def test_weights_sum_to_1_and_padding_has_none(temperature: float, values: list[float]) -> None:
    scores, mask = pad(values)
    weights = objectives.compute_softmax_weights(scores, temperature, mask)
    assert float(weights.sum()) == pytest.approx(1)
    assert bool((weights[~mask] == 0).all())
    assert torch.equal(objectives.compute_even_weights(mask)[mask], torch.full((len(values),), 1 / len(values)))


def test_lower_temperature_sharpens_the_weights() -> None:
    scores = build_row(3, 1)
    for temperature in (2.0, 0.5):
        z = 1 / temperature
        first = math.exp(z) / (math.exp(z) + math.exp(-z))
        torch.testing.assert_close(
            objectives.compute_softmax_weights(scores, temperature, full_mask(scores)), build_row(first, 1 - first)
        )


@given(FINITE, st.integers(1, 6))
def test_equal_scores_get_equal_values_without_nan(value: float, count: int) -> None:
    scores, mask = pad([value] * count)
    assert torch.equal(objectives.compute_z_scores(scores, mask)[mask], torch.zeros(count, dtype=torch.float64))
    assert torch.equal(objectives.compute_quality(scores, mask)[mask], torch.full((count,), 0.5, dtype=torch.float64))
    assert torch.equal(objectives.compute_advantages(scores, 5.0, mask)[mask], torch.zeros(count, dtype=torch.float64))
    torch.testing.assert_close(
        objectives.compute_softmax_weights(scores, 0.5, mask)[mask], torch.full((count,), 1 / count).double()
    )


def test_the_temperature_falls_linearly() -> None:
    assert [objectives.compute_temperature(progress, (2.0, 0.5)) for progress in (0, 0.5, 1)] == [2.0, 1.25, 0.5]


def build_log_probs(*logits: float) -> torch.Tensor:
    """One query, one beam, one step."""
    return torch.tensor(logits, dtype=torch.float64)[None, None, None].log_softmax(-1)


def build_config(smoothing: float, pool: float = 0.0, temperature: float = 1.0) -> SelectorSftConfig:
    return SelectorSftConfig(
        epochs=1, learning_rate=1, patience=1, label_smoothing=smoothing, pool_weight=pool, pool_temperature=temperature
    )


def test_label_smoothing_is_over_available_candidates_only() -> None:
    log_probs = build_log_probs(math.log(0.6), math.log(0.3), -math.inf, math.log(0.1))
    expected = -(0.9 * math.log(0.3) + 0.1 * (math.log(0.6) + math.log(0.3) + math.log(0.1)) / 3)
    unknown = torch.full((1, 4), torch.nan)
    soft_labels = objectives.compute_soft_labels(log_probs, unknown, build_config(0.1, 0.5))
    loss = objectives.compute_cross_entropy(log_probs, torch.tensor([[[1]]]), soft_labels)
    assert float(loss) == pytest.approx(expected)


def test_soft_labels_follow_the_candidates_own_scores() -> None:
    log_probs = build_log_probs(0, 0, -math.inf, 0, 0)
    pool_scores = torch.tensor([[2.0, 0.0, 9.0, -math.inf, -12.0]], dtype=torch.float64)
    soft_labels = objectives.compute_soft_labels(log_probs, pool_scores, build_config(0.1, 0.6, 2.0))[0, 0, 0]
    total = math.exp(1) + 1 + math.exp(-6)
    shares = [math.exp(1) / total, 1 / total, 0, 0, math.exp(-6) / total]
    smoothing_shares = [0.025, 0.025, 0, 0.025, 0.025]
    expected = [0.6 * share + smoothing for share, smoothing in zip(shares, smoothing_shares, strict=True)]
    assert soft_labels.tolist() == pytest.approx(expected)


@given(
    st.lists(st.floats(-50, 50) | st.just(-math.inf), min_size=2, max_size=6),
    st.floats(0, 0.4),
    st.floats(0, 0.5),
    st.floats(0.1, 10),
)
def test_soft_labels_sum_to_their_share(scores: list[float], smoothing: float, pool: float, temperature: float) -> None:
    logits = torch.randn(1, 2, 3, len(scores), dtype=torch.float64)
    logits[..., 0] = -math.inf
    pool_scores = torch.tensor([scores], dtype=torch.float64)
    config = build_config(smoothing, pool, temperature)
    soft_labels = objectives.compute_soft_labels(logits.log_softmax(-1), pool_scores, config)
    assert torch.allclose(soft_labels.sum(-1), torch.tensor(smoothing + pool, dtype=torch.float64))
    assert bool((soft_labels[..., 0] == 0).all())
    assert bool((soft_labels >= 0).all())


def test_cross_entropy_is_the_mean_over_the_steps() -> None:
    log_probs = torch.cat([build_log_probs(0, 1), build_log_probs(2, 0)], dim=2)
    loss = objectives.compute_cross_entropy(log_probs, torch.tensor([[[0, 1]]]))
    assert float(loss) == pytest.approx(-float(log_probs[0, 0, 0, 0] + log_probs[0, 0, 1, 1]) / 2)


def test_masked_candidates_get_no_gradient_and_no_nan() -> None:
    logits = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64, requires_grad=True)
    masked_logits = logits.masked_fill(torch.tensor([False, True, False]), -math.inf)
    log_probs = masked_logits.log_softmax(-1)[None, None, None]
    soft_labels = objectives.compute_soft_labels(log_probs, torch.tensor([[0.0, 1.0, 0.0]]), build_config(0.1, 0.1))
    objectives.compute_cross_entropy(log_probs, torch.tensor([[[0]]]), soft_labels).sum().backward()
    assert logits.grad is not None
    assert logits.grad[1] == 0
    assert bool(logits.grad.isfinite().all())
    assert logits.grad[0] < 0 < logits.grad[2]


def test_rce_is_the_weighted_sum_over_beams_and_the_mean_over_queries() -> None:
    losses, weights = torch.tensor([[1.0, 3.0], [2.0, 5.0]]), torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    assert float(objectives.compute_rce_loss(losses, weights)) == pytest.approx((1.5 + 2.0) / 2)


def compute_gradient(loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient of a loss of a two-armed policy with respect to its logits, checked by finite differences."""
    logits = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x.log_softmax(-1)), logits)
    (gradient,) = torch.autograd.grad(loss(logits.log_softmax(-1)), logits)
    return gradient


def test_rce_favours_the_better_of_two_arms() -> None:
    scores = build_row(2, 1)

    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        arms = torch.tensor([[[0], [1]]])
        losses = objectives.compute_cross_entropy(log_probs.expand(1, 2, 1, 2), arms)
        return objectives.compute_rce_loss(losses, objectives.compute_softmax_weights(scores, 0.5, full_mask(scores)))

    gradient = compute_gradient(loss)
    assert gradient[0] < 0 < gradient[1]  # descent raises the first arm


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_policy_gradient_favours_the_better_of_two_arms(beta: float) -> None:
    rewards, start = build_row(1, 0), torch.tensor([0.3, 0.0], dtype=torch.float64).log_softmax(-1)
    mask = full_mask(rewards)

    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        log_ratio = (log_probs - start)[None]
        gain = objectives.compute_policy_loss(log_ratio, objectives.compute_advantages(rewards, 5.0, mask), 0.2, mask)
        return gain + beta * objectives.estimate_kl(log_ratio, mask)

    gradient = compute_gradient(loss)
    assert gradient[0] < 0 < gradient[1]


def test_the_kl_term_pulls_back_to_the_reference() -> None:
    start = torch.tensor([0.0, 0.0], dtype=torch.float64).log_softmax(-1)  # the policy has moved to the first arm
    gradient = compute_gradient(
        lambda log_probs: objectives.estimate_kl((log_probs - start)[None], full_mask(start[None]))
    )
    assert gradient[0] > 0 > gradient[1]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "has_gradient"),
    [
        (1.1, 2.0, 2.2, True),
        (1.5, 2.0, 2.4, False),  # raised enough
        (0.5, 2.0, 1.0, True),  # wrongly lowered: not clipped, so it can recover
        (0.5, -2.0, -1.6, False),  # lowered enough
        (1.5, -2.0, -3.0, True),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_of_its_advantage(
    ratio: float, advantage: float, gain: float, has_gradient: bool
) -> None:
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss = objectives.compute_policy_loss(log_ratio, build_row(advantage), 0.2, full_mask(build_row(0)))
    loss.backward()
    assert loss.item() == pytest.approx(-gain)
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).item() == has_gradient
    assert objectives.compute_clipped_share(log_ratio, build_row(advantage), 0.2, full_mask(build_row(0))).item() == (
        not has_gradient
    )


def test_the_clip_applies_to_whole_sequences() -> None:
    steps = torch.full((1, 1, 4), math.log(1.06), dtype=torch.float64)  # each within 1.2, the product beyond it
    share = objectives.compute_clipped_share(steps.sum(-1), build_row(1.0), 0.2, full_mask(build_row(0)))
    assert share.item() == 1


def test_padding_affects_neither_loss_nor_kl() -> None:
    log_ratio, mask = torch.tensor([[0.1, -0.2, 80.0]]), torch.tensor([[True, True, False]])
    advantage = torch.tensor([[1.0, -1.0, 5.0]])
    for compute in (
        lambda part: objectives.compute_policy_loss(log_ratio[:, part], advantage[:, part], 0.2, mask[:, part]),
        lambda part: objectives.compute_clipped_share(log_ratio[:, part], advantage[:, part], 0.2, mask[:, part]),
        lambda part: objectives.estimate_kl(log_ratio[:, part], mask[:, part]),
    ):
        torch.testing.assert_close(compute(slice(None)), compute(slice(2)))


def test_a_batch_of_padding_only_gives_zeros() -> None:
    mask = torch.zeros(1, 3, dtype=torch.bool)
    assert objectives.compute_policy_loss(torch.ones(1, 3), torch.ones(1, 3), 0.2, mask) == 0
    assert objectives.estimate_kl(torch.ones(1, 3), mask) == 0
    assert torch.equal(objectives.compute_advantages(torch.ones(1, 3), 5.0, mask), torch.zeros(1, 3))


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_the_kl_estimate_is_of_the_divergence_from_the_reference_to_the_policy(
    reference: list[float], policy: list[float]
) -> None:
    """Its expectation under the reference, summed over all outcomes, is KL(pi_sft || pi)."""
    old, new = (torch.tensor(logits, dtype=torch.float64).log_softmax(-1) for logits in (reference, policy))
    terms = torch.stack([objectives.estimate_kl(part.view(1, 1), full_mask(part.view(1, 1))) for part in new - old])
    torch.testing.assert_close((old.exp() * terms).sum(), (old.exp() * (old - new)).sum())


@given(GROUP, st.floats(0.1, 5))
def test_advantages_stay_within_their_limit(values: list[float], limit: float) -> None:
    rewards, mask = pad(values)
    advantages = objectives.compute_advantages(rewards, limit, mask)
    assert float(advantages.abs().max()) <= limit
    assert bool((advantages[~mask] == 0).all())
    assert bool((advantages[mask][rewards[mask].argsort()].diff() >= 0).all())


def test_rewards_are_weighted_sums() -> None:
    scores, success = build_row(0.2, 0.1, 0.0), build_row(0, 1, 0)
    qualities = objectives.compute_quality(scores, full_mask(scores))
    torch.testing.assert_close(qualities, build_row(1, 0.5, 0))
    rewards = objectives.combine_rewards(qualities, success, build_row(1, 0, 0.5), (0.5, 1.0, 0.2))
    torch.testing.assert_close(rewards, build_row(0.7, 1.25, 0.1))


def test_an_example_together_with_its_nearest_neighbour_adds_no_diversity() -> None:
    pool = torch.tensor([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0], [0.1, 0.9], [-1.0, 0.2], [-1.0, 0.3]])
    beams = torch.tensor([[0, 1, 4], [0, 2, 4], [0, 1, 2]])
    torch.testing.assert_close(objectives.compute_diversity(pool, beams), torch.tensor([1 / 3, 1.0, 1 / 3]))
    assert objectives.compute_diversity(pool[:1], torch.tensor([[0]])) == 1


def test_queries_without_success_and_with_low_scores_are_failures() -> None:
    scores = torch.tensor([[4.0, 3.0], [1.0, 0.5], [1.5, 0.0], [8.0, 0.0], [-1.0, 99.0]])
    success = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    mask = torch.tensor([[True, True]] * 4 + [[True, False]])
    assert objectives.find_failures(scores, success, mask, 0.5).tolist() == [False, True, False, False, True]
    assert not bool(objectives.find_failures(scores, success, mask, 0.0).any())


def test_beta_follows_the_kl_within_bounds() -> None:
    def adapt(beta: float, kl: float) -> float:
        return objectives.adapt_beta(beta, kl, (0.01, 0.1), 1.5, (0.001, 1.0))

    assert adapt(0.1, 0.2) == pytest.approx(0.15)
    assert adapt(0.15, 0.005) == pytest.approx(0.1)
    assert adapt(0.1, 0.05) == 0.1
    assert adapt(0.9, 5.0) == 1.0
    assert adapt(0.0012, 0.0) == 0.001
    assert adapt(0.0, 5.0) == 0.0


def test_the_learning_rate_warms_up_and_decays_as_a_cosine() -> None:
    rates = [objectives.compute_learning_rate(step, 20, 1.0, 0.1) for step in range(20)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[11] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.02
    assert sorted(set(rates[2:]), reverse=True) == rates[2:]
    assert objectives.compute_learning_rate(0, 10, 3.0, 0.0) == 3.0
    assert objectives.compute_learning_rate(9, 10, 3.0, 1.0) == 3.0

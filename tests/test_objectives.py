"""Losses, rewards and schedules of the selector, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planward.demonstrations import objectives
from planward.params import SelectorSft

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
GROUP = st.lists(FINITE, min_size=1, max_size=6)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def every(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def padded(values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The values with something senseless behind them, and the mask that says so."""
    filled = torch.tensor([[*values, 1e9, -1e9]], dtype=torch.float64)
    return filled, torch.tensor([[True] * len(values) + [False] * 2])


def test_z_scores_by_hand() -> None:
    torch.testing.assert_close(
        objectives.standardised(row(1, 2, 3), every(row(1, 2, 3))), row(-(1.5**0.5), 0, 1.5**0.5)
    )


def test_scores_of_any_size_have_the_same_z_scores() -> None:
    scores = row(0.046, 0.045, 0.037, 0.031, 0.02)
    for factor in (1e-7, 1e-300, 1e100):
        tiny = objectives.standardised(scores * factor, every(scores))
        torch.testing.assert_close(tiny, objectives.standardised(scores, every(scores)))


@given(GROUP)
def test_z_scores_have_mean_0_and_deviation_1_or_are_all_0(values: list[float]) -> None:
    scores, mask = padded(values)
    found = objectives.standardised(scores, mask)[mask]
    assert abs(float(found.mean())) < 1e-6
    flat = bool(objectives.level(scores, mask))
    assert float(found.square().mean()) == pytest.approx(0.0 if flat else 1.0)


@given(st.floats(0.01, 10), GROUP)
def test_weights_sum_to_1_and_padding_has_none(temperature: float, values: list[float]) -> None:
    scores, mask = padded(values)
    weights = objectives.softmax_weights(scores, temperature, mask)
    assert float(weights.sum()) == pytest.approx(1)
    assert bool((weights[~mask] == 0).all())
    assert torch.equal(objectives.even_weights(mask)[mask], torch.full((len(values),), 1 / len(values)))


def test_weights_by_hand_grow_sharper_as_it_gets_colder() -> None:
    scores = row(3, 1)
    for temperature in (2.0, 0.5):
        z = 1 / temperature
        first = math.exp(z) / (math.exp(z) + math.exp(-z))
        torch.testing.assert_close(
            objectives.softmax_weights(scores, temperature, every(scores)), row(first, 1 - first)
        )


@given(FINITE, st.integers(1, 6))
def test_equal_scores_are_treated_alike_without_nan(value: float, count: int) -> None:
    scores, mask = padded([value] * count)
    assert torch.equal(objectives.standardised(scores, mask)[mask], torch.zeros(count, dtype=torch.float64))
    assert torch.equal(objectives.quality(scores, mask)[mask], torch.full((count,), 0.5, dtype=torch.float64))
    assert torch.equal(objectives.advantages(scores, 5.0, mask)[mask], torch.zeros(count, dtype=torch.float64))
    torch.testing.assert_close(
        objectives.softmax_weights(scores, 0.5, mask)[mask], torch.full((count,), 1 / count).double()
    )


def test_the_temperature_falls_in_a_straight_line() -> None:
    assert [objectives.temperature(progress, (2.0, 0.5)) for progress in (0, 0.5, 1)] == [2.0, 1.25, 0.5]


def log_probs(*logits: float) -> torch.Tensor:
    """One query, one beam, one step."""
    return torch.tensor(logits, dtype=torch.float64)[None, None, None].log_softmax(-1)


def softness(even: float, pool: float = 0.0, temperature: float = 1.0) -> SelectorSft:
    return SelectorSft(
        epochs=1, learning_rate=1, patience=1, label_smoothing=even, pool_weight=pool, pool_temperature=temperature
    )


def test_cross_entropy_smooths_over_what_can_be_chosen_only() -> None:
    found = log_probs(math.log(0.6), math.log(0.3), -math.inf, math.log(0.1))
    expected = -(0.9 * math.log(0.3) + 0.1 * (math.log(0.6) + math.log(0.3) + math.log(0.1)) / 3)
    soft = objectives.soft_labels(found, torch.full((1, 4), torch.nan), softness(0.1, 0.5))  # scores are unknown
    loss = objectives.cross_entropy(found, torch.tensor([[[1]]]), soft)
    assert float(loss) == pytest.approx(expected)


def test_labels_go_to_candidates_by_what_each_helps_by_itself() -> None:
    found = log_probs(0, 0, -math.inf, 0, 0)
    alone = torch.tensor([[2.0, 0.0, 9.0, -math.inf, -12.0]], dtype=torch.float64)
    soft = objectives.soft_labels(found, alone, softness(0.1, 0.6, 2.0))[0, 0, 0]
    total = math.exp(1) + 1 + math.exp(-6)
    shares = [math.exp(1) / total, 1 / total, 0, 0, math.exp(-6) / total]
    even = [0.025, 0.025, 0, 0.025, 0.025]
    assert soft.tolist() == pytest.approx([0.6 * share + own for share, own in zip(shares, even, strict=True)])


@given(
    st.lists(st.floats(-50, 50) | st.just(-math.inf), min_size=2, max_size=6),
    st.floats(0, 0.4),
    st.floats(0, 0.5),
    st.floats(0.1, 10),
)
def test_soft_labels_leave_the_beams_their_share(
    scores: list[float], even: float, pool: float, temperature: float
) -> None:
    logits = torch.randn(1, 2, 3, len(scores), dtype=torch.float64)
    logits[..., 0] = -math.inf
    alone = torch.tensor([scores], dtype=torch.float64)
    soft = objectives.soft_labels(logits.log_softmax(-1), alone, softness(even, pool, temperature))
    assert torch.allclose(soft.sum(-1), torch.tensor(even + pool, dtype=torch.float64))
    assert bool((soft[..., 0] == 0).all())
    assert bool((soft >= 0).all())


def test_cross_entropy_is_the_mean_over_the_steps() -> None:
    both = torch.cat([log_probs(0, 1), log_probs(2, 0)], dim=2)
    loss = objectives.cross_entropy(both, torch.tensor([[[0, 1]]]))
    assert float(loss) == pytest.approx(-float(both[0, 0, 0, 0] + both[0, 0, 1, 1]) / 2)


def test_masked_candidates_get_no_gradient_and_make_no_nan() -> None:
    logits = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64, requires_grad=True)
    masked = logits.masked_fill(torch.tensor([False, True, False]), -math.inf)
    found = masked.log_softmax(-1)[None, None, None]
    soft = objectives.soft_labels(found, torch.tensor([[0.0, 1.0, 0.0]]), softness(0.1, 0.1))
    objectives.cross_entropy(found, torch.tensor([[[0]]]), soft).sum().backward()
    assert logits.grad is not None
    assert logits.grad[1] == 0
    assert bool(logits.grad.isfinite().all())
    assert logits.grad[0] < 0 < logits.grad[2]


def test_rce_is_the_weighted_sum_over_beams_and_the_mean_over_queries() -> None:
    losses, weights = torch.tensor([[1.0, 3.0], [2.0, 5.0]]), torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    assert float(objectives.rce_loss(losses, weights)) == pytest.approx((1.5 + 2.0) / 2)


def slope(loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient of a loss of a two-armed policy's log-probabilities by its logits, checked by differences."""
    logits = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x.log_softmax(-1)), logits)
    (gradient,) = torch.autograd.grad(loss(logits.log_softmax(-1)), logits)
    return gradient


def test_rce_moves_towards_the_better_of_two_arms() -> None:
    scores = row(2, 1)

    def loss(found: torch.Tensor) -> torch.Tensor:
        arms = torch.tensor([[[0], [1]]])
        losses = objectives.cross_entropy(found.expand(1, 2, 1, 2), arms)
        return objectives.rce_loss(losses, objectives.softmax_weights(scores, 0.5, every(scores)))

    gradient = slope(loss)
    assert gradient[0] < 0 < gradient[1]  # descent raises the first arm


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_policy_gradient_moves_towards_the_better_of_two_arms(beta: float) -> None:
    rewards, start = row(1, 0), torch.tensor([0.3, 0.0], dtype=torch.float64).log_softmax(-1)
    mask = every(rewards)

    def loss(found: torch.Tensor) -> torch.Tensor:
        log_ratio = (found - start)[None]
        gain = objectives.policy_loss(log_ratio, objectives.advantages(rewards, 5.0, mask), 0.2, mask)
        return gain + beta * objectives.kl_estimate(log_ratio, mask)

    gradient = slope(loss)
    assert gradient[0] < 0 < gradient[1]


def test_the_kl_term_pulls_back_to_the_reference() -> None:
    start = torch.tensor([0.0, 0.0], dtype=torch.float64).log_softmax(-1)  # the policy has moved to the first arm
    gradient = slope(lambda found: objectives.kl_estimate((found - start)[None], every(start[None])))
    assert gradient[0] > 0 > gradient[1]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "moves"),
    [
        (1.1, 2.0, 2.2, True),
        (1.5, 2.0, 2.4, False),  # raised enough
        (0.5, 2.0, 1.0, True),  # wrongly lowered: nothing holds it from coming back
        (0.5, -2.0, -1.6, False),  # lowered enough
        (1.5, -2.0, -3.0, True),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_of_its_advantage(
    ratio: float, advantage: float, gain: float, moves: bool
) -> None:
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss = objectives.policy_loss(log_ratio, row(advantage), 0.2, every(row(0)))
    loss.backward()
    assert loss.item() == pytest.approx(-gain)
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).item() == moves
    assert objectives.clipped_share(log_ratio, row(advantage), 0.2, every(row(0))).item() == (not moves)


def test_the_clip_is_of_whole_sequences() -> None:
    a_step = torch.full((1, 1, 4), math.log(1.06), dtype=torch.float64)  # inside 1.2 each, beyond it together
    share = objectives.clipped_share(a_step.sum(-1), row(1.0), 0.2, every(row(0)))
    assert share.item() == 1


def test_padding_counts_for_neither_loss_nor_kl() -> None:
    log_ratio, mask = torch.tensor([[0.1, -0.2, 80.0]]), torch.tensor([[True, True, False]])
    advantage = torch.tensor([[1.0, -1.0, 5.0]])
    for found in (
        lambda part: objectives.policy_loss(log_ratio[:, part], advantage[:, part], 0.2, mask[:, part]),
        lambda part: objectives.clipped_share(log_ratio[:, part], advantage[:, part], 0.2, mask[:, part]),
        lambda part: objectives.kl_estimate(log_ratio[:, part], mask[:, part]),
    ):
        torch.testing.assert_close(found(slice(None)), found(slice(2)))


def test_a_batch_of_padding_alone_makes_zeros() -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert objectives.policy_loss(torch.ones(1, 3), torch.ones(1, 3), 0.2, nothing) == 0
    assert objectives.kl_estimate(torch.ones(1, 3), nothing) == 0
    assert torch.equal(objectives.advantages(torch.ones(1, 3), 5.0, nothing), torch.zeros(1, 3))


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_the_estimate_is_of_the_divergence_from_the_reference_to_the_policy(
    reference: list[float], policy: list[float]
) -> None:
    """Its expectation under the reference, summed over all outcomes, is KL(pi_sft || pi)."""
    old, new = (torch.tensor(logits, dtype=torch.float64).log_softmax(-1) for logits in (reference, policy))
    terms = torch.stack([objectives.kl_estimate(part.view(1, 1), every(part.view(1, 1))) for part in new - old])
    torch.testing.assert_close((old.exp() * terms).sum(), (old.exp() * (old - new)).sum())


@given(GROUP, st.floats(0.1, 5))
def test_advantages_stay_within_their_limit(values: list[float], limit: float) -> None:
    rewards, mask = padded(values)
    found = objectives.advantages(rewards, limit, mask)
    assert float(found.abs().max()) <= limit
    assert bool((found[~mask] == 0).all())
    assert bool((found[mask][rewards[mask].argsort()].diff() >= 0).all())


def test_rewards_by_hand() -> None:
    scores, success = row(0.2, 0.1, 0.0), row(0, 1, 0)
    qualities = objectives.quality(scores, every(scores))
    torch.testing.assert_close(qualities, row(1, 0.5, 0))
    found = objectives.combined_reward(qualities, success, row(1, 0, 0.5), (0.5, 1.0, 0.2))
    torch.testing.assert_close(found, row(0.7, 1.25, 0.1))


def test_an_example_beside_its_nearest_candidate_adds_no_diversity() -> None:
    pool = torch.tensor([[1.0, 0.0], [0.99, 0.1], [0.0, 1.0], [0.1, 0.9], [-1.0, 0.2], [-1.0, 0.3]])
    beams = torch.tensor([[0, 1, 4], [0, 2, 4], [0, 1, 2]])
    torch.testing.assert_close(objectives.diversity(pool, beams), torch.tensor([1 / 3, 1.0, 1 / 3]))
    assert objectives.diversity(pool[:1], torch.tensor([[0]])) == 1


def test_groups_all_wrong_with_low_scores_are_hopeless() -> None:
    scores = torch.tensor([[4.0, 3.0], [1.0, 0.5], [1.5, 0.0], [8.0, 0.0], [-1.0, 99.0]])
    success = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    mask = torch.tensor([[True, True]] * 4 + [[True, False]])
    assert objectives.hopeless(scores, success, mask, 0.5).tolist() == [False, True, False, False, True]
    assert not bool(objectives.hopeless(scores, success, mask, 0.0).any())


def test_beta_follows_the_kl_within_bounds() -> None:
    def beta(before: float, kl: float) -> float:
        return objectives.adapted_beta(before, kl, (0.01, 0.1), 1.5, (0.001, 1.0))

    assert beta(0.1, 0.2) == pytest.approx(0.15)
    assert beta(0.15, 0.005) == pytest.approx(0.1)
    assert beta(0.1, 0.05) == 0.1
    assert beta(0.9, 5.0) == 1.0
    assert beta(0.0012, 0.0) == 0.001
    assert beta(0.0, 5.0) == 0.0


def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    rates = [objectives.learning_rate(step, 20, 1.0, 0.1) for step in range(20)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[11] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.02
    assert sorted(set(rates[2:]), reverse=True) == rates[2:]
    assert objectives.learning_rate(0, 10, 3.0, 0.0) == 3.0
    assert objectives.learning_rate(9, 10, 3.0, 1.0) == 3.0

"""Data for models/economy, the adapter that teaches models/base the words of the economy.

It imitates simulated households, whose decisions are good or poor: good ones are left for SFT and GRPO to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from planward.core.adapters import AdapterSources
from planward.params import Section, validate_section
from planward.tasks.economy.environment.config import EconomyConfig, EconomyParams
from planward.tasks.economy.environment.decisions import Decision, InvalidDecision, format_decision, parse_decision
from planward.tasks.economy.environment.prompt import list_vocabulary, render_compact_state
from planward.tasks.economy.environment.simulator import simulate_economy
from planward.tasks.economy.environment.states import State

MAX_COMPLETION_TOKENS = 12


class PopulationConfig(Section):
    """The economy's own keys of section `economy` in models/params.yaml."""

    households: int = Field(gt=0)
    months: int = Field(gt=0)


def build_adapter_sources(params: EconomyParams, seed: int, options: Mapping[str, Any]) -> AdapterSources:
    """Simulate two economies, one to train on and one to measure on.

    Args:
        seed: of the first, plus one of the second; not the seed of params.yaml, which the problems come from.
        options: the keys of `PopulationConfig`.
    """
    population = validate_section(PopulationConfig, options, "models/params.yaml, section economy")
    simulator = params.economy.simulator.model_copy(update=population.model_dump())
    economy = params.economy.model_copy(update={"simulator": simulator})
    training, held_out = (
        [
            [(render_compact_state(state), format_decision(decision)) for state, decision in household]
            for household in simulate_households(economy, economy_seed, progress=True)
        ]
        for economy_seed in (seed, seed + 1)
    )
    return AdapterSources(training, held_out, list_vocabulary(), MAX_COMPLETION_TOKENS, compute_distances)


def simulate_households(
    economy: EconomyConfig, seed: int, progress: bool = False
) -> list[list[tuple[State, Decision]]]:
    """Simulate an economy; returns the states and decisions of each household, month by month."""
    panel = simulate_economy(economy, seed, progress)
    households = []
    for household in range(panel.work.shape[1]):
        shares = zip(panel.work[:, household].tolist(), panel.consumption[:, household].tolist(), strict=True)
        decisions = [Decision(*pair) for pair in shares]
        households.append(list(zip(panel.states[:, household].to_list(), decisions, strict=True)))
    return households


def compute_distances(completion: str, reference: str) -> dict[str, float] | None:
    """Absolute differences of a completion's decision from the reference's; None where it is no decision."""
    expected = parse_decision(reference)
    try:
        decision = parse_decision(completion)
    except InvalidDecision:
        return None
    return {
        "work_distance": abs(expected.work - decision.work),
        "consumption_distance": abs(expected.consumption - decision.consumption),
    }

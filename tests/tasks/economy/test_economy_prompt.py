"""Prompts of the economy, and the vocabulary of the tiny model for them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.prompt_templates import PromptTemplate
from planward.core.prompts import END
from planward.core.tasks import Messages
from planward.tasks.economy.environment.config import EconomyParams, TaxConfig
from planward.tasks.economy.environment.decisions import Decision, format_decision, parse_decision
from planward.tasks.economy.environment.prompt import (
    LEVELS,
    SCALES,
    Scale,
    SolvedStateVariables,
    StateVariables,
    list_vocabulary,
    render_compact_prompt,
)
from planward.tasks.economy.environment.simulator import simulate_economy
from planward.tasks.economy.environment.states import State
from planward.tasks.economy.task import TEMPLATE

STATE = State(
    employed=True, age=40, wage=3000, income=1800, wealth=9000, disposable=2100, bracket=2, price=1.25, inflation=0.02,
    interest=0.03, unemployment=0.08, transfer=600, consumption=2000,
)  # fmt: skip
PERCENTS = st.integers(0, 100)


def render_full_prompt(examples: Sequence[tuple[State, str]], tax: TaxConfig) -> Messages:
    shots = [SolvedStateVariables(state, tax, "", decision) for state, decision in examples]
    return PromptTemplate(TEMPLATE).render(StateVariables(STATE, tax, ""), shots)


def split_words(text: str) -> list[str]:
    """Split a text like the base model's pre-tokenizer."""
    return re.findall(r"\([^()]*\)|[^\s()]+", text.lower())


@pytest.fixture(scope="module")
def states(shipped_economy: EconomyParams) -> Sequence[State]:
    panel = simulate_economy(shipped_economy.economy, 7)
    return [state for month in (0, 60, 119) for state in panel.states[month].to_list()]


def test_compact_prompts_have_one_word_per_feature() -> None:
    assert render_compact_prompt(STATE, []) == (
        "economy\n"
        "employed (age 12) (wage 14) (income 15) (wealth 17) (disposable 16) (bracket 2) (price 12) (inflation 13) "
        "(interest 6) (unemployment 8) (transfer 10) (consumption 16)\n"
        "decide\n"
    )


def test_worked_examples_come_before_the_state() -> None:
    other = replace(STATE, employed=False, wealth=0.0)
    answer = format_decision(Decision(0.35, 0.6))
    before, alone = render_compact_prompt(other, []), render_compact_prompt(STATE, [])
    assert render_compact_prompt(STATE, [(other, answer)]) == f"{before}{answer}\n{END}\n{alone}"


def test_the_vocabulary_has_every_word_of_prompts_and_completions(states: Sequence[State]) -> None:
    vocabulary = list_vocabulary()
    assert vocabulary == sorted(set(vocabulary))
    assert END not in vocabulary
    in_prompts = {word for state in states for word in split_words(render_compact_prompt(state, []))}
    in_completions = {w for p in range(101) for w in split_words(format_decision(Decision(p / 100, (100 - p) / 100)))}
    assert in_prompts | in_completions <= set(vocabulary)
    assert all(split_words(word) == [word] for word in vocabulary)
    assert {'{"work":', "0.35,", '"consumption":', "0.62}", "(wealth 31)", "employed", "unemployed"} <= set(vocabulary)


def test_a_tokenizer_with_this_vocabulary_encodes_prompts_and_decodes_decisions(states: Sequence[State]) -> None:
    from planward.pretraining.vocabulary import build_tokenizer

    tokenizer = build_tokenizer(list_vocabulary(), 1024)
    for percent, state in enumerate(states[:101]):
        decision = Decision(percent / 100, (100 - percent) / 100)
        prompt = render_compact_prompt(state, [(states[-1], format_decision(Decision(0.1, 0.9)))])
        ids = tokenizer(prompt)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert ids.count(tokenizer.eos_token_id) == 1
        answer = tokenizer(format_decision(decision))["input_ids"]
        assert len(answer) == 4
        assert parse_decision(tokenizer.decode(answer, skip_special_tokens=True)) == decision


@given(st.sampled_from(sorted(SCALES)), st.floats(0, 1e9), st.floats(0, 1e9))
def test_levels_increase_with_the_feature_and_stay_on_the_scale(feature: str, one: float, other: float) -> None:
    scale = SCALES[feature]
    low, high = sorted([one, other])
    assert 0 <= scale.compute_level(low) <= scale.compute_level(high) <= LEVELS - 1


def test_levels_are_even_steps() -> None:
    assert [Scale(0, 31).compute_level(value) for value in (-1, 0, 0.4, 0.6, 31, 99)] == [0, 0, 0, 1, 31, 31]
    ratio = (30_000 / 300) ** (1 / 31)
    assert [SCALES["wage"].compute_level(300 * ratio**step) for step in range(32)] == list(range(32))


def test_levels_of_amounts_are_real() -> None:
    doubled_state = replace(
        STATE, price=2.5, wage=6000, income=3600, wealth=18000, disposable=4200, transfer=1200, consumption=4000
    )
    once, twice = (split_words(render_compact_prompt(state, [])) for state in (STATE, doubled_state))
    assert [a for a, b in zip(once, twice, strict=True) if a != b] == ["(price 12)"]


def test_few_states_have_the_same_prompt(states: Sequence[State]) -> None:
    assert len({render_compact_prompt(state, []) for state in states}) > 0.99 * len(states)


@settings(max_examples=20)
@given(PERCENTS, PERCENTS)
def test_full_prompts_are_chat_messages(shipped_economy: EconomyParams, work: int, consumption: int) -> None:
    answer = format_decision(Decision(work / 100, consumption / 100))
    unemployed_state = replace(STATE, employed=False)
    messages = render_full_prompt([(unemployed_state, answer)], shipped_economy.economy.tax)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == answer
    assert "unemployed, with the offer of a job that pays 3,000 coins" in messages[1]["content"]


def test_full_prompts_are_word_for_word_those_before_templates(shipped_economy: EconomyParams) -> None:
    answer = format_decision(Decision(0.35, 0.6))
    messages = render_full_prompt([(replace(STATE, employed=False), answer)], shipped_economy.economy.tax)
    digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
    assert digest == "1f01ff9cb2a8529f79b1cf551364fde872447d56881ca158a81d2318e7ffa705"


def test_full_prompts_state_the_form_the_rules_and_the_state(shipped_economy: EconomyParams) -> None:
    system, user = (message["content"] for message in render_full_prompt([], shipped_economy.economy.tax))
    form = re.search(r"\{.*\}", system)
    assert form is not None
    assert parse_decision(form[0]) == Decision(0.35, 0.62)
    for rate in shipped_economy.economy.tax.rates:
        assert f"{rate:.0%} from" in system
    for text in ("40 years", "3,000 coins", "9,000 coins", "1,800 coins", "bracket 2", "+2.0%", "3.0%", "8.0%", "1.25"):
        assert text in user

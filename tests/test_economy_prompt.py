"""Prompts of the economy, and the tiny model's words for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.params import Params
from planward.tasks.economy.decisions import Decision, canonical, strict
from planward.tasks.economy.prompt import LEVELS, SCALES, Scale, compact_prompt, full_prompt, vocabulary
from planward.tasks.economy.simulator import simulated
from planward.tasks.economy.states import State
from planward.tasks.planning.prompt import END

STATE = State(
    employed=True, age=40, wage=3000, income=1800, wealth=9000, disposable=2100, bracket=2, price=1.25, inflation=0.02,
    interest=0.03, unemployment=0.08, transfer=600, consumption=2000,
)  # fmt: skip
PERCENTS = st.integers(0, 100)


def words(text: str) -> list[str]:
    """As the base model's pre-tokenizer cuts a text."""
    return re.findall(r"\([^()]*\)|[^\s()]+", text.lower())


@pytest.fixture(scope="module")
def told(shipped: Params) -> Sequence[State]:
    panel = simulated(shipped.economy, 7)
    return [state for month in (0, 60, 119) for state in panel.states[month].listed()]


def test_a_compact_prompt_has_a_word_a_feature() -> None:
    assert compact_prompt(STATE, []) == (
        "economy\n"
        "employed (age 12) (wage 14) (income 15) (wealth 17) (disposable 16) (bracket 2) (price 12) (inflation 13) "
        "(interest 6) (unemployment 8) (transfer 10) (consumption 16)\n"
        "decide\n"
    )


def test_worked_examples_stand_before_the_state_with_their_answers() -> None:
    other = replace(STATE, employed=False, wealth=0.0)
    answer = canonical(Decision(0.35, 0.6))
    alone = compact_prompt(STATE, [])
    assert compact_prompt(STATE, [(other, answer)]) == f"{compact_prompt(other, [])}{answer}\n{END}\n{alone}"


def test_the_vocabulary_holds_every_word_of_prompts_and_answers(told: Sequence[State]) -> None:
    known = vocabulary()
    assert known == sorted(set(known))
    assert END not in known
    written = {word for state in told for word in words(compact_prompt(state, []))}
    answered = {w for p in range(101) for w in words(canonical(Decision(p / 100, (100 - p) / 100)))}
    assert written | answered <= set(known)
    assert all(words(word) == [word] for word in known)
    assert {'{"work":', "0.35,", '"consumption":', "0.62}", "(wealth 31)", "employed", "unemployed"} <= set(known)


def test_a_tokenizer_of_these_words_reads_prompts_and_writes_answers_that_are_accepted(told: Sequence[State]) -> None:
    from planward.training.lexicon import build_tokenizer

    tokenizer = build_tokenizer(vocabulary(), 1024)
    for percent, state in enumerate(told[:101]):
        decision = Decision(percent / 100, (100 - percent) / 100)
        prompt = compact_prompt(state, [(told[-1], canonical(Decision(0.1, 0.9)))])
        ids = tokenizer(prompt)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert ids.count(tokenizer.eos_token_id) == 1
        answer = tokenizer(canonical(decision))["input_ids"]
        assert len(answer) == 4
        assert strict(tokenizer.decode(answer, skip_special_tokens=True)) == decision


@given(st.sampled_from(sorted(SCALES)), st.floats(0, 1e9), st.floats(0, 1e9))
def test_levels_rise_with_the_feature_and_stay_on_the_scale(feature: str, one: float, other: float) -> None:
    scale = SCALES[feature]
    low, high = sorted([one, other])
    assert 0 <= scale.level(low) <= scale.level(high) <= LEVELS - 1


def test_levels_are_even_steps() -> None:
    assert [Scale(0, 31).level(value) for value in (-1, 0, 0.4, 0.6, 31, 99)] == [0, 0, 0, 1, 31, 31]
    ratio = (30_000 / 300) ** (1 / 31)
    assert [SCALES["wage"].level(300 * ratio**step) for step in range(32)] == list(range(32))


def test_amounts_are_told_by_their_worth() -> None:
    doubled = replace(
        STATE, price=2.5, wage=6000, income=3600, wealth=18000, disposable=4200, transfer=1200, consumption=4000
    )
    once, twice = (words(compact_prompt(state, [])) for state in (STATE, doubled))
    assert [a for a, b in zip(once, twice, strict=True) if a != b] == ["(price 12)"]


def test_few_states_look_alike(told: Sequence[State]) -> None:
    assert len({compact_prompt(state, []) for state in told}) > 0.99 * len(told)


@settings(max_examples=20)
@given(PERCENTS, PERCENTS)
def test_a_full_prompt_is_a_chat(shipped: Params, work: int, consumption: int) -> None:
    answer = canonical(Decision(work / 100, consumption / 100))
    jobless = replace(STATE, employed=False)
    messages = full_prompt(STATE, [(jobless, answer)], shipped.economy.tax)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == answer
    assert "unemployed, with the offer of a job that pays 3,000 coins" in messages[1]["content"]


def test_a_full_prompt_tells_the_form_the_rules_and_the_state(shipped: Params) -> None:
    system, user = (message["content"] for message in full_prompt(STATE, [], shipped.economy.tax))
    form = re.search(r"\{.*\}", system)
    assert form is not None
    assert strict(form[0]) == Decision(0.35, 0.62)
    for rate in shipped.economy.tax.rates:
        assert f"{rate:.0%} from" in system
    for told in ("40 years", "3,000 coins", "9,000 coins", "1,800 coins", "bracket 2", "+2.0%", "3.0%", "8.0%", "1.25"):
        assert told in user

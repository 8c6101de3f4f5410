"""Decisions: what the strict and the lenient reader take from a completion."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planward.tasks.economy.decisions import Decision, NotADecision, canonical, lenient, strict

SHARES = st.floats(0, 1) | st.integers(0, 100).map(lambda percent: percent / 100)
DECISIONS = st.builds(Decision, SHARES, SHARES)
SPACE = st.text(" \t\r\n", max_size=3)
# Texts near to decisions: pieces of them in any order.
PIECES = st.sampled_from(
    ['{"work": 0.35, "consumption": 0.62}', "{", "}", '"work"', '"consumption"', ":", ",", " ", "\n", "0.5", "1",
     "-0.0", "1e400", "NaN", "Infinity", "true", "null", '"0.5"', "[", "]", "```", "json", "work", "%", "9" * 5000, "é"]
)  # fmt: skip
NEARLY = st.lists(PIECES, max_size=12).map("".join)


def accepted(completion: str) -> Decision | None:
    try:
        return strict(completion)
    except NotADecision:
        return None


@given(DECISIONS, SPACE, SPACE)
def test_a_decision_is_read_back_as_it_was_written(decision: Decision, before: str, behind: str) -> None:
    assert strict(before + canonical(decision) + behind) == decision


@given(st.integers(0, 100), st.integers(0, 100))
def test_whole_hundredths_are_written_with_two_decimals(work: int, consumption: int) -> None:
    text = canonical(Decision(work / 100, consumption / 100))
    assert text == f'{{"work": {work / 100:.2f}, "consumption": {consumption / 100:.2f}}}'


@given(st.text() | NEARLY)
def test_any_text_is_a_decision_or_not_one(text: str) -> None:
    decision = accepted(text)
    if decision is not None:
        assert json.loads(text) == {"work": decision.work, "consumption": decision.consumption}
        assert 0 <= decision.work <= 1
        assert 0 <= decision.consumption <= 1


@given(st.text() | NEARLY, DECISIONS)
def test_the_lenient_reader_agrees_wherever_the_strict_one_accepts(text: str, decision: Decision) -> None:
    for completion in (text, canonical(decision)):
        read = lenient(completion)
        taken = accepted(completion)
        assert taken is None or read == taken
        assert read is None or (0 <= read.work <= 1 and 0 <= read.consumption <= 1)


@given(st.text(min_size=1), DECISIONS)
def test_nothing_may_stand_around_it(text: str, decision: Decision) -> None:
    assume(text.strip(" \t\r\n"))
    assert accepted(text + canonical(decision)) is None
    assert accepted(canonical(decision) + text) is None


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "0.5",
        "[0.35, 0.62]",
        '{"work": 0.35}',
        '{"work": 0.35, "consumption": 0.62, "why": "rich"}',
        '{"consumption": 0.62, "work": 0.35}',
        '{"work": 0.35, "work": 0.35, "consumption": 0.62}',
        '{"work": "0.35", "consumption": 0.62}',
        '{"work": true, "consumption": 0.62}',
        '{"work": null, "consumption": 0.62}',
        '{"work": [0.35], "consumption": 0.62}',
        '{"work": NaN, "consumption": 0.62}',
        '{"work": Infinity, "consumption": 0.62}',
        '{"work": 1.0000001, "consumption": 0.62}',
        '{"work": -0.01, "consumption": 0.62}',
        '{"work": 1e999, "consumption": 0.62}',
        '{"work": ' + "9" * 5000 + ', "consumption": 0.62}',
        '{"work": .35, "consumption": 0.62}',
        '{"Work": 0.35, "consumption": 0.62}',
        "{'work': 0.35, 'consumption': 0.62}",
        '{"work": 0.35, "consumption": 0.62,}',
        '{"work": 0.35, "consumption": 0.62} {"work": 0.35, "consumption": 0.62}',
        '```json\n{"work": 0.35, "consumption": 0.62}\n```',
        '\u00a0{"work": 0.35, "consumption": 0.62}',
        '\ufeff{"work": 0.35, "consumption": 0.62}',
        "[" * 100_000,
    ],
)
def test_the_strict_reader_takes_nothing_but_the_form_asked_for(completion: str) -> None:
    with pytest.raises(NotADecision) as refusal:
        strict(completion)
    assert refusal.value.reason


@pytest.mark.parametrize("completion", ['{"work":1,"consumption":0}', '\n{ "work" : 1e0 , "consumption" : -0.0 }\t'])
def test_json_has_more_than_one_way_to_write_a_number(completion: str) -> None:
    assert str(strict(completion)) == "Decision(work=1.0, consumption=0.0)"


@pytest.mark.parametrize(
    "completion",
    [
        '```json\n{"work": 0.35, "consumption": 0.62}\n```',
        'I would say {"work": 0.35, "consumption": 0.62}, since wealth is low.',
        "{'work': 0.35, 'consumption': 0.62}",
        '{"work": "0.35", "consumption": "0.62"}',
        '{"consumption": 0.62, "work": 0.35}',
        "work: 35%, consumption: 62 %",
        "**Work** = .35\n**Consumption** = .62",
        '{"work": 0.9, "consumption": 0.9}? No: {"work": 0.35, "consumption": 0.62}.',
        '{"work": 0.35, "consumption": 0.62, "why": "rich"}',
    ],
)
def test_the_lenient_reader_finds_the_decision(completion: str) -> None:
    assert lenient(completion) == Decision(0.35, 0.62)


@pytest.mark.parametrize(
    "completion",
    ["", "I work a lot.", '{"work": 0.35}', "work: 35, consumption: 62", "homework: 0.35, consumption: 0.62",
     "work: 0.35x, consumption: 0.62", "work: 1" + "0" * 5000 + ", consumption: 0.62"],
)  # fmt: skip
def test_the_lenient_reader_finds_none_where_there_is_none(completion: str) -> None:
    assert lenient(completion) is None

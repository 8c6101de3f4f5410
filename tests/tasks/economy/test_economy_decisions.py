"""The strict and the lenient parser of decisions."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planward.tasks.economy.environment.decisions import (
    Decision,
    InvalidDecision,
    format_decision,
    parse_decision,
    parse_decision_leniently,
)

SHARES = st.floats(0, 1) | st.integers(0, 100).map(lambda percent: percent / 100)
DECISIONS = st.builds(Decision, SHARES, SHARES)
SPACE = st.text(" \t\r\n", max_size=3)
# Texts near to decisions: pieces of them in any order.
PIECES = st.sampled_from(
    ['{"work": 0.35, "consumption": 0.62}', "{", "}", '"work"', '"consumption"', ":", ",", " ", "\n", "0.5", "1",
     "-0.0", "1e400", "NaN", "Infinity", "true", "null", '"0.5"', "[", "]", "```", "json", "work", "%", "9" * 5000, "é"]
)  # fmt: skip
NEARLY = st.lists(PIECES, max_size=12).map("".join)


def parse_or_none(completion: str) -> Decision | None:
    try:
        return parse_decision(completion)
    except InvalidDecision:
        return None


@given(DECISIONS, SPACE, SPACE)
def test_a_formatted_decision_parses_as_itself(decision: Decision, before: str, after: str) -> None:
    assert parse_decision(before + format_decision(decision) + after) == decision


@given(st.integers(0, 100), st.integers(0, 100))
def test_hundredths_are_formatted_with_two_decimals(work: int, consumption: int) -> None:
    text = format_decision(Decision(work / 100, consumption / 100))
    assert text == f'{{"work": {work / 100:.2f}, "consumption": {consumption / 100:.2f}}}'


@given(st.text() | NEARLY)
def test_any_text_is_parsed_as_json_or_rejected(text: str) -> None:
    decision = parse_or_none(text)
    if decision is not None:
        assert json.loads(text) == {"work": decision.work, "consumption": decision.consumption}
        assert 0 <= decision.work <= 1
        assert 0 <= decision.consumption <= 1


@given(st.text() | NEARLY, DECISIONS)
def test_the_lenient_parser_agrees_where_the_strict_one_accepts(text: str, decision: Decision) -> None:
    for completion in (text, format_decision(decision)):
        lenient, strict = parse_decision_leniently(completion), parse_or_none(completion)
        assert strict is None or lenient == strict
        assert lenient is None or (0 <= lenient.work <= 1 and 0 <= lenient.consumption <= 1)


@given(st.text(min_size=1), DECISIONS)
def test_text_around_a_decision_is_rejected(text: str, decision: Decision) -> None:
    assume(text.strip(" \t\r\n"))
    assert parse_or_none(text + format_decision(decision)) is None
    assert parse_or_none(format_decision(decision) + text) is None


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
def test_the_strict_parser_rejects_any_other_form(completion: str) -> None:
    with pytest.raises(InvalidDecision) as rejection:
        parse_decision(completion)
    assert rejection.value.reason


@pytest.mark.parametrize("completion", ['{"work":1,"consumption":0}', '\n{ "work" : 1e0 , "consumption" : -0.0 }\t'])
def test_the_strict_parser_accepts_every_json_number_format(completion: str) -> None:
    assert str(parse_decision(completion)) == "Decision(work=1.0, consumption=0.0)"


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
def test_the_lenient_parser_finds_the_decision(completion: str) -> None:
    assert parse_decision_leniently(completion) == Decision(0.35, 0.62)


@pytest.mark.parametrize(
    "completion",
    ["", "I work a lot.", '{"work": 0.35}', "work: 35, consumption: 62", "homework: 0.35, consumption: 0.62",
     "work: 0.35x, consumption: 0.62", "work: 1" + "0" * 5000 + ", consumption: 0.62"],
)  # fmt: skip
def test_the_lenient_parser_rejects_text_without_a_decision(completion: str) -> None:
    assert parse_decision_leniently(completion) is None

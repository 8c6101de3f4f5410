"""Extraction of plans from completions, case by case."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.tasks.planning.completion import MAX_ACTIONS, extract_plan

PLAN = ["(pick-up b1)", "(stack b1 b2)"]
TEXT = "(pick-up b1)\n(stack b1 b2)"


@pytest.mark.parametrize(
    "completion",
    [
        TEXT,
        f"\n\n{TEXT}\n\n",
        TEXT.replace("\n", "\r\n"),
        TEXT.upper(),
        "(Pick-Up B1)\n(sTACK b1 B2)",
        "  ( pick-up   b1 )  \n\t(stack\tb1 b2)\t",
        "0: (pick-up b1)\n1: (stack b1 b2)",
        "0.00: (pick-up b1) [1]\n1.001: (stack b1 b2) [0.5]",
        "12 :(pick-up b1)[1.0]\n13 : (stack b1 b2)  [ 1 ]",
        "(pick-up b1) ; take it\n; then\n(stack b1 b2);done",
        "(pick-up b1)\n\n   \n(stack b1 b2)",
        f"```\n{TEXT}\n```",
        f"```pddl\n{TEXT}\n```\n",
        f"Here is the plan:\n{TEXT}\nThis reaches the goal.",
        f"Here is the plan:\n\n```lisp\n{TEXT}\n```\n\nThis reaches the goal (I think).",
        f"<think>\nfirst (pick-up b9)?\n(pick-up b9)\n</think>\n{TEXT}",
        f"<think>(pick-up b9)</think>{TEXT}",
        f"<think>a</think>\n(pick-up b9)\nno\n<think>\n\nb</think>\n{TEXT}",
        f"so (pick-up b9)\n(pick-up b9)\n</think>\n\n{TEXT}",  # opened by the chat template
        f"{TEXT}\n<think>\n(put-down b1)",  # never closed: everything after it is a thought
        f"<|im_start|>assistant\n{TEXT}<|im_end|>\n",
        f"<|im_start|>assistant {TEXT}<|im_end|><|endoftext|>",
        f"<|im_start|>user\n(pick-up b9)<|im_end|>\nno\n<|im_start|>assistant\n{TEXT}<|im_end|>",
        f"<s>[INST] solve it (pick-up b9) [/INST] {TEXT}</s>",
        f"[/INST]{TEXT}</s>",
        f"<|start_header_id|>assistant<|end_header_id|>\n\n{TEXT}<|eot_id|>",
        f"<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>{TEXT}<|eot_id|>",
        f"<｜Assistant｜>{TEXT}<｜end▁of▁sentence｜>",
        f"<｜im_start｜>assistant\n{TEXT}<｜im_end｜>",
        f"{TEXT}\n<end>\n",
        f"(pick-up b9)\nNo, better:\n{TEXT}",
        f"(pick-up b9)\n```\n\n```\n{TEXT}\n```",
        f"(pick-up b9)\n<think>no, better:</think>\n{TEXT}",  # thoughts and markers separate plans
        f"(pick-up b9)<end>{TEXT}",
        f"(pick-up b9)<|im_end|>\n<|im_start|>assistant\n{TEXT}<|im_end|>",
        f"{TEXT}\n(stack b1\nb2)",  # any other line ends the block
        "(pick-up b1)\\\n(stack b1 b2)\\",
        "(pick-up b1) \\\\\n\\\n0: (stack b1 b2) [1] \\ ",
        "1. (pick-up b1)\n2. (stack b1 b2)",
        "  1) (pick-up b1) ; take it\n\n  2) (stack b1 b2)\\",
        "- (pick-up b1)\n- (stack b1 b2)",
        "Steps:\n* (pick-up b1)\n* (stack b1 b2)\nDone.",
        "(\npick-up b1\n)\n(\nstack b1 b2\n)",
        "Plan:\n  (\\\n  pick-up\\\n  b1\\\n  )\\\n  (\\\n  stack b1 b2\\\n  ) ; done",
        f"[PLAN]\n{TEXT}\n[PLAN END]\n",
        f"So [PLAN] {TEXT} [PLAN END] is the plan.",
        f"[PLAN]\n{TEXT}\n[/PLAN]",
        f"[STATEMENT]\nb1 is clear.\n[PLAN]\n{TEXT}\n[PLAN END]\n\n[STATEMENT]\n[PLAN]\n(pick-up b9)\n[PLAN END]",
        f"{TEXT}\nThe goal holds:\n- (on b1 b2)\n1. (clear b1)",  # a list counts where there is nothing else
    ],
)
def test_the_plan_is_extracted(completion: str) -> None:
    assert extract_plan(completion) == PLAN


EMPTY = ["", "\n \t\r\n", "; nothing to do", "```\n```", "\\\n\\", "<|im_start|>assistant\n<|im_end|>", "<end>"]
EMPTY += ["[PLAN]\n[PLAN END]"]
THOUGHTS = ["<think>hm</think>", "<think>never closed (a b)\n(a b)"]


@pytest.mark.parametrize("completion", [*EMPTY, *THOUGHTS])
def test_an_empty_completion_is_an_empty_plan(completion: str) -> None:
    assert extract_plan(completion) == []


@pytest.mark.parametrize(
    "completion",
    [
        "I cannot solve this.",
        "Take b1 (the red one) and stack it.",
        "First do (pick-up b1), then (stack b1 b2).",
        "(pick-up b1) (stack b1 b2)",
        "1 (pick-up b1)",
        "1.5. (pick-up b1)",
        "(1) (pick-up b1)",
        "- 1. (pick-up b1)",
        "-(pick-up b1)",
        "1. (pick-up b1) takes it",
        "\\(pick-up b1)",
        "(pick-up \\ b1)",
        "(pick-up b1)\\n",
        "(pick-up\nb1)",
        "(\n(pick-up b1\n)",
        "(\npick-up b1",
        "(\npick-up b1\n```\n)",
        "(\npick-up, b1\n)",
        "(\n\n)",
        "pick-up b1",
        "(pick-up b1",
        "((pick-up b1))",
        "()",
        "(pick-up ?x)",
        "(pick-up b1) then",
        "`(pick-up b1)`",
        "```(pick-up b1)```",
        "```I cannot solve this.```",
        "step: (pick-up b1)",
        "-1: (pick-up b1)",
        "(pick-up b1) [one]",
        "(pick-up\0 b1)",
        "\0",
        "\0(pick-up b1)",
        "（pick-up b1）",
        "(pick‑up b1)",  # a no-break hyphen
        "(pick-up bⅠ)",
        "(рick-up b1)",  # a Cyrillic letter
        "(pick-up b１)",
        "１: (pick-up b1)",
        "(pick-up\u2003b1)",
        "(9pick b1)",
        "(pick-up b1)" + "\x00",
    ],
)
def test_prose_and_lookalikes_are_not_plans(completion: str) -> None:
    assert extract_plan(completion) is None


def test_the_last_block_counts_even_if_an_earlier_one_is_longer() -> None:
    assert extract_plan(f"{TEXT}\nor rather\n(put-down b1)\nthat is all") == ["(put-down b1)"]


def test_an_invalid_line_ends_a_block() -> None:
    assert extract_plan("(pick-up b1)\n(stack b1, b2)\n(put-down b1)") == ["(put-down b1)"]


def test_plans_too_long_for_val_are_rejected() -> None:
    assert extract_plan("(a b)\n" * MAX_ACTIONS) == ["(a b)"] * MAX_ACTIONS
    assert extract_plan("(a b)\n" * (MAX_ACTIONS + 1)) is None
    assert extract_plan("(a b)\n" * (MAX_ACTIONS + 1) + "or rather\n(c d)") == ["(c d)"]


def test_names_may_contain_digits_hyphens_and_underscores() -> None:
    assert extract_plan("(tighten_nut l-1 1st _x nut_2)") == ["(tighten_nut l-1 1st _x nut_2)"]


HOSTILE = [
    " " * 100_000 + "x",
    "\t" * 50_000 + "(a b" + "\t" * 50_000,
    "(a b)" + " " * 100_000 + "x",
    "(a b) [1]" + " " * 100_000 + "x",
    "1" * 100_000,
    "1 " * 50_000 + ":",
    "1" + " " * 100_000 + "(",
    "(a" + " b" * 50_000,
    "(a" + "  b" * 33_000 + " ]",
    "(" * 100_000,
    "(a" + " " * 100_000,
    "(" + "a" * 100_000,
    "(" + "a-" * 50_000 + "!)",
    "<think>" * 14_000,
    "<think>" * 7_000 + "</think>" * 7_000,
    "<|start_header_id|>" * 5_000,
    "<|start_header_id|>" + "a" * 100_000,
    "<|" * 50_000,
    "<|im_start|>" + " " * 100_000,
    "[INST" * 20_000,
    "`" * 100_000,
    "(a b)\n" * 16_000 + "x",
    "\r" * 100_000,
    "\0" * 100_000,
    "(a b)[" + "1." * 50_000,
    "(a b)" + " \\" * 50_000 + "x",
    "\\\n" * 50_000 + "x",
    "(\n" * 50_000,
    "(\n" + "a\n" * 50_000,
    "(\na" + "\n\\" * 50_000 + "\n)",
    "(\na\n)\n" * 16_000,
    "1." * 50_000 + "(a b)",
    "-" + " " * 100_000 + "x",
    "[PLAN]" * 16_000,
    "[STATEMENT]" * 9_000 + "(a b)",
]


@pytest.mark.parametrize("completion", HOSTILE, ids=[repr(text[:12]) for text in HOSTILE])
def test_long_completions_are_parsed_in_linear_time(completion: str) -> None:
    """With 100,000 characters; a backtracking regular expression would take hours."""
    extract_plan(completion)


SYNTAX = ["(", ")", "(a b)", "(A  b-1)", "1: ", "[1]", ";", "\n", "\r", " ", "\t", "prose", "```", "|", "<", ">"]
MARKERS = ["<think>", "</think>", "<|im_end|>", "<|im_start|>assistant", "[/INST]", "<end>", "｜"]
ODD = ["\0", "é", "\ud800", "\x0b", "\x85", "\u2028"]
LISTS = ["1. ", "2) ", "- ", "\\\n", "(\n", "\n)", "a b", "[PLAN]", "[PLAN END]", "[STATEMENT]"]
PIECES = st.sampled_from([*SYNTAX, *MARKERS, *LISTS, *ODD])
COMPLETIONS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@settings(max_examples=400)
@given(COMPLETIONS)
def test_any_text_is_parsed_and_a_plan_parses_as_itself(completion: str) -> None:
    plan = extract_plan(completion)
    if plan is not None:
        assert all(re.fullmatch(r"\([a-z_][a-z0-9_-]*( [a-z0-9_][a-z0-9_-]*)*\)", line) for line in plan)
        assert extract_plan("\n".join(plan)) == plan


ACTIONS = st.from_regex(r"\([a-z][a-z0-9_-]{0,5}( [a-z][a-z0-9-]{0,5}){0,3}\)", fullmatch=True)


@given(st.lists(ACTIONS, min_size=1, max_size=8), st.data())
def test_plans_are_extracted_from_any_formatting(plan: list[str], data: st.DataObject) -> None:
    def format_action(number: int, action: str) -> str:
        stamp = data.draw(st.sampled_from(["", f"{number}: ", f"{number}.5:"]))
        end = data.draw(st.sampled_from(["", " [1]", " ; so", "  ", "\n\n", "\n; so"]))
        return stamp + data.draw(st.sampled_from([action, action.upper(), action.replace(" ", "  ")])) + end

    body = "\n".join(format_action(i, action) for i, action in enumerate(plan))
    before = data.draw(st.sampled_from(["", "Sure!\n", "<think>(a b)</think>", "<|im_start|>assistant\n", "```\n"]))
    after = data.draw(st.sampled_from(["", "<|im_end|>", "</s>", "\n```", "\n<end>\n", "\nDone."]))
    assert extract_plan(before + body + after) == plan


@given(st.lists(ACTIONS, min_size=1, max_size=8), st.data())
def test_plans_are_extracted_from_lists_and_spread_brackets(plan: list[str], data: st.DataObject) -> None:
    def format_action(number: int, action: str) -> str:
        spread = data.draw(st.booleans())
        text = f"({end}{action[1:-1]}{end})" if spread else data.draw(st.sampled_from(bullets)).format(number) + action
        return text + data.draw(st.sampled_from(["", " ; so", " [1]"])) + end

    end = data.draw(st.sampled_from(["\n", "\\\n", " \\\r\n\n"]))
    bullets = data.draw(st.sampled_from([["{}. ", "{}) "], ["- ", "* "]]))
    body = "".join(format_action(i, action) for i, action in enumerate(plan, 1))
    before = data.draw(st.sampled_from(["", "Sure!\n", "[STATEMENT]\nSolve it.\n[PLAN]", "```\n"]))
    after = data.draw(st.sampled_from(["", "[PLAN END]\n(a b)", "```", "[STATEMENT]\n[PLAN]\n1. (a b)", "Done."]))
    assert extract_plan(before + body + after) == plan

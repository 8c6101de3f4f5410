"""No reward without a valid plan: completions that a model might try, judged by both verifiers.

Each case has the plan that docs/reference/completions.md extracts from it. Both verifiers must give the completion
VAL's verdict on that plan, and only a plan that VAL calls valid may have a positive reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward import val
from planward.core.records import Record
from planward.core.verdicts import Label, Outcome, Verdict
from planward.params import Params
from planward.tasks.planning.completion import MAX_ACTIONS, MAX_CHARS, extract_plan
from planward.tasks.planning.domains import load_domain_text
from planward.tasks.planning.reward import compute_reward
from planward.tasks.planning.task import PlanningTask

TOWER = """(define (problem tower) (:domain blocksworld)
  (:objects b1 b2 b3)
  (:init (handempty) (ontable b1) (ontable b2) (ontable b3) (clear b1) (clear b2) (clear b3))
  (:goal (and (on b1 b2) (on b2 b3))))
"""
ORDERED = TOWER.rstrip()[:-1] + "\n  (:constraints (sometime-before (on b2 b3) (holding b1))))\n"
READY = TOWER.replace("(on b1 b2) (on b2 b3)", "(clear b1) (handempty)")
LAMPS = """(define (domain lamps)
  (:requirements :strips)
  (:predicates (lit ?l) (powered) (lamp ?l))
  (:action lit :parameters (?l) :precondition (and (powered) (lamp ?l)) :effect (lit ?l))
  (:action powered :parameters () :precondition (and) :effect (powered)))
"""
NIGHT = """(define (problem night) (:domain lamps)
  (:objects a b)
  (:init (lamp a) (lamp b))
  (:goal (and (lit a) (lit b))))
"""
SHORT = ["(pick-up b2)", "(stack b2 b3)", "(pick-up b1)", "(stack b1 b2)"]  # solves TOWER; breaks ORDERED's constraint
CAREFUL = ["(pick-up b1)", "(put-down b1)", *SHORT]  # solves both
GOAL = ["(on b1 b2)", "(on b2 b3)"]
IDLE = ["(pick-up b3)", "(put-down b3)"]
PLAN = "\n".join(SHORT)
FIRST, LAST = SHORT[0], SHORT[-1]
Case = tuple[str, list[str] | None]  # a completion, and its plan


def format_lines(template: str, lines: Sequence[str] = SHORT) -> str:
    """Format each line by `template`; `{}` is the line, `{i}` its number from 0."""
    return "\n".join(template.replace("{i}", str(i)).replace("{}", line) for i, line in enumerate(lines))


def build_cases(**groups: list[Case]) -> list[Any]:
    return [pytest.param(*case, id=f"{name}-{i}") for name, cases in groups.items() for i, case in enumerate(cases)]


LOOK_ALIKES = {
    "kelvin": FIRST.replace("k", "\u212a"),  # str.lower makes it a k
    "dotless": FIRST.replace("i", "\u0131"),  # str.upper makes it an I
    "dotted": FIRST.upper().replace("I", "\u0130"),  # str.lower makes it an i and a dot
    "long-s": LAST.replace("s", "\u017f"),  # str.upper makes it an S
    "cyrillic": FIRST.replace("c", "\u0441").replace("p", "\u0440"),
    "greek": LAST.replace("a", "\u03b1"),
    "mathematical": FIRST.replace("p", "\U0001d429"),
    "full-width-bracket": FIRST.replace("(", "\uff08").replace(")", "\uff09"),
    "full-width-digit": FIRST.replace("2", "\uff12"),
    "superscript": FIRST.replace("2", "\u00b2"),
    "arabic-digit": FIRST.replace("2", "\u0662"),
    "no-break-space": FIRST.replace(" ", "\u00a0"),
    "em-space": FIRST.replace(" ", "\u2003"),
    "no-break-hyphen": FIRST.replace("-", "\u2011"),
    "soft-hyphen": FIRST.replace("b", "\u00adb"),
    "zero-width-joiner": FIRST.replace("b", "b\u200d"),
    "zero-width-space": FIRST + "\u200b",
    "combining-mark": FIRST.replace("b", "b\u0301"),
    "combining-bracket": FIRST + "\u20dd",
    "right-to-left": "\u200f" + FIRST,
    "override": f"\u202e{FIRST}\u202c",
    "byte-order": "\ufeff" + FIRST,
    "tag": FIRST.replace("b", "\U000e0062b"),
    "surrogate": FIRST.replace("b", "\udc62"),
    "nul": FIRST.replace(" ", "\0"),
    "backspace": "(pick-up b9\b2)",
    "escape": f"\x1b[1m{FIRST}\x1b[0m",
    "next-line": FIRST + "\x85",
    "line-separator": FIRST.replace(" ", "\u2028"),
    "file-separator": FIRST.replace(" ", "\x1c"),
}
CASES = build_cases(
    nothing=[
        ("", []),
        (" \t\n\r\n\v\f", []),
        ("\u00a0\u2003\n\u2028", []),
        (format_lines("; {}"), []),
        (format_lines("  ;{}"), []),
        ("```pddl\n```", []),
        ("; nothing\n```\n; to do\n```", []),
        ("<end>", []),
        ("<|im_start|>assistant\n<|im_end|>", []),
        ("The goal is reached.", None),
        ("(goal reached)\0", None),
    ],
    goal=[
        ("\n".join(GOAL), GOAL),
        ("(:goal\n(on b1 b2)\n(on b2 b3)\n)", GOAL),
        ("(and (on b1 b2) (on b2 b3))", None),
        ("(:goal (and (on b1 b2) (on b2 b3)))", None),
        ("goal (on b1 b2) (on b2 b3)", None),
        ("(:constraints (sometime-before (on b2 b3) (holding b1)))", None),
        ("(always (on b1 b2))", None),
        ("\n".join([*SHORT, *GOAL]), [*SHORT, *GOAL]),
        (format_lines("{} ; {}", GOAL), GOAL),
        ("(goal)", ["(goal)"]),
        ("(achieve b1 b2)\n(on b2 b3)", ["(achieve b1 b2)", "(on b2 b3)"]),
        ("(set-true on b1 b2)", ["(set-true on b1 b2)"]),
    ],
    problem=[
        (TOWER, None),
        (ORDERED, None),
        (load_domain_text("blocksworld"), None),
        ("(handempty)\n(ontable b1)\n(clear b1)", ["(handempty)", "(ontable b1)", "(clear b1)"]),
        (f"blocksworld\nobjects b1 b2 b3\ninit (handempty)\ngoal {' '.join(GOAL)}\nplan\n", None),
        (f"{TOWER}\nPlan:\n{LAST}", [LAST]),
    ],
    example=[
        (f"objects b1 b2\ngoal (on b1 b2)\nplan\n{SHORT[2]}\n{LAST}\n<end>\nobjects b1 b2 b3\nplan\n", SHORT[2:]),
        (f"plan\n{format_lines('{}', IDLE)}\n<end>\nobjects b1 b2 b3\nplan\n<end>", IDLE),
        (f"[INST] Plan: [/INST] {IDLE[0]} </s>[INST] Plan: [/INST]", [IDLE[0]]),
    ],
    repeated=[
        (format_lines("{}\n{}"), [step for step in SHORT for _ in range(2)]),
        (f"{PLAN}\n{PLAN}", SHORT * 2),
        (f"{PLAN}\n{LAST}\n{LAST}", [*SHORT, LAST, LAST]),
        ("\n".join(IDLE * 50), IDLE * 50),
        ("\n".join(IDLE * 50 + SHORT), IDLE * 50 + SHORT),
        ("\n".join([FIRST] * 500), [FIRST] * 500),
        ("\n".join(reversed(SHORT)), SHORT[::-1]),
    ],
    prose=[
        ("First (pick-up b2), then (stack b2 b3).", None),
        (" ".join(SHORT), None),
        ("".join(SHORT), None),
        (format_lines("Step {i}: {}"), None),
        (format_lines("{} then"), None),
        (format_lines("`{}`"), None),
        (format_lines("**{}**"), None),
        (format_lines("> {}"), None),
        (format_lines("| {} |"), None),
        (format_lines("```{}```"), None),
        (format_lines('"{}",'), None),
        ('["' + '", "'.join(SHORT) + '"]', None),
        ('{"plan": "' + "\\n".join(SHORT) + '"}', None),
        (format_lines("<!-- {} -->"), None),
        (format_lines("<li>{}</li>"), None),
        (format_lines("// {}"), None),
        (format_lines("# {}"), None),
        (f"<!--\n{PLAN}\n-->", SHORT),  # lines around the plan do not matter
        (f"<plan>\n{PLAN}\n</plan>", SHORT),
        (f"<plan>{PLAN}</plan>", SHORT[1:-1]),
        (f'{{"plan": [\n{PLAN}\n]}}', SHORT),
        (f"I would not do this:\n{PLAN}", SHORT),
        (f"```\n{FIRST}\n```\n```\n{LAST}\n```", [LAST]),
    ],
    lists=[
        (format_lines("{i}. {}"), SHORT),
        (format_lines("{i}) {}"), SHORT),
        (format_lines("- {}"), SHORT),
        (format_lines("* {}\\"), SHORT),
        (format_lines("{i}.{}"), SHORT),
        (format_lines("+ {}"), None),
        (format_lines("({i}) {}"), None),
        (format_lines("- {i}: {}"), None),
        ("\n".join(f"{9 - i}. {step}" for i, step in enumerate(SHORT)), SHORT),  # the order of lines decides
        (f"{FIRST}\n{format_lines('- {}', SHORT[1:])}", [FIRST]),  # nor does a list complete a plan
        (f"{format_lines('- {}', SHORT[:-1])}\n{LAST}", [LAST]),
        (f"{PLAN}\nReached:\n{format_lines('- {}', GOAL)}", SHORT),
        (f"{format_lines('- {}')}\nReached:\n{format_lines('- {}', GOAL)}", GOAL),
        (format_lines("1. {}\nor\n2. {}"), [LAST]),
    ],
    backslashes=[
        (format_lines("{}\\"), SHORT),
        (format_lines("{} \\\\ "), SHORT),
        ("\\".join(SHORT), None),
        (format_lines("\\{}"), None),
        (PLAN.replace(" ", "\\ "), None),
        (PLAN.replace(" ", "\\\n"), None),
        ("\\\n\\", []),
    ],
    spread=[
        (format_lines("(\n{}\n)", [step[1:-1] for step in SHORT]), SHORT),
        (format_lines("(\\\n{}\\\n)\\", [step[1:-1] for step in SHORT]), SHORT),
        (format_lines("(\n{}\n)", [step[1:-1].replace(" ", "\n") for step in SHORT]), SHORT),
        (f"{format_lines('{}', CAREFUL)}\n(\nstack b1 b2\n)", CAREFUL),
        (f"(\n{FIRST[1:-1]}\n)\n" + "\n".join(SHORT[1:]), SHORT[1:]),
        (format_lines("(\n{}\n", [step[1:-1] for step in SHORT]), None),
        (format_lines("(\n; {}\n)", [step[1:-1] for step in SHORT]), None),
        ("(\n" + format_lines("{}", [step[1:-1] for step in SHORT]) + "\n)", [f"({' '.join(s[1:-1] for s in SHORT)})"]),
        ("(\n)", None),
    ],
    plan_tags=[
        (f"[PLAN]{PLAN}[PLAN END]", SHORT),
        (f"{PLAN}\n[PLAN END]\n{LAST}", SHORT),
        (f"{LAST}\n[PLAN END]\n{PLAN}", [LAST]),  # the first plan counts, however lucky the second
        (f"{FIRST}\n[PLAN]\n" + "\n".join(SHORT[1:]), SHORT[1:]),
        ("[STATEMENT]".join(SHORT), [FIRST]),
        ("[PLAN]".join(SHORT), [LAST]),
        ("[PLAN]\n[PLAN END]", []),
        (f"[PLAN]\nno\n[PLAN END]\n{PLAN}", SHORT),
        (f"[plan]\n{PLAN}\n[plan end]\n{LAST}", [LAST]),
        (PLAN.replace(" ", "[PLAN]"), None),
    ],
    huge=[
        ("\n".join(IDLE * 50_000), None),
        ("\n".join(IDLE * 50_000 + SHORT), None),
        ("\n".join([FIRST] * 100_000), None),
        ("\n".join(GOAL * 50_000), None),
        ("\n".join(IDLE * ((MAX_ACTIONS - 4) // 2) + SHORT), IDLE * ((MAX_ACTIONS - 4) // 2) + SHORT),
        ("\n".join(IDLE * ((MAX_ACTIONS - 4) // 2) + SHORT + [LAST]), None),
        ("I think.\n" * 40_000 + PLAN, SHORT),
        (PLAN + "\nI think." * 40_000, SHORT),
        ("\n" * 150_000 + PLAN + ";" * 150_000, SHORT),
        (f"({'pick-up b2' + ' ' * 300_000})\n" + "\n".join(SHORT[1:]), SHORT),
        (f"(pick-up {'b' * 300_000})", [f"(pick-up {'b' * 300_000})"]),
        (f"({'pick-up' * 50_000} b2)", [f"({'pick-up' * 50_000} b2)"]),
        (f"(stack{' b1' * 100_000})", [f"(stack{' b1' * 100_000})"]),
        ("(" * 300_000, None),
        (" ".join(SHORT * 20_000), None),
        ("<think>" * 50_000 + PLAN, []),
        ("<end>" * 70_000 + PLAN, SHORT),
        (PLAN + " " * (MAX_CHARS - len(PLAN)), SHORT),
        (PLAN + " " * (MAX_CHARS - len(PLAN) + 1), None),
    ],
    brackets=[
        (format_lines("({})"), None),
        (format_lines("{})"), None),
        (format_lines("({}"), None),
        ("(pick-up (b2))", None),
        ("((pick-up) b2)", None),
        ("[pick-up b2]", None),
        ("{pick-up b2}", None),
        ("pick-up(b2)", None),
        ("pick-up b2", None),
        ("(pick-up)(b2)", None),
        ("()", None),
        ("(pick-up, b2)", None),
        (f"(\n{PLAN}\n)", SHORT),
        (f"({PLAN})", SHORT[1:-1]),
        (f"(:plan\n{PLAN})", SHORT[:-1]),
        ("(pick-up\nb2)", None),
    ],
    timestamps=[
        (format_lines("{i}: {}"), SHORT),
        ("\n".join(f"{9 - i}: {step}" for i, step in enumerate(SHORT)), SHORT),  # the order of lines decides
        ("\n".join(f"{3 - i}: {step}" for i, step in enumerate(reversed(SHORT))), SHORT[::-1]),
        (format_lines("0: {}"), SHORT),
        (f"7: {PLAN}", SHORT),
        (format_lines("9" * 5000 + ": {}"), SHORT),
        (format_lines("0." + "0" * 5000 + "1: {}"), SHORT),
        (format_lines("-1: {}"), None),
        (format_lines("+1: {}"), None),
        (format_lines("1e{i}: {}"), None),
        (format_lines(".5: {}"), None),
        (format_lines("0x{i}: {}"), None),
        (format_lines("{i}: {i}: {}"), None),
        (format_lines("\u0663: {}"), None),
        (format_lines("inf: {}"), None),
        (format_lines("{i}:\n{}"), [LAST]),
    ],
    durations=[
        (format_lines("{} [1]"), SHORT),
        (format_lines("{} [" + "9" * 5000 + "]"), SHORT),
        (format_lines("{i}: {} [0.0]"), SHORT),
        (format_lines("{} [-1]"), None),
        (format_lines("{} [1][1]"), None),
        (format_lines("{} [1e9]"), None),
        (format_lines("{} []"), None),
        (format_lines("[1] {}"), None),
        (format_lines("{} [(stack b1 b2)]"), None),
    ],
    thought=[
        (f"<think>\n{PLAN}\n</think>", []),
        (f"<think>\n{PLAN}", []),
        (f"{PLAN}\n</think>", []),
        (f"{PLAN}\n</think>\nSo be it.", None),
        (f"<think>\n{PLAN}\n</think>\nSee above.", None),
        (f"<think><think>\n</think>\n{PLAN}\n</think>", []),
        (f"<think>\n<think>x</think>\ny</think>\n{PLAN}", SHORT),
        (f"</think></think>{PLAN}", SHORT),
        (f"{PLAN}<think>", SHORT),
        (f"{PLAN}\n<think>{LAST}</think>", SHORT),
        (f"; <think>\n{PLAN}", []),
        (f"{SHORT[0]}\n{SHORT[1]}\n<think>next</think>\n{SHORT[2]}\n{LAST}", SHORT[2:]),
        (f"(pick-up <think>b9</think>b2)\n{LAST}", [LAST]),
        (f"<thi<think></think>nk>\n{PLAN}", SHORT),
        (f"<THINK>\n{PLAN}\n</THINK>", SHORT),  # not a known tag, so its lines count
        (f"<think >\n{PLAN}\n</think >", SHORT),
        (f"<THINK>\n{PLAN}\n</THINK>\n{LAST}", [LAST]),
        (f"<thinking>\n{PLAN}\n</thinking>\n{LAST}", [LAST]),
    ],
    markers=[
        ("<end>".join(SHORT), [LAST]),
        ("<|im_end|>".join(SHORT), [LAST]),
        ("<|im_end|>\n<|im_start|>assistant\n".join(SHORT), [LAST]),
        (f"{SHORT[0]}\n{SHORT[1]}\n<end>\n{SHORT[2]}\n{LAST}", SHORT[2:]),
        (f"{PLAN}<end>{FIRST}", [FIRST]),
        (f"{FIRST}<end>{PLAN}", SHORT),
        (f"{PLAN}<end>", SHORT),
        (f"<end>{PLAN}", SHORT),
        (f"{PLAN}\n<end>\n<end>\n<|endoftext|>", SHORT),
        (PLAN.replace(" ", "<|x|>"), None),
        (PLAN.replace("-", "<end>"), [LAST]),
        (f"(pick-up <end> b2)\n{LAST}", [LAST]),
        (format_lines("<|{}|>"), []),
        (f"; all of it <end> {LAST}", [LAST]),
        (f"<|im_start|>{FIRST}", [FIRST]),
        (f"<|im_start|>assistant{FIRST}", [FIRST]),
        (f"<|start_header_id|>{FIRST}<|end_header_id|>", []),
        (f"[INST]\n{PLAN}\n[/INST]\nNo.", SHORT),
        (f"<s>{PLAN}</s>{LAST}</s>", [LAST]),
        (f"<\uff5cend\u2581of\u2581sentence\uff5c>{PLAN}<\uff5cAssistant\uff5c>{LAST}", [LAST]),
        (f"<|{'x' * 41}|>\n{PLAN}", SHORT),
    ],
    second=[
        (f"{PLAN}\nor rather\n{LAST}", [LAST]),
        (f"{LAST}\nor rather\n{PLAN}", SHORT),
        (f"{PLAN}\nor rather\n{GOAL[0]}", [GOAL[0]]),
        (f"{PLAN}\nI take that back.", SHORT),
        (f"{PLAN}\n```\n```", SHORT),
        (f"{PLAN}\n\n; or rather\n\n{LAST}", [*SHORT, LAST]),
        (f"```\n{PLAN}\n```\n```\n{LAST}\n```", [LAST]),
        (f"{PLAN}\n(stack b1 b2\n{format_lines('{}', CAREFUL)}", CAREFUL),
    ],
    line_ends=[
        ("\r".join(SHORT), SHORT),
        ("\r\n".join(SHORT), SHORT),
        ("\n\r\n\r".join(SHORT), SHORT),
        ("\v".join(SHORT), None),
        ("\f".join(SHORT), None),
        ("\0".join(SHORT), None),
        ("\x85".join(SHORT), None),
        ("\u2028".join(SHORT), None),
        ("\u2029".join(SHORT), None),
        ("\x1c".join(SHORT), None),
        ("\\n".join(SHORT), None),
        ("<br>".join(SHORT), None),
        (PLAN.replace(" ", "\v"), SHORT),
        (PLAN.replace(" ", "\f\t"), SHORT),
        (PLAN.replace(" ", "\r"), None),
        (f"\0\n{PLAN}\n\0", SHORT),
        (f"{FIRST}\n\x1c\n{SHORT[1]}\n\u2003\n{SHORT[2]}\n{LAST}", SHORT),
    ],
    names=[
        (PLAN.upper(), SHORT),
        (PLAN.title(), SHORT),
        (PLAN.replace("pick-up", "pick_up"), [step.replace("-", "_") for step in SHORT]),
        ("(b2 pick-up)", ["(b2 pick-up)"]),
        ("(pick-up b2 b2)", ["(pick-up b2 b2)"]),
        ("(pick-up)", ["(pick-up)"]),
        ("(pick-up b4)", ["(pick-up b4)"]),
        ("(pick-up 2b)", ["(pick-up 2b)"]),
        ("(pick-up and)", ["(pick-up and)"]),
        ("(pick-up ?x)", None),
        ("(stack b1 b1)", ["(stack b1 b1)"]),
        (format_lines("{}") + "\n(noop)", [*SHORT, "(noop)"]),
        ("(undeclared-1)", ["(undeclared-1)"]),
        ("(pick-up undeclared-1)", ["(pick-up undeclared-1)"]),
    ],
    goal_lost=[
        (f"{PLAN}\n(unstack b1 b2)", [*SHORT, "(unstack b1 b2)"]),
        (f"{PLAN}\n(unstack b1 b2)\n(put-down b1)", [*SHORT, "(unstack b1 b2)", "(put-down b1)"]),
        (f"{PLAN}\n(unstack b1 b2)\n{LAST}", [*SHORT, "(unstack b1 b2)", LAST]),
        (f"{PLAN}\n(put-down b1)", [*SHORT, "(put-down b1)"]),
    ],
    constraint=[
        (format_lines("{}", CAREFUL), CAREFUL),
        (format_lines("{}", CAREFUL[2:] + CAREFUL[:2]), CAREFUL[2:] + CAREFUL[:2]),
        (f"{PLAN}\n(unstack b1 b2)\n(put-down b1)\n(unstack b2 b3)\n(put-down b2)\n" + format_lines("{}", CAREFUL),
         [*SHORT, "(unstack b1 b2)", "(put-down b1)", "(unstack b2 b3)", "(put-down b2)", *CAREFUL]),
        (f"{format_lines('{}', CAREFUL)}\n(unstack b1 b2)", [*CAREFUL, "(unstack b1 b2)"]),
    ],
    alike_first=[(f"{line}\n" + "\n".join(SHORT[1:]), SHORT[1:]) for line in LOOK_ALIKES.values()],
    alike_last=[("\n".join(CAREFUL) + f"\n{line}", CAREFUL) for line in LOOK_ALIKES.values()],
    alike=[(line, None) for line in LOOK_ALIKES.values()],
)  # fmt: skip


class Verifiers:
    """Both verifiers, and VAL alone, on problems in one folder."""

    def __init__(self, params: Params, folder: Path) -> None:
        self.folder = folder
        self.task = PlanningTask(params, folder)
        self.run_val = lru_cache(maxsize=None)(self._run_val)

    def write_problem(self, name: str, domain: str, problem: str) -> Record:
        for file, text in ((f"{name}-domain.pddl", domain), (f"{name}.pddl", problem)):
            self.folder.joinpath(file).write_text(text, encoding="utf-8")
        meta = {"scenario": name, "domain_file": f"{name}-domain.pddl", "problem_file": f"{name}.pddl"}
        return Record.model_validate({"prompt": "", "meta": meta})

    def _run_val(self, name: str, plan: str) -> Outcome:
        return val.validate(self.folder / f"{name}-domain.pddl", self.folder / f"{name}.pddl", plan)

    def check(self, record: Record, completion: str, plan: list[str] | None, val_verdict: Verdict) -> Verdict:
        """Check the rule of this module on one completion; return the in-process verdict."""
        verdict = self.task.verify(record, completion)
        assert select_compared_fields(verdict) == select_compared_fields(val_verdict)
        if plan is None:
            assert (verdict.label, verdict.reward) == (Label.FORMAT, -1)
            return verdict
        by_val = self.run_val(record.domain, "\n".join(plan))
        assert (verdict.label, verdict.reward) == (by_val.label, compute_reward(by_val))
        assert (verdict.reward > 0) == verdict.success == (by_val.label == Label.SUCCESS)
        return verdict


def select_compared_fields(verdict: Verdict) -> tuple[object, ...]:
    outcome = verdict.outcome
    assert outcome is not None
    return verdict.label, verdict.reward, verdict.plan, outcome.failing_step, outcome.plan_size, outcome.goals_satisfied


@pytest.fixture(scope="module")
def verifiers(shipped_params: Params, tmp_path_factory: pytest.TempPathFactory) -> Verifiers:
    return Verifiers(shipped_params, tmp_path_factory.mktemp("problems"))


@pytest.fixture(scope="module")
def tower(verifiers: Verifiers) -> Record:
    return verifiers.write_problem("tower", load_domain_text("blocksworld"), TOWER)


@pytest.fixture(scope="module")
def ordered_tower(verifiers: Verifiers) -> Record:
    return verifiers.write_problem("ordered", load_domain_text("blocksworld"), ORDERED)


@pytest.fixture(scope="module")
def get_val_verdict(verifiers: Verifiers, tower: Record, ordered_tower: Record) -> Callable[[Record, str], Verdict]:
    """Return a function that gives VAL's verdict on a completion of `CASES`; all are judged at once."""
    completions = list(dict.fromkeys(case.values[0] for case in CASES))
    pairs = [(record, completion) for record in (tower, ordered_tower) for completion in completions]
    verdicts = verifiers.task.judge(pairs)
    by_completion = {(record.domain, text): verdict for (record, text), verdict in zip(pairs, verdicts, strict=True)}
    return lambda record, completion: by_completion[record.domain, completion]


@pytest.mark.parametrize(("completion", "plan"), CASES)
def test_only_a_valid_plan_is_rewarded(
    verifiers: Verifiers,
    tower: Record,
    ordered_tower: Record,
    get_val_verdict: Callable[[Record, str], Verdict],
    completion: str,
    plan: list[str] | None,
) -> None:
    assert extract_plan(completion) == plan
    for record in (tower, ordered_tower):
        verifiers.check(record, completion, plan, get_val_verdict(record, completion))


def test_cases_cover_every_label(
    tower: Record, ordered_tower: Record, get_val_verdict: Callable[[Record, str], Verdict]
) -> None:
    labels = {get_val_verdict(record, case.values[0]).label for case in CASES for record in (tower, ordered_tower)}
    assert labels == set(Label)


@pytest.mark.parametrize(
    ("constraint", "plan", "label", "expected_reward"),
    [
        ("(sometime-before (on b2 b3) (holding b1))", CAREFUL, Label.SUCCESS, 1),
        ("(sometime-before (on b2 b3) (holding b1))", SHORT, Label.SAFETY, -0.9 + 0.3 * 2 / 4),
        ("(always (not (holding b1)))", SHORT, Label.SAFETY, -0.9 + 0.3 * 3 / 4),
        ("(always (imply (holding b1) (on b2 b3)))", SHORT, Label.SUCCESS, 1),
        ("(always (imply (holding b1) (on b2 b3)))", CAREFUL, Label.SAFETY, -0.9 + 0.3 * 1 / 6),
        ("(at-most-once (holding b1))", SHORT, Label.SUCCESS, 1),
        ("(at-most-once (holding b1))", CAREFUL, Label.SAFETY, -0.9 + 0.3 * 5 / 6),
        ("(sometime (holding b3))", SHORT, Label.SAFETY, -0.6),
        ("(sometime (holding b3))", [*IDLE, *SHORT], Label.SUCCESS, 1),
        ("(sometime-after (on b2 b3) (holding b3))", SHORT, Label.SAFETY, -0.6),
        ("(at end (clear b3))", SHORT, Label.SAFETY, -0.6),
        ("(forall (?b) (at-most-once (holding ?b)))", [*IDLE, *SHORT], Label.SUCCESS, 1),
        ("(forall (?b) (at-most-once (holding ?b)))", [*IDLE, *IDLE, *SHORT], Label.SAFETY, -0.9 + 0.3 * 3 / 8),
        ("(and (sometime (holding b3)) (at-most-once (holding b1)))", SHORT, Label.SAFETY, -0.6),
    ],
)
def test_goal_with_violated_constraint_is_no_success(
    verifiers: Verifiers, constraint: str, plan: list[str], label: Label, expected_reward: float
) -> None:
    text = ORDERED.replace("(sometime-before (on b2 b3) (holding b1))", constraint)
    record = verifiers.write_problem(re.sub(r"\W+", "-", constraint), load_domain_text("blocksworld"), text)
    completion = "\n".join(plan)
    verdict = verifiers.check(record, completion, plan, verifiers.task.judge([(record, completion)])[0])
    assert verdict.label == label
    assert verdict.reward == pytest.approx(expected_reward)


@pytest.mark.parametrize(
    ("completion", "plan", "succeeds"),
    [
        ("(lit a)\n(lit b)", ["(lit a)", "(lit b)"], False),
        ("(:goal (and (lit a) (lit b)))", None, False),
        ("(powered)\n(lit a)", ["(powered)", "(lit a)"], False),
        ("(powered)\n(lit a)\n(lit b)", ["(powered)", "(lit a)", "(lit b)"], True),
        ("(lamp a)\n(powered)\n(lit a)\n(lit b)", ["(lamp a)", "(powered)", "(lit a)", "(lit b)"], False),
    ],
)
def test_goal_atoms_succeed_only_as_actions_that_reach_the_goal(
    verifiers: Verifiers, completion: str, plan: list[str] | None, succeeds: bool
) -> None:
    record = verifiers.write_problem("lamps", LAMPS, NIGHT)
    verdict = verifiers.check(record, completion, plan, verifiers.task.judge([(record, completion)])[0])
    assert verdict.success == succeeds


@pytest.mark.parametrize(
    ("completion", "plan", "succeeds"),
    [
        ("", [], True),
        ("; the goal holds already", [], True),
        ("<think>It holds already.</think>\n<end>", [], True),
        ("It holds already.", None, False),
        ("```It holds already.```", None, False),
        ("(clear b1)", ["(clear b1)"], False),
        (FIRST, [FIRST], False),
    ],
)
def test_empty_plan_succeeds_only_if_the_goal_holds_initially(
    verifiers: Verifiers, completion: str, plan: list[str] | None, succeeds: bool
) -> None:
    record = verifiers.write_problem("ready", load_domain_text("blocksworld"), READY)
    verdict = verifiers.check(record, completion, plan, verifiers.task.judge([(record, completion)])[0])
    assert verdict.success == succeeds


@pytest.mark.parametrize(
    ("end", "worst", "best"),
    [
        ([FIRST, FIRST], -0.6, -0.3),  # a precondition fails
        ([FIRST], -0.3, -0.3),  # no goal is reached
        (SHORT[:2], -0.15, -0.15),  # one of two is
        (["(fly)"], -1, -1),
    ],
)
def test_harmless_steps_do_not_raise_the_class_of_a_plan(
    verifiers: Verifiers, tower: Record, end: list[str], worst: float, best: float
) -> None:
    plans = [IDLE * times + end for times in (0, 1, 10, 1000)]
    verdicts = verifiers.task.judge([(tower, "\n".join(plan)) for plan in plans])
    for plan, by_val in zip(plans, verdicts, strict=True):
        verdict = verifiers.check(tower, "\n".join(plan), plan, by_val)
        assert worst <= verdict.reward <= best + 1e-12


JUNK = [
    *(*SHORT, *GOAL, *IDLE, "(put-down b1)", "(unstack b1 b2)", *LOOK_ALIKES.values()),
    *(
        "(",
        ")",
        "\n",
        "\r",
        " ",
        "\t",
        "\v",
        "\0",
        ";",
        ":",
        "0: ",
        "12:",
        "[1]",
        "```",
        "`",
        "- ",
        "1. ",
        "no",
        "\nno\n",
    ),
    *(
        "<think>",
        "</think>",
        "<end>",
        "<|im_end|>",
        "<|im_start|>",
        "assistant",
        "[/INST]",
        "</s>",
        "<|",
        "|>",
        "\uff5c",
    ),
    *("\u212a", "\u0131", "\u200d", "\u00a0", "\u2028", "\x85", "<!--", "-->", "\n;", "\n\n"),
    *("b1", "b2", "b3", "B2", "-", "_", "and"),
]


@st.composite
def draw_spliced_plan(draw: st.DrawFn) -> str:
    """Draw the text of a plan with pieces inserted, deleted or repeated, at line ends or anywhere."""
    text = "\n".join(draw(st.sampled_from([SHORT, CAREFUL, CAREFUL[:-1], GOAL + SHORT])))
    for _ in range(draw(st.integers(1, 5))):
        ends = [i for i, character in enumerate(text) if character == "\n"]
        position = st.sampled_from([0, *ends, len(text)]) | st.integers(0, len(text))
        start, stop = sorted((draw(position), draw(position)))
        middle, change = text[start:stop], draw(st.integers(0, 5))
        if change <= 3:
            piece = draw(st.sampled_from(JUNK))
            text = text[:start] + draw(st.sampled_from([piece, f"\n{piece}", f"{piece}\n"])) + text[start:]
        else:
            text = text[:start] + middle * (0, 2)[change - 4] + text[stop:]
    return text


@settings(max_examples=150, deadline=None)
@given(completion=draw_spliced_plan())
def test_junk_around_a_plan_does_not_raise_the_reward(
    verifiers: Verifiers, tower: Record, ordered_tower: Record, completion: str
) -> None:
    plan = extract_plan(completion)
    for record in (tower, ordered_tower):
        verdict = verifiers.task.verify(record, completion)
        by_val = None if plan is None else verifiers.run_val(record.domain, "\n".join(plan))
        assert verdict.success == (verdict.reward > 0) == (by_val is not None and by_val.label == Label.SUCCESS)
        assert verdict.reward == (-1 if by_val is None else compute_reward(by_val))

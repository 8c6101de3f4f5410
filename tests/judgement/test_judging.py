"""`planward judge`: files of completions in, verdicts, quarantine, tables and a page out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from planward import val
from planward.cli import app
from planward.core.verdicts import Label
from planward.judgement.judgement import judge_file
from planward.judgement.problems import ProblemIndex
from planward.judgement.verdicts import Judge, Settings, Verifier
from planward.tasks.planning.domains import load_domain_text
from support import ROOT, read_rows, write_lines

TOWER = """(define (problem {name}) (:domain blocksworld) (:objects a b c)
 (:init (handempty) (clear a) (clear b) (clear c) (ontable a) (ontable b) (ontable c)) (:goal (and {goal})))
"""
GOALS = {"p1": "(on a b)", "p2": "(on b a)", "p3": "(on a c)"}
SOLUTIONS = {"p1": ["(pick-up a)", "(stack a b)"], "p2": ["(pick-up b)", "(stack b a)"]}
SOLUTIONS["p3"] = ["(pick-up a)", "(stack a c)"]
FILES = ("verdicts.jsonl", "quarantine.jsonl", "metrics.json", "success.csv", "paired.csv", "labels.csv", "page.html")
Line = dict[str, Any] | bytes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three problems, whose ids are in problems.jsonl, and a broken one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "domain.pddl").write_text(load_domain_text("blocksworld"))
    for name, goal in GOALS.items():
        (tmp_path / f"{name}.pddl").write_text(TOWER.format(name=name, goal=goal))
    (tmp_path / "broken.pddl").write_text("(define (problem broken) (:domain blocksworld) (:init (handempty))")
    write_lines(
        tmp_path / "problems.jsonl",
        [{"id": name, "prompt": "", "meta": {"scenario": "towers"} | get_files(name)} for name in GOALS],
    )
    return tmp_path


def get_files(name: str) -> dict[str, str]:
    return {"domain_file": "domain.pddl", "problem_file": f"{name}.pddl"}


def judge(lines: list[Line], *options: str, status: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run the command on lines; returns verdicts and quarantine."""
    write_lines(Path("answers.jsonl"), lines)
    arguments = ["judge", "answers.jsonl", "--problems", "problems.jsonl", "--workers", "1", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, result.output
    return read_rows(Path("answers-judged/verdicts.jsonl")), read_rows(Path("answers-judged/quarantine.jsonl"))


@pytest.mark.usefixtures("folder")
def test_val_judges_problems_with_too_many_ground_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planward.pddl.grounding.MAX_ATOMS", 2)
    verdicts, quarantine = judge([{"id": "p1", "model": "m", "completion": "\n".join(SOLUTIONS["p1"])}])
    assert [(row["success"], row["judged_by"]) for row in verdicts] == [(True, "val")]
    assert not quarantine


def test_the_page_about_judging_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/how-to/judging.md").read_text(), re.DOTALL)
    (_, domain), (_, problem), (_, answers), (_, command), (_, output) = blocks
    for name, text in {"domain.pddl": domain, "two.pddl": problem, "answers.jsonl": answers}.items():
        Path(name).write_text(text)
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--workers", "1"])
    assert result.exit_code == 0, result.output
    words = [[word for word in text.split() if word.strip("─")] for text in (output, result.stdout)]
    assert words[1][: len(words[0])] == words[0]
    assert sorted(path.name for path in Path("answers-judged").iterdir()) == sorted(FILES)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verifier", ["val", "fast"])
def test_every_form_of_a_line_gets_vals_verdict(verifier: str) -> None:
    good, bad = SOLUTIONS["p1"], SOLUTIONS["p2"]
    texts: list[dict[str, Any]] = [
        {"completion": "\n".join(good)},
        {"completion": "So:\n```\n" + "\n".join(good) + "\n```"},
        {"completion": "\\\n".join(good)},
        {"completion": "[PLAN]\n(\\\npick-up a\\\n)\\\n(\\\nstack a b\\\n)\n[PLAN END]"},
        {"completion": "1. (pick-up a)\n2. (stack a b)"},
        {"plan": good},
        {"plan": "\n".join(good), "completion": None},
        {"completion": "\n".join(bad)},
        {"completion": "(stack a b)"},
        {"completion": "(fly a)"},
        {"completion": "I cannot."},
        {"completion": ""},
    ]
    lines: list[Line] = [
        {"model": f"m{i}"} | (get_files("p1") if i % 2 else {"id": "p1"}) | text for i, text in enumerate(texts)
    ]
    verdicts, quarantine = judge(lines, "--verifier", verifier, "--audit-share", "1")
    assert not quarantine
    assert [row["success"] for row in verdicts] == [True] * 7 + [False] * 5
    labels = [Label.SUCCESS] * 7 + [Label.GOAL, Label.PRECONDITION] + [Label.FORMAT] * 3
    assert [row["label"] for row in verdicts] == labels
    assert {(row["id"], row["domain"]) for row in verdicts} == {("p1", "towers")}  # by id or by files
    for row in verdicts[:-2]:
        outcome = val.validate(Path("domain.pddl"), Path("p1.pddl"), row["plan"])
        fields = ("label", "plan_size", "failing_step", "goals_satisfied", "goals_total")
        assert [row[name] for name in fields] == [getattr(outcome, name) for name in fields]
    assert {row["judged_by"] for row in verdicts} == {"val" if verifier == "val" else "both", "none"}


@pytest.mark.usefixtures("folder")
def test_bad_lines_are_quarantined_and_counted() -> None:
    plan = {"plan": SOLUTIONS["p1"]}
    bad: dict[str, Line] = {
        "bad JSON: Expecting": b'{"id": "p1", "plan": ',
        "bad JSON: expected an object": b"[1]",
        "bad JSON: nested": b"[" * 100_000,
        "not UTF-8: byte 8": b'{"id": "\xff"}',
        "no problem": plan,
        "no problem:": plan | {"domain_file": "domain.pddl"},
        "unknown id": plan | {"id": "p9"},
        "contradiction": plan | {"id": "p1"} | get_files("p2"),
        "missing file: 'p9.pddl'": plan | get_files("p9"),
        "missing file: '../secret'": plan | get_files("p1") | {"domain_file": "../secret"},
        "bad PDDL: broken.pddl": plan | get_files("broken"),
        "bad PDDL: p1.pddl": plan | get_files("p1") | {"domain_file": "p1.pddl"},
        "neither": {"id": "p1"},
        "both": plan | {"id": "p1", "completion": "x"},
        "bad field: `completion`": {"id": "p1", "completion": 3},
        "bad field: `plan`": {"id": "p1", "plan": [1]},
        "bad field: `shot_num`": plan | {"id": "p1", "shot_num": -1},
        "bad field: `model`": plan | {"id": "p1", "model": "a\x1b[2Jb"},
        "bad field: `id`": plan | {"id": 7},
    }
    good: list[Line] = [plan | {"id": "p1"}, b"", plan | {"id": "p1", "shot_num": 1}]
    again = plan | get_files("p1")  # the problem of the first line
    huge = b'{"id": "p1", "plan": "' + b" " * (1 << 24) + b'"}'
    verdicts, quarantine = judge([*good, *bad.values(), again, huge, plan | {"id": "p2"}])
    assert [row["line"] for row in verdicts] == [1, 3, len(bad) + 6]
    assert [row["line"] for row in quarantine] == list(range(4, len(bad) + 6))
    for row, reason in zip(quarantine, [*bad, "duplicate", "too long"], strict=True):
        assert row["reason"].startswith(reason)
    assert all(len(row["text"]) <= 1000 for row in quarantine)
    assert json.loads(quarantine[-2]["text"]) == again
    metrics = json.loads(Path("answers-judged/metrics.json").read_text())
    assert metrics["lines"] == metrics["judged"] + metrics["quarantined"] + metrics["blank"] == len(bad) + 6
    assert (metrics["judged"], metrics["blank"]) == (3, 1)
    assert sum(metrics["labels"].values()) == sum(metrics["judged_by"].values()) == 3
    assert sum(metrics["quarantined_by_reason"].values()) == len(quarantine)


@pytest.mark.usefixtures("folder")
def test_models_are_compared_on_the_problems_that_they_share() -> None:
    solved_ids = {"left": {"p1"}, "right": {"p1", "p2", "p3"}, "other": {"p3"}}
    answered_ids = {"left": ["p1", "p2"], "right": ["p3", "p2", "p1"], "other": ["p3"]}
    lines: list[Line] = [
        {"id": name, "model": model, "plan": SOLUTIONS[name] if name in solved_ids[model] else ["(pick-up c)"]}
        for model, names in answered_ids.items()
        for name in names
    ]
    lines.append({"id": "p1", "model": "left", "shot_num": 2, "plan": SOLUTIONS["p1"]})
    judge(lines, "--verifier", "fast")
    success = pd.read_csv("answers-judged/success.csv")
    rates = success[success["domain"] == "all"].set_index(["model", "shot_num"])[["n", "successes"]]
    assert rates.T.to_dict("list") == {
        ("left", 0): [2, 1],
        ("left", 2): [1, 1],
        ("right", 0): [3, 3],
        ("other", 0): [1, 1],
    }
    row = success.iloc[0]
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((0.0945, 0.9055), abs=1e-4)  # Wilson, 1 of 2
    pairs = pd.read_csv("answers-judged/paired.csv")
    columns = ["model_a", "model_b", "shot_num", "n", "both", "only_a", "only_b"]
    assert pairs[columns].to_numpy().tolist() == [["left", "right", 0, 2, 1, 0, 1], ["right", "other", 0, 1, 1, 0, 0]]
    assert pairs["difference"].tolist() == [50, 0]


def test_a_difference_is_found_and_the_page_shows_it(folder: Path) -> None:
    names = [f"q{i}" for i in range(30)]
    for name in names:
        (folder / f"{name}.pddl").write_text(TOWER.format(name=name, goal=GOALS["p1"]))
    plans = {"good": SOLUTIONS["p1"], "<script>alert(1)</script>": ["(pick-up c)"]}
    lines: list[Line] = [
        get_files(name) | {"model": model, "plan": plan} for model, plan in plans.items() for name in names
    ]
    judge(lines, "--verifier", "fast")
    pair = pd.read_csv("answers-judged/paired.csv").iloc[0]
    assert (pair["n"], pair["only_a"], pair["result"]) == (30, 30, "worse")
    assert pair["p"] == pytest.approx(2 / 2**30)  # McNemar's exact test
    page = Path("answers-judged/page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; minus good" in page
    assert "-100.0" in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page.replace("data:", ""))


@pytest.mark.usefixtures("folder")
def test_any_number_of_processes_writes_the_same_bytes() -> None:
    lines: list[Line] = [
        {"id": f"p{i % 3 + 1}", "model": f"m{i // 3}", "plan": SOLUTIONS[f"p{(i * i) % 3 + 1}"]} for i in range(300)
    ]
    lines[50:50] = [b"{", b"", {"id": "p1", "model": "m0", "plan": "(x)"}]
    options = ("--verifier", "fast", "--audit-share", "0.1")
    judge(lines, *options)
    expected = {name: Path("answers-judged", name).read_bytes() for name in FILES}
    judge(lines, *options, "--workers", "2")
    assert {name: Path("answers-judged", name).read_bytes() for name in FILES} == expected


def test_a_broken_verifier_gives_no_verdicts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", str(folder / "missing"))
    write_lines(Path("answers.jsonl"), [{"id": "p1", "plan": SOLUTIONS["p1"]}])
    for options in ([], ["--verifier", "fast", "--audit-share", "1"], ["--workers", "2"]):
        result = CliRunner().invoke(app, ["judge", "answers.jsonl", "--problems", "problems.jsonl", *options])
        assert result.exit_code == 2
        assert "line 1: VAL is missing" in result.stderr
        assert not list(folder.glob("answers-judged/*"))


@pytest.mark.parametrize("options", [[], ["--verifier", "fast", "--audit-share", "1"]], ids=["val", "fast"])
def test_a_line_that_val_fails_on_is_quarantined(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """VAL dies on p2 only, so its known problem has a verdict."""
    program = folder / "Validate"
    program.write_text(f'#!/bin/sh\ncase "$*" in *p2.pddl*) kill -9 $$;; esac\nexec {val.find_binary()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(program))
    lines: list[Line] = [{"id": name, "plan": SOLUTIONS[name]} for name in ("p1", "p2", "p3")]
    verdicts, quarantine = judge(lines, *options)
    assert [(row["id"], row["success"]) for row in verdicts] == [("p1", True), ("p3", True)]
    assert [(row["line"], row["reason"].partition(":")[0]) for row in quarantine] == [(2, "verifier")]
    assert json.loads(quarantine[0]["text"]) == lines[1]


@pytest.mark.usefixtures("folder")
def test_a_lost_line_stops_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_lines = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, lines: judge_lines(self, lines)[1:])
    write_lines(Path("answers.jsonl"), [b"", {"id": "p1", "plan": SOLUTIONS["p1"]}])
    settings = Settings(Verifier.fast, 0.0, 10)
    with pytest.raises(RuntimeError, match="2 lines read, but 0 blank, 1 judged and 0 quarantined"):
        judge_file(Path("answers.jsonl"), Path("out"), ProblemIndex([Path("problems.jsonl")], Path()), settings)
    assert not list(Path().glob("out/*.jsonl"))


def test_verifiers_that_disagree_stop_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VAL is the real one, but gets another plan than the in-process checker."""
    (folder / "other.plan").write_text("\n".join(SOLUTIONS["p1"]))
    program = folder / "Validate"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(val.find_binary()))} "$1" "$2" "$3" {folder}/other.plan\n')
    program.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(program))
    write_lines(Path("answers.jsonl"), [{"id": "p1", "plan": SOLUTIONS["p2"]}])
    arguments = ["judge", "answers.jsonl", "--problems", "problems.jsonl", "--workers", "1", "--verifier", "fast"]
    result = CliRunner().invoke(app, [*arguments, "--audit-share", "1"])
    assert result.exit_code == 2
    assert "line 1: the verifiers disagree" in result.stderr
    assert "p1.pddl" in result.stderr
    assert CliRunner().invoke(app, [*arguments, "--audit-share", "0"]).exit_code == 0


@pytest.mark.usefixtures("folder")
def test_a_file_without_a_usable_line_is_an_error() -> None:
    judge([{"id": "p1", "plan": SOLUTIONS["p1"]}])
    verdicts, quarantine = judge([b"{", {"id": "p1"}], status=2)
    assert (len(verdicts), len(quarantine)) == (0, 2)
    assert judge([], status=2) == ([], [])
    assert sorted(path.name for path in Path("answers-judged").iterdir()) == ["quarantine.jsonl", "verdicts.jsonl"]
    result = CliRunner().invoke(app, ["judge", "nowhere.jsonl"])
    assert (result.exit_code, "nowhere.jsonl" in result.stderr) == (2, True)


def test_files_outside_the_root_are_told_of_root(folder: Path) -> None:
    line: Line = {"plan": SOLUTIONS["p1"], "domain_file": str(folder / "domain.pddl"), "problem_file": "p1.pddl"}
    (folder / "inside").mkdir()
    write_lines(Path("answers.jsonl"), [line])
    result = CliRunner().invoke(app, ["judge", "answers.jsonl", "--root", "inside"])
    assert result.exit_code == 2
    assert "is outside the data root; fix: --root" in " ".join(result.stderr.split())


@pytest.mark.usefixtures("folder")
def test_more_models_than_tables_hold_are_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planward.judgement.tally.MAX_CELLS", 3)
    plan = {"plan": SOLUTIONS["p1"]}
    lines: list[Line] = [{"id": "p1", "model": f"m{i}"} | plan for i in range(4)]
    lines.append({"id": "p2", "model": "m0"} | plan)
    verdicts, quarantine = judge(lines, "--verifier", "fast")
    assert [row["line"] for row in verdicts] == [1, 2, 3, 5]
    (row,) = quarantine
    assert row["reason"].startswith("too many models: the file has 3 other pairs of `model` and `shot_num`")


@pytest.mark.usefixtures("folder")
def test_more_domains_than_tables_hold_are_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planward.judgement.tally.MAX_DOMAINS", 1)
    text = Path("domain.pddl").read_text()
    for name in ("first", "second"):
        Path(f"{name}.pddl").write_text(text.replace("(domain blocksworld)", f"(domain {name})"))
        problem = Path("p1.pddl").read_text().replace("(:domain blocksworld)", f"(:domain {name})")
        Path(f"{name}-p1.pddl").write_text(problem)
    lines: list[Line] = [
        {"domain_file": f"{name}.pddl", "problem_file": f"{name}-p1.pddl", "model": model, "plan": SOLUTIONS["p1"]}
        for name, model in (("first", "a"), ("second", "b"), ("first", "b"))
    ]
    verdicts, quarantine = judge(lines, "--verifier", "fast")
    assert [row["line"] for row in verdicts] == [1, 3]
    assert [row["reason"] for row in quarantine] == ["too many domains: the file has 1 others; fix: divide it"]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"id": "p1", "prompt": "", "meta": {"scenario": "towers"} | get_files("p2")}, "'p1' is another problem"),
        ({"prompt": "", "meta": {"scenario": "towers"} | get_files("p2")}, "a problem has no `id`"),
        ({"id": "p4"}, "more.jsonl"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_ids_must_be_clear(problem: dict[str, Any], message: str) -> None:
    write_lines(Path("answers.jsonl"), [{"id": "p1", "plan": SOLUTIONS["p1"]}])
    write_lines(Path("more.jsonl"), [problem])
    files = ["--problems", "problems.jsonl", "--problems", "more.jsonl"]
    result = CliRunner().invoke(app, ["judge", "answers.jsonl", *files])
    assert result.exit_code == 2
    assert message in result.stderr


def test_pddl_that_only_val_reads_goes_to_val(folder: Path) -> None:
    domain = """(define (domain d) (:requirements :durative-actions) (:predicates (p) (q))
     (:durative-action go :parameters () :duration (= ?duration 1) :condition (at start (p)) :effect (at end (q))))"""
    (folder / "timed.pddl").write_text(domain)
    (folder / "t1.pddl").write_text("(define (problem t1) (:domain d) (:init (p)) (:goal (q)))")
    line: Line = {"domain_file": "timed.pddl", "problem_file": "t1.pddl", "plan": ["(go)"]}
    verdicts, _ = judge([line, {"id": "p1", "plan": SOLUTIONS["p1"]}], "--verifier", "fast", "--audit-share", "0")
    assert [(row["domain"], row["judged_by"]) for row in verdicts] == [("d", "val"), ("towers", "in-process")]

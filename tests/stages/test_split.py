"""Problems from any source through split, score and schedule: no line is lost, none leaks between splits."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pyarrow.parquet as pq
import pytest

from planward.core.lines import CHUNK_LINES
from planward.core.records import Meta, Record
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.core.verdicts import VerifierError
from planward.params import ParamsError
from planward.pddl.canonical import hash_problem
from planward.pddl.language import load_domain, load_problem
from planward.stages import problems, schedule, score, split
from planward.tasks.planning.config import DifficultyConfig, PlanningParams
from planward.tasks.planning.difficulty import parse_difficulty
from planward.tasks.planning.domains import GENERATED_DOMAINS, load_domain_text, render_problem
from planward.tasks.planning.sources import iter_files
from support import ROOT, read_rows, write_lines

Small = Callable[..., PlanningParams]
PROBLEMS = Path("results/problems")
SIDES = ("train", "validation", "test")
DOMAINS = ("blocksworld", "ferry")
SIZES = {"blocks": 4, "locations": 4, "cars": 3}


def build_problem_text(domain: str, seed: int) -> tuple[str, str]:
    """Name and PDDL of a problem that is not solved at the start."""
    rng = Random(seed)
    while True:
        instance = GENERATED_DOMAINS[domain].generate(rng, SIZES)
        if set(instance.goal) - set(instance.init):
            return instance.name, render_problem(domain, instance)


def write_problem(folder: Path, domain: str, seed: int) -> str:
    """Write a problem and its domain below `folder`; returns its path relative to `folder`."""
    name, text = build_problem_text(domain, seed)
    (folder / domain).mkdir(parents=True, exist_ok=True)
    (folder / domain / "domain.pddl").write_text(load_domain_text(domain), encoding="utf-8")
    (folder / domain / f"{name}.pddl").write_text(text, encoding="utf-8")
    return f"{domain}/{name}.pddl"


def build_line(problem_file: str, **changes: Any) -> dict[str, Any]:
    domain = problem_file.partition("/")[0]
    meta = {"scenario": domain, "domain_file": f"{domain}/domain.pddl", "problem_file": problem_file}
    return {"prompt": "Plan.", "meta": meta | changes.pop("meta", {}), **changes}


def write_valid_problems(folder: Path, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Write `count` problems per domain, distinct up to renaming; returns their lines."""
    lines = []
    for domain in DOMAINS:
        digests: set[str] = set()
        while len(digests) < count:
            file = write_problem(folder, domain, seed)
            seed += 1
            problem = load_problem(folder / file, load_domain(folder / domain / "domain.pddl"))
            digest = hash_problem(problem)
            if digest not in digests:
                digests.add(digest)
                lines.append(build_line(file))
    return lines


def read_splits() -> dict[str, str]:
    """The split of each accepted problem, by id."""
    return {row["id"]: side for side in SIDES for row in read_rows(Path(f"results/split/{side}.jsonl"))}


def read_split_rows() -> list[dict[str, Any]]:
    return [row for side in SIDES for row in read_rows(Path(f"results/split/{side}.jsonl"))]


def read_quarantine() -> list[dict[str, Any]]:
    return read_rows(Path("results/split/quarantine.jsonl"))


def check_counts(lines: int) -> dict[str, Any]:
    """Check that no line was lost; returns the metrics of the split."""
    metrics: dict[str, Any] = json.loads(Path("results/split/metrics.json").read_text())
    files = (*SIDES, "held_out")
    assert metrics["kept"] == {name: len(read_rows(Path(f"results/split/{name}.jsonl"))) for name in files}
    assert metrics["lines"] == lines == sum(metrics["kept"].values()) + len(read_quarantine())
    assert len(read_splits()) == sum(metrics["kept"][side] for side in SIDES)
    assert metrics["quarantined"] == len(read_quarantine()) == sum(metrics["quarantined_by_reason"].values())
    return metrics


@pytest.mark.parametrize("layout", ["V1", "V2"])
def test_json_lines_in_both_layouts_give_a_schedule(project: Path, small: Small, layout: str) -> None:
    lines = write_valid_problems(project / "data", 20)
    if layout == "V1":
        write_lines(project / "data/all.jsonl", lines)
        params = small(problems={"source": "jsonl", "path": "data/all.jsonl"})
    else:
        for domain in DOMAINS:
            write_lines(project / f"data/{domain}.jsonl", [row for row in lines if row["meta"]["scenario"] == domain])
        params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    score.run(params)
    schedule.run(params, Run("grpo", 4, 3407))
    assert check_counts(40)["quarantined"] == 0
    assert all(sum(side == name for side in read_splits().values()) > 0 for name in SIDES)
    rows = [row for side in SIDES for row in read_rows(Path(f"results/score/{side}.jsonl"))]
    assert {row["id"] for row in rows} == set(read_splits())
    assert {row["score"] for row in rows if row["meta"]["scenario"] == "blocksworld"} == {20.0}
    assert {row["score"] for row in rows if row["meta"]["scenario"] == "ferry"} == {29.0}
    assert all(row["response"].startswith("(") for row in rows)
    with Path("results/score/difficulty.csv").open(encoding="utf-8") as flat:
        assert len(list(csv.DictReader(flat))) == 40
    slots = pq.read_table("results/schedules/grpo-4-3407.parquet").to_pylist()
    assert len(slots) == 40
    assert {slot["id"] for slot in slots} <= {row["id"] for row in read_rows(Path("results/score/train.jsonl"))}
    assert json.loads(Path("results/schedules/grpo-4-3407.json").read_text())["prompts"] == 40


FOREIGN_DOMAIN = """
; a foreign style of PDDL
(DEFINE (DOMAIN FERRY) (:REQUIREMENTS :STRIPS :TYPING :EQUALITY)
(:TYPES LOCATION CAR)(:PREDICATES (AT-FERRY ?L - LOCATION)(AT ?C - CAR ?L - LOCATION)(EMPTY-FERRY)(ON ?C - CAR))
(:ACTION SAIL :PARAMETERS (?FROM - LOCATION ?TO - LOCATION)
  :PRECONDITION (AND (NOT (= ?FROM ?TO)) (AT-FERRY ?FROM)) :EFFECT (AND (AT-FERRY ?TO) (NOT (AT-FERRY ?FROM))))
(:ACTION BOARD :PARAMETERS (?C - CAR ?L - LOCATION)
  :PRECONDITION (AND (AT ?C ?L) (AT-FERRY ?L) (EMPTY-FERRY)) :EFFECT (AND (ON ?C) (NOT (AT ?C ?L)) (NOT (EMPTY-FERRY))))
(:ACTION DEBARK :PARAMETERS (?C - CAR ?L - LOCATION)
  :PRECONDITION (AND (ON ?C) (AT-FERRY ?L)) :EFFECT (AND (AT ?C ?L) (EMPTY-FERRY) (NOT (ON ?C)))))
"""
FOREIGN_FERRY = """(define (problem  P1)   ; ((
\t(:domain  Ferry)
  (:objects Aarhus - LOCATION Bergen
     - location  Volvo - Car)
 (:INIT (At-Ferry AARHUS) (EMPTY-FERRY)(at volvo bergen))
(:goal (AND (at volvo aarhus))))"""
FOREIGN_BLOCKS = """;; untyped
(define (problem BW-3) (:domain blocksworld) (:requirements :strips)
(:objects A
B   C)
(:init (CLEAR a)(on A b)(on b c) (ontable C) (HANDEMPTY))
(:goal (and (on C b))))"""


@pytest.mark.parametrize("flat", [False, True])
def test_bare_pddl_in_a_foreign_style_gets_plans(project: Path, small: Small, flat: bool) -> None:
    ferry = project / ("data" if flat else "data/Ferry")
    (ferry / "instances").mkdir(parents=True)
    (ferry / "domain.pddl").write_text(FOREIGN_DOMAIN)
    (ferry / "ferry-l2-c1-s1.pddl").write_text(FOREIGN_FERRY)
    (ferry / "instances/ferry-l2-c1-s2.pddl").write_text(FOREIGN_FERRY.replace("(at volvo aarhus)", "(on volvo)"))
    if not flat:
        (project / "data/ipc-2000").mkdir()  # not a domain of params.yaml, so the name in the domain file counts
        (project / "data/ipc-2000/domain.pddl").write_text(load_domain_text("blocksworld"))
        (project / "data/ipc-2000/bw_ops4_n3_seed1.pddl").write_text(FOREIGN_BLOCKS)
    params = small(problems={"source": "pddl", "path": "data"})
    problems.run(params)
    split.run(params)
    lines = 2 if flat else 3
    assert check_counts(lines)["quarantined"] == 0, read_quarantine()
    records = {row["meta"]["problem_file"]: row for row in read_split_rows()}
    plans = {Path(file).stem: row["response"].split("\n") for file, row in records.items()}
    assert len(plans["ferry-l2-c1-s1"]) == 4
    assert plans["ferry-l2-c1-s2"] == ["(sail aarhus bergen)", "(board volvo bergen)"]
    assert flat or len(plans["bw_ops4_n3_seed1"]) == 6
    assert Counter(row["meta"]["scenario"] for row in records.values()) == Counter(ferry=2, blocksworld=lines - 2)


def test_generated_problems_are_valid_and_reproducible(project: Path, small: Small) -> None:
    params = small()
    problems.run(params)
    first = {path: path.read_bytes() for path in PROBLEMS.rglob("*") if path.is_file()}
    problems.run(params)
    assert {path: path.read_bytes() for path in PROBLEMS.rglob("*") if path.is_file()} == first
    split.run(params)
    assert check_counts(24)["quarantined"] == 0
    assert Counter(row["meta"]["scenario"] for row in read_split_rows()) == Counter(blocksworld=12, ferry=12)
    assert (project / "results/problems/ferry/domain.pddl").exists()


def build_invalid_lines(folder: Path) -> list[tuple[dict[str, Any] | bytes, str]]:
    """Invalid lines, each with the reason expected in quarantine."""

    def with_text(name: str, old: str, new: str) -> dict[str, Any]:
        file = write_problem(folder, "blocksworld", 77)
        text = (folder / file).read_text()
        assert old in text
        (folder / "blocksworld" / name).write_text(text.replace(old, new))
        return build_line(f"blocksworld/{name}")

    def with_goal(name: str, goal: str) -> dict[str, Any]:
        return with_text(name, build_problem_text("blocksworld", 77)[1].partition("(:goal")[2], f" {goal}))")

    def with_file(problem_file: str) -> dict[str, Any]:
        return build_line(problem_file, meta={"scenario": "blocksworld", "domain_file": "blocksworld/domain.pddl"})

    good, scenario = build_line(write_problem(folder, "blocksworld", 99)), {"scenario": "blocksworld"}
    bad_domain = folder / "odd"
    bad_domain.mkdir(exist_ok=True)
    (bad_domain / "domain.pddl").write_text(
        load_domain_text("blocksworld").replace(":effect (and (holding ?x)", ":effect (and (hold ?x)", 1)
    )
    (bad_domain / "p.pddl").write_text((folder / good["meta"]["problem_file"]).read_text())
    lame_domain = folder / "lame"  # sound PDDL that VAL gives up: an action without parameters
    lame_domain.mkdir(exist_ok=True)
    replacement = "(:action sing :effect (handempty))\n  (:action pick-up"
    (lame_domain / "domain.pddl").write_text(load_domain_text("blocksworld").replace("(:action pick-up", replacement))
    (lame_domain / "p.pddl").write_text(write_and_read_problem(folder, 98))
    (folder / "blocksworld/latin.pddl").write_bytes(b"(define (problem caf\xe9))")
    deep = "(and " * 3000 + "(on b1 b2)" + ")" * 3000
    return [
        (b'{"prompt": "Plan.", "meta": {', "bad JSON"),
        (b"[1, 2]", "bad JSON: expected an object"),
        (b'"text"', "bad JSON: expected an object"),
        (b"[" * 100_000, "bad JSON"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "bad JSON"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8"),
        (b"\0\0\0", "bad JSON"),
        (b'{"prompt": "\0"}', "bad JSON"),
        ({"meta": good["meta"]}, "bad record: prompt"),
        ({"prompt": "Plan."}, "bad record: meta"),
        ({"prompt": "Plan.", "meta": {}}, "bad record: meta"),
        ({"prompt": 5, "meta": good["meta"]}, "bad record: prompt"),
        (build_line("blocksworld/x.pddl", meta={"scenario": "chess"}), "missing file"),
        ({**good, "meta": {**good["meta"], "scenario": "chess"}}, "unknown domain: 'chess'"),
        ({**good, "meta": {**good["meta"], "scenario": ["ferry"]}}, "bad record: meta.scenario"),
        (build_line("blocksworld/gone.pddl"), "missing file: 'blocksworld/gone.pddl'"),
        (build_line("blocksworld/" + "x" * 5000 + ".pddl"), "missing file"),
        (b'{"prompt": "", "meta": {"scenario": "ferry", "domain_file": "\\ud800", "problem_file": "p"}}', "bad record"),
        (build_line("blocksworld/\0.pddl"), "missing file"),
        (with_file("../../outside.pddl"), "missing file: '../../outside.pddl' is outside the data root"),
        (with_file("/etc/passwd"), "missing file: '/etc/passwd' is outside the data root"),
        (with_file("blocksworld"), "missing file: 'blocksworld'"),
        ({**good, "meta": {**good["meta"], "domain_file": "gone/domain.pddl"}}, "missing file: 'gone/domain.pddl'"),
        (with_text("a.pddl", "(:goal", "(:goal\n (nothing"), "bad PDDL: blocksworld/a.pddl:"),
        (with_text("b.pddl", "(on b", "(over b"), "unknown predicate 'over'"),
        (with_text("c.pddl", "b1 b2 b3 b4)", "b1 b2 b3)"), "unknown object 'b4'"),
        (with_text("d.pddl", "(:goal (and", "(:goal (and) (and"), "the goal must be one formula"),
        (with_goal("e.pddl", "(and)"), "goal is empty"),
        (with_text("f.pddl", "(:domain blocksworld)", "(:domain ferry)"), "the problem is for domain 'ferry'"),
        (with_goal("g.pddl", "(on b1 b1)"), "no reference plan: the goal is unreachable"),
        (with_goal("h.pddl", "(or (on b1 b1) (on b2 b2))"), "no reference plan: the goal is unreachable"),
        (with_goal("i.pddl", f"{deep}"), "bad PDDL: blocksworld/i.pddl: nested"),
        (with_goal("j.pddl", "(handempty)"), "nothing to plan"),
        (build_line("blocksworld/latin.pddl"), "bad PDDL: blocksworld/latin.pddl: not UTF-8"),
        (build_line("odd/p.pddl", meta=scenario), "bad PDDL: odd/domain.pddl:8: unknown predicate 'hold'"),
        (build_line("lame/p.pddl", meta=scenario), "bad PDDL: lame/domain.pddl"),
        ({**good, "response": "(pick-up b1)\n(pick-up b1)"}, "bad reference plan: precondition_violation"),
        ({**good, "response": "(fly b1)"}, "bad reference plan: plan_format_error"),
        ({**good, "response": "I do not know."}, "bad reference plan: plan_format_error"),
    ]  # fmt: skip


def write_and_read_problem(folder: Path, seed: int) -> str:
    return (folder / write_problem(folder, "blocksworld", seed)).read_text()


def test_invalid_lines_go_to_quarantine_with_file_line_and_reason(project: Path, small: Small) -> None:
    data = project / "data"
    (project / "outside.pddl").write_text("secret")
    good, bad = write_valid_problems(data, 6), build_invalid_lines(data)
    lines: list[dict[str, Any] | bytes] = [*good[:6], *(row for row, _ in bad), b"", b"   ", *good[6:]]
    write_lines(data / "all.jsonl", lines)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    metrics = check_counts(len(good) + len(bad))
    assert len(read_splits()) == len(good)
    set_apart = read_quarantine()
    for number, (row, (_, reason)) in enumerate(zip(set_apart, bad, strict=True), 7):
        assert (row["file"], row["line"]) == ("all.jsonl", number)
        assert reason in row["reason"], row
        assert str(project) not in row["reason"]
        assert row["text"].strip()
    assert set(metrics["quarantined_by_reason"]) == {row["reason"].partition(":")[0] for row in set_apart}


def test_a_problem_with_and_without_constraints_is_on_one_side_of_the_split(project: Path, small: Small) -> None:
    data = project / "data"
    lines = write_valid_problems(data, 12)
    for row in lines[:]:
        file = data / row["meta"]["problem_file"]
        rule = f"(:constraints (sometime ({'handempty' if file.parent.name == 'blocksworld' else 'empty-ferry'})))"
        twin = file.with_name(f"{file.stem}0.pddl")
        twin.write_text(file.read_text(encoding="utf-8").rstrip()[:-1] + rule + ")\n", encoding="utf-8")
        lines.append(build_line(twin.relative_to(data).as_posix()))
    write_lines(data / "all.jsonl", lines)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    metrics = check_counts(len(lines))
    assert metrics["quarantined"] == 0
    sides_by_file = {
        row["meta"]["problem_file"]: (side, row["constrained"])
        for side in SIDES
        for row in read_rows(Path(f"results/split/{side}.jsonl"))
    }
    plain = {
        file.removesuffix(".pddl"): side for file, (side, is_constrained) in sides_by_file.items() if not is_constrained
    }
    twins = {
        file.removesuffix("0.pddl"): side for file, (side, is_constrained) in sides_by_file.items() if is_constrained
    }
    assert plain == twins
    assert len(twins) == sum(metrics["constrained"].values()) == 24
    assert set(plain.values()) >= {"train", "test"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_constraints_change_nothing_else_in_generated_problems(small: Small, share: float) -> None:
    texts = {}
    for constraints in ("none", "safety"):
        problems.run(small(problems={"constraints": constraints, "constrained_share": share}))
        texts[constraints] = {path.name: path.read_text() for path in PROBLEMS.rglob("*_seed*.pddl")} | {
            path.name: path.read_text() for path in PROBLEMS.rglob("ferry-*.pddl")
        }
    assert not any(":constraints" in text for text in texts["none"].values())
    constrained_names = [name for name, text in texts["safety"].items() if ":constraints" in text]
    assert (len(constrained_names) > 0) == (share > 0)
    assert share == 1.0 or len(constrained_names) < len(texts["safety"])
    bare_texts = {
        name: text.replace("  (:requirements :constraints)\n", "").partition("\n  (:constraints")[0].rstrip(")\n")
        for name, text in texts["safety"].items()
    }
    assert bare_texts == {name: text.rstrip(")\n") for name, text in texts["none"].items()}
    split.run(small(problems={"constraints": "safety", "constrained_share": share}))
    assert not read_quarantine()  # the reference plans satisfy the constraints


def test_renamed_problems_are_duplicates(project: Path, small: Small) -> None:
    data = project / "data"
    lines = write_valid_problems(data, 6)
    source = lines[0]["meta"]["problem_file"]
    text = (data / source).read_text()
    for old, new in (("b1", "x"), ("b2", "b1"), ("b3", "b2"), ("x", "b3")):
        text = text.replace(f"{old} ", f"{new} ").replace(f"{old})", f"{new})").replace(f"{old}\n", f"{new}\n")
    (data / "blocksworld/copy.pddl").write_text(text)
    assert text != (data / source).read_text()
    write_lines(data / "all.jsonl", [*lines, build_line("blocksworld/copy.pddl"), lines[0]])
    params = small(problems={"source": "jsonl", "path": "data/all.jsonl"})
    problems.run(params)
    split.run(params)
    check_counts(14)
    assert [row["reason"] for row in read_quarantine()] == ["duplicate: a renaming of all.jsonl:1"] * 2


def test_the_split_of_a_problem_does_not_depend_on_other_problems(project: Path, small: Small) -> None:
    data = project / "data"
    lines = write_valid_problems(data, 25)
    params = small(problems={"source": "jsonl", "path": "data"})
    sides = []
    for selection in (lines[::2], lines, lines[::-1]):
        write_lines(data / "all.jsonl", selection)
        problems.run(params)
        split.run(params)
        sides.append(read_splits())
    few_sides, all_sides, reversed_sides = sides
    assert few_sides.items() < all_sides.items()
    assert all_sides == reversed_sides
    shares = Counter(all_sides.values())
    assert shares["train"] > shares["test"] > 0


def test_a_domain_without_a_valid_line_is_an_error(project: Path, small: Small) -> None:
    data = project / "data"
    lines = write_valid_problems(data, 4)
    for row in lines:
        if row["meta"]["scenario"] == "ferry":
            row["response"] = "(swim)"
    write_lines(data / "all.jsonl", lines)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    with pytest.raises(ValueError, match=r"every line is bad for ferry:\n  ferry: first, all\.jsonl:5: bad reference"):
        split.run(params)
    assert not list(Path("results").rglob("*.partial"))
    assert not Path("results/split/train.jsonl").exists()


def test_no_valid_line_at_all_is_an_error(project: Path, small: Small) -> None:
    write_lines(project / "data/all.jsonl", [b"{", b"}"])
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    with pytest.raises(ValueError, match=r"every line is bad for every domain:\n  all: first, all\.jsonl:1: bad JSON"):
        split.run(params)


@pytest.mark.parametrize(
    ("source", "path", "complaint"),
    [
        ("jsonl", "nowhere", r"problems\.path: nowhere does not exist"),
        ("pddl", "data", r"problems\.path: data holds no \*\.pddl"),
    ],
)
def test_a_missing_source_is_named(project: Path, small: Small, source: str, path: str, complaint: str) -> None:
    (project / "data").mkdir()
    with pytest.raises(ParamsError, match=complaint):
        problems.run(small(problems={"source": source, "path": path}))


def test_pddl_with_a_missing_or_broken_domain_goes_to_quarantine(project: Path, small: Small) -> None:
    for seed in range(3):
        write_problem(project / "data", "blocksworld", seed)
    for folder, domain in (("orphans", None), ("broken", "(define (domain blocksworld)")):
        (project / "data" / folder).mkdir()
        (project / "data" / folder / "p.pddl").write_text(build_problem_text("blocksworld", 9)[1])
        if domain:
            (project / "data" / folder / "domain.pddl").write_text(domain)
    params = small(problems={"source": "pddl", "path": "data"})
    problems.run(params)
    split.run(params)
    check_counts(5)
    reasons = [row["reason"] for row in read_quarantine()]
    assert any(reason == "missing file: 'orphans/domain.pddl'" for reason in reasons)
    assert len(reasons) == 2


def test_a_broken_verifier_is_an_error(project: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(project / "data/all.jsonl", write_valid_problems(project / "data", 2))
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    monkeypatch.setenv("VAL_BINARY", str(project / "no-such-val"))
    with pytest.raises(VerifierError, match="VAL is missing"):
        split.run(params)


def test_problems_of_unknown_difficulty_are_easy_and_counted(
    project: Path, small: Small, capfd: pytest.CaptureFixture[str]
) -> None:
    data = project / "data"
    lines = write_valid_problems(data, 10)
    for row in lines[:2]:
        old = data / row["meta"]["problem_file"]
        new = old.with_name(f"[bold]{old.stem[-4:]}[/].pddl"[:60].replace("/", "|"))
        old.rename(new)
        row["meta"]["problem_file"] = new.relative_to(data).as_posix()
    write_lines(data / "all.jsonl", lines)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    capfd.readouterr()
    score.run(params)
    output = capfd.readouterr().err
    names = {row["meta"]["problem_file"] for row in lines[:2]}
    assert all(output.count(f"no difficulty in the name {name}") == 1 for name in names)
    rows = [row for side in SIDES for row in read_rows(Path(f"results/score/{side}.jsonl"))]
    assert {(r["score"], r["bucket"]) for r in rows if r["meta"]["problem_file"] in names} == {(0.0, "easy")}
    assert json.loads(Path("results/score/metrics.json").read_text())["unmatched_names"] == 2


@pytest.mark.usefixtures("project")
def test_bucket_thresholds_come_from_the_training_split_only(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    params = small(
        problems={"generated": {"ferry": {"count": 60, "locations": [3, 5], "cars": [1, 3]}}},
        difficulty={"ferry": {"pattern": r"ferry-l(?P<l>\d+)-c(?P<c>\d+)-s\d+", "weights": {"l": 5, "c": 3}}},
    )
    problems.run(params)
    split.run(params)
    capsys.readouterr()
    score.run(params)
    output = capsys.readouterr().out
    table = json.loads(Path("results/score/metrics.json").read_text())["domains"]["ferry"]
    train = read_rows(Path("results/score/train.jsonl"))
    assert table["count"] == len(train) == sum(table["buckets"].values())
    for side in SIDES:
        for row in read_rows(Path(f"results/score/{side}.jsonl")):
            bucket = "easy" if row["score"] <= table["p40"] else "medium" if row["score"] <= table["p80"] else "hard"
            assert row["bucket"] == bucket
    assert Counter(table["buckets"]) == Counter(row["bucket"] for row in train)
    with Path("results/score/difficulty.csv").open(encoding="utf-8") as flat:
        lengths = {row["id"]: int(row["reference_length"]) for row in csv.DictReader(flat)}
    assert all(lengths[row["id"]] == len(row["response"].splitlines()) for row in train)
    for bucket in table["buckets"]:
        expected = [lengths[row["id"]] for row in train if row["bucket"] == bucket]
        assert table["reference_length"][bucket] == {"median": median(expected), "max": max(expected)}
        assert f"{median(expected):g}, {max(expected)}" in output


@pytest.mark.parametrize(
    ("response", "length"),
    [
        ("(sail a b)\n(board c b)", 2),
        ("; found in 2 s\n\n0.000: (sail a b) [1.000]\n  1.000 : (board c b)\n; cost = 2 (unit cost)\n", 2),
        ('{"work": 0.5, "consumption": 0.2}', None),
        ("", None),
        ("1: (sail a b)\n(1) I load the car:\n```\n(sail a b)\n(board c b)\n```", 2),  # as verdicts read it
        ("(\nsail a b\n)\n(\nboard c b\n)", 2),
        (None, None),
    ],
)
def test_length_of_a_reference_is_its_number_of_actions(
    shipped_params: PlanningParams, response: str | None, length: int | None
) -> None:
    meta = Meta(scenario="ferry", domain_file="domain.pddl", problem_file="p.pddl")
    record = Record(prompt="Plan.", response=response, meta=meta)
    assert score.count_reference_actions(load_task(shipped_params), record) == length


def test_a_group_of_the_pattern_that_does_not_match_gives_no_difficulty() -> None:
    difficulty = DifficultyConfig(pattern=r"p(?P<n>\d+)(-(?P<m>\d+))?", weights={"n": 1, "m": 2})
    assert [parse_difficulty(f"{name}.pddl", difficulty) for name in ("p3-4", "p3", "q")] == [11, None, None]


def measure_peak_memory(params: PlanningParams, lines: Iterable[dict[str, Any] | bytes]) -> int:
    """Peak of the bytes that Python allocates in the split."""
    write_lines(PROBLEMS / "all.jsonl", lines)
    tracemalloc.start()
    split.run(params)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.usefixtures("project")
def test_memory_does_not_grow_with_invalid_lines(small: Small) -> None:
    params, good = small(), write_valid_problems(PROBLEMS, 2)

    def bad(count: int) -> Iterable[dict[str, Any] | bytes]:
        for number in range(count):
            yield {
                "prompt": "x" * 200,
                "meta": {"scenario": f"domain {number}", "domain_file": "a", "problem_file": "b"},
            }
            yield b"{" + b"y" * 200

    few_peak = measure_peak_memory(params, [*good, *bad(1500)])  # enough for several processes
    many_peak = measure_peak_memory(params, [*good, *bad(5000)])
    assert len(read_quarantine()) == 10_000
    assert many_peak < 1.5 * few_peak


@pytest.mark.usefixtures("project")
def test_memory_does_not_grow_with_valid_lines(small: Small) -> None:
    params = small()
    lines: list[dict[str, Any] | bytes] = [*write_valid_problems(PROBLEMS, 15)]
    few_peak = measure_peak_memory(params, lines * 4)  # Python keeps some freed memory
    # threads of other tests allocate as well
    many_peak = min(measure_peak_memory(params, lines * 20) for _ in range(2))
    check_counts(20 * len(lines))
    assert many_peak < 1.5 * few_peak


@pytest.mark.usefixtures("project")
def test_the_split_is_the_same_whatever_the_number_of_processes(project: Path, small: Small) -> None:
    good, bad = write_valid_problems(PROBLEMS, 30), build_invalid_lines(PROBLEMS)
    (project / "outside.pddl").write_text("secret")
    filler = [b"no JSON"] * CHUNK_LINES * split.CHUNKS_ALONE  # all that comes after it is for other processes
    lines = [*good[:3], *filler, *(row for row, _ in bad), *good, *good[:9], *(row for row, _ in bad)]
    write_lines(PROBLEMS / "all.jsonl", lines)
    write_lines(PROBLEMS / "more.jsonl", good)
    outputs = []
    for workers in (1, 2, 3):
        split.run(small(val={"workers": workers}))
        check_counts(len(lines) + len(good))
        outputs.append({path.name: path.read_bytes() for path in Path("results/split").iterdir()})
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(read_splits()) == len(good)
    reasons = [row["reason"] for row in read_quarantine()]
    assert sum(reason == "duplicate: a renaming of all.jsonl:1" for reason in reasons) == 3
    assert sum(reason.startswith("bad PDDL: lame/domain.pddl") for reason in reasons) == 2  # VAL's, once a line


@pytest.mark.usefixtures("project")
def test_generated_problems_are_the_same_whatever_the_number_of_processes(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for least, threads in ((10**6, 1), (0, 1), (0, 2)):
        monkeypatch.setattr("planward.tasks.planning.sources.MIN_PROBLEMS_IN_PARALLEL", least)
        monkeypatch.setenv("PLANWARD_THREADS", str(threads))
        problems.run(small())
        outputs.append({path: path.read_bytes() for path in PROBLEMS.rglob("*") if path.is_file()})
    assert outputs[0] == outputs[1] == outputs[2]


def test_files_are_listed_in_the_order_of_sorted_paths(tmp_path: Path) -> None:
    for name in ("b/a.pddl", "b.pddl", "b-1.pddl", "b/a/c.pddl", "B.pddl", "a.txt", "b/a-.pddl", "c.pddl/x.pddl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link.pddl").symlink_to("b.pddl")
    (tmp_path / "gone.pddl").symlink_to("nothing")
    expected = [path for path in sorted(tmp_path.rglob("*.pddl")) if path.is_file()]
    assert list(iter_files(tmp_path, ("*.pddl",))) == expected


def test_the_shipped_parameters_have_a_difficulty_for_every_generated_domain(shipped_params: PlanningParams) -> None:
    assert set(shipped_params.problems.generated) <= set(shipped_params.difficulty)
    assert (ROOT / "params.yaml").exists()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("held_out", [["ferry"], ["blocksworld"]])
def test_held_out_domains_are_in_no_split_and_scored(small: Small, held_out: list[str]) -> None:
    params = small(split={"held_out_domains": held_out})
    problems.run(params)
    split.run(params)
    score.run(params)
    assert check_counts(24)["kept"]["held_out"] == 12
    (trained_on,) = {"blocksworld", "ferry"} - set(held_out)
    for name in SIDES:
        assert {row["meta"]["scenario"] for row in read_rows(Path(f"results/score/{name}.jsonl"))} <= {trained_on}
    rows = read_rows(Path("results/score/held_out.jsonl"))
    assert [row["meta"]["scenario"] for row in rows] == held_out * 12
    scores = sorted(row["score"] for row in rows)
    assert scores[0] < scores[-1]
    assert {row["bucket"] for row in rows if row["score"] == scores[0]} == {"easy"}
    assert {row["bucket"] for row in rows} > {"easy"}  # by percentiles of these problems
    assert list(json.loads(Path("results/score/metrics.json").read_text())["domains"]) == [trained_on]
    schedule.run(params, Run("grpo", 4, 3407))  # the batch is balanced over the domain that is left
    slots = pq.read_table("results/schedules/grpo-4-3407.parquet").to_pylist()
    assert {slot["domain"] for slot in slots} == {trained_on}


def test_a_held_out_domain_without_problems_is_an_error_that_names_the_key(project: Path, small: Small) -> None:
    with pytest.raises(ValueError, match=r"split\.held_out_domains: elevator is no domain of the problems"):
        small(split={"held_out_domains": ["elevator"]})
    with pytest.raises(ValueError, match=r"split\.held_out_domains: leaves no domain to train on"):
        small(split={"held_out_domains": ["ferry", "blocksworld"]})
    with pytest.raises(ValueError, match="twice"):
        small(split={"held_out_domains": ["ferry", "ferry"]})
    write_lines(project / "data/all.jsonl", write_valid_problems(project / "data", 3))
    params = small(problems={"source": "jsonl", "path": "data"}, split={"held_out_domains": ["grippers"]})
    problems.run(params)
    with pytest.raises(ParamsError, match=r"split\.held_out_domains: grippers is no domain of .*blocksworld, ferry"):
        split.run(params)
    params = small(problems={"source": "jsonl", "path": "data"}, split={"held_out_domains": ["ferry", "blocksworld"]})
    with pytest.raises(ParamsError, match=r"split\.held_out_domains: leaves no problem to train on"):
        split.run(params)

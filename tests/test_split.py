"""Problems of any source, checked line by line, split, scored and scheduled: nothing lost, nothing leaked."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from conftest import ROOT, rows, write_lines
from planward.params import Params, ParamsError
from planward.pddl.canonical import canonical_hash
from planward.pddl.generators import GENERATORS, domain_text, problem_text
from planward.pddl.language import load_domain, load_problem
from planward.records import Run, VerifierError
from planward.stages import problems, schedule, score, split

Small = Callable[..., Params]
PROBLEMS = Path("results/problems")
SIDES = ("train", "validation", "test")
DOMAINS = ("blocksworld", "ferry")
SIZES = {"blocks": 4, "locations": 4, "cars": 3}


def instance_text(domain: str, seed: int) -> tuple[str, str]:
    """Name and PDDL of a problem that is not solved at its start."""
    rng = Random(seed)
    while True:
        instance = GENERATORS[domain](rng, SIZES)
        if set(instance.goal) - set(instance.init):
            return instance.name, problem_text(domain, instance)


def written_problem(folder: Path, domain: str, seed: int) -> str:
    """Write a problem and its domain below `folder`; returns its path relative to `folder`."""
    name, text = instance_text(domain, seed)
    (folder / domain).mkdir(parents=True, exist_ok=True)
    (folder / domain / "domain.pddl").write_text(domain_text(domain), encoding="utf-8")
    (folder / domain / f"{name}.pddl").write_text(text, encoding="utf-8")
    return f"{domain}/{name}.pddl"


def line(problem_file: str, **changes: Any) -> dict[str, Any]:
    domain = problem_file.partition("/")[0]
    meta = {"scenario": domain, "domain_file": f"{domain}/domain.pddl", "problem_file": problem_file}
    return {"prompt": "Plan.", "meta": meta | changes.pop("meta", {}), **changes}


def good_lines(folder: Path, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of so many problems a domain, distinct up to renaming."""
    lines = []
    for domain in DOMAINS:
        seen: set[str] = set()
        while len(seen) < count:
            file = written_problem(folder, domain, seed)
            seed += 1
            parsed = load_problem(folder / file, load_domain(folder / domain / "domain.pddl"))
            digest = canonical_hash(parsed)
            if digest not in seen:
                seen.add(digest)
                lines.append(line(file))
    return lines


def kept() -> dict[str, str]:
    """Side of each kept problem."""
    return {row["id"]: side for side in SIDES for row in rows(Path(f"results/split/{side}.jsonl"))}


def quarantined() -> list[dict[str, Any]]:
    return rows(Path("results/split/quarantine.jsonl"))


def counts_add_up(lines: int) -> dict[str, Any]:
    """Check that no line was lost; returns the metrics."""
    metrics: dict[str, Any] = json.loads(Path("results/split/metrics.json").read_text())
    assert metrics["lines"] == lines == len(kept()) + len(quarantined())
    assert metrics["kept"] == {side: len(rows(Path(f"results/split/{side}.jsonl"))) for side in SIDES}
    assert metrics["quarantined"] == len(quarantined()) == sum(metrics["quarantined_by_reason"].values())
    return metrics


@pytest.mark.parametrize("layout", ["V1", "V2"])
def test_json_lines_go_all_the_way_to_a_schedule(project: Path, small: Small, layout: str) -> None:
    lines = good_lines(project / "data", 20)
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
    assert counts_add_up(40)["quarantined"] == 0
    assert all(sum(side == wanted for side in kept().values()) > 0 for wanted in SIDES)
    scored = [row for side in SIDES for row in rows(Path(f"results/score/{side}.jsonl"))]
    assert {row["id"] for row in scored} == set(kept())
    assert {row["score"] for row in scored if row["meta"]["scenario"] == "blocksworld"} == {20.0}
    assert {row["score"] for row in scored if row["meta"]["scenario"] == "ferry"} == {29.0}
    assert all(row["response"].startswith("(") for row in scored)
    with Path("results/score/difficulty.csv").open(encoding="utf-8") as flat:
        assert len(list(csv.DictReader(flat))) == 40
    slots = pq.read_table("results/schedules/grpo-4-3407.parquet").to_pylist()
    assert len(slots) == 40
    assert {slot["id"] for slot in slots} <= {row["id"] for row in rows(Path("results/score/train.jsonl"))}
    assert json.loads(Path("results/schedules/grpo-4-3407.json").read_text())["prompts"] == 40


FOREIGN_DOMAIN = """
; a courier, as someone else writes it
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
def test_bare_pddl_by_someone_else_is_planned_for_and_kept(project: Path, small: Small, flat: bool) -> None:
    ferry = project / ("data" if flat else "data/Ferry")
    (ferry / "instances").mkdir(parents=True)
    (ferry / "domain.pddl").write_text(FOREIGN_DOMAIN)
    (ferry / "ferry-l2-c1-s1.pddl").write_text(FOREIGN_FERRY)
    (ferry / "instances/ferry-l2-c1-s2.pddl").write_text(FOREIGN_FERRY.replace("(at volvo aarhus)", "(on volvo)"))
    if not flat:
        (project / "data/ipc-2000").mkdir()  # no name that params.yaml knows: the domain's own counts
        (project / "data/ipc-2000/domain.pddl").write_text(domain_text("blocksworld"))
        (project / "data/ipc-2000/bw_ops4_n3_seed1.pddl").write_text(FOREIGN_BLOCKS)
    params = small(problems={"source": "pddl", "path": "data"})
    problems.run(params)
    split.run(params)
    lines = 2 if flat else 3
    assert counts_add_up(lines)["quarantined"] == 0, quarantined()
    found = {row["meta"]["problem_file"]: row for side in SIDES for row in rows(Path(f"results/split/{side}.jsonl"))}
    plans = {Path(file).stem: row["response"].split("\n") for file, row in found.items()}
    assert len(plans["ferry-l2-c1-s1"]) == 4
    assert plans["ferry-l2-c1-s2"] == ["(sail aarhus bergen)", "(board volvo bergen)"]
    assert flat or len(plans["bw_ops4_n3_seed1"]) == 6
    assert Counter(row["meta"]["scenario"] for row in found.values()) == Counter(ferry=2, blocksworld=lines - 2)


def test_generated_problems_come_with_shortest_plans_and_are_the_same_again(project: Path, small: Small) -> None:
    params = small()
    problems.run(params)
    first = {path: path.read_bytes() for path in PROBLEMS.rglob("*") if path.is_file()}
    problems.run(params)
    assert {path: path.read_bytes() for path in PROBLEMS.rglob("*") if path.is_file()} == first
    split.run(params)
    assert counts_add_up(24)["quarantined"] == 0
    assert Counter(row["meta"]["scenario"] for s in SIDES for row in rows(Path(f"results/split/{s}.jsonl"))) == Counter(
        blocksworld=12, ferry=12
    )
    assert (project / "results/problems/ferry/domain.pddl").exists()


def faulty_lines(folder: Path) -> list[tuple[dict[str, Any] | bytes, str]]:
    """Bad lines with the reason that each must be given."""

    def changed(name: str, old: str, new: str) -> dict[str, Any]:
        file = written_problem(folder, "blocksworld", 77)
        text = (folder / file).read_text()
        assert old in text
        (folder / "blocksworld" / name).write_text(text.replace(old, new))
        return line(f"blocksworld/{name}")

    def aiming(name: str, goal: str) -> dict[str, Any]:
        return changed(name, instance_text("blocksworld", 77)[1].partition("(:goal")[2], f" {goal}))")

    def pointing(problem_file: str) -> dict[str, Any]:
        return line(problem_file, meta={"scenario": "blocksworld", "domain_file": "blocksworld/domain.pddl"})

    good = line(written_problem(folder, "blocksworld", 99))
    bad_domain = folder / "odd"
    bad_domain.mkdir(exist_ok=True)
    (bad_domain / "domain.pddl").write_text(
        domain_text("blocksworld").replace(":effect (and (holding ?x)", ":effect (and (hold ?x)", 1)
    )
    (bad_domain / "p.pddl").write_text((folder / good["meta"]["problem_file"]).read_text())
    lame_domain = folder / "lame"  # sound PDDL that VAL gives up: an action without parameters
    lame_domain.mkdir(exist_ok=True)
    extra = "(:action sing :effect (handempty))\n  (:action pick-up"
    (lame_domain / "domain.pddl").write_text(domain_text("blocksworld").replace("(:action pick-up", extra))
    (lame_domain / "p.pddl").write_text(written_text(folder, 98))
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
        (line("blocksworld/x.pddl", meta={"scenario": "chess"}), "missing file"),
        ({**good, "meta": {**good["meta"], "scenario": "chess"}}, "unknown domain: 'chess'"),
        ({**good, "meta": {**good["meta"], "scenario": ["ferry"]}}, "bad record: meta.scenario"),
        (line("blocksworld/gone.pddl"), "missing file: 'blocksworld/gone.pddl'"),
        (line("blocksworld/" + "x" * 5000 + ".pddl"), "missing file"),
        (b'{"prompt": "", "meta": {"scenario": "ferry", "domain_file": "\\ud800", "problem_file": "p"}}', "bad record"),
        (line("blocksworld/\0.pddl"), "missing file"),
        (pointing("../../outside.pddl"), "missing file: '../../outside.pddl' lies outside the data root"),
        (pointing("/etc/passwd"), "missing file: '/etc/passwd' lies outside the data root"),
        (pointing("blocksworld"), "missing file: 'blocksworld'"),
        ({**good, "meta": {**good["meta"], "domain_file": "gone/domain.pddl"}}, "missing file: 'gone/domain.pddl'"),
        (changed("a.pddl", "(:goal", "(:goal\n (nothing"), "bad PDDL: blocksworld/a.pddl:"),
        (changed("b.pddl", "(on b", "(over b"), "unknown predicate 'over'"),
        (changed("c.pddl", "b1 b2 b3 b4)", "b1 b2 b3)"), "unknown object 'b4'"),
        (changed("d.pddl", "(:goal (and", "(:goal (and) (and"), "the goal must be one formula"),
        (aiming("e.pddl", "(and)"), "goal is empty"),
        (changed("f.pddl", "(:domain blocksworld)", "(:domain ferry)"), "written for domain 'ferry'"),
        (aiming("g.pddl", "(on b1 b1)"), "no reference plan: the goal is unreachable"),
        (aiming("h.pddl", "(or (on b1 b1) (on b2 b2))"), "no reference plan: the goal is unreachable"),
        (aiming("i.pddl", f"{deep}"), "bad PDDL: blocksworld/i.pddl: nested"),
        (aiming("j.pddl", "(handempty)"), "nothing to plan"),
        (line("blocksworld/latin.pddl"), "bad PDDL: blocksworld/latin.pddl: not UTF-8"),
        (line("odd/p.pddl", meta={"scenario": "blocksworld"}), "bad PDDL: odd/domain.pddl:8: unknown predicate 'hold'"),
        (line("lame/p.pddl", meta={"scenario": "blocksworld"}), "bad PDDL: lame/domain.pddl"),
        ({**good, "response": "(pick-up b1)\n(pick-up b1)"}, "bad reference plan: precondition_violation"),
        ({**good, "response": "(fly b1)"}, "bad reference plan: plan_format_error"),
        ({**good, "response": "I do not know."}, "bad reference plan: plan_format_error"),
    ]  # fmt: skip


def written_text(folder: Path, seed: int) -> str:
    return (folder / written_problem(folder, "blocksworld", seed)).read_text()


def test_every_bad_line_is_set_apart_with_file_line_and_reason(project: Path, small: Small) -> None:
    data = project / "data"
    (project / "outside.pddl").write_text("secret")
    good, bad = good_lines(data, 6), faulty_lines(data)
    mixed: list[dict[str, Any] | bytes] = [*good[:6], *(row for row, _ in bad), b"", b"   ", *good[6:]]
    write_lines(data / "all.jsonl", mixed)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    metrics = counts_add_up(len(good) + len(bad))
    assert len(kept()) == len(good)
    set_apart = quarantined()
    for number, (row, (_, reason)) in enumerate(zip(set_apart, bad, strict=True), 7):
        assert (row["file"], row["line"]) == ("all.jsonl", number)
        assert reason in row["reason"], row
        assert str(project) not in row["reason"]
        assert row["text"].strip()
    assert set(metrics["quarantined_by_reason"]) == {row["reason"].partition(":")[0] for row in set_apart}


def test_a_problem_and_its_constrained_twin_stand_on_one_side(project: Path, small: Small) -> None:
    data = project / "data"
    lines = good_lines(data, 12)
    for row in lines[:]:
        file = data / row["meta"]["problem_file"]
        rule = f"(:constraints (sometime ({'handempty' if file.parent.name == 'blocksworld' else 'empty-ferry'})))"
        twin = file.with_name(f"{file.stem}0.pddl")
        twin.write_text(file.read_text(encoding="utf-8").rstrip()[:-1] + rule + ")\n", encoding="utf-8")
        lines.append(line(twin.relative_to(data).as_posix()))
    write_lines(data / "all.jsonl", lines)
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    split.run(params)
    metrics = counts_add_up(len(lines))
    assert metrics["quarantined"] == 0
    found = {
        row["meta"]["problem_file"]: (side, row["constrained"])
        for side in SIDES
        for row in rows(Path(f"results/split/{side}.jsonl"))
    }
    plain = {file.removesuffix(".pddl"): side for file, (side, constrained) in found.items() if not constrained}
    twins = {file.removesuffix("0.pddl"): side for file, (side, constrained) in found.items() if constrained}
    assert plain == twins
    assert len(twins) == sum(metrics["constrained"].values()) == 24
    assert set(plain.values()) >= {"train", "test"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_generated_problems_get_constraints_as_asked_and_are_otherwise_the_same(small: Small, share: float) -> None:
    texts = {}
    for kind in ("none", "safety"):
        problems.run(small(problems={"constraints": kind, "constrained_share": share}))
        texts[kind] = {path.name: path.read_text() for path in PROBLEMS.rglob("*_seed*.pddl")} | {
            path.name: path.read_text() for path in PROBLEMS.rglob("ferry-*.pddl")
        }
    assert not any(":constraints" in text for text in texts["none"].values())
    asked = [name for name, text in texts["safety"].items() if ":constraints" in text]
    assert (len(asked) > 0) == (share > 0)
    assert share == 1.0 or len(asked) < len(texts["safety"])
    bare = {
        name: text.replace("  (:requirements :constraints)\n", "").partition("\n  (:constraints")[0].rstrip(")\n")
        for name, text in texts["safety"].items()
    }
    assert bare == {name: text.rstrip(")\n") for name, text in texts["none"].items()}
    split.run(small(problems={"constraints": "safety", "constrained_share": share}))
    assert not quarantined()  # the reference plans keep the constraints


def test_renamings_are_set_apart_as_duplicates(project: Path, small: Small) -> None:
    data = project / "data"
    lines = good_lines(data, 6)
    source = lines[0]["meta"]["problem_file"]
    text = (data / source).read_text()
    for old, new in (("b1", "x"), ("b2", "b1"), ("b3", "b2"), ("x", "b3")):
        text = text.replace(f"{old} ", f"{new} ").replace(f"{old})", f"{new})").replace(f"{old}\n", f"{new}\n")
    (data / "blocksworld/copy.pddl").write_text(text)
    assert text != (data / source).read_text()
    write_lines(data / "all.jsonl", [*lines, line("blocksworld/copy.pddl"), lines[0]])
    params = small(problems={"source": "jsonl", "path": "data/all.jsonl"})
    problems.run(params)
    split.run(params)
    counts_add_up(14)
    assert [row["reason"] for row in quarantined()] == ["duplicate: a renaming of all.jsonl:1"] * 2


def test_more_data_moves_no_problem_and_order_does_not_matter(project: Path, small: Small) -> None:
    data = project / "data"
    lines = good_lines(data, 25)
    params = small(problems={"source": "jsonl", "path": "data"})
    sides = []
    for chosen in (lines[::2], lines, lines[::-1]):
        write_lines(data / "all.jsonl", chosen)
        problems.run(params)
        split.run(params)
        sides.append(kept())
    few, many, reversed_ = sides
    assert few.items() < many.items()
    assert many == reversed_
    shares = Counter(many.values())
    assert shares["train"] > shares["test"] > 0


def test_a_domain_without_a_good_line_stops_the_run(project: Path, small: Small) -> None:
    data = project / "data"
    lines = good_lines(data, 4)
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


def test_no_good_line_at_all_stops_the_run(project: Path, small: Small) -> None:
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
def test_a_source_that_is_not_there_is_named(
    project: Path, small: Small, source: str, path: str, complaint: str
) -> None:
    (project / "data").mkdir()
    with pytest.raises(ParamsError, match=complaint):
        problems.run(small(problems={"source": source, "path": path}))


def test_pddl_without_its_domain_or_with_a_broken_one_is_set_apart(project: Path, small: Small) -> None:
    for seed in range(3):
        written_problem(project / "data", "blocksworld", seed)
    for folder, domain in (("orphans", None), ("broken", "(define (domain blocksworld)")):
        (project / "data" / folder).mkdir()
        (project / "data" / folder / "p.pddl").write_text(instance_text("blocksworld", 9)[1])
        if domain:
            (project / "data" / folder / "domain.pddl").write_text(domain)
    params = small(problems={"source": "pddl", "path": "data"})
    problems.run(params)
    split.run(params)
    counts_add_up(5)
    reasons = [row["reason"] for row in quarantined()]
    assert any(reason == "missing file: 'orphans/domain.pddl'" for reason in reasons)
    assert len(reasons) == 2


def test_a_broken_verifier_stops_the_run(project: Path, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(project / "data/all.jsonl", good_lines(project / "data", 2))
    params = small(problems={"source": "jsonl", "path": "data"})
    problems.run(params)
    monkeypatch.setenv("VAL_BINARY", str(project / "no-such-val"))
    with pytest.raises(VerifierError, match="VAL is missing"):
        split.run(params)


def test_names_without_a_difficulty_are_easy_and_counted(
    project: Path, small: Small, capfd: pytest.CaptureFixture[str]
) -> None:
    data = project / "data"
    lines = good_lines(data, 10)
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
    warned = capfd.readouterr().err
    names = {row["meta"]["problem_file"] for row in lines[:2]}
    assert all(warned.count(f"no difficulty in the name {name}") == 1 for name in names)
    scored = [row for side in SIDES for row in rows(Path(f"results/score/{side}.jsonl"))]
    assert {(r["score"], r["bucket"]) for r in scored if r["meta"]["problem_file"] in names} == {(0.0, "easy")}
    assert json.loads(Path("results/score/metrics.json").read_text())["unmatched_names"] == 2


@pytest.mark.usefixtures("project")
def test_scores_are_bucketed_by_the_training_split_alone(small: Small) -> None:
    params = small(
        problems={"generated": {"ferry": {"count": 60, "locations": [3, 5], "cars": [1, 3]}}},
        difficulty={"ferry": {"pattern": r"ferry-l(?P<l>\d+)-c(?P<c>\d+)-s\d+", "weights": {"l": 5, "c": 3}}},
    )
    problems.run(params)
    split.run(params)
    score.run(params)
    table = json.loads(Path("results/score/metrics.json").read_text())["domains"]["ferry"]
    train = rows(Path("results/score/train.jsonl"))
    assert table["count"] == len(train) == sum(table["buckets"].values())
    for side in SIDES:
        for row in rows(Path(f"results/score/{side}.jsonl")):
            bucket = "easy" if row["score"] <= table["p40"] else "medium" if row["score"] <= table["p80"] else "hard"
            assert row["bucket"] == bucket
    assert Counter(table["buckets"]) == Counter(row["bucket"] for row in train)


def peak_memory(params: Params, lines: Iterable[dict[str, Any] | bytes]) -> int:
    """Bytes that Python holds at most while lines are split."""
    write_lines(PROBLEMS / "all.jsonl", lines)
    tracemalloc.start()
    split.run(params)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.usefixtures("project")
def test_memory_stays_flat_over_bad_lines(small: Small) -> None:
    params, good = small(), good_lines(PROBLEMS, 2)

    def bad(count: int) -> Iterable[dict[str, Any] | bytes]:
        for number in range(count):
            yield {
                "prompt": "x" * 200,
                "meta": {"scenario": f"domain {number}", "domain_file": "a", "problem_file": "b"},
            }
            yield b"{" + b"y" * 200

    few = peak_memory(params, [*good, *bad(500)])
    many = peak_memory(params, [*good, *bad(5000)])
    assert len(quarantined()) == 10_000
    assert many < 1.5 * few


@pytest.mark.usefixtures("project")
def test_memory_stays_flat_over_good_lines(small: Small) -> None:
    params = small()
    lines: list[dict[str, Any] | bytes] = [*good_lines(PROBLEMS, 15)]
    few = peak_memory(params, lines * 4)  # Python keeps some freed memory at hand: let it
    many = peak_memory(params, lines * 20)
    counts_add_up(20 * len(lines))
    assert many < 1.5 * few


def test_the_shipped_parameters_cover_every_generated_domain(shipped: Params) -> None:
    assert set(shipped.problems.generated) <= set(shipped.difficulty)
    assert (ROOT / "params.yaml").exists()

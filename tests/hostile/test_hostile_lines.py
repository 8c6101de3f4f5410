"""Lines and files of problems that somebody else wrote: none is lost, none leaves the folder, none stops the rest."""

from __future__ import annotations

import csv
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile_problems import DOMAIN, Shape
from planward.core.lines import MAX_DEPTH
from planward.core.registry import load_task
from planward.core.tasks import SplitValidation
from planward.core.verdicts import VerifierError
from planward.params import ParamsError
from planward.stages import problems, score, split
from planward.tasks.planning import lines as planning_lines
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.sources import is_domain_file
from support import read_rows, write_lines

Small = Callable[..., PlanningParams]
Line = dict[str, Any] | bytes
FOLDER = Path("results/problems")
ODD_NAMES = (
    "a'b.pddl",
    'a"b.pddl',
    "a\nb.pddl",
    "$(touch pwned).pddl",
    "`touch pwned`.pddl",
    "=cmd|'x'.pddl",
    "-v.pddl",
)


@pytest.fixture
def params(project: Path, small: Small) -> PlanningParams:  # noqa: ARG001  in a folder of its own
    return small(difficulty={DOMAIN: {}}, problems={"source": "jsonl"})


def write_problem(name: str, shape: Shape | int = 1, folder: str = f"{DOMAIN}/") -> dict[str, Any]:
    """Write a problem, of a shape or with a number of objects, and its domain; returns its line."""
    if isinstance(shape, int):
        shape = Shape(objects=f"{' '.join(f'b{i}' for i in range(shape))} - block")
    (FOLDER / DOMAIN).mkdir(parents=True, exist_ok=True)
    (FOLDER / DOMAIN / "domain.pddl").write_text(Shape().render_domain())
    (FOLDER / f"{folder}{name}").write_text(shape.render_problem())
    meta = {"scenario": DOMAIN, "domain_file": f"{DOMAIN}/domain.pddl", "problem_file": f"{folder}{name}"}
    return {"prompt": "Plan.", "response": "(a b0)", "meta": meta}


def run_split(params: PlanningParams, *files: tuple[str, list[Line]]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Run the stage on files; returns what was kept and, for the first file, reasons by line number."""
    for name, lines in files:
        write_lines(FOLDER / name, lines)
    split.run(params)
    folder = Path("results/split")
    rows = [row for side in ("train", "validation", "test", "held_out") for row in read_rows(folder / f"{side}.jsonl")]
    quarantine = read_rows(folder / "quarantine.jsonl")
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["lines"] == len(rows) + len(quarantine)
    assert metrics["lines"] == sum(len(lines) for _, lines in files) or not files
    return rows, {row["line"]: row["reason"] for row in quarantine if files and row["file"] == files[0][0]}


def test_files_outside_of_the_folder_and_things_that_are_no_files_are_not_read(params: PlanningParams) -> None:
    good = write_problem("good.pddl")
    Path("secret.pddl").write_text(Shape().render_problem())
    folder = FOLDER / DOMAIN
    (folder / "link.pddl").symlink_to(Path("secret.pddl").resolve())
    (folder / "circle.pddl").symlink_to("circle.pddl")
    (folder / "device.pddl").symlink_to("/dev/zero")
    (folder / "up").symlink_to("../../..")
    os.mkfifo(folder / "pipe.pddl")
    outside = ["../../../secret.pddl", str(Path("secret.pddl").resolve()), "/dev/zero", f"{DOMAIN}/link.pddl"]
    outside += [f"{DOMAIN}/device.pddl", f"{DOMAIN}/up/secret.pddl", f"{DOMAIN}/../../../secret.pddl"]
    missing = [f"{DOMAIN}/pipe.pddl", f"{DOMAIN}/circle.pddl", DOMAIN, "a\0b", "x" * 10_000]
    lines = [good | {"meta": good["meta"] | {"problem_file": name}} for name in (*outside, *missing)]
    rows, reasons = run_split(params, ("all.jsonl", [good, *lines]))
    assert len(rows) == 1
    for number, name in enumerate(outside, 2):
        assert reasons[number].startswith("missing file: ")
        assert reasons[number].endswith(" is outside the data root"), name
    for number, name in enumerate(missing, 2 + len(outside)):
        assert reasons[number].startswith("missing file: "), name


@pytest.mark.parametrize("source", ["jsonl", "pddl", "planbench"])
def test_links_that_leave_the_source_are_not_copied(
    source: str, project: Path, small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / ("data/instances" if source == "planbench" else "data") / DOMAIN
    folder.mkdir(parents=True)
    (folder / "domain.pddl").write_text(Shape().render_domain())
    (folder / "p1.pddl").write_text(Shape().render_problem())
    (folder / "p2.pddl").symlink_to("p1.pddl")
    (project / "secret.pddl").write_text(Shape(objects="b0 b1 - block").render_problem())
    (folder / "p3.pddl").symlink_to(project / "secret.pddl")
    files = {"domain_file": f"{DOMAIN}/domain.pddl", "instance_dir": DOMAIN, "instances_template": "p{}.pddl"}
    (project / "data/configs").mkdir()
    (project / "data/configs/a.yaml").write_text(json.dumps({"domain_name": DOMAIN, "start": 1, "end": 3} | files))
    if source == "jsonl":
        names = [{"problem_file": f"{DOMAIN}/p{n}.pddl", "domain_file": f"{DOMAIN}/domain.pddl"} for n in (1, 2, 3)]
        lines = [{"prompt": "Plan.", "response": "(a b0)", "meta": meta | {"scenario": DOMAIN}} for meta in names]
        write_lines(project / "data/all.jsonl", lines)
    params = small(difficulty={DOMAIN: {}}, problems={"source": source, "path": "data"})
    problems.run(params)
    split_rows, _ = run_split(params)
    assert len(split_rows) == 1
    rows = read_rows(Path("results/split/quarantine.jsonl"))
    assert [row["reason"].partition(":")[0] for row in rows] == ["duplicate", "missing file"]
    assert rows[1]["reason"] == f"missing file: '{DOMAIN}/p3.pddl'"
    assert not (FOLDER / DOMAIN / "p3.pddl").exists()
    if source != "planbench":
        warning = f"1 links to files outside of data are not copied, such as {DOMAIN}/p3.pddl; fix: copy the file there"
        assert warning in capsys.readouterr().out


def test_a_file_of_lines_may_be_a_link_only_where_params_name_it(project: Path, small: Small) -> None:
    (project / "data").mkdir()
    (project / "elsewhere.jsonl").write_text("{}\n")
    (project / "data/all.jsonl").symlink_to(project / "elsewhere.jsonl")
    problems.run(small(problems={"source": "jsonl", "path": "data/all.jsonl"}))
    assert (FOLDER / "all.jsonl").read_text() == "{}\n"
    with pytest.raises(ParamsError, match=r"problems\.path: data/all\.jsonl links to a file outside of data; fix: "):
        problems.run(small(problems={"source": "jsonl", "path": "data"}))


def test_many_semicolons_before_a_problem_are_one_comment(tmp_path: Path) -> None:
    problem, domain = tmp_path / "p-domain-1.pddl", tmp_path / "p1-domain.pddl"
    problem.write_text(";" * 100_000 + "\n" + ";\n \n" * 1000 + "(define (problem p) (:domain d))")
    domain.write_text(";;; (\n\n ;;\n( define(Domain d)")
    assert not is_domain_file(problem)  # in a moment
    assert is_domain_file(domain)


def test_odd_file_names_are_names(params: PlanningParams) -> None:
    lines = [write_problem(name, count) for count, name in enumerate(ODD_NAMES, 1)]
    rows, reasons = run_split(params, ("a\n'$(b)\".jsonl", [*lines]))
    assert not reasons
    assert {row["meta"]["problem_file"] for row in rows} == {f"{DOMAIN}/{name}" for name in ODD_NAMES}
    assert not list(Path().rglob("pwned"))


def test_encodings_and_numbers(params: PlanningParams) -> None:
    good = [json.dumps(write_problem(f"p{count}.pddl", count)).encode() for count in range(1, 6)]
    deep_lists = b"[" * 100_000 + b"]" * 100_000
    lines: list[Line] = [
        b"\xef\xbb\xbf" + good[0],  # a byte order mark
        good[1] + b"\r",
        good[2].replace(b'"prompt"', b'"score": NaN, "other": [Infinity, -Infinity, 1e999], "prompt"'),
        good[3].replace(b'"prompt"', b'"id": "../../x", "id": "<script>", "prompt"'),
        good[4].replace(b"Plan.", b"Pl\\u0000an. \\ud83d\\ude00"),
        good[0],
        good[1].replace(b'"prompt"', b'"other": "\\udc00", "prompt"'),
        good[1].replace(b"Plan.", b"\\ud800"),
        good[1].replace(b"Plan.", b"Pl\0an."),
        good[1].replace(b'"prompt"', b'"other": ' + deep_lists + b', "prompt"'),
        good[1].replace(b'"prompt"', b'"other": ' + b"9" * 5000 + b', "prompt"'),
        "é".encode("utf-16"),
    ]
    rows, reasons = run_split(params, ("all.jsonl", lines))
    assert len(rows) == 5
    assert len({row["id"] for row in rows} & {"../../x", "<script>"}) == 0  # ids are the split's own
    starts = [
        "duplicate: a renaming of all.jsonl:1",
        "bad JSON: half of a surrogate pair",
        "bad JSON: half of a surrogate pair",
    ]
    starts += ["bad JSON", "bad JSON: nested too deeply", "bad JSON", "not UTF-8"]
    assert list(reasons) == list(range(6, 13))
    for reason, start in zip(reasons.values(), starts, strict=True):
        assert reason.startswith(start)


UNREADABLE = (  # changes of a problem after which VAL cannot read it
    *(("(problem h)", f"(problem {name})") for name in ("4-blocks", "1", "p.1", "a/b", "forall")),
    *(("b1", f"{name}") for name in ("1", "1b", "b.1", "b#1", "number", "always", "either", "total-cost", "?v")),
    ("(:domain", "(:requirements :strips) (:domain"),
    ("(:objects", "(:requirements :magic) (:objects"),
    ("(:goal", "(:metric minimize (nothing)) (:goal"),
    ("(:goal", "(:metric minimise (total-cost)) (:goal"),
    ("(:init", "(:init (not (nothing b0))"),
    ("(p b0)))", "(and (p b0) (forall (?1 - block) (imply (p ?1) (p ?1))))))"),
)


def test_problems_that_val_cannot_read_are_bad_pddl(params: PlanningParams) -> None:
    lines: list[Line] = [write_problem("p.pddl", Shape())]
    for number, (old, new) in enumerate(UNREADABLE):
        lines.append(write_problem(f"p{number}.pddl", Shape()))
        file = FOLDER / DOMAIN / f"p{number}.pddl"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    domain = FOLDER / DOMAIN / "domain.pddl"
    domain.write_text(domain.read_text().replace("(:predicates", "(:functions (total-cost)) (:predicates"))
    rows, reasons = run_split(params, ("all.jsonl", lines))
    assert len(rows) == 1
    for number in range(len(UNREADABLE)):
        assert reasons[number + 2].startswith(f"bad PDDL: {DOMAIN}/p{number}.pddl: line "), UNREADABLE[number]


def test_val_checks_the_problems_that_are_not_plain(params: PlanningParams, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Shape(init="(not (q b1))")
    task, checked_files = load_task(params, FOLDER), list[Path]()
    assert isinstance(task, SplitValidation)
    monkeypatch.setattr(planning_lines, "check_files", lambda _domain, problem, _timeout: checked_files.append(problem))
    for name, shape in (("plain.pddl", Shape()), ("odd.pddl", odd)):
        task.validate_problem(write_problem(name, shape), DOMAIN)
    assert [file.name for file in checked_files] == ["odd.pddl"]


def test_a_problem_for_val_alone_that_is_not_utf8_is_bad_pddl(params: PlanningParams) -> None:
    good, bad = write_problem("good.pddl"), write_problem("bad.pddl", 2)
    text = Shape().render_domain().replace("(:predicates", "(:functions (fuel)) (:predicates")
    numeric_effect = ":effect (and (p ?x) (increase (fuel) 2))"
    (FOLDER / DOMAIN / "domain.pddl").write_text(text.replace(":effect (p ?x)", numeric_effect))
    for name in ("good.pddl", "bad.pddl"):
        file = FOLDER / DOMAIN / name
        comment = b"; caf\xe9" if name == "bad.pddl" else b""
        file.write_bytes(file.read_bytes().replace(b"(:init", b"(:init (= (fuel) 0)") + comment)
    rows, reasons = run_split(params, ("all.jsonl", [bad, good]))
    assert len(rows) == 1
    assert reasons[1].startswith(f"bad PDDL: {DOMAIN}/bad.pddl: not UTF-8 text (byte "), reasons


def test_links_to_folders_are_named(project: Path, small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "data" / DOMAIN).mkdir(parents=True)
    (project / "data" / DOMAIN / "domain.pddl").write_text(Shape().render_domain())
    (project / "data" / DOMAIN / "p1.pddl").write_text(Shape().render_problem())
    (project / "data/more").symlink_to(DOMAIN)
    problems.run(small(difficulty={DOMAIN: {}}, problems={"source": "pddl", "path": "data"}))
    warning = "warning: 1 links to folders are not followed, such as data/more; fix: copy the folder there"
    assert warning in capsys.readouterr().out
    assert len(read_rows(FOLDER / "problems.jsonl")) == 1


def test_a_line_nested_deeper_than_pydantic_writes_stops_no_stage(params: PlanningParams) -> None:
    lines: list[Line] = []
    for count, depth in enumerate([MAX_DEPTH] * 8 + [MAX_DEPTH + 1, 200, 300, 900], 1):
        good = json.dumps(write_problem(f"p{count}.pddl", count)).encode()
        lists = b"[" * (depth - 1) + b'"]}"' + b"]" * (depth - 1)  # brackets in a string are none
        lines.append(good.replace(b'"prompt"', b'"other": ' + lists + b', "prompt"'))
    rows, reasons = run_split(params, ("all.jsonl", lines))
    assert len(rows) == 8
    assert reasons == dict.fromkeys(range(9, 13), "bad JSON: nested too deeply: at most 100 levels are allowed")
    score.run(params)


def test_a_line_of_100_mb_is_not_held_in_memory(params: PlanningParams) -> None:
    good = [write_problem("a.pddl", 1), write_problem("b.pddl", 2)]
    huge = json.dumps(good[0] | {"prompt": "x" * 100_000_000}).encode()
    write_lines(FOLDER / "all.jsonl", [good[0], huge, good[1]])
    del huge
    tracemalloc.start()
    split.run(params)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    row = read_rows(Path("results/split/quarantine.jsonl"))[0]
    assert (row["line"], row["reason"]) == (2, "too long: more than 16 MiB")
    assert json.loads(Path("results/split/metrics.json").read_text())["lines"] == 3
    assert peak < 100_000_000


def test_a_reason_does_not_repeat_the_file(params: PlanningParams) -> None:
    word = "x" * 1_000_000
    good, bad = write_problem("good.pddl"), write_problem("bad.pddl", Shape(goal=f"({word})"))
    rows, reasons = run_split(params, ("all.jsonl", [good, bad, good | {"meta": good["meta"] | {"scenario": word}}]))
    assert len(rows) == 1
    assert reasons[2].startswith(f"bad PDDL: {DOMAIN}/bad.pddl:4: unknown predicate")
    assert reasons[3].startswith("unknown domain")
    assert max(map(len, reasons.values())) < 3000


def test_a_verifier_that_fails_on_every_line_is_broken(
    params: PlanningParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "Validate"
    binary.write_text("#!/bin/sh\necho nonsense\n")
    binary.chmod(0o755)
    monkeypatch.setenv("VAL_BINARY", str(binary))
    with pytest.raises(VerifierError, match="nonsense"):
        run_split(params, ("all.jsonl", [write_problem("good.pddl")]))


def test_a_file_name_is_no_formula_in_the_table_of_difficulty(params: PlanningParams) -> None:
    lines: list[Line] = [write_problem(f"=p{count}.pddl", count, folder="") for count in range(1, 20)]
    run_split(params, ("all.jsonl", lines))
    score.run(params)
    with Path("results/score/difficulty.csv").open(newline="") as table:
        names = [row["problem_file"] for row in csv.DictReader(table)]
    assert len(names) == 19
    assert all(name.startswith("'=") for name in names)

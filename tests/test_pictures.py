"""Pictures of plans: what is drawn is what holds, faults are marked, and no name or plan can break the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from planward.params import load_params
from planward.pddl import generators
from planward.pddl.expressions import PddlError
from planward.pddl.generators import generated_domain, generated_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.signature import Atom
from planward.pddl.simulation import check_plan
from planward.pddl.walks import loop_free_walk
from planward.records import Label, write_jsonl
from planward.reporting.pictures import MOST, Album, Mark, Strip, pictures
from planward.stages import report

SIZES = {
    "blocksworld": {"blocks": 5},
    "ferry": {"locations": 4, "cars": 3},
    "grippers": {"robots": 2, "rooms": 3, "objects": 4},
}
DRAWN = {  # the atoms that a picture shows; others follow from them or never change
    "blocksworld": {"on", "ontable", "holding"},
    "ferry": {"at-ferry", "at", "on"},
    "grippers": {"at-robby", "at", "carry"},
}
Box = tuple[str, float, float, float, float]  # a name, and where its box lies: left, top, right, bottom


def generated(domain: str, seed: int) -> Problem:
    return generated_problem(domain, getattr(generators, domain)(Random(seed), SIZES[domain]))


def blocks(init: str, goal: str, names: str = "a b c") -> Problem:
    text = f"(define (problem p) (:domain blocksworld) (:objects {names}) (:init (handempty) {init}) (:goal {goal}))"
    return parse_problem(text, generated_domain("blocksworld"))


def album(problem: Problem, plan: list[str], failing_step: int | None = None, key: str = "p1") -> Album:
    found = pictures(problem, [(plan, failing_step)], key)
    assert found
    return found


def strip(problem: Problem, plan: list[str], failing_step: int | None = None) -> Strip:
    return album(problem, plan, failing_step).strips[0]


def boxes(symbols: Markup, svg: Markup) -> list[Box]:
    """The named boxes of a picture, those of the background included."""
    defined = {group.get("id"): group for group in ET.fromstring(f"<svg>{symbols}</svg>")}
    found: list[Box] = []
    for use in ET.fromstring(svg).iter("use"):
        symbol = defined[use.attrib["href"].removeprefix("#")]
        x, y = float(use.get("x", 0)), float(use.get("y", 0))
        for group in [symbol, *symbol.findall("g")]:
            moved = [float(n) for n in re.findall(r"-?\d+", group.get("transform", "0 0"))]
            name, rect = group.find("text"), group.find("rect")
            if name is not None and rect is not None:
                left, top = x + moved[0], y + moved[1]
                width, height = float(rect.attrib["width"]), float(rect.attrib["height"])
                found.append((name.text or "", left, top, left + width, top + height))
        if symbol.tag == "path":
            found.append((symbol.get("class", ""), x, y, x + 1, y + 1))
    return found


def inside(inner: Box, outer: Box) -> bool:
    return outer[1] <= inner[1] and outer[2] <= inner[2] and inner[3] <= outer[3] and inner[4] <= outer[4]


def seen(domain: str, problem: Problem, symbols: Markup, svg: Markup) -> set[Atom]:
    """The atoms that somebody reads off a picture."""
    found = boxes(symbols, svg)
    kinds = {name: (kind or ("block",))[0] for name, kind in problem.objects.items()}
    things = {kind: [box for box in found if kinds.get(box[0]) == kind] for kind in set(kinds.values())}
    atoms: set[Atom] = set()
    if domain == "blocksworld":
        table = float(re.findall(r'class="edge" d="M0 (\d+)', svg)[0]) - 1
        for block in things["block"]:
            below = [other for other in things["block"] if other[1] == block[1] and other[2] == block[4]]
            atoms |= {("on", block[0], other[0]) for other in below}
            if not below:
                atoms.add(("ontable" if block[4] == table else "holding", block[0]))
    elif domain == "ferry":
        boat = next(box for box in found if box[0] == "hull")
        for port in things["location"]:
            if port[1] <= boat[1] < port[3]:
                atoms.add(("at-ferry", port[0]))
            above = [car for car in things["car"] if port[1] <= car[1] < port[3] and car[4] <= port[2]]
            atoms |= {("at", car[0], port[0]) for car in above}
        atoms |= {("on", car[0]) for car in things["car"] if car[2] == boat[2] and car[1] > boat[1]}
    else:
        for room in things["room"]:
            robots = [robot for robot in things["robot"] if inside(robot, room)]
            balls = [ball for ball in things["obj"] if inside(ball, room)]
            for robot in robots:
                atoms.add(("at-robby", robot[0], room[0]))
                for ball in [ball for ball in balls if inside(ball, robot)]:
                    hands = [n for n in problem.objects if n.endswith(f"gripper{robot[0].removeprefix('robot')}")]
                    atoms.add(("carry", robot[0], ball[0], hands[ball[1] - robot[1] > 20]))
            free = [ball for ball in balls if not any(inside(ball, robot) for robot in robots)]
            atoms |= {("at", ball[0], room[0]) for ball in free}
    return atoms


@pytest.mark.parametrize("domain", SIZES)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_pictures_show_the_states_that_a_plan_goes_through(domain: str, seed: int) -> None:
    problem = generated(domain, seed)
    ground = ground_problem(problem)
    plan, _ = loop_free_walk(Random(seed), ground, 12)
    operators = {operator.name: operator for operator in ground.grounding.operators}
    found = album(problem, plan)
    frames = found.strips[0].frames
    assert [frame.caption for frame in frames] == ["start", *plan, "goal"]
    assert [frame.number for frame in frames] == [None, *range(1, len(plan) + 1), None]
    state = ground.start
    for frame, step in zip(frames[:-1], [*plan, None], strict=True):
        holds = {atom for atom in ground.grounding.atoms(state) if atom[0] in DRAWN[domain]}
        assert seen(domain, problem, found.symbols, frame.svg) == holds
        assert len(frame.svg) < 1500
        state = operators[step].apply(state) if step else state
    met, missed = found.strips[0].met, found.strips[0].missed
    assert len(met) == sum(goal.holds(state) for goal in ground.goals)
    assert len(met) + len(missed) == len(problem.goal)


def test_what_an_action_moved_stands_out() -> None:
    problem = blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(on a b)")
    found = album(problem, ["(unstack c b)", "(put-down c)"])
    names = {group.get("id"): group.findtext("text") for group in ET.fromstring(f"<svg>{found.symbols}</svg>")}
    standing_out = [re.findall(r'href="#(\w+)"[^>]*class="moved"', frame.svg) for frame in found.strips[0].frames]
    assert [[names[name] for name in frame] for frame in standing_out] == [[], ["c"], ["c"], []]


def test_a_state_is_told_in_words_too() -> None:
    problem = blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(and (on a c) (on c b))")
    frames = strip(problem, ["(pick-up a)"]).frames
    assert [ET.fromstring(frame.svg).findtext("title") for frame in frames] == [
        "start: a on the table; c on b on the table",
        "after (pick-up a): the hand holds a; c on b on the table",
        "goal: a on c on b",
    ]
    assert all(ET.fromstring(frame.svg).get("role") == "img" for frame in frames)


def test_a_goal_shows_only_what_it_says() -> None:
    problem = blocks("(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)", "(and (on a b))")
    found = album(problem, [])
    assert [box[0] for box in boxes(found.symbols, found.strips[0].frames[-1].svg)] == ["b", "a"]
    assert "unsaid" in found.strips[0].frames[-1].svg  # whether b stands on the table
    assert "unsaid" not in found.strips[0].frames[0].svg
    ferry = generated_domain("ferry")
    text = "(define (problem p) (:domain ferry) (:objects l1 l2 - location c - car) {} (:goal (not (at c l1))))"
    moved = parse_problem(text.format("(:init (at-ferry l2) (at c l1) (empty-ferry))"), ferry)
    shown = album(moved, ["(sail l2 l1)"])
    assert [box[0] for box in boxes(shown.symbols, shown.strips[0].frames[-1].svg)] == ["l1", "l2"]
    assert shown.strips[0].missed == ("(not (at c l1))",)


def test_an_action_that_cannot_be_done_is_marked_and_ends_the_pictures() -> None:
    problem = blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(on a b)")
    plan = ["(pick-up a)", "(stack a b)", "(pick-up c)", "(pick-up b)"]
    outcome = check_plan(problem, plan)
    assert outcome.label == Label.PRECONDITION
    found = strip(problem, plan, outcome.failing_step)
    assert [frame.mark for frame in found.frames] == ["", "", Mark.IMPOSSIBLE, ""]
    before, at_fault = found.frames[1], found.frames[2]
    assert at_fault.undone
    assert at_fault.number == 2
    only_drawn = re.compile(r'<title>.*?</title>| class="moved"')
    assert only_drawn.sub("", at_fault.svg) == only_drawn.sub("", before.svg)
    assert "(stack a b), which cannot be done: the hand holds a" in at_fault.svg
    assert (found.not_run, found.met, found.missed) == (2, (), ())


def test_a_broken_constraint_is_marked_at_the_state_that_breaks_it() -> None:
    text = """(define (problem p) (:domain blocksworld) (:objects a b) (:init (handempty) (ontable a) (ontable b)
        (clear a) (clear b)) (:goal (on a b)) (:constraints (always (not (holding b)))))"""
    problem = parse_problem(text, generated_domain("blocksworld"))
    plan = ["(pick-up b)", "(put-down b)", "(pick-up a)"]
    outcome = check_plan(problem, plan)
    assert (outcome.label, outcome.failing_step) == (Label.SAFETY, 1)
    found = strip(problem, plan, outcome.failing_step)
    assert [frame.mark for frame in found.frames] == ["", Mark.VIOLATION, ""]
    assert not found.frames[1].undone
    assert "after (pick-up b), which breaks a constraint: the hand holds b" in found.frames[1].svg
    assert found.not_run == 2


@pytest.mark.parametrize("line", ["(fly a)", "(pick-up)", "pick up a", "<script>alert(1)</script>", "", "(stack a &)"])
def test_a_plan_is_drawn_as_far_as_it_can_be_read(line: str) -> None:
    problem = blocks("(ontable a) (clear a)", "(holding a)", "a")
    found = strip(problem, ["(pick-up a)", line, "(put-down a)"])
    assert [frame.caption for frame in found.frames] == ["start", "(pick-up a)", line, "goal"]
    assert found.frames[2].mark == Mark.UNREADABLE
    assert "<script" not in found.frames[2].svg
    ET.fromstring(found.frames[2].svg)


def test_an_object_that_is_not_there_stops_the_pictures() -> None:
    problem = blocks("(ontable a) (clear a)", "(holding a)", "a")
    assert [frame.mark for frame in strip(problem, ["(pick-up zz)"]).frames] == ["", Mark.IMPOSSIBLE, ""]


def test_goals_that_the_plan_reached_and_missed_are_told_apart() -> None:
    problem = blocks("(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)", "(and (on a b) (on b c))")
    found = strip(problem, ["(pick-up a)", "(stack a b)"])
    assert (found.met, found.missed) == (("(on a b)",), ("(on b c)",))


def test_long_plans_leave_out_their_middle() -> None:
    problem = blocks("(ontable a) (clear a)", "(holding a)", "a")
    plan = ["(pick-up a)", "(put-down a)"] * 20
    frames = strip(problem, plan).frames
    assert len(frames) == MOST + 1  # and the goal
    gaps = [frame.left_out for frame in frames if frame.left_out]
    numbers = [frame.number for frame in frames if frame.number]
    assert gaps == [len(plan) - len(numbers)]
    assert numbers == [*range(1, MOST // 2), *range(numbers[-1] - len(numbers) + MOST // 2, 41)]


def test_hostile_names_stay_text() -> None:
    problem = blocks("(ontable <b>&\"') (clear <b>&\"')", "(holding <b>&\"')", "<b>&\"'")
    found = album(problem, ["(pick-up <b>&\"')"], key='"><script>')
    assert boxes(found.symbols, found.strips[0].frames[0].svg)[0][0] == "<b>&\"'"
    assert "<b>" not in found.symbols + found.strips[0].frames[0].svg
    assert "script" not in found.symbols


def test_circles_and_forks_in_a_goal_are_no_endless_towers() -> None:
    everything = "(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)"
    for goal in ("(and (on a b) (on b a))", "(and (on a b) (on c b))", "(and (on a a))"):
        ET.fromstring(strip(blocks(everything, goal), []).frames[-1].svg)


@pytest.mark.parametrize("domain", ["spanner", "delivery"])
def test_other_domains_have_no_pictures(domain: str) -> None:
    sizes = {"spanners": 2, "nuts": 1, "locations": 3, "width": 2, "height": 2, "packages": 1}
    problem = generated_problem(domain, getattr(generators, domain)(Random(1), sizes))
    assert pictures(problem, [([], None)], "p1") is None


def test_a_domain_of_the_same_name_with_other_predicates_has_none() -> None:
    text = "(define (domain blocksworld) (:predicates (on ?x)) (:action fix :parameters (?x) :effect (on ?x)))"
    words = "(define (problem p) (:domain blocksworld) (:objects a) (:init) (:goal (on a)))"
    problem = parse_problem(words, parse_domain(text))
    assert pictures(problem, [([], None)], "p1") is None


def test_problems_on_one_page_share_no_ids() -> None:
    problem = generated("grippers", 1)
    first, second = (re.findall(r'id="(\w+)"', album(problem, [], key=key).symbols) for key in ("p1", "p2"))
    assert len({*first, *second}) == len(first) + len(second)


def test_pictures_do_not_depend_on_the_order_of_sets() -> None:
    script = """
from random import Random
from planward.pddl import generators
from planward.pddl.generators import generated_problem
from planward.pddl.grounding import ground_problem
from planward.reporting.pictures import pictures
sizes = {"blocks": 5, "locations": 4, "cars": 3, "robots": 2, "rooms": 3, "objects": 4}
for name in ("blocksworld", "ferry", "grippers"):
    problem = generated_problem(name, getattr(generators, name)(Random(3), sizes))
    print(pictures(problem, [([sorted(o.name for o in ground_problem(problem).grounding.operators)[0]], None)], "p1"))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


@pytest.fixture
def one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results tree with one test problem, its files and one answer to it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/problems/blocksworld"
    folder.mkdir(parents=True)
    (folder / "domain.pddl").write_text(generators.domain_text("blocksworld"), encoding="utf-8")
    init, goal = "(:init (handempty) (ontable a) (clear a))", "(:goal (holding a))"
    problem = f"(define (problem p) (:domain blocksworld) (:objects a) {init} {goal})"
    (folder / "p.pddl").write_text(problem, encoding="utf-8")
    files = {"domain_file": "blocksworld/domain.pddl", "problem_file": "blocksworld/p.pddl"}
    record = {"id": "bw-1", "prompt": "", "meta": {"scenario": "blocksworld", **files}}
    write_jsonl(tmp_path / "results/score/test.jsonl", [record])
    answer = {"id": "bw-1", "domain": "blocksworld", "bucket": "easy", "score": 1.0, "method": "base", "seed": 3407}
    answer |= {"dataset_size": 0, "shot_num": 0, "shot_ids": [], "prompt": "", "completion": "(pick-up a)"}
    answer |= {"plan": "(pick-up a)", "label": "success_plans", "success": True, "reward": 1.0, "detail": ""}
    answer |= {"plan_size": 1, "failing_step": None, "goals_satisfied": 1, "goals_total": 1}
    write_jsonl(tmp_path / "results/predictions/base-0.jsonl", [answer])
    return tmp_path


def test_samples_bring_their_problem_where_there_is_one(one_answer: Path) -> None:
    params = load_params(Path(__file__).parents[1] / "params.yaml")
    [sample] = report._samples(params)["blocksworld"]
    assert sample.pddl
    assert list(sample.pddl.objects) == ["a"]
    domain = one_answer / "results/problems/blocksworld/domain.pddl"
    numeric = domain.read_text(encoding="utf-8").replace(":strips", ":strips :durative-actions")
    domain.write_text(numeric, encoding="utf-8")
    assert report._samples(params)["blocksworld"][0].pddl is None  # only VAL reads it
    (one_answer / "results/score/test.jsonl").unlink()
    assert report._samples(params)["blocksworld"][0].pddl is None


def test_a_broken_problem_file_stops_the_report_and_is_named(one_answer: Path) -> None:
    params = load_params(Path(__file__).parents[1] / "params.yaml")
    (one_answer / "results/problems/blocksworld/p.pddl").write_text("(define (problem p)", encoding="utf-8")
    with pytest.raises(PddlError, match=r"p\.pddl"):
        report._samples(params)

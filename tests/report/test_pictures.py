"""Pictures of plans: they show the true states, mark faults, and no name or plan can break the page."""

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

from candidate_plans import sample_loop_free_walk
from planward.core import paths
from planward.core.files import write_jsonl
from planward.core.runs import BASE
from planward.core.verdicts import Label
from planward.params import Params
from planward.pddl.expressions import PddlError
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, parse_domain, parse_problem
from planward.pddl.signature import Atom
from planward.pddl.simulation import verify_plan
from planward.report.pictures import MAX_FRAMES, Mark, PlanPictures, Strip, draw_plans
from planward.stages import report
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_domain_text, load_generated_domain
from result_trees import build_prediction, write_prediction_file

SIZES = {
    "blocksworld": {"blocks": 5},
    "ferry": {"locations": 4, "cars": 3},
    "grippers": {"robots": 2, "rooms": 3, "objects": 4},
}
SHOWN_PREDICATES = {  # other atoms follow from these or never change
    "blocksworld": {"on", "ontable", "holding"},
    "ferry": {"at-ferry", "at", "on"},
    "grippers": {"at-robby", "at", "carry"},
}
Box = tuple[str, float, float, float, float]  # name, left, top, right, bottom


def build_generated(domain: str, seed: int) -> Problem:
    return build_problem(domain, GENERATED_DOMAINS[domain].generate(Random(seed), SIZES[domain]))


def build_blocks(init: str, goal: str, names: str = "a b c") -> Problem:
    text = f"(define (problem p) (:domain blocksworld) (:objects {names}) (:init (handempty) {init}) (:goal {goal}))"
    return parse_problem(text, load_generated_domain("blocksworld"))


def draw_plan(problem: Problem, plan: list[str], failing_step: int | None = None, key: str = "p1") -> PlanPictures:
    pictures = draw_plans(problem, [(plan, failing_step)], key)
    assert pictures
    return pictures


def draw_strip(problem: Problem, plan: list[str], failing_step: int | None = None) -> Strip:
    return draw_plan(problem, plan, failing_step).strips[0]


def list_boxes(symbols: Markup, svg: Markup) -> list[Box]:
    """The named boxes of a picture, background included."""
    symbols_by_id = {group.get("id"): group for group in ET.fromstring(f"<svg>{symbols}</svg>")}
    boxes: list[Box] = []
    for use in ET.fromstring(svg).iter("use"):
        symbol = symbols_by_id[use.attrib["href"].removeprefix("#")]
        x, y = float(use.get("x", 0)), float(use.get("y", 0))
        for group in [symbol, *symbol.findall("g")]:
            offset = [float(n) for n in re.findall(r"-?\d+", group.get("transform", "0 0"))]
            name, rect = group.find("text"), group.find("rect")
            if name is not None and rect is not None:
                left, top = x + offset[0], y + offset[1]
                width, height = float(rect.attrib["width"]), float(rect.attrib["height"])
                boxes.append((name.text or "", left, top, left + width, top + height))
        if symbol.tag == "path":
            boxes.append((symbol.get("class", ""), x, y, x + 1, y + 1))
    return boxes


def is_inside(inner: Box, outer: Box) -> bool:
    return outer[1] <= inner[1] and outer[2] <= inner[2] and inner[3] <= outer[3] and inner[4] <= outer[4]


def read_atoms(domain: str, problem: Problem, symbols: Markup, svg: Markup) -> set[Atom]:
    """The atoms that a picture shows, from the positions of its boxes."""
    boxes = list_boxes(symbols, svg)
    types = {name: (object_types or ("block",))[0] for name, object_types in problem.objects.items()}
    items = {each: [box for box in boxes if types.get(box[0]) == each] for each in set(types.values())}
    atoms: set[Atom] = set()
    if domain == "blocksworld":
        table = float(re.findall(r'class="edge" d="M0 (\d+)', svg)[0]) - 1
        for block in items["block"]:
            below = [other for other in items["block"] if other[1] == block[1] and other[2] == block[4]]
            atoms |= {("on", block[0], other[0]) for other in below}
            if not below:
                atoms.add(("ontable" if block[4] == table else "holding", block[0]))
    elif domain == "ferry":
        boat = next(box for box in boxes if box[0] == "hull")
        for port in items["location"]:
            if port[1] <= boat[1] < port[3]:
                atoms.add(("at-ferry", port[0]))
            above = [car for car in items["car"] if port[1] <= car[1] < port[3] and car[4] <= port[2]]
            atoms |= {("at", car[0], port[0]) for car in above}
        atoms |= {("on", car[0]) for car in items["car"] if car[2] == boat[2] and car[1] > boat[1]}
    else:
        for room in items["room"]:
            robots = [robot for robot in items["robot"] if is_inside(robot, room)]
            balls = [ball for ball in items["obj"] if is_inside(ball, room)]
            for robot in robots:
                atoms.add(("at-robby", robot[0], room[0]))
                for ball in [ball for ball in balls if is_inside(ball, robot)]:
                    hands = [n for n in problem.objects if n.endswith(f"gripper{robot[0].removeprefix('robot')}")]
                    atoms.add(("carry", robot[0], ball[0], hands[ball[1] - robot[1] > 20]))
            free = [ball for ball in balls if not any(is_inside(ball, robot) for robot in robots)]
            atoms |= {("at", ball[0], room[0]) for ball in free}
    return atoms


@pytest.mark.parametrize("domain", SIZES)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_pictures_show_the_states_that_a_plan_goes_through(domain: str, seed: int) -> None:
    problem = build_generated(domain, seed)
    ground = ground_problem(problem)
    plan, _ = sample_loop_free_walk(Random(seed), ground, 12)
    operators = {operator.name: operator for operator in ground.grounding.operators}
    pictures = draw_plan(problem, plan)
    frames = pictures.strips[0].frames
    assert [frame.caption for frame in frames] == ["start", *plan, "goal"]
    assert [frame.number for frame in frames] == [None, *range(1, len(plan) + 1), None]
    state = ground.initial_facts
    for frame, step in zip(frames[:-1], [*plan, None], strict=True):
        holds = {atom for atom in ground.grounding.decode_state(state) if atom[0] in SHOWN_PREDICATES[domain]}
        assert read_atoms(domain, problem, pictures.symbols, frame.svg) == holds
        assert len(frame.svg) < 1500
        state = operators[step].apply(state) if step else state
    satisfied_goals, missed_goals = pictures.strips[0].satisfied, pictures.strips[0].missed
    assert len(satisfied_goals) == sum(goal.holds(state) for goal in ground.goals)
    assert len(satisfied_goals) + len(missed_goals) == len(problem.goal)


def test_moved_items_are_highlighted() -> None:
    problem = build_blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(on a b)")
    pictures = draw_plan(problem, ["(unstack c b)", "(put-down c)"])
    names = {group.get("id"): group.findtext("text") for group in ET.fromstring(f"<svg>{pictures.symbols}</svg>")}
    standing_out = [re.findall(r'href="#(\w+)"[^>]*class="moved"', frame.svg) for frame in pictures.strips[0].frames]
    assert [[names[name] for name in frame] for frame in standing_out] == [[], ["c"], ["c"], []]


def test_states_are_described_in_words() -> None:
    problem = build_blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(and (on a c) (on c b))")
    frames = draw_strip(problem, ["(pick-up a)"]).frames
    assert [ET.fromstring(frame.svg).findtext("title") for frame in frames] == [
        "start: a on the table; c on b on the table",
        "after (pick-up a): the hand holds a; c on b on the table",
        "goal: a on c on b",
    ]
    assert all(ET.fromstring(frame.svg).get("role") == "img" for frame in frames)


def test_a_goal_shows_only_what_it_tells() -> None:
    problem = build_blocks("(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)", "(and (on a b))")
    pictures = draw_plan(problem, [])
    assert [box[0] for box in list_boxes(pictures.symbols, pictures.strips[0].frames[-1].svg)] == ["b", "a"]
    assert "untold" in pictures.strips[0].frames[-1].svg  # b may stand anywhere
    assert "untold" not in pictures.strips[0].frames[0].svg
    ferry = load_generated_domain("ferry")
    text = "(define (problem p) (:domain ferry) (:objects l1 l2 - location c - car) {} (:goal (not (at c l1))))"
    problem_with_car = parse_problem(text.format("(:init (at-ferry l2) (at c l1) (empty-ferry))"), ferry)
    trip = draw_plan(problem_with_car, ["(sail l2 l1)"])
    assert [box[0] for box in list_boxes(trip.symbols, trip.strips[0].frames[-1].svg)] == ["l1", "l2"]
    assert trip.strips[0].missed == ("(not (at c l1))",)


def test_an_inapplicable_action_is_marked_and_ends_the_pictures() -> None:
    problem = build_blocks("(ontable a) (ontable b) (on c b) (clear a) (clear c)", "(on a b)")
    plan = ["(pick-up a)", "(stack a b)", "(pick-up c)", "(pick-up b)"]
    outcome = verify_plan(problem, plan)
    assert outcome.label == Label.PRECONDITION
    strip = draw_strip(problem, plan, outcome.failing_step)
    assert [frame.mark for frame in strip.frames] == ["", "", Mark.INAPPLICABLE, ""]
    before, at_fault = strip.frames[1], strip.frames[2]
    assert at_fault.undone
    assert at_fault.number == 2
    only_drawn = re.compile(r'<title>.*?</title>| class="moved"')
    assert only_drawn.sub("", at_fault.svg) == only_drawn.sub("", before.svg)
    assert "(stack a b) (not applicable): the hand holds a" in at_fault.svg
    assert (strip.not_executed, strip.satisfied, strip.missed) == (2, (), ())


def test_a_violated_constraint_is_marked_at_the_state_that_violates_it() -> None:
    text = """(define (problem p) (:domain blocksworld) (:objects a b) (:init (handempty) (ontable a) (ontable b)
        (clear a) (clear b)) (:goal (on a b)) (:constraints (always (not (holding b)))))"""
    problem = parse_problem(text, load_generated_domain("blocksworld"))
    plan = ["(pick-up b)", "(put-down b)", "(pick-up a)"]
    outcome = verify_plan(problem, plan)
    assert (outcome.label, outcome.failing_step) == (Label.SAFETY, 1)
    strip = draw_strip(problem, plan, outcome.failing_step)
    assert [frame.mark for frame in strip.frames] == ["", Mark.VIOLATION, ""]
    assert not strip.frames[1].undone
    assert "after (pick-up b) (violates a constraint): the hand holds b" in strip.frames[1].svg
    assert strip.not_executed == 2


@pytest.mark.parametrize("line", ["(fly a)", "(pick-up)", "pick up a", "<script>alert(1)</script>", "", "(stack a &)"])
def test_a_plan_is_drawn_up_to_its_first_invalid_line(line: str) -> None:
    problem = build_blocks("(ontable a) (clear a)", "(holding a)", "a")
    strip = draw_strip(problem, ["(pick-up a)", line, "(put-down a)"])
    assert [frame.caption for frame in strip.frames] == ["start", "(pick-up a)", line, "goal"]
    assert strip.frames[2].mark == Mark.INVALID
    assert "<script" not in strip.frames[2].svg
    ET.fromstring(strip.frames[2].svg)


def test_an_unknown_object_ends_the_pictures() -> None:
    problem = build_blocks("(ontable a) (clear a)", "(holding a)", "a")
    assert [frame.mark for frame in draw_strip(problem, ["(pick-up zz)"]).frames] == ["", Mark.INAPPLICABLE, ""]


def test_satisfied_and_missed_goals_are_listed() -> None:
    problem = build_blocks(
        "(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)", "(and (on a b) (on b c))"
    )
    strip = draw_strip(problem, ["(pick-up a)", "(stack a b)"])
    assert (strip.satisfied, strip.missed) == (("(on a b)",), ("(on b c)",))


def test_long_plans_leave_out_their_middle() -> None:
    problem = build_blocks("(ontable a) (clear a)", "(holding a)", "a")
    plan = ["(pick-up a)", "(put-down a)"] * 20
    frames = draw_strip(problem, plan).frames
    assert len(frames) == MAX_FRAMES + 1  # and the goal
    gaps = [frame.left_out for frame in frames if frame.left_out]
    numbers = [frame.number for frame in frames if frame.number]
    assert gaps == [len(plan) - len(numbers)]
    assert numbers == [*range(1, MAX_FRAMES // 2), *range(numbers[-1] - len(numbers) + MAX_FRAMES // 2, 41)]


def test_hostile_names_stay_text() -> None:
    problem = build_blocks("(ontable <b>&\"') (clear <b>&\"')", "(holding <b>&\"')", "<b>&\"'")
    pictures = draw_plan(problem, ["(pick-up <b>&\"')"], key='"><script>')
    assert list_boxes(pictures.symbols, pictures.strips[0].frames[0].svg)[0][0] == "<b>&\"'"
    assert "<b>" not in pictures.symbols + pictures.strips[0].frames[0].svg
    assert "script" not in pictures.symbols


def test_cycles_and_forks_in_a_goal_are_drawn() -> None:
    init = "(ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c)"
    for goal in ("(and (on a b) (on b a))", "(and (on a b) (on c b))", "(and (on a a))"):
        ET.fromstring(draw_strip(build_blocks(init, goal), []).frames[-1].svg)


@pytest.mark.parametrize("domain", ["spanner", "delivery"])
def test_other_domains_have_no_scene(domain: str) -> None:
    sizes = {"spanners": 2, "nuts": 1, "locations": 3, "width": 2, "height": 2, "packages": 1}
    problem = build_problem(domain, GENERATED_DOMAINS[domain].generate(Random(1), sizes))
    assert draw_plans(problem, [([], None)], "p1") is None


def test_a_domain_of_the_same_name_with_other_predicates_has_no_scene() -> None:
    text = "(define (domain blocksworld) (:predicates (on ?x)) (:action fix :parameters (?x) :effect (on ?x)))"
    words = "(define (problem p) (:domain blocksworld) (:objects a) (:init) (:goal (on a)))"
    problem = parse_problem(words, parse_domain(text))
    assert draw_plans(problem, [([], None)], "p1") is None


def test_ids_of_problems_on_one_page_differ() -> None:
    problem = build_generated("grippers", 1)
    first, second = (re.findall(r'id="(\w+)"', draw_plan(problem, [], key=key).symbols) for key in ("p1", "p2"))
    assert len({*first, *second}) == len(first) + len(second)


def test_pictures_do_not_depend_on_the_order_of_sets() -> None:
    script = """
from random import Random
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem
from planward.pddl.grounding import ground_problem
from planward.report.pictures import draw_plans
sizes = {"blocks": 5, "locations": 4, "cars": 3, "robots": 2, "rooms": 3, "objects": 4}
for name in ("blocksworld", "ferry", "grippers"):
    problem = build_problem(name, GENERATED_DOMAINS[name].generate(Random(3), sizes))
    print(draw_plans(problem, [([sorted(o.name for o in ground_problem(problem).grounding.operators)[0]], None)], "p1"))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results tree with one test problem, its files and one prediction on it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/problems/blocksworld"
    folder.mkdir(parents=True)
    (folder / "domain.pddl").write_text(load_domain_text("blocksworld"), encoding="utf-8")
    init, goal = "(:init (handempty) (ontable a) (clear a))", "(:goal (holding a))"
    problem = f"(define (problem p) (:domain blocksworld) (:objects a) {init} {goal})"
    (folder / "p.pddl").write_text(problem, encoding="utf-8")
    files = {"domain_file": "blocksworld/domain.pddl", "problem_file": "blocksworld/p.pddl"}
    record = {"id": "bw-1", "prompt": "", "meta": {"scenario": "blocksworld", **files}}
    write_jsonl(tmp_path / "results/score/test.jsonl", [record])
    row = build_prediction("base", 0, "blocksworld", 1, 0) | {
        "id": "bw-1",
        "prompt": "",
        "completion": "(pick-up a)",
        "plan": "(pick-up a)",
        "plan_size": 1,
    }
    write_prediction_file(tmp_path / "results/predictions", BASE, [row])
    return tmp_path


def test_samples_have_their_problem_where_its_file_is_known(tree: Path, shipped_params: Params) -> None:
    results = paths.results()
    [sample] = report._select_samples(results, shipped_params)["blocksworld"]
    assert sample.pddl
    assert list(sample.pddl.objects) == ["a"]
    domain = tree / "results/problems/blocksworld/domain.pddl"
    numeric = domain.read_text(encoding="utf-8").replace(":strips", ":strips :durative-actions")
    domain.write_text(numeric, encoding="utf-8")
    assert report._select_samples(results, shipped_params)["blocksworld"][0].pddl is None  # only VAL can read it
    (tree / "results/score/test.jsonl").unlink()
    assert report._select_samples(results, shipped_params)["blocksworld"][0].pddl is None


def test_a_broken_problem_file_stops_the_report_and_is_named(tree: Path, shipped_params: Params) -> None:
    (tree / "results/problems/blocksworld/p.pddl").write_text("(define (problem p)", encoding="utf-8")
    with pytest.raises(PddlError, match=r"p\.pddl"):
        report._select_samples(paths.results(), shipped_params)

"""The in-process checker and VAL say the same of every plan: label, step, size and goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from planward import val
from planward.params import Params
from planward.pddl.generators import GENERATORS, domain_text, generated_problem, problem_text
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.search import shortest_plan
from planward.pddl.simulation import check_plan
from planward.pddl.walks import loop_free_walk
from planward.records import Label, Outcome

Files = tuple[Path, Path]


def agreed(files: Files, problem: Problem, plans: Sequence[Sequence[str]]) -> Counter[Label]:
    """Check that both verifiers give each plan one verdict; returns how often each label came up."""
    judged = val.validate_many([(*files, "\n".join(plan)) for plan in plans], workers=2)
    for plan, by_val in zip(plans, judged, strict=True):
        assert compared(check_plan(problem, plan)) == compared(by_val), (plan, by_val.detail)
    return Counter(outcome.label for outcome in judged)


def compared(outcome: Outcome) -> tuple[object, ...]:
    return (
        outcome.label,
        outcome.failing_step,
        outcome.plan_size,
        outcome.goals_satisfied,
        outcome.goals_total,
    )


def mutated(rng: Random, plan: Sequence[str], actions: Sequence[str], words: Sequence[str]) -> list[str]:
    """The plan with one or two things wrong, or right in another way."""
    steps = list(plan)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(steps)) if steps else 0
        match rng.randrange(7 if steps else 1):
            case 0:
                steps.insert(at, rng.choice(actions))
            case 1:
                steps.pop(at)
            case 2:
                steps[at] = rng.choice(actions)
            case 3:
                steps.insert(at, steps[at])
            case 4:
                name, *arguments = steps[at].strip("()").split()
                if arguments:
                    arguments[rng.randrange(len(arguments))] = rng.choice(words)
                steps[at] = f"({' '.join([name, *arguments])})"
            case 5:
                steps[at] = steps[at][:-1] + " " + rng.choice(words) + ")"
            case _:
                steps[at] = "(fly" + steps[at].strip("()").partition(" ")[1] + rng.choice(words) + ")"
    return steps


@pytest.mark.parametrize("domain", GENERATORS)
def test_on_generated_problems(shipped: Params, tmp_path: Path, domain: str) -> None:
    rng = Random(f"agreement:{domain}")
    domain_file = tmp_path / "domain.pddl"
    domain_file.write_text(domain_text(domain), encoding="utf-8")
    ranges = {
        name: bounds for name, bounds in shipped.problems.generated[domain].items() if not isinstance(bounds, int)
    }
    found: Counter[Label] = Counter()
    for number in range(10):
        instance = GENERATORS[domain](rng, {name: rng.randint(*bounds) for name, bounds in ranges.items()})
        file = tmp_path / f"{number}.pddl"
        file.write_text(problem_text(domain, instance), encoding="utf-8")
        ground = ground_problem(generated_problem(domain, instance))
        reference = shortest_plan(ground, 10**6)
        actions = [operator.name for operator in ground.grounding.operators]
        words = [*instance.objects, "zzz", "and", "1x"]
        plans = [reference, [], reference[:-1], loop_free_walk(rng, ground, 5)[0], [step.upper() for step in reference]]
        plans += [mutated(rng, reference, actions, words) for _ in range(7)]
        parsed = load_problem(file, load_domain(domain_file))
        found += agreed((domain_file, file), parsed, plans)
    assert found.total() == 120
    assert set(found) == set(Label) - {Label.SAFETY}


ROOMS = """
(define (domain rooms)
  (:requirements :strips :equality :negative-preconditions)
  (:constants hall)
  (:predicates (in ?x) (locked ?x) (has ?x) (door ?x ?y))
  (:action go
    :parameters (?x ?y)
    :precondition (and (in ?x) (not (= ?x ?y)) (not (locked ?y)) (door ?x ?y))
    :effect (and (in ?y) (not (in ?x))))
  (:action unlock :parameters (?x) :precondition (and (in hall) (locked ?x)) :effect (not (locked ?x)))
  (:action jump :parameters (?x) :precondition (and) :effect (in ?x))
  (:action turn :parameters () :precondition (not (has hall)) :effect (has hall))
  (:action stay :parameters (?x ?y) :precondition (and (in ?x) (= ?x ?y)) :effect (and (in ?x) (not (in ?x)) (has ?y)))
  (:action avoid :parameters (?x) :precondition (not (locked ?x)) :effect (has ?x)))
"""
VISIT = """
(define (problem visit) (:domain rooms) (:objects cell vault)
  (:init (in hall) (locked vault) (door hall vault) (door vault hall) (door hall hall) (door hall cell))
  (:goal (and (has hall) (and (in vault) (not (locked vault)) (in vault)))))
"""
ZOO = """
(define (domain zoo)
  (:requirements :strips :typing :equality :negative-preconditions)
  (:types beast place - object  cat dog - beast  puma - cat)
  (:constants gate - place)
  (:predicates (at ?b - beast ?p - place) (fed ?b - (either cat dog)) (closed ?p - place))
  (:action lead :parameters (?b - beast ?p ?q - place)
    :precondition (and (at ?b ?p) (not (closed ?q)) (not (= ?p ?q))) :effect (and (at ?b ?q) (not (at ?b ?p))))
  (:action feed :parameters (?b - (either cat dog)) :precondition (not (fed ?b)) :effect (fed ?b))
  (:action pet :parameters (?c - cat ?d - dog) :precondition (and (fed ?c) (fed ?d)) :effect (not (fed ?c)))
  (:action shut :parameters (?p - place) :precondition (not (closed ?p)) :effect (closed ?p)))
"""
WALK = """
(define (problem walk) (:domain zoo)
  (:objects tom - cat kim - puma rex - dog den pen - place)
  (:init (at tom den) (at kim pen) (at rex gate) (closed pen))
  (:goal (and (at tom gate) (fed kim) (not (fed tom)) (closed gate))))
"""


@pytest.mark.parametrize(
    ("plan", "label", "step"),
    [
        ("(unlock vault) (go hall vault) (turn)", Label.SUCCESS, None),
        ("(UNLOCK Vault) (Go HALL vault) (TURN)", Label.SUCCESS, None),
        ("(turn) (unlock vault)", Label.GOAL, None),
        ("(turn)", Label.GOAL, None),
        ("", Label.FORMAT, None),
        ("(go hall vault)", Label.PRECONDITION, 1),  # a negative precondition
        ("(turn) (go hall hall)", Label.PRECONDITION, 2),  # not equal to itself
        ("(stay hall hall)", Label.GOAL, None),  # adds and deletes one atom: it holds afterwards
        ("(stay hall hall) (unlock vault) (go hall vault)", Label.SUCCESS, None),
        ("(stay hall cell)", Label.PRECONDITION, 1),  # equality
        ("(turn) (turn)", Label.PRECONDITION, 2),
        ("(go hall attic)", Label.PRECONDITION, 1),  # an undeclared object that a precondition asks for
        ("(jump attic)", Label.PRECONDITION, 1),  # and one that none asks for
        ("(turn) (avoid attic)", Label.PRECONDITION, 2),  # or only negatively
        ("(go hall cell) (jump attic)", Label.PRECONDITION, 2),
        ("(go cell hall) (jump attic)", Label.PRECONDITION, 1),  # the earlier fault decides
        ("(jump _x)", Label.PRECONDITION, 1),
        ("(jump and)", Label.PRECONDITION, 1),
        ("(jump 1x)", Label.FORMAT, None),
        ("(go cell hall) (jump)", Label.FORMAT, None),  # arity, behind a step that fails
        ("(turn) (unlock vault vault)", Label.FORMAT, None),
        ("(go cell hall) (fly)", Label.FORMAT, None),
        ("(turn hall)", Label.FORMAT, None),
    ],
)
def test_in_an_untyped_domain(tmp_path: Path, plan: str, label: Label, step: int | None) -> None:
    outcome = both(tmp_path, ROOMS, VISIT, plan)
    assert (outcome.label, outcome.failing_step) == (label, step)


@pytest.mark.parametrize(
    ("plan", "label", "step"),
    [
        ("(lead tom den gate) (feed kim) (shut gate)", Label.SUCCESS, None),
        ("(LEAD TOM DEN GATE) (Feed Kim) (SHUT gate)", Label.SUCCESS, None),
        ("(feed kim) (feed tom)", Label.GOAL, None),
        ("(feed tom)", Label.GOAL, None),
        ("(feed tom) (feed rex) (pet tom rex) (lead tom den gate) (feed kim) (shut gate)", Label.SUCCESS, None),
        ("(feed kim) (feed rex) (pet kim rex)", Label.GOAL, None),  # a puma is a cat
        ("(lead tom den pen)", Label.PRECONDITION, 1),
        ("(feed tom) (lead tom den den)", Label.PRECONDITION, 2),
        ("(feed kim) (feed kim)", Label.PRECONDITION, 2),
        ("(feed tom) (pet tom rex)", Label.PRECONDITION, 2),
        ("(pet rex tom)", Label.FORMAT, None),  # wrong types
        ("(lead tom den den) (feed gate)", Label.FORMAT, None),  # even behind a step that fails
        ("(lead den den gate)", Label.FORMAT, None),
        ("(feed zorro)", Label.FORMAT, None),  # undeclared
        ("(shut zorro)", Label.FORMAT, None),
        ("(shut)", Label.FORMAT, None),
        ("(shut gate pen)", Label.FORMAT, None),
        ("", Label.FORMAT, None),
    ],
)
def test_in_a_typed_domain(tmp_path: Path, plan: str, label: Label, step: int | None) -> None:
    outcome = both(tmp_path, ZOO, WALK, plan)
    assert (outcome.label, outcome.failing_step) == (label, step)


def test_an_empty_plan_succeeds_where_the_goal_holds_already(tmp_path: Path) -> None:
    visit = VISIT.replace(
        "(:goal (and (has hall) (and (in vault) (not (locked vault)) (in vault))))", "(:goal (in hall))"
    )
    assert both(tmp_path, ROOMS, visit, "").label == Label.SUCCESS
    assert both(tmp_path, ROOMS, visit, "(turn)").label == Label.SUCCESS
    assert both(tmp_path, ROOMS, visit, "(go hall cell)").goals_satisfied == 0


def test_goals_count_as_written(tmp_path: Path) -> None:
    outcome = both(tmp_path, ROOMS, VISIT, "(unlock vault)")
    assert (outcome.goals_satisfied, outcome.goals_total) == (1, 4)  # a repeated goal counts twice


def test_on_random_plans_of_hand_written_domains(tmp_path: Path) -> None:
    rng = Random(11)
    for pair in ((ROOMS, VISIT), (ZOO, WALK)):
        files = written(tmp_path, *pair)
        problem = load_problem(files[1], load_domain(files[0]))
        ground = ground_problem(problem)
        actions = [operator.name for operator in ground.grounding.operators]
        words = [*problem.objects, "zzz"]
        reference = shortest_plan(ground, 10**5)
        plans = [loop_free_walk(rng, ground, 4)[0] for _ in range(10)]
        plans += [mutated(rng, reference, actions, words) for _ in range(40)]
        assert len(agreed(files, problem, plans)) == 4


def both(folder: Path, domain: str, problem: str, plan: str) -> Outcome:
    """The outcome that both verifiers give; a plan is written as one line here."""
    files = written(folder, domain, problem)
    parsed = load_problem(files[1], load_domain(files[0]))
    steps = plan.replace(") (", ")\n(").splitlines()
    agreed(files, parsed, [steps])
    return check_plan(parsed, steps)


def written(folder: Path, domain: str, problem: str) -> Files:
    files = folder / "domain.pddl", folder / "problem.pddl"
    for file, text in zip(files, (domain, problem), strict=True):
        file.write_text(text, encoding="utf-8")
    return files

"""The in-process verifier and VAL agree on label, step, size and goals of every plan."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

from candidate_plans import Candidate, iter_distinct_plans
from planward import val
from planward.core.verdicts import Label, Outcome
from planward.params import Params
from planward.pddl.language import load_domain, load_problem
from planward.pddl.simulation import verify_plan
from planward.tasks.planning.domains import GENERATED_DOMAINS, load_domain_text, render_problem
from verifier_agreement import Agreement, compare_verifiers, extract_candidates, sample_instance, select_compared_fields

Files = tuple[Path, Path]


@pytest.mark.parametrize("safety", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("domain", GENERATED_DOMAINS)
def test_on_generated_problems(shipped_params: Params, tmp_path: Path, domain: str, safety: bool) -> None:
    rng = Random(f"agreement:{domain}:{safety}")
    domain_file = tmp_path / "domain.pddl"
    domain_file.write_text(load_domain_text(domain), encoding="utf-8")
    sizes = {
        name: bounds
        for name, bounds in shipped_params.problems.generated[domain].items()
        if not isinstance(bounds, int)
    }
    agreement = Agreement()
    for number in range(6):
        instance = sample_instance(rng, domain, sizes, safety)
        file = tmp_path / f"{number}.pddl"
        file.write_text(render_problem(domain, instance), encoding="utf-8")
        problem = load_problem(file, load_domain(domain_file))
        agreement += compare_verifiers(problem, domain_file, file, islice(iter_distinct_plans(problem, rng), 30))
    assert not agreement.disagreements, "\n".join(map(str, agreement.disagreements))
    assert agreement.plans == 180
    assert set(agreement.labels) == (set(Label) if safety else set(Label) - {Label.SAFETY})


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
        ("(turn) (go hall hall)", Label.PRECONDITION, 2),  # `go` requires different rooms
        ("(stay hall hall)", Label.GOAL, None),  # an atom both added and deleted holds
        ("(stay hall hall) (unlock vault) (go hall vault)", Label.SUCCESS, None),
        ("(stay hall cell)", Label.PRECONDITION, 1),  # equality
        ("(turn) (turn)", Label.PRECONDITION, 2),
        ("(go hall attic)", Label.PRECONDITION, 1),  # an undeclared object in a positive precondition
        ("(jump attic)", Label.PRECONDITION, 1),  # in no precondition
        ("(turn) (avoid attic)", Label.PRECONDITION, 2),  # in a negative precondition
        ("(go hall cell) (jump attic)", Label.PRECONDITION, 2),
        ("(go cell hall) (jump attic)", Label.PRECONDITION, 1),  # the earlier failure decides
        ("(jump _x)", Label.PRECONDITION, 1),
        ("(jump and)", Label.PRECONDITION, 1),
        ("(jump 1x)", Label.FORMAT, None),
        ("(go cell hall) (jump)", Label.FORMAT, None),  # arity, after a step that fails
        ("(turn) (unlock vault vault)", Label.FORMAT, None),
        ("(go cell hall) (fly)", Label.FORMAT, None),
        ("(turn hall)", Label.FORMAT, None),
    ],
)
def test_untyped_domain(tmp_path: Path, plan: str, label: Label, step: int | None) -> None:
    outcome = validate_twice(tmp_path, ROOMS, VISIT, plan)
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
        ("(lead tom den den) (feed gate)", Label.FORMAT, None),  # even after a step that fails
        ("(lead den den gate)", Label.FORMAT, None),
        ("(feed zorro)", Label.FORMAT, None),  # undeclared
        ("(shut zorro)", Label.FORMAT, None),
        ("(shut)", Label.FORMAT, None),
        ("(shut gate pen)", Label.FORMAT, None),
        ("", Label.FORMAT, None),
    ],
)
def test_typed_domain(tmp_path: Path, plan: str, label: Label, step: int | None) -> None:
    outcome = validate_twice(tmp_path, ZOO, WALK, plan)
    assert (outcome.label, outcome.failing_step) == (label, step)


def test_empty_plan_succeeds_where_the_goal_holds_initially(tmp_path: Path) -> None:
    visit = VISIT.replace(
        "(:goal (and (has hall) (and (in vault) (not (locked vault)) (in vault))))", "(:goal (in hall))"
    )
    assert validate_twice(tmp_path, ROOMS, visit, "").label == Label.SUCCESS
    assert validate_twice(tmp_path, ROOMS, visit, "(turn)").label == Label.SUCCESS
    assert validate_twice(tmp_path, ROOMS, visit, "(go hall cell)").goals_satisfied == 0


def test_repeated_goals_count_repeatedly(tmp_path: Path) -> None:
    outcome = validate_twice(tmp_path, ROOMS, VISIT, "(unlock vault)")
    assert (outcome.goals_satisfied, outcome.goals_total) == (1, 4)  # a repeated goal counts twice


@pytest.mark.parametrize("texts", [(ROOMS, VISIT), (ZOO, WALK)], ids=["untyped", "typed"])
def test_candidates_in_hand_written_domains(tmp_path: Path, texts: tuple[str, str]) -> None:
    files = write_files(tmp_path, *texts)
    problem = load_problem(files[1], load_domain(files[0]))
    agreement = compare_verifiers(problem, *files, islice(iter_distinct_plans(problem, Random(11)), 100))
    assert not agreement.disagreements, "\n".join(map(str, agreement.disagreements))
    assert (agreement.plans, len(agreement.labels)) == (100, 4)


def test_candidates_are_distinct_and_reproducible(tmp_path: Path) -> None:
    files = write_files(tmp_path, ZOO, WALK)
    problem = load_problem(files[1], load_domain(files[0]))
    first, again, other = (list(islice(iter_distinct_plans(problem, Random(seed)), 300)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({candidate.plan for candidate in first}) == 300
    assert [candidate.kind for candidate in first[:2]] == ["reference", "empty"]


def test_candidates_end_where_a_problem_has_few_plans(tmp_path: Path) -> None:
    domain = "(define (domain d) (:predicates (p)) (:action a :parameters () :precondition (not (p)) :effect (p)))"
    problem = "(define (problem x) (:domain d) (:init) (:goal (p)))"
    files = write_files(tmp_path, domain, problem)
    plans = {
        candidate.plan for candidate in iter_distinct_plans(load_problem(files[1], load_domain(files[0])), Random(0))
    }
    assert {(), ("(a)",), ("(a)", "(a)")} <= plans


def test_candidates_are_extracted_from_completions() -> None:
    texts = ["(Turn)\n<end>", "Sure:\n0: (turn) [1]", "no plan here", "```\n```"]
    assert extract_candidates(texts) == [Candidate("model", ("(turn)",)), Candidate("model", ())]


def test_disagreement_on_another_problem_is_found(tmp_path: Path) -> None:
    files = write_files(tmp_path, ROOMS, VISIT)
    easier = tmp_path / "easier.pddl"
    easier.write_text(VISIT.replace("(has hall) ", ""), encoding="utf-8")
    plans = [Candidate("a", ("(unlock vault)", "(go hall vault)")), Candidate("b", ("(go cell hall)",))]
    agreement = compare_verifiers(load_problem(easier, load_domain(files[0])), *files, plans)
    first, second = agreement.disagreements
    assert (first.candidate.kind, second.candidate.kind) == ("a", "b")
    assert select_compared_fields(first.in_process) == (Label.SUCCESS, None, 2, 3, 3)
    assert select_compared_fields(first.by_val) == (Label.GOAL, None, 2, 3, 4)
    assert select_compared_fields(second.in_process) == (
        Label.PRECONDITION,
        1,
        1,
        None,
        3,
    )  # only the number of goals differs
    assert select_compared_fields(second.by_val) == (Label.PRECONDITION, 1, 1, None, 4)
    assert (agreement.plans, agreement.val_runs, agreement.labels) == (2, 2, {Label.GOAL: 1, Label.PRECONDITION: 1})


def test_verifier_error_is_a_disagreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_files(tmp_path, ROOMS, VISIT)
    problem = load_problem(files[1], load_domain(files[0]))
    monkeypatch.setenv("VAL_BINARY", str(tmp_path / "nowhere"))
    agreement = compare_verifiers(problem, *files, [Candidate("reference", ("(turn)",))])
    assert str(agreement.disagreements[0].by_val).startswith("VerifierError: ")


def validate_twice(folder: Path, domain: str, problem: str, plan: str) -> Outcome:
    """Return the outcome on which both verifiers agree; the plan is on one line."""
    files = write_files(folder, domain, problem)
    parsed_problem = load_problem(files[1], load_domain(files[0]))
    steps = plan.replace(") (", ")\n(").splitlines()
    by_val = val.validate(*files, "\n".join(steps))
    assert select_compared_fields(verify_plan(parsed_problem, steps)) == select_compared_fields(by_val), by_val.detail
    return by_val


def write_files(folder: Path, domain: str, problem: str) -> Files:
    files = folder / "domain.pddl", folder / "problem.pddl"
    for file, text in zip(files, (domain, problem), strict=True):
        file.write_text(text, encoding="utf-8")
    return files

"""Generated problems: their plans, constraints, sizes and names."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.verdicts import Label
from planward.pddl.grounding import ground_problem
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.difficulty import parse_difficulty
from planward.tasks.planning.domains import KNOWN_DOMAINS, build_problem, find_plan
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.domains.instances import Instance, split_numbers
from planward.tasks.planning.sources import generate_instances


def sample_sizes(domain: str, seed: int) -> dict[str, int]:
    rng = Random(seed)
    return {name: rng.randint(2, most) for name, most in KNOWN_DOMAINS[domain].LARGEST.items()}


def sample_open_instance(domain: str, seed: int) -> Instance:
    rng = Random(seed)
    while True:
        instance = KNOWN_DOMAINS[domain].generate(rng, sample_sizes(domain, rng.randrange(10**6)))
        if not set(instance.init) >= set(instance.goal):
            return instance


def group_objects(instance: Instance) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, types in instance.objects.items():
        groups.setdefault(types[0] if types else "", []).append(name)
    return {key: sorted(names, key=split_numbers) for key, names in groups.items()}


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_every_plan_of_an_unconstrained_problem_solves_it(domain: str, seed: int) -> None:
    instance = sample_open_instance(domain, seed)
    verifier, plans = PlanVerifier(build_problem(domain, instance)), KNOWN_DOMAINS[domain].iter_plans(instance)
    outcomes = [verifier.verify([f"({' '.join(action)})" for action in plan]) for plan in plans]
    assert {outcome.label for outcome in outcomes} == {Label.SUCCESS}


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
def test_constraints_are_often_ones_that_the_plan_without_them_violates(domain: str) -> None:
    labels = Counter[Label]()
    for seed in range(60):
        instance = sample_open_instance(domain, seed)
        plan = find_plan(domain, instance)
        assert plan
        result = constrain_instance(Random(seed), domain, instance, plan)
        if result is None:
            continue
        verifier = PlanVerifier(build_problem(domain, result[0]))
        assert verifier.verify(result[1]).label is Label.SUCCESS
        labels[verifier.verify(plan).label] += 1
    assert labels.total() > 50
    assert labels[Label.SAFETY] > labels.total() / 3
    assert set(labels) <= {Label.SAFETY, Label.SUCCESS}


def test_a_problem_whose_constraint_no_plan_of_the_rule_satisfies_has_no_plan() -> None:
    instance = KNOWN_DOMAINS["delivery"].generate(Random(1), {"width": 1, "height": 3, "packages": 1})
    blocked_instance = Instance(
        "blocked",
        instance.objects,
        (*(atom for atom in instance.init if atom[0] != "at"), ("at", "truck", "x0y0"), ("at", "p1", "x0y0")),
        (("at", "p1", "x0y2"),),
    )
    assert find_plan("delivery", blocked_instance)
    assert (
        find_plan("delivery", Instance(**vars(blocked_instance) | {"constraints": ("(always (not (at truck x0y1)))",)}))
        is None
    )


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
def test_every_fact_and_action_of_a_generated_problem_can_occur(domain: str) -> None:
    known_domain, impossible = KNOWN_DOMAINS[domain], 0
    for seed in range(10):
        instance = sample_open_instance(domain, seed)
        problem = build_problem(domain, instance)
        assert all(map(known_domain.can_occur, (*instance.init, *instance.goal)))
        assert all(
            known_domain.can_occur(tuple(line.strip("()").split())) for line in find_plan(domain, instance) or []
        )
        grounding = ground_problem(problem).grounding
        assert all(
            known_domain.can_occur(atom) for atom in grounding.decode_state(ground_problem(problem).initial_facts)
        )
        impossible += sum(not known_domain.can_occur(("move", *pair)) for pair in product(instance.objects, repeat=2))
    assert impossible


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_a_generated_problem_keeps_its_names(domain: str, seed: int) -> None:
    instance = sample_open_instance(domain, seed)
    names = KNOWN_DOMAINS[domain].name_objects(group_objects(instance), frozenset(instance.init))
    assert names == {name: name for name in instance.objects}


def test_names_follow_the_structure_of_grid_path_and_grippers() -> None:
    grid = [(f"n{x}{y}", f"n{x + dx}{y + dy}") for x, y, dx, dy in product(range(3), range(2), (0, 1), (0, 1))]
    edges = {pair for pair in grid if pair[0] != pair[1] and pair[0][1:] < pair[1][1:]}
    edges = {
        (a, b)
        for a, b in edges
        if int(b[1]) < 3 and int(b[2]) < 2 and abs(int(a[1]) - int(b[1]) + int(a[2]) - int(b[2])) == 1
    }
    init = {("adjacent", *pair) for a, b in edges for pair in ((a, b), (b, a))}
    cells = sorted({name for pair in edges for name in pair})
    objects = {"cell": cells, "truck": ["van"], "package": ["box"]}
    names = KNOWN_DOMAINS["delivery"].name_objects(objects, init)
    assert names is not None
    assert {name: names[name] for name in cells} == {name: f"x{name[1]}y{name[2]}" for name in cells}
    assert (names["van"], names["box"]) == ("truck", "p1")
    assert KNOWN_DOMAINS["delivery"].name_objects(objects, {*init, ("adjacent", "n00", "n21")}) is None
    assert KNOWN_DOMAINS["delivery"].name_objects({**objects, "truck": ["van", "lorry"]}, init) is None

    path = {("link", "hut", "mill"), ("link", "mill", "yard"), ("at", "n", "yard"), ("at", "eve", "hut")}
    objects = {"location": ["hut", "mill", "yard"], "man": ["eve"], "spanner": ["s"], "nut": ["n"]}
    names = KNOWN_DOMAINS["spanner"].name_objects(objects, path)
    expected = {"hut": "location2", "mill": "location1", "yard": "gate", "eve": "bob", "s": "spanner1", "n": "nut1"}
    assert names == expected
    assert KNOWN_DOMAINS["spanner"].name_objects(objects, {*path, ("link", "hut", "yard")}) is None
    assert KNOWN_DOMAINS["spanner"].name_objects(objects, {*path, ("at", "n", "mill")} - {("at", "n", "yard")}) is None

    hands = {("free", "anna", "west"), ("free", "anna", "east"), ("free", "bert", "up"), ("free", "bert", "down")}
    objects = {"robot": ["anna", "bert"], "gripper": ["down", "east", "up", "west"], "room": ["r"], "obj": ["o"]}
    names = KNOWN_DOMAINS["grippers"].name_objects(objects, hands)
    assert names is not None
    assert {names["west"], names["east"]} == {"rgripper1", "lgripper1"}
    assert {names["up"], names["down"]} == {"rgripper2", "lgripper2"}
    shared_hands = {("free", robot, "hand") for robot in ("anna", "bert")}
    assert KNOWN_DOMAINS["grippers"].name_objects({**objects, "gripper": ["hand"]}, shared_hands) is None


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
def test_default_problems_have_a_range_of_difficulty(shipped_params: PlanningParams, domain: str) -> None:
    instances = list(generate_instances(shipped_params, domain))
    files = [f"{instance.name}.pddl" for instance in instances]
    scores = np.array([parse_difficulty(file, shipped_params.difficulty[domain]) for file in files], dtype=float)
    p40, p80 = np.percentile(scores, [40, 80])
    shares = [np.mean(scores <= p40), np.mean((scores > p40) & (scores <= p80)), np.mean(scores > p80)]
    assert min(shares) >= 0.1
    lengths = [len(find_plan(domain, instance) or []) for instance in instances]
    assert min(lengths) <= 6
    assert max(lengths) >= 20

"""The domain elevator: small problems with plans by rule, and no word that the shipped models know."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from planward.core.verdicts import Label
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.domains import (
    GENERATED_DOMAINS,
    KNOWN_DOMAINS,
    build_problem,
    elevator,
    find_plan,
    load_domain_text,
    render_problem,
)
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.domains.instances import Instance, render_atom
from planward.tasks.planning.matching import translate_problem
from planward.tasks.planning.sources import generate_instances
from planward.val import validate_many

SIZES = st.fixed_dictionaries({"floors": st.integers(2, 5), "passengers": st.integers(1, 3)})
SEEDS = st.integers(0, 10**6)


def constrain(instance: Instance, seed: int) -> tuple[Instance, list[str]]:
    plan = find_plan("elevator", instance)
    assert plan
    result = constrain_instance(Random(seed), "elevator", instance, plan)
    assert result
    return result


@given(SEEDS, SIZES)
def test_every_plan_by_rule_succeeds_and_is_short(seed: int, sizes: dict[str, int]) -> None:
    instance = elevator.generate(Random(seed), sizes)
    verifier = PlanVerifier(build_problem("elevator", instance))
    plans = list(elevator.iter_plans(instance))
    assert len(plans) == sizes["passengers"] + sizes["floors"]
    for plan in plans:
        assert verifier.verify([render_atom(action) for action in plan]).label is Label.SUCCESS
    assert 3 * sizes["passengers"] <= len(plans[0]) <= 4 * sizes["passengers"]


@given(SEEDS, SIZES)
def test_a_constrained_problem_has_a_plan_that_the_plain_rule_often_misses(seed: int, sizes: dict[str, int]) -> None:
    instance, plan = constrain(elevator.generate(Random(seed), sizes), seed)
    assert instance.constraints[0].startswith("(sometime-before (served ")
    assert PlanVerifier(build_problem("elevator", instance)).verify(plan).label is Label.SUCCESS


def test_some_constraints_change_the_plan() -> None:
    instances = [elevator.generate(Random(seed), {"floors": 4, "passengers": 3}) for seed in range(40)]
    change_num = sum(constrain(instance, 1)[1] != find_plan("elevator", instance) for instance in instances)
    assert change_num > 20


def test_val_agrees_on_plans_and_their_prefixes(tmp_path: Path) -> None:
    domain = tmp_path / "domain.pddl"
    domain.write_text(load_domain_text("elevator"))
    jobs, labels = [], []
    for seed in range(12):
        instance, plan = constrain(elevator.generate(Random(seed), {"floors": 4, "passengers": 1 + seed % 3}), seed)
        file = tmp_path / f"{seed}.pddl"
        file.write_text(render_problem("elevator", instance))
        verifier = PlanVerifier(build_problem("elevator", instance))
        for attempt in (plan, plan[:-1], plan[1:], find_plan("elevator", instance) or [], plan[::-1]):
            jobs.append((domain, file, "\n".join(attempt)))
            labels.append(verifier.verify(attempt).label)
    outcomes = list(validate_many(jobs, 10, 1, None))
    assert [outcome.label for outcome in outcomes] == labels
    assert {Label.SUCCESS, Label.GOAL, Label.PRECONDITION} <= set(labels)


def test_shipped_models_do_not_know_it(shipped_params: PlanningParams) -> None:
    assert set(GENERATED_DOMAINS) - set(KNOWN_DOMAINS) == {"elevator"}
    for instance in generate_instances(shipped_params, "elevator"):
        assert translate_problem(build_problem("elevator", instance)) is None

"""Prompts state a problem in the model's words, whatever its own are, and plans are translated back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward import val
from planward.core.records import Meta, Record
from planward.core.registry import load_task
from planward.core.tasks import NO_RENAMING, Task
from planward.core.verdicts import Label
from planward.evaluation import scoring
from planward.params import Params
from planward.pddl.canonical import hash_problem
from planward.pddl.formulas import And, iter_conjuncts, render_formula
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Domain, Effect, Problem, parse_domain, parse_problem
from planward.pddl.renaming import rename_problem, sample_object_names
from planward.pddl.search import find_shortest_plan
from planward.pddl.simulation import verify_plan
from planward.pretraining.vocabulary import build_tokenizer, build_vocabulary
from planward.tasks.planning.anonymise import AnonymousDomain
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.domains import (
    KNOWN_DOMAINS,
    build_problem,
    find_plan,
    load_domain_text,
    load_generated_domain,
    render_problem,
)
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.domains.instances import Instance
from planward.tasks.planning.lexicon import Lexicon, build_lexicon
from planward.tasks.planning.matching import match_domain
from planward.tasks.planning.neutral import (
    MAX_ACTIONS,
    MAX_OBJECTS,
    MAX_PREDICATES,
    MAX_TYPES,
    MAX_VARIABLES,
    OPERATORS,
    WORDS,
    TooManySymbols,
)
from planward.tasks.planning.prompt import render_compact_problem
from support import ROOT

LIMITS = {"p": MAX_PREDICATES, "a": MAX_ACTIONS, "t": MAX_TYPES, "o": MAX_OBJECTS, "v": MAX_VARIABLES}
UNKNOWN_DOMAINS = sorted(path.name for path in (ROOT / "tests/domains").iterdir())


def sample_solved(rng: Random, domain: str, largest: int = 4) -> tuple[Instance, list[str]]:
    """Sample a generated problem, half of the time with constraints, and a plan for it."""
    module = KNOWN_DOMAINS[domain]
    while True:
        instance = module.generate(
            rng, {name: rng.randint(2, min(size, largest)) for name, size in module.LARGEST.items()}
        )
        plan = instance.goal and find_plan(domain, instance)
        if plan and rng.random() < 0.5:
            return constrain_instance(rng, domain, instance, plan) or (instance, plan)
        if plan:
            return instance, plan


@cache
def load_tokenizer() -> Any:
    return build_tokenizer(build_vocabulary(), 4096)


def assert_is_in_vocabulary(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer.unk_token_id not in tokenizer(text).input_ids, text


def read_unknown(name: str, problem: str = "p1") -> tuple[str, str]:
    folder = ROOT / "tests/domains" / name
    return (folder / "domain.pddl").read_text(), (folder / f"{problem}.pddl").read_text()


# Problems of generated domains under other names.


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_copies_under_other_names_are_stated_in_the_words_of_the_generated_domain(domain: str, seed: int) -> None:
    rng = Random(seed)
    instance, plan = sample_solved(rng, domain)
    original = build_problem(domain, instance)
    anonymous = AnonymousDomain(load_domain_text(domain), rng)
    copy = anonymous.copy_problem(render_problem(domain, instance))
    problem = parse_problem(copy.text, parse_domain(anonymous.text))
    assert not set(problem.objects) & set(original.objects)
    lexicon = build_lexicon(problem)
    assert lexicon.translation is not None
    translated_problem = lexicon.translation.problem
    assert Counter(translated_problem.objects.values()) == Counter(original.objects.values())
    assert hash_problem(translated_problem) == hash_problem(original)  # the same problem but for the names of objects
    assert lexicon.header + lexicon.text == render_compact_problem(translated_problem)
    assert lexicon.text == build_lexicon(original).text  # so the model's answer is the same, too
    own_plan = "\n".join(copy.translate_plan(plan))
    completion = lexicon.encode_plan(own_plan)
    assert_is_in_vocabulary(lexicon.text + completion)
    assert verify_plan(translated_problem, completion.split("\n")).label is Label.SUCCESS
    assert verify_plan(problem, lexicon.decode_plan(completion).split("\n")).label is Label.SUCCESS
    assert lexicon.decode_plan(completion) == own_plan
    assert [render_formula(goal) for goal in translated_problem.goal] == [
        f"({' '.join([atom[0], *(lexicon.objects[copy.objects[word]] for word in atom[1:])])})"
        for atom in instance.goal
    ]  # in the file's order


@pytest.mark.parametrize("domain", KNOWN_DOMAINS)
@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_generated_problems_keep_their_names_where_these_are_drawn_for_training(domain: str, seed: int) -> None:
    rng = Random(seed)
    instance, plan = sample_solved(rng, domain, largest=12)
    problem = build_problem(domain, instance)
    for named_problem in (problem, rename_problem(problem, sample_object_names(problem, rng))):
        lexicon = build_lexicon(named_problem, canonical=False)
        assert lexicon.header + lexicon.text == render_compact_problem(named_problem)
    assert build_lexicon(problem, canonical=False).encode_plan("\n".join(plan)) == "\n".join(plan)


def test_objects_are_numbered_in_natural_order_and_goals_keep_their_order() -> None:
    names = [f"block-{number}" for number in (10, 2, 1)]
    facts = " ".join(f"(ontable {name}) (clear {name})" for name in names)
    text = f"""(define (problem p) (:domain blocksworld) (:objects {" ".join(names)}) (:init (handempty) {facts})
      (:goal (and (on block-2 block-10) (on block-1 block-2)))
      (:constraints (and (sometime-before (on block-1 block-2) (on block-2 block-10)) (always (clear block-1)))))"""
    lexicon = build_lexicon(parse_problem(text, load_generated_domain("blocksworld")), canonical=False)
    assert lexicon.text == (
        "blocksworld\nobjects b1 b2 b3\n"
        "init (clear b1) (clear b2) (clear b3) (handempty) (ontable b1) (ontable b2) (ontable b3)\n"
        "goal (on b2 b3) (on b1 b2)\nconstraints (sometime-before (on b1 b2) (on b2 b3)) (always (clear b1))\nplan\n"
    )


def read_foreign(name: str) -> str:
    return (ROOT / f"tests/foreign_domains/{name}.pddl").read_text(encoding="utf-8")


FOREIGN_FERRY_PROBLEM = """(define (problem ferry-l3-c2) (:domain ferry)
  (:objects l0 l1 l2 c0 c1)
  (:init (location l0) (location l1) (location l2) (car c0) (car c1)
    (not-eq l0 l1) (not-eq l1 l0) (not-eq l0 l2) (not-eq l2 l0) (not-eq l1 l2) (not-eq l2 l1)
    (empty-ferry) (at c0 l1) (at c1 l2) (at-ferry l2))
  (:goal (and (at c1 l0) (at c0 l2))))"""

FOREIGN_PROBLEMS = {
    "blocksworld": (
        "(define (problem p) (:domain blocksworld-4ops) (:objects b1 b2 b3)"
        " (:init (arm-empty) (on b3 b1) (on-table b1) (on-table b2) (clear b3) (clear b2)) (:goal (and (on b1 b2))))",
        "(unstack b3 b1)\n(putdown b3)\n(pickup b1)\n(stack b1 b2)",
        "(unstack b3 b1)\n(put-down b3)\n(pick-up b1)\n(stack b1 b2)",
    ),
    "ferry": (
        FOREIGN_FERRY_PROBLEM,
        "(board c1 l2)\n(sail l2 l0)\n(debark c1 l0)\n(sail l0 l1)\n(board c0 l1)\n(sail l1 l2)\n(debark c0 l2)",
        "(board c2 l3)\n(sail l3 l1)\n(debark c2 l1)\n(sail l1 l2)\n(board c1 l2)\n(sail l2 l3)\n(debark c1 l3)",
    ),
    "grippers": (
        "(define (problem p) (:domain gripper-strips) (:objects robot1 - robot rgripper1 lgripper1 - gripper"
        " room1 room2 - room ball1 - object) (:init (at-robby robot1 room2) (free robot1 rgripper1)"
        " (free robot1 lgripper1) (at ball1 room1)) (:goal (and (at ball1 room2))))",
        "(move robot1 room2 room1)\n(pick robot1 ball1 room1 rgripper1)\n(move robot1 room1 room2)\n"
        "(drop robot1 ball1 room2 rgripper1)",
        "(move robot1 room2 room1)\n(pick robot1 ball1 room1 rgripper1)\n(move robot1 room1 room2)\n"
        "(drop robot1 ball1 room2 rgripper1)",
    ),
    "spanner": (
        "(define (problem p) (:domain spanner) (:objects bob - man spanner1 - spanner nut1 - nut"
        " shed location1 location2 gate - location) (:init (at bob shed) (at spanner1 location2) (useable spanner1)"
        " (loose nut1) (at nut1 gate) (link shed location1) (link location1 location2) (link location2 gate))"
        " (:goal (and (tightened nut1)))"
        " (:constraints (forall (?x - location) (at-most-once (at bob ?x)))))",
        "(walk shed location1 bob)\n(walk location1 location2 bob)\n(pickup_spanner location2 spanner1 bob)\n"
        "(walk location2 gate bob)\n(tighten_nut gate spanner1 bob nut1)",
        "(walk location3 location2 bob)\n(walk location2 location1 bob)\n(pickup_spanner location1 spanner1 bob)\n"
        "(walk location1 gate bob)\n(tighten_nut gate spanner1 bob nut1)",
    ),
}  # problem and plan as other generators write them (tests/foreign_domains), and the plan in a generated domain's words


@pytest.mark.parametrize("domain", FOREIGN_PROBLEMS)
def test_problems_of_other_generators_match(domain: str, tmp_path: Path) -> None:
    domain_text, (text, plan, expected) = read_foreign(domain), FOREIGN_PROBLEMS[domain]
    problem = parse_problem(text, parse_domain(domain_text))
    lexicon = build_lexicon(problem, canonical=False)
    assert lexicon.text.startswith(f"{domain}\nobjects ")
    assert lexicon.translation is not None
    completion = lexicon.encode_plan(plan)
    assert completion == expected
    assert verify_plan(lexicon.translation.problem, completion.split("\n")).label is Label.SUCCESS
    (tmp_path / "domain.pddl").write_text(domain_text)
    (tmp_path / "p.pddl").write_text(text)
    outcome = val.validate(tmp_path / "domain.pddl", tmp_path / "p.pddl", lexicon.decode_plan(completion), timeout=30)
    assert outcome.label is Label.SUCCESS


def test_constraints_with_variables_are_stated_as_the_generator_states_them() -> None:
    text, _, _ = FOREIGN_PROBLEMS["spanner"]
    domain = parse_domain(read_foreign("spanner"))
    lexicon = build_lexicon(parse_problem(text, domain))
    assert "constraints (forall (?l - location) (at-most-once (at bob ?l)))\n" in lexicon.text
    for constraint in (
        "(forall (?x - spanner) (at-most-once (carrying bob ?x)))",
        "(forall (?x - location) (forall (?y - location) (at-most-once (at bob ?x))))",
        "(forall (?x - locatable) (always (or (at ?x gate) (not (at ?x gate)))))",
    ):
        other = re.sub(r"\(:constraints .*", f"(:constraints {constraint}))", text)
        assert build_lexicon(parse_problem(other, domain)).is_neutral


def edit_ferry(*changes: tuple[str, str]) -> Lexicon:
    """The lexicon of the foreign ferry problem after replacements in domain and problem."""
    domain_text, text = read_foreign("ferry"), FOREIGN_FERRY_PROBLEM
    for old, new in changes:
        assert old in domain_text + text
        domain_text, text = domain_text.replace(old, new), text.replace(old, new)
    return build_lexicon(parse_problem(text, parse_domain(domain_text)))


@pytest.mark.parametrize(
    "change",
    [
        ("(not-eq ?from ?to) ", ""),  # an inequality more or less makes no difference
        ("(not-eq ?from ?to)", "(not (= ?from ?to))"),
        ("(on ?c))", "(on ?c) (painted ?c))"),  # nor does a predicate that no action has
        ("(empty-ferry) (at c0 l1)", "(not-eq c0 l1) (empty-ferry) (at c0 l1)"),
        ("sail", "cross"),
    ],
)
def test_differences_that_do_not_matter(change: tuple[str, str]) -> None:
    assert not edit_ferry(change).is_neutral


@pytest.mark.parametrize(
    "change",
    [
        ("(not-eq l1 l2) ", ""),  # then it is no inequality: the ferry cannot sail there
        ("(car c0)", "(car c0) (location c0)"),  # a car to sail to
        ("(car c0)", ""),  # a car that cannot board
        ("(at c1 l0)", "(car c1)"),  # a goal that no generated problem has
        ("(at c1 l0)", "(forall (?x) (or (not (car ?x)) (at ?x l0)))"),
        ("(at c1 l0)", "(at l0 l1)"),
        ("(at c0 l1)", "(at c0 l1) (at l0 l1)"),
        ("l0 l1 l2 c0 c1)", "l0 l1 l2 c0 c1 spare)"),  # an object of no kind
    ],
)
def test_problems_that_do_not_fit_get_neutral_names(change: tuple[str, str]) -> None:
    assert edit_ferry(change).is_neutral


def test_problems_larger_than_the_vocabulary_get_neutral_names() -> None:
    for count, is_neutral in ((12, False), (13, True)):
        names = [f"b{number}" for number in range(1, count + 1)]
        facts = " ".join(f"(ontable {name}) (clear {name})" for name in names)
        text = f"(define (problem p) (:domain blocksworld) (:objects {' '.join(names)})"
        text += f" (:init (handempty) {facts}) (:goal (on b1 b2)))"
        assert build_lexicon(parse_problem(text, load_generated_domain("blocksworld"))).is_neutral == is_neutral


def test_facts_without_a_token_lead_to_neutral_names() -> None:
    text = "(define (problem p) (:domain blocksworld) (:objects a b) (:init (handempty) (clear a) (clear b) (ontable a)"
    text += " (ontable b)) (:goal (and (on a b))))"
    domain = load_generated_domain("blocksworld")
    assert not build_lexicon(parse_problem(text, domain)).is_neutral
    assert build_lexicon(parse_problem(text.replace("(on a b)", "(on a a)"), domain)).is_neutral
    assert build_lexicon(parse_problem(text.replace("(ontable b)", "(ontable b) (on b b)"), domain)).is_neutral


def iter_near_misses(domain: Domain) -> Iterator[Domain]:
    """Yield copies of a domain that lack one precondition, one effect or one action, or have one too many."""
    for name, action in domain.actions.items():
        parts, (effect,) = list(iter_conjuncts(action.precondition)), action.effects
        changed_actions = [
            replace(action, precondition=And((*parts[:i], *parts[i + 1 :])))
            for i, part in enumerate(parts)
            if "=" not in render_formula(part)
        ]
        for field in ("adds", "deletes"):
            atoms = getattr(effect, field)
            for i in range(len(atoms)):
                changed_actions.append(
                    replace(action, effects=(replace(effect, **{field: atoms[:i] + atoms[i + 1 :]}),))
                )
        changed_actions.append(replace(action, effects=(effect, Effect(adds=effect.adds, condition=parts[0]))))
        changed_actions.append(replace(action, parameters=(*action.parameters, ("?extra", action.parameters[0][1]))))
        for other in changed_actions:
            yield replace(domain, actions={**domain.actions, name: other})
        yield replace(domain, actions={key: value for key, value in domain.actions.items() if key != name})
        yield replace(domain, actions={**domain.actions, "again": replace(action, name="again")})


@pytest.mark.parametrize("name", KNOWN_DOMAINS)
def test_near_misses_do_not_match(name: str) -> None:
    domain = load_generated_domain(name)
    assert [match.known for match in match_domain(domain)] == [name]
    near_misses = list(iter_near_misses(domain))
    assert len(near_misses) > 20
    for near_miss in near_misses:
        assert not match_domain(near_miss)


@pytest.mark.parametrize("condition", ["(= ?from ?to)", "(not (= ?from ?from))", "(not (= ?to harbour))"])
def test_equality_and_unequal_constants_do_not_match(condition: str) -> None:
    text = load_domain_text("ferry").replace("(:predicates", "(:constants harbour - location) (:predicates")
    assert match_domain(parse_domain(text))
    assert not match_domain(parse_domain(text.replace("(at-ferry ?from))", f"(at-ferry ?from) {condition})", 1)))


@pytest.mark.parametrize(
    "condition", ["(adjacent ?to ?from)", "(empty ?t)", "(paved ?from ?from)", "(route ?t ?from ?to)", "(open)"]
)
def test_further_preconditions_do_not_match(condition: str) -> None:
    further = "(:predicates (open) (paved ?a ?b - cell) (route ?t - truck ?a ?b - cell)"
    text = load_domain_text("delivery").replace("(:predicates", further)
    assert match_domain(parse_domain(text))
    changed_text = text.replace("(adjacent ?from ?to))", f"(adjacent ?from ?to) {condition})")
    assert changed_text != text
    assert not match_domain(parse_domain(changed_text))


def test_effects_exchanged_between_parameters_do_not_match() -> None:
    text = load_domain_text("ferry")
    swapped_text = text.replace(
        ":effect (and (at-ferry ?to) (not (at-ferry ?from)))", ":effect (and (at-ferry ?from) (not (at-ferry ?to)))"
    )
    assert swapped_text != text
    assert not match_domain(parse_domain(swapped_text))


# Unknown domains.


def list_tokens(text: str) -> list[str]:
    """Split a neutral prompt into words, without parentheses; they must enclose atoms only."""
    assert re.fullmatch(r"(?:\((?:[pa]\d+)(?: [ov]\d+)*\)|[^()]+)*", text), text
    return re.findall(r"[^\s()]+", text)


@pytest.mark.parametrize("name", UNKNOWN_DOMAINS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_unknown_domains_are_stated_in_neutral_words(name: str, number: int) -> None:
    domain_text, text = read_unknown(name, f"p{number}")
    lexicon = build_lexicon(parse_problem(text, parse_domain(domain_text)))
    assert lexicon.is_neutral
    tokens = list_tokens(lexicon.header + lexicon.text)
    assert_is_in_vocabulary(lexicon.header + lexicon.text)
    for token in set(tokens) - set(WORDS):
        assert re.fullmatch(r"[patov][1-9]\d*", token), token
        assert int(token[1:]) <= LIMITS[token[0]], token
    opening = ("and", "or", "forall", "exists", "=", "when", *OPERATORS.values())
    assert tokens.count("end") == sum(tokens.count(word) for word in opening)

    anonymous = AnonymousDomain(domain_text, Random(number))
    copy = parse_problem(anonymous.copy_problem(text).text, parse_domain(anonymous.text))
    other = build_lexicon(copy)
    other_tokens = list_tokens(other.header + other.text)
    assert Counter(re.sub(r"\d+", "", token) for token in other_tokens) == Counter(
        re.sub(r"\d+", "", token) for token in tokens
    )


@pytest.mark.parametrize("name", ["elevator", "greenhouse"])
def test_plans_of_unknown_domains_are_translated_there_and_back(name: str) -> None:
    problem = parse_problem(read_unknown(name)[1], parse_domain(read_unknown(name)[0]))
    lexicon = build_lexicon(problem)
    plan = find_shortest_plan(ground_problem(problem), 100_000)
    completion = lexicon.encode_plan("\n".join(plan))
    assert all(re.fullmatch(r"\(a\d+(?: o\d+)*\)", line) for line in completion.split("\n"))
    assert lexicon.decode_plan(completion).split("\n") == plan


WORKSHOP = """(define (domain workshop)
  (:requirements :adl :typing)
  (:types tool part - item item - object bench)
  (:constants hammer - tool)
  (:predicates (on ?i - item ?b - bench) (fixed ?p - part) (busy ?b - bench) (dark) (linked ?x ?y - item))
  (:action fix :parameters (?b - bench ?p - part)
    :precondition (and (on ?p ?b) (on hammer ?b) (not (busy ?b)) (or (not (dark)) (and (fixed ?p) (busy ?b)))
      (exists (?i - item) (not (= ?i ?p))))
    :effect (and (fixed ?p) (forall (?q - part) (when (linked ?p ?q) (and (fixed ?q) (not (busy ?b)))))))
  (:action carry :parameters (?i - (either tool part) ?b ?c - bench)
    :precondition (and (on ?i ?b) (not (= ?b ?c)))
    :effect (and (on ?i ?c) (not (on ?i ?b))))
  (:action darken :parameters () :precondition () :effect (and (dark) (when (dark) (not (dark))))))"""

WORKSHOP_PROBLEM = """(define (problem p) (:domain workshop)
  (:objects b10 b2 - bench leg - part saw - tool)
  (:init (on saw b2) (on leg b10) (on hammer b10) (linked leg saw))
  (:goal (and (imply (dark) (fixed leg)) (on saw b10)))
  (:constraints (and (always (and (dark) (on leg b2)))
    (forall (?x - part) (sometime-before (fixed ?x) (and (dark) (on ?x b2))))
    (at end (exists (?b - bench) (on hammer ?b))) (at-most-once (dark)))))"""


def test_format_of_neutral_prompts() -> None:
    lexicon = build_lexicon(parse_problem(WORKSHOP_PROBLEM, parse_domain(WORKSHOP)))
    assert lexicon.header == (
        "actions\n"
        "t1 in t2\n"
        "t3 in t2\n"
        "(a1 v1 v2) t4 v1 t3 v2 needs (p1 v2 v1) (p1 o1 v1) not (p3 v1) or not (p4) and (p2 v2) (p3 v1) end end "
        "exists t2 v3 not = v3 v2 end end "
        "effects (p2 v2) forall t3 v3 when (p5 v2 v3) then (p2 v3) not (p3 v1) end end\n"
        "(a2 v1 v2 v3) t1 t3 v1 t4 v2 t4 v3 needs (p1 v1 v2) not = v2 v3 end effects (p1 v1 v3) not (p1 v1 v2)\n"
        "(a3) needs effects (p4) when (p4) then not (p4) end\n"
    )
    assert lexicon.text == (
        "objects t1 o1 o2 t3 o3 t4 o4 o5\n"
        "init (p1 o1 o5) (p1 o2 o4) (p1 o3 o5) (p5 o3 o2)\n"
        "goal or not (p4) (p2 o3) end (p1 o2 o5)\n"
        "constraints always (p4) (p1 o3 o4) end "
        "forall t3 v1 sometime-before (p2 v1) and (p4) (p1 v1 o4) end end end "
        "end-of-plan exists t4 v1 (p1 o1 v1) end end at-most-once (p4) end\n"
        "plan\n"
    )
    assert lexicon.encode_plan("(carry saw b2 b10)\n(darken)") == "(a2 o2 o4 o5)\n(a3)"


# Translation of completions.


@pytest.fixture(scope="module")
def workshop() -> Lexicon:
    """Neutral names of a problem whose own names are neutral names too, in another order."""
    text = WORKSHOP_PROBLEM.replace("leg", "o7").replace("saw", "o1").replace("b2", "a1")
    return build_lexicon(parse_problem(text, parse_domain(WORKSHOP.replace("darken", "a9"))))


def test_words_that_the_prompt_lacks_do_not_become_names_of_the_problem(workshop: Lexicon) -> None:
    assert workshop.objects == {"hammer": "o1", "o1": "o2", "o7": "o3", "a1": "o4", "b10": "o5"}
    for completion, expected in {
        "(a2 o2 o4 o5)": "(carry o1 a1 b10)",
        "( A2\tO2  o4 O5 )": "( carry\to1  a1 b10 )",
        "(a2 o7 o4 o5)": "(carry o7-unknown a1 b10)",
        "(a2 o6 o4 O7)": "(carry o6 a1 O7-unknown)",
        "(a2 hammer b10)": "(carry hammer-unknown b10-unknown)",
        "(carry o2 o4 o5)": "(carry-unknown o1 a1 b10)",
        "(A9)": "(A9-unknown)",
        "(fly)": "(fly)",
        "o2 (a3": "o2 (a3",
        "()": "()",
        "(a2 \u212a o4 o5)": "(carry \u212a a1 b10)",
    }.items():
        assert workshop.decode_plan(completion) == expected


def test_letters_that_only_look_like_ascii_are_no_names() -> None:
    lexicon = edit_ferry(("c0", "k0"))
    assert lexicon.encode_plan("(board K0 l1)\n(board \u212a0 l1)") == "(board c2 l3)\n(board \u212a0 l3)"


TEXTS = st.lists(
    st.sampled_from(
        (
            *(
                "(a2 o2 o4 o5)",
                "( A1\to4 O3 )",
                "(a3)",
                "(a2 o2\no4 o5)",
                "(a2 o7 o4 o5)",
                "(carry o1 a1 b10)",
                "(a2 o2)",
            ),
            *("((a3)", "; (a3)", "- o2", "0: ", "```", "<think>", "</think>", "<end>", "(a9)", "(\u212a3 o1)"),
            *("\n", " ", "o2", ";", "(", ")", "\u00e9", "\\", "1. ", "[PLAN END]"),
            *("(\na2 o2 o4 o5\n)", "(\\\na2\\\no7 o4 a1\\\n)"),
        )
    )
).map("".join)


@settings(max_examples=300)
@given(TEXTS)
def test_translation_commutes_with_plan_extraction(completion: str) -> None:
    lexicon = build_lexicon(
        parse_problem(
            WORKSHOP_PROBLEM.replace("leg", "o7").replace("saw", "o1").replace("b2", "a1"),
            parse_domain(WORKSHOP.replace("darken", "a9")),
        )
    )
    plan, translated_plan = extract_plan(completion), extract_plan(lexicon.decode_plan(completion))
    assert translated_plan == (plan and lexicon.decode_plan("\n".join(plan)).split("\n"))


@settings(max_examples=300)
@given(st.text(st.characters(), max_size=40), st.text(alphabet="()ao123 \n", max_size=40))
def test_any_text_can_be_translated(text: str, plan: str) -> None:
    lexicon = edit_ferry(("ferry", "ferry"))
    for completion in (text, plan, f"({text})"):
        assert isinstance(lexicon.encode_plan(lexicon.decode_plan(completion)), str)


# The task.


def write_problem(folder: Path, name: str, domain_text: str, text: str, plan: str) -> Record:
    (folder / "domain.pddl").write_text(domain_text)
    (folder / f"{name}.pddl").write_text(text)
    meta = Meta(scenario="d", domain_file="domain.pddl", problem_file=f"{name}.pddl")
    return Record(prompt="", response=plan, meta=meta, id=name)


@pytest.fixture
def ferry(project: Path) -> tuple[Path, Record]:
    domain_text, (text, plan, _) = read_foreign("ferry"), FOREIGN_PROBLEMS["ferry"]
    return project, write_problem(project, "one", domain_text, text, plan)


def test_task_translates_prompts_and_completions(ferry: tuple[Path, Record], small: Callable[..., Params]) -> None:
    folder, record = ferry
    task = load_task(small(), folder)
    renamings = [NO_RENAMING, *(task.draw_renaming(record, str(seed)) for seed in range(20))]
    prompts = {str(task.prompt(record, [], renaming)) for renaming in renamings}
    assert len(prompts) == 2  # the cars exchange names; the locations are in static facts of two arguments
    words = {frozenset(re.findall(r"\S+", prompt.split("\ninit")[0])) for prompt in prompts}
    assert words == {frozenset({"ferry", "objects", "c1", "c2", "l1", "l2", "l3"})}
    for renaming in renamings:
        completion = task.reference_completion(record, renaming)
        assert task.undo_renaming(record, completion, renaming) == record.response
        assert task.rename_completion(record, record.response or "", renaming) == completion
        verdict = task.verify(record, completion, renaming)
        assert (verdict.success, verdict.plan) == (True, record.response)
    assert task.verify(record, record.response or "").success
    assert not task.verify(record, task.reference_completion(record)).success
    assert task.judge([(record, record.response or "")])[0].success


def test_evaluation_keeps_completions_and_judges_plans_in_the_users_names(
    ferry: tuple[Path, Record], small: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, record = ferry
    params = small()
    task = load_task(params, folder)
    completion = task.reference_completion(record)
    monkeypatch.setattr(
        scoring, "generate_greedy", lambda _model, _tokenizer, prompts, *_, **__: [completion] * len(prompts)
    )
    prompt = scoring.EvaluationPrompt(record, 0, [], task.prompt(record, []))

    def tokenize(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    for in_process in (True, False):
        (judged_completion,) = scoring.complete_and_judge(task, None, tokenize, [prompt], params, in_process=in_process)
        assert judged_completion.completion == completion != judged_completion.verdict.plan
        assert (judged_completion.verdict.success, judged_completion.verdict.plan) == (True, record.response)


def test_literal_names(ferry: tuple[Path, Record], small: Callable[..., Params]) -> None:
    folder, record = ferry
    task = load_task(small(prompt={"names": "literal"}), folder)
    prompt = str(task.prompt(record, []))
    assert prompt.startswith("ferry\nobjects c0 c1 l0 l1 l2\ninit (at c0 l1) (at c1 l2)")
    assert "goal (at c1 l0) (at c0 l2)\n" in prompt
    assert task.reference_completion(record) == record.response == task.undo_renaming(record, record.response or "")


def test_examples_have_the_words_of_the_problem(project: Path, small: Callable[..., Params]) -> None:
    domain_text, (text, plan, _) = read_foreign("ferry"), FOREIGN_PROBLEMS["ferry"]
    known_record = write_problem(project, "known", domain_text, text, plan)
    unknown_record = write_problem(
        project, "unknown", domain_text, text.replace("(car c0)", "(car c0) (location c0)"), plan
    )
    task: Task = load_task(small(), project)
    header = build_lexicon(parse_problem(text, parse_domain(domain_text)), neutral=True).header
    bare_prompt = str(task.prompt(unknown_record, []))
    assert bare_prompt.startswith(header)
    both = str(task.prompt(unknown_record, [known_record, unknown_record]))
    assert both.startswith(header)
    assert both.count("actions\n") == 1
    assert both.endswith(bare_prompt.removeprefix(header))
    list_tokens(both.replace("<end>", ""))
    known_prompt = str(task.prompt(known_record, [known_record, unknown_record, unknown_record]))
    assert known_prompt.startswith("ferry\n")
    assert known_prompt.endswith(str(task.prompt(known_record, [])))
    assert known_prompt.count("actions\n") == 1


def test_problems_with_too_many_symbols_raise(project: Path, small: Callable[..., Params]) -> None:
    domain_text, text = read_unknown("greenhouse")
    spare = " ".join(f"spare{number}" for number in range(40))
    record = write_problem(project, "large", domain_text, text.replace("(:objects ", f"(:objects {spare} "), "(night)")
    task = load_task(small(), project)
    with pytest.raises(
        TooManySymbols, match=r"problem large \(large\.pddl\) has 44 objects.* 40 .*fix: set prompt\.style: full"
    ):
        task.prompt(record, [])
    assert task.undo_renaming(record, task.reference_completion(record)) == "(night)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"(:predicates {' '.join(f'(x{i})' for i in range(25))})", "25 predicates"),
        (f"(:types {' '.join(f'x{i}' for i in range(13))}) (:predicates (p ?a - x1))", "13 types"),
        (
            f"(:predicates (p)) {' '.join(f'(:action x{i} :parameters () :effect (p))' for i in range(13))}",
            "13 actions",
        ),
        (
            f"(:predicates (p ?x)) (:action a :parameters ({' '.join(f'?x{i}' for i in range(8))})"
            " :precondition (exists (?y) (p ?y)) :effect (p ?x1))",
            "9 variables",
        ),
    ],
)
def test_domains_with_too_many_symbols_raise(text: str, message: str) -> None:
    domain = parse_domain(f"(define (domain d) (:requirements :adl) {text})")
    problem = Problem("p", domain, {}, frozenset(), ())
    with pytest.raises(TooManySymbols, match=message):
        _ = build_lexicon(problem).header

"""Problems that are too large, too deep or explode when they are ground."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOMAIN = "hostile"


@dataclass(frozen=True)
class Shape:
    """The variable parts of a problem that `(a b0)` solves; without a plan, a search must find it."""

    types: str = "block"
    predicates: str = ""
    objects: str = "b0 b1 - block"
    init: str = ""
    goal: str = "(p b0)"
    precondition: str = "()"
    effect: str = "(p ?x)"
    actions: str = ""
    constraints: str = ""
    plan: str | None = "(a b0)"

    def render_domain(self) -> str:
        return (
            f"(define (domain {DOMAIN}) (:requirements :adl)\n(:types {self.types})\n"
            f"(:predicates (p ?x - block) (q ?x - block) (r ?x ?y - block) {self.predicates})\n"
            f"(:action a :parameters (?x - block) :precondition {self.precondition} :effect {self.effect})\n"
            f"{self.actions})\n"
        )

    def render_problem(self) -> str:
        constraints = f"\n(:constraints {self.constraints})" if self.constraints else ""
        return (
            f"(define (problem h) (:domain {DOMAIN})\n(:objects {self.objects})\n"
            f"(:init (q b0) {self.init})\n(:goal {self.goal}){constraints})\n"
        )


def _name_objects(count: int) -> str:
    return f"{' '.join(f'b{i}' for i in range(count))} - block"


def _chain_types(count: int) -> str:
    return f"{' '.join(f't{i} - t{i + 1}' for i in range(count))} block - t0"


def _cross_types(levels: int) -> str:
    """Two types a level, each with both of the next level as parents: 2 to the power of `levels` chains."""
    pairs = [f"{side}{i} - (either l{i + 1} r{i + 1})" for i in range(levels) for side in "lr"]
    return f"{' '.join(pairs)} block - l0"


def _quantify(count: int, body: str = "(or (q ?v0) (p ?v0))", quantifier: str = "exists") -> str:
    """One quantifier over several variables."""
    return f"({quantifier} ({_list_variables(count)} - block) {body})"


def _nest_quantifiers(depth: int) -> str:
    """Quantifiers in each other, the two kinds in turn."""
    formula = "(or (q ?v0) (p ?v0))"
    for i in reversed(range(depth)):
        formula = f"({'exists' if i % 2 == 0 else 'forall'} (?v{i} - block) {formula})"
    return formula


def _nest(depth: int, word: str, inner: str) -> str:
    return f"({word} " * depth + inner + ")" * depth


def _list_variables(count: int) -> str:
    return " ".join(f"?v{i}" for i in range(count))


def _visit(count: int) -> str:
    """A plan with an action for each object."""
    return "\n".join(f"(a b{i})" for i in range(count))


def _relate(count: int) -> str:
    """A path over `count` objects: refinement of colours takes count / 2 rounds."""
    return " ".join(f"(r b{i} b{i + 1})" for i in range(count - 1))


TWENTY = _name_objects(20)
DERIVED = "(:derived (w ?x - block) (exists (?y - block) (and (r ?x ?y) (w ?y)))) (:derived (w ?x - block) (q ?x))"

# By name: what a line holds that is not accepted, or that takes long.
SHAPES: dict[str, Callable[[], Shape]] = {
    "plain": Shape,
    "10,000 objects": lambda: Shape(objects=_name_objects(10_000)),
    "1,000,000 objects": lambda: Shape(objects=_name_objects(1_000_000)),
    "5,000 facts": lambda: Shape(objects=_name_objects(5_000), init=" ".join(f"(q b{i})" for i in range(5_000))),
    "50,000 facts": lambda: Shape(
        objects=_name_objects(250), init=" ".join(f"(r b{i} b{j})" for i in range(250) for j in range(200))
    ),
    "300,000 facts": lambda: Shape(
        objects=_name_objects(600), init=" ".join(f"(r b{i} b{j})" for i in range(600) for j in range(500))
    ),
    "path of 300 objects": lambda: Shape(objects=_name_objects(300), init=_relate(300)),
    "path of 9,000 objects": lambda: Shape(objects=_name_objects(9_000), init=_relate(9_000)),
    "fact with 9,000 arguments": lambda: Shape(
        predicates=f"(s {' '.join(f'?x{i}' for i in range(9_000))} - block)",
        objects=_name_objects(9_000),
        init=f"(s {' '.join(f'b{i}' for i in range(9_000))})",
    ),
    "type chain of 40": lambda: Shape(types=_chain_types(40), objects=_name_objects(3)),
    "type chain of 2,000": lambda: Shape(types=_chain_types(2_000)),
    "type chain of 20,000": lambda: Shape(types=_chain_types(20_000)),
    "30,000 types": lambda: Shape(types=f"block {' '.join(f't{i}' for i in range(30_000))}", objects=_name_objects(4)),
    "type is its own supertype": lambda: Shape(types="block - t t - block"),
    "diamonds of 40 types": lambda: Shape(types=_cross_types(20)),
    "goal over 4 variables": lambda: Shape(
        objects=_name_objects(11), goal=f"(and (p b0) {_quantify(4, '(not (r ?v0 ?v1))', 'forall')})"
    ),
    "precondition over 4 variables": lambda: Shape(
        objects=_name_objects(11), precondition=_quantify(4, "(not (r ?v0 ?v1))", "forall")
    ),
    "existential precondition over 4 variables": lambda: Shape(
        objects=_name_objects(11), init="(r b10 b10)", precondition=_quantify(4, "(r ?v0 ?v1)")
    ),
    "effect over 2 variables": lambda: Shape(
        objects=_name_objects(140), effect=f"(and (p ?x) {_quantify(2, '(r ?v0 ?v1)', 'forall')})"
    ),
    "conditional effect over 2 variables": lambda: Shape(
        objects=_name_objects(70), effect=f"(and (p ?x) {_quantify(2, '(when (q ?v0) (r ?v0 ?v1))', 'forall')})"
    ),
    "constraint over 2 variables": lambda: Shape(
        objects=_name_objects(140),
        effect="(and (p ?x) (forall (?y - block) (r ?x ?y)))",
        constraints=_quantify(2, "(sometime (not (r ?v0 ?v1)))", "forall"),
    ),
    "goal over 2 variables": lambda: Shape(objects=TWENTY, goal=f"(and (p b0) {_quantify(2)})"),
    "goal over 6 variables": lambda: Shape(objects=TWENTY, goal=f"(and (p b0) {_quantify(6)})"),
    "goal nested 12 deep": lambda: Shape(objects=TWENTY, goal=f"(and (p b0) {_nest_quantifiers(12)})"),
    "precondition over 6 variables": lambda: Shape(objects=TWENTY, precondition=_quantify(6)),
    "precondition nested 12 deep": lambda: Shape(objects=TWENTY, precondition=_nest_quantifiers(12)),
    "effect over 6 variables": lambda: Shape(
        objects=TWENTY, effect=f"(and (p ?x) {_quantify(6, '(r ?v0 ?v1)', 'forall')})"
    ),
    "effect under condition over 6 variables": lambda: Shape(
        objects=TWENTY, effect=f"(and (p ?x) (when {_quantify(6)} (q ?x)))"
    ),
    "effect nested 12 deep": lambda: Shape(
        objects=TWENTY,
        effect=f"(and (p ?x) {''.join(f'(forall (?v{i} - block) ' for i in range(12))}(r ?v0 ?v11){')' * 12})",
    ),
    "constraint over 6 variables": lambda: Shape(
        objects=TWENTY, constraints=_quantify(6, "(always (not (r ?v0 ?v1)))", "forall")
    ),
    "constraint nested 12 deep": lambda: Shape(objects=TWENTY, constraints=f"(always {_nest_quantifiers(12)})"),
    "action with 12 parameters": lambda: Shape(
        objects=TWENTY,
        actions=f"(:action c :parameters ({_list_variables(12)} - block) :precondition (q ?v0) :effect (r ?v0 ?v1))",
    ),
    "action with 12 parameters, no plan": lambda: Shape(
        objects=_name_objects(21),
        actions=f"(:action c :parameters ({_list_variables(12)} - block) :precondition (q ?v0) :effect (r ?v0 ?v1))",
        plan=None,
    ),
    "effect over 2 variables, no plan": lambda: Shape(
        objects=_name_objects(135), effect=f"(and (p ?x) {_quantify(2, '(r ?v0 ?v1)', 'forall')})", plan=None
    ),
    "400 objects, no plan": lambda: Shape(
        objects=_name_objects(400),
        actions="(:action c :parameters (?x ?y - block) :precondition (q ?x) :effect (r ?x ?y))",
        plan=None,
    ),
    "plan of 9,000 actions": lambda: Shape(objects=_name_objects(8_999), plan=_visit(8_999)),
    "plan of 5,000 large actions": lambda: Shape(
        objects=_name_objects(5_000),
        effect="(and (p ?x) (forall (?y - block) (r ?x ?y)))",
        plan=_visit(5_000),
    ),
    "quantifier over 1,000 variables": lambda: Shape(objects=TWENTY, goal=f"(and (p b0) {_quantify(1_000)})"),
    "derived, path of 10": lambda: Shape(
        objects=TWENTY, predicates="(w ?x - block)", actions=DERIVED, init=_relate(10), goal="(and (p b0) (w b0))"
    ),
    "derived, 20 objects all related": lambda: Shape(
        objects=TWENTY,
        predicates="(w ?x - block)",
        actions=DERIVED,
        init=" ".join(f"(r b{i} b{j})" for i in range(20) for j in range(20)),
        goal="(and (p b0) (w b19))",
    ),
    "derived over 6 variables": lambda: Shape(
        objects=TWENTY,
        predicates="(w ?x - block)",
        actions=f"(:derived (w ?x - block) {_quantify(6, '(and (r ?x ?v0) (r ?v0 ?v1) (w ?v5))')})",
        goal="(and (p b0) (not (w b0)))",
    ),
    "and nested 50 deep": lambda: Shape(goal=_nest(50, "and", "(p b0)"), objects=_name_objects(5)),
    "and nested 1,000 deep": lambda: Shape(goal=_nest(1_000, "and", "(p b0)")),
    "not nested 100,000 deep": lambda: Shape(goal=_nest(100_000, "not", "(p b0)")),
    "100,000 parentheses": lambda: Shape(goal="(" * 100_000 + ")" * 100_000),
    "5,000 disjunctions": lambda: Shape(
        objects=_name_objects(100), goal=f"(and (p b0) {'(or (p b1) (q b0)) ' * 5_000})"
    ),
    "word of 1,000,000 characters": lambda: Shape(objects=f"{'x' * 1_000_000} {_name_objects(6)}"),
    "comment of 50 MB": lambda: Shape(init=f"\n;{' ' * 50_000_000}\n"),
}


def write_shape(folder: Path, name: str) -> str:
    """Write the shape's PDDL files below `folder`; returns the line of a problem file."""
    shape = SHAPES[name]()
    (folder / DOMAIN).mkdir(parents=True, exist_ok=True)
    stem = "".join(c if c.isalnum() else "-" for c in name)
    names = (f"{DOMAIN}/{stem}-domain.pddl", f"{DOMAIN}/{stem}.pddl")
    for file, text in zip(names, (shape.render_domain(), shape.render_problem()), strict=True):
        (folder / file).write_text(text, encoding="utf-8")
    meta = {"scenario": DOMAIN, "domain_file": names[0], "problem_file": names[1]}
    return json.dumps({"prompt": "Plan.", "response": shape.plan, "meta": meta})

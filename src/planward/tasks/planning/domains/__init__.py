"""The domains that Planward generates problems of, one module each.

A domain is a module with the members of `GeneratedDomain`, a PDDL file of the same name, and a line in
`GENERATED_DOMAINS`. The shipped models have tokens for the domains in `KNOWN_DOMAINS`, whose modules say more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import resources
from random import Random
from typing import Protocol

from planward.core.verdicts import Label
from planward.pddl.expressions import parse_expression
from planward.pddl.formulas import Literal
from planward.pddl.language import Domain, Problem, build_problem_from_parts, parse_domain
from planward.pddl.signature import Atom, Types
from planward.pddl.simulation import PlanVerifier
from planward.tasks.planning.domains import blocksworld, delivery, elevator, ferry, grippers, spanner
from planward.tasks.planning.domains.instances import Instance, Plan, Sizes, render_atom


class GeneratedDomain(Protocol):
    """What a domain's module defines.

    Attributes:
        MARKER: the predicate that shows a problem's dialect; it is part of every problem's initial state.
    """

    MARKER: str

    def generate(self, rng: Random, sizes: Sizes) -> Instance:
        """Sample a problem; raises KeyError where a size is missing."""

    def iter_plans(self, instance: Instance) -> Iterator[Plan]:
        """Yield plans for a problem without constraints, by a fixed rule; with constraints, some may satisfy them."""

    def sample_constraints(self, rng: Random, instance: Instance) -> tuple[str, ...]:
        """Sample safety constraints for the problem, as PDDL; none where the problem has no room for them."""


class KnownDomain(GeneratedDomain, Protocol):
    """What the module of a domain defines whose facts and actions have tokens in the shipped models.

    Attributes:
        CONSTRAINT_WORDS: all words of the constraints that `sample_constraints` returns, other than ground atoms.
        LARGEST: the sizes up to which facts and actions have tokens.
    """

    CONSTRAINT_WORDS: tuple[str, ...]
    LARGEST: Sizes

    def can_occur(self, atom: Atom) -> bool:
        """Return whether a fact or action of matching types can occur, so that it has a token."""

    def name_objects(self, objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:
        """Map any problem's object names to the generator's, by structure; None where it does not fit `LARGEST`.

        Args:
            objects: names by type ("" in an untyped domain), in natural order.
            init: the initial facts.
        """


KNOWN_DOMAINS: dict[str, KnownDomain] = {
    "blocksworld": blocksworld,
    "ferry": ferry,
    "grippers": grippers,
    "spanner": spanner,
    "delivery": delivery,
}
GENERATED_DOMAINS: dict[str, GeneratedDomain] = {**KNOWN_DOMAINS, "elevator": elevator}


def find_plan(domain: str, instance: Instance) -> list[str] | None:
    """Return the first plan of `iter_plans` that satisfies the constraints, one action per line; None without one."""
    verifier = PlanVerifier(build_problem(domain, instance))
    plans = ([render_atom(action) for action in plan] for plan in GENERATED_DOMAINS[domain].iter_plans(instance))
    return next((plan for plan in plans if verifier.verify(plan).label is Label.SUCCESS), None)


@cache
def load_domain_text(name: str) -> str:
    """Return a domain's PDDL."""
    return (resources.files(__name__) / f"{name}.pddl").read_text(encoding="utf-8")


@cache
def load_generated_domain(name: str) -> Domain:
    """Parse a domain, once a process."""
    return parse_domain(load_domain_text(name))


def build_problem(domain: str, instance: Instance) -> Problem:
    """Build the problem without writing and parsing PDDL; equal to what `render_problem` parses to."""
    goal = tuple(Literal(atom) for atom in instance.goal)
    constraints = [parse_expression(text) for text in instance.constraints]
    init = frozenset(instance.init)
    return build_problem_from_parts(
        instance.name, load_generated_domain(domain), instance.objects, init, goal, constraints
    )


def render_problem(domain: str, instance: Instance) -> str:
    """Render the problem as PDDL."""
    by_type: dict[Types, list[str]] = {}
    for name, types in instance.objects.items():
        by_type.setdefault(types, []).append(name)
    objects = "\n    ".join(" ".join(names) + (f" - {types[0]}" if types else "") for types, names in by_type.items())
    constraints = "\n    ".join(instance.constraints)
    return (
        f"(define (problem {instance.name})\n  (:domain {domain})\n"
        + ("  (:requirements :constraints)\n" if constraints else "")
        + f"  (:objects\n    {objects})\n"
        f"  (:init\n    {_render_facts(instance.init)})\n  (:goal (and\n    {_render_facts(instance.goal)}))"
        + (f"\n  (:constraints (and\n    {constraints}))" if constraints else "")
        + ")\n"
    )


def _render_facts(atoms: tuple[Atom, ...]) -> str:
    return "\n    ".join(map(render_atom, atoms))

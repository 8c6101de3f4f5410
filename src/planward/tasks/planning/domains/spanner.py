"""Spanner: pick up spanners on a one-way path, and tighten the nuts at its end."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Sizes,
    assign_types,
    find_objects,
    number_names,
    render_atom,
    sample_tag,
)

MARKER = "loose"
CONSTRAINT_WORDS: tuple[str, ...] = (
    "always",
    "imply",
    "not",
    "forall",
    "at-most-once",
    "(?l - location)",
    "(at bob ?l)",
)


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `spanners`, `nuts` (at most `spanners`) and `locations` between shed and gate."""
    spanners = number_names("spanner", sizes["spanners"])
    nuts = number_names("nut", min(sizes["nuts"], sizes["spanners"]))
    path = ["shed", *number_names("location", sizes["locations"]), "gate"]
    init: list[Atom] = [("at", "bob", "shed")]
    for spanner in spanners:
        init += [("at", spanner, rng.choice(path[1:-1])), ("useable", spanner)]
    for nut in nuts:
        init += [("at", nut, "gate"), ("loose", nut)]
    init += [("link", here, there) for here, there in pairwise(path)]
    goal = [("tightened", nut) for nut in nuts]
    name = f"spanner-s{len(spanners)}-n{len(nuts)}-l{len(path) - 2}-s{sample_tag(rng)}"
    objects = assign_types(man=["bob"], spanner=spanners, nut=nuts, location=path)
    return Instance(name, objects, tuple(init), tuple(goal))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """An order of two nuts, or a spanner to bring along or to use first; in a quarter, also no location twice."""
    nuts, spanners = rng.sample(instance.goal, len(instance.goal)), find_objects(instance, "spanner")
    spanner = rng.choice(spanners)
    rules = [
        f"(always (imply (at bob gate) (carrying bob {spanner})))",
        f"(always (imply {render_atom(nuts[0])} (not (useable {spanner}))))",
    ]
    if len(nuts) > 1:
        rules.append(f"(always (imply {render_atom(nuts[0])} {render_atom(nuts[1])}))")
    once = ("(forall (?l - location) (at-most-once (at bob ?l)))",) if rng.random() < 0.25 else ()
    return (rng.choice(rules), *once)

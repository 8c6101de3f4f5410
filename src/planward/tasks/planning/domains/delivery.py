"""Delivery: a truck with room for one package delivers packages on a grid of cells."""

from __future__ import annotations

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

MARKER = "empty"
CONSTRAINT_WORDS: tuple[str, ...] = ("always", "and", "not")


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `width` and `height` of the grid, and `packages`."""
    width, height = sizes["width"], sizes["height"]
    cells = [f"x{x}y{y}" for x in range(width) for y in range(height)]
    packages = number_names("p", sizes["packages"])
    init: list[Atom] = [("at", "truck", rng.choice(cells)), ("empty", "truck")]
    for x in range(width):
        for y in range(height):
            for neighbour in (f"x{x + 1}y{y}", f"x{x}y{y + 1}"):
                if neighbour in cells:
                    init += [("adjacent", f"x{x}y{y}", neighbour), ("adjacent", neighbour, f"x{x}y{y}")]
    init += [("at", package, rng.choice(cells)) for package in packages]
    goal = [("at", package, rng.choice(cells)) for package in packages]
    name = f"delivery-w{width}-h{height}-p{len(packages)}-s{sample_tag(rng)}"
    return Instance(name, assign_types(truck=["truck"], package=packages, cell=cells), tuple(init), tuple(goal))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """One or two of: cells the truck must not enter, a cell where a package must not be."""
    cells, packages = find_objects(instance, "cell"), find_objects(instance, "package")
    forbidden: list[Atom] = [("at", "truck", cell) for cell in rng.sample(cells, min(2, len(cells)))]
    forbidden.append(("at", rng.choice(packages), rng.choice(cells)))
    parts = [f"(not {render_atom(atom)})" for atom in rng.sample(forbidden, rng.randint(1, 2))]
    return (f"(always (and {' '.join(parts)}))" if len(parts) > 1 else f"(always {parts[0]})",)

"""Success of a model on problems in the PDDL of published generators, whose names and types are not Planward's.

    python benchmarks/foreign_problems.py [MODEL ...] [--count 12] [--shots 0]

Writes COUNT problems of each style below, with other names, types, predicates and orders than the generators of
Planward, puts them to each model (default: models/base) and has VAL judge the plans. Prints a row per model and style.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

from planward.core.prompts import encode_prompt
from planward.core.records import Meta, Record
from planward.core.registry import load_params
from planward.inference import models
from planward.inference.decoding import generate_greedy
from planward.tasks.planning.task import PlanningTask

DOMAINS = Path(__file__).parents[1] / "tests/foreign_domains"


def write_blocks(rng: Random) -> str:
    """Blocks b1, ... in random towers; every `on` of the goal is listed, from the first block on."""
    blocks = [f"b{i}" for i in range(1, rng.randint(4, 7) + 1)]
    init, goal = _sample_supports(rng, blocks), _sample_supports(rng, blocks)
    supports = {lower for lower in init.values() if lower}
    facts = [f"(on {upper} {lower})" if lower else f"(on-table {upper})" for upper, lower in init.items()]
    facts += [f"(clear {block})" for block in blocks if block not in supports]
    goals = [f"(on {upper} {lower})" for upper, lower in goal.items() if lower]
    return _render("bw-rand", "blocksworld-4ops", " ".join(blocks), ["(arm-empty)", *facts], goals or ["(arm-empty)"])


def _sample_supports(rng: Random, blocks: list[str]) -> dict[str, str | None]:
    """Sample towers: the block below each one, none for those on the table."""
    below: dict[str, str | None] = {}
    for block in rng.sample(blocks, len(blocks)):
        tops = [top for top in below if top not in below.values()]
        below[block] = rng.choice([*tops, None])
    return {block: below[block] for block in blocks}


def write_ferry(rng: Random) -> str:
    """Untyped, with static predicates for kinds and inequality; numbers begin at 0."""
    locations = [f"l{i}" for i in range(rng.randint(3, 5))]
    cars = [f"c{i}" for i in range(rng.randint(2, 5))]
    facts = [f"(location {location})" for location in locations] + [f"(car {car})" for car in cars]
    facts += [f"(not-eq {a} {b})" for a in locations for b in locations if a != b]
    facts += [
        "(empty-ferry)",
        *(f"(at {car} {rng.choice(locations)})" for car in cars),
        f"(at-ferry {rng.choice(locations)})",
    ]
    goals = [f"(at {car} {rng.choice(locations)})" for car in cars]
    return _render(f"ferry-l{len(locations)}-c{len(cars)}", "ferry", " ".join(locations + cars), facts, goals)


def write_grippers(rng: Random) -> str:
    """Balls are of type `object`, which is no supertype of the others."""
    robots, rooms, balls = (
        [f"{stem}{i}" for i in range(1, rng.randint(*bounds) + 1)]
        for stem, bounds in (("robot", (1, 2)), ("room", (2, 4)), ("ball", (2, 5)))
    )
    grippers = [f"{side}gripper{i}" for i in range(1, len(robots) + 1) for side in "rl"]
    facts = [f"(at-robby {robot} {rng.choice(rooms)})" for robot in robots]
    facts += [f"(free robot{gripper[-1]} {gripper})" for gripper in grippers]
    facts += [f"(at {ball} {rng.choice(rooms)})" for ball in balls]
    goals = [f"(at {ball} {rng.choice(rooms)})" for ball in balls]
    groups = ((robots, "robot"), (grippers, "gripper"), (rooms, "room"), (balls, "object"))
    objects = "\n    ".join(f"{' '.join(names)} - {type_name}" for names, type_name in groups)
    return _render("gripper-1", "gripper-strips", objects, facts, goals)


def write_spanner(rng: Random) -> str:
    """A path from the shed, with locations numbered from there, to the gate."""
    spanners = [f"spanner{i}" for i in range(1, rng.randint(2, 5) + 1)]
    nuts = [f"nut{i}" for i in range(1, rng.randint(1, len(spanners)) + 1)]
    locations = [f"location{i}" for i in range(1, rng.randint(3, 6) + 1)]
    facts = ["(at bob shed)"]
    facts += [f"(at {spanner} {rng.choice(locations)}) (useable {spanner})" for spanner in spanners]
    facts += [f"(loose {nut}) (at {nut} gate)" for nut in nuts]
    path = ["shed", *locations, "gate"]
    facts += [f"(link {here} {there})" for here, there in pairwise(path)]
    objects = f"bob - man {' '.join(spanners)} - spanner {' '.join(nuts)} - nut {' '.join(path)} - location"
    return _render("prob", "spanner", objects, facts, [f"(tightened {nut})" for nut in nuts])


def write_delivery(rng: Random) -> str:
    """A square grid; all packages go to one cell."""
    size = rng.randint(2, 3)
    cells = [(x, y) for x in range(size) for y in range(size)]
    names = [f"c_{x}_{y}" for x, y in cells]
    packages = [f"p{i}" for i in range(1, rng.randint(1, 3) + 1)]
    facts = [f"(adjacent c_{x}_{y} c_{u}_{v})" for x, y in cells for u, v in cells if abs(x - u) + abs(y - v) == 1]
    starts = [rng.choice(names) for _ in packages]
    facts += [f"(at {package} {start})" for package, start in zip(packages, starts, strict=True)]
    facts += [f"(at t1 {rng.choice(names)})", "(empty t1)"]
    goal = rng.choice([name for name in names if name not in starts] or names)
    objects = f"{' '.join(names)} - cell {' '.join(packages)} - package t1 - truck"
    return _render(f"delivery-{size}x{size}", "delivery", objects, facts, [f"(at {p} {goal})" for p in packages])


STYLES: dict[str, Callable[[Random], str]] = {
    "blocksworld": write_blocks,
    "ferry": write_ferry,
    "grippers": write_grippers,
    "spanner": write_spanner,
    "delivery": write_delivery,
}


def _render(name: str, domain: str, objects: str, facts: list[str], goals: list[str]) -> str:
    return (
        f"(define (problem {name}) (:domain {domain})\n  (:objects {objects})\n"
        f"  (:init {' '.join(facts)})\n  (:goal (and {' '.join(goals)})))\n"
    )


def write_problems(folder: Path, count: int, seed: int = 1) -> list[Record]:
    """Write `count` problems of each style below `folder`; returns their records."""
    records = []
    for style, write in STYLES.items():
        (folder / style).mkdir()
        shutil.copy(DOMAINS / f"{style}.pddl", folder / style / "domain.pddl")
        rng = Random(f"{seed}:{style}")
        for number in range(count):
            file = f"{style}/{number}.pddl"
            (folder / file).write_text(write(rng), encoding="utf-8")
            meta = Meta(scenario=style, domain_file=f"{style}/domain.pddl", problem_file=file)
            records.append(Record(prompt="", meta=meta, id=file))
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", default=["models/base"])
    parser.add_argument("--count", type=int, default=12)
    arguments = parser.parse_args()
    params = load_params("planning", Path())
    with tempfile.TemporaryDirectory() as name:
        records = write_problems(Path(name), arguments.count)
        task = PlanningTask(params, Path(name))
        print(f"{'model':40} {'style':12} solved")
        for path in arguments.models:
            limits = params.prompt
            network, tokenizer = models.load_model(
                params.model, path, limits.max_tokens + limits.max_completion_tokens, params.seed
            )
            ids = [encode_prompt(tokenizer, task.prompt(record, [])) for record in records]
            completions = generate_greedy(network, tokenizer, ids, limits.max_completion_tokens, 64, progress=False)
            plans = [task.undo_renaming(record, text) for record, text in zip(records, completions, strict=True)]
            verdicts = task.judge(list(zip(records, plans, strict=True)))
            unknown = sum(tokenizer.unk_token_id in row for row in ids)
            for style in STYLES:
                successes = [v.success for record, v in zip(records, verdicts, strict=True) if record.domain == style]
                print(f"{path:40} {style:12} {sum(successes)} of {len(successes)}")
            total = sum(verdict.success for verdict in verdicts)
            print(f"{path:40} {'all':12} {total} of {len(verdicts)}; {unknown} prompts with unknown words")


if __name__ == "__main__":
    main()

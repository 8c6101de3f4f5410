"""Problems from any source, as JSON lines beside their PDDL files."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from tqdm import tqdm

from planward.params import Params, ParamsError
from planward.pddl.canonical import canonical_hash, fraction
from planward.pddl.dialects import Dialect
from planward.pddl.dialects import dialect as dialect_of
from planward.pddl.expressions import PddlError, Symbol, read_file
from planward.pddl.generators import GENERATORS, Instance, generated_problem, problem_text
from planward.pddl.safety import constrained
from planward.records import Meta, Record, replaced, write_jsonl, written
from planward.tasks.planning.prompt import INSTRUCTION
from planward.tasks.planning.references import reference_plan

T = TypeVar("T")


def bring(params: Params, folder: Path) -> None:
    """Fill an empty folder from the source that params.yaml names; raises ParamsError where there is none."""
    source, path = params.problems.source, params.problems.path
    if source != "generated" and not path.exists():
        raise ParamsError(f"params.yaml: problems.path: {path} does not exist")
    if source == "generated":
        write_jsonl(folder / "problems.jsonl", generated_records(params, folder))
    elif source == "pddl":
        copy_tree(path, ("*.pddl",), folder)
        write_jsonl(folder / "problems.jsonl", pddl_records(folder, path.resolve().name, params.difficulty))
    else:
        patterns = ("*.pddl", "*.jsonl" if path.is_dir() else path.name)
        copy_tree(path if path.is_dir() else path.parent, patterns, folder)


def copy_tree(folder: Path, patterns: Iterable[str], to: Path) -> None:
    """Copy matching files, keeping their places below `folder`; raises ParamsError where there are none."""
    files = sorted({file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()})
    if not files:
        raise ParamsError(f"params.yaml: problems.path: {folder} holds no {' or '.join(patterns)}")
    for file in tqdm(files, desc="copying", unit="file"):
        with replaced(to / file.relative_to(folder)) as partial:
            shutil.copyfile(file, partial)


def pddl_records(root: Path, name: str, known: Container[str]) -> Iterator[Record]:
    """One record a problem file, without a plan; a domain.pddl serves the files beside and below it.

    Args:
        name: what the folder was called before it was copied to `root`.
        known: the domains that params.yaml describes.
    """
    for file in sorted(root.rglob("*.pddl")):
        if file.name == "domain.pddl":
            continue
        above = [folder for folder in file.parents if folder == root or root in folder.parents]
        home = next((folder for folder in above if (folder / "domain.pddl").exists()), file.parent)
        domain_file = home / "domain.pddl"
        folder = name if home == root else home.name
        meta = Meta(
            scenario=scenario(folder, domain_file, known),
            domain_file=domain_file.relative_to(root).as_posix(),
            problem_file=file.relative_to(root).as_posix(),
        )
        yield Record(prompt=INSTRUCTION, meta=meta)


def scenario(folder: str, domain_file: Path, known: Container[str]) -> str:
    """The domain's name in params.yaml: its folder's, or else the one that its file gives it."""
    with suppress(PddlError):
        match read_file(domain_file):
            case [_, [_, Symbol() as own], *_] if folder.lower() not in known:
                return str(own)
    return folder.lower()


def generated_records(params: Params, folder: Path) -> Iterator[Record]:
    """The records of all domains; see `domain_records`."""
    for domain in params.problems.generated:
        yield from domain_records(params, domain, folder)


def domain_records(params: Params, domain: str, folder: Path) -> Iterator[Record]:
    """Write a domain's problems as PDDL below `folder` and yield them with shortest plans.

    They are drawn, and solved, in the plain domain, then put into a dialect.

    Raises:
        ParamsError: as `distinct_instances` and `dialects_of`.
    """
    instances, count = distinct_instances(params, domain), params.problems.count(domain)
    dialects = dialects_of(domain, params.problems.dialects, params.seed, "problems.dialects")
    rng = Random(f"{params.seed}:{domain}:constraints")
    for dialect in dialects:
        _write(folder / domain_file(dialect), dialect.domain_text())
    dealt = zip(instances, dealt_evenly(dialects, Random(f"{params.seed}:{domain}:deal")), strict=False)
    for instance, dialect in tqdm(dealt, desc=domain, total=count, unit="problem"):
        file = folder / domain / f"{instance.name}.pddl"
        _write(file, problem_text(domain, instance))
        plan = reference_plan(folder / domain_file(dialects[0]), file, params.problems)
        wanted = params.problems.constraints == "safety" and rng.random() < params.problems.constrained_share
        if wanted and (found := constrained(rng, domain, instance, plan, params.problems.max_states)):
            instance, plan = found
        text = problem_text(domain, dialect.instance(instance))
        _write(file, text)
        meta = {
            "scenario": domain,
            "domain_file": domain_file(dialect),
            "problem_file": f"{domain}/{file.name}",
            "dialect": dialect.number,
        }
        response = "\n".join(dialect.translated(plan))
        yield Record(prompt=raw_prompt(dialect, text), response=response, meta=Meta.model_validate(meta))


def dialects_of(domain: str, count: int, seed: int, key: str) -> list[Dialect]:
    """The first dialects of a domain, the plain domain first; `key` is where params.yaml asks for so many.

    Raises:
        ParamsError: the domain is unknown, or has fewer.
    """
    if domain not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise ParamsError(f"params.yaml: problems.generated.{domain}: no such generator; known: {known}")
    try:
        return [dialect_of(domain, number, seed) for number in range(count)]
    except ValueError as error:
        raise ParamsError(f"params.yaml: {key}: {error}; ask for fewer") from None


def dealt_evenly(items: Sequence[T], rng: Random) -> Iterator[T]:
    """The items over and over, each time in another random order."""
    while True:
        yield from rng.sample(items, len(items))


def domain_file(dialect: Dialect) -> str:
    """Where a dialect's domain lies, relative to the data root."""
    return f"{dialect.domain_name}/{f'dialect-{dialect.number}' if dialect.number else 'domain'}.pddl"


def raw_prompt(dialect: Dialect, problem_text: str) -> str:
    """The `prompt` of a generated problem's record: instruction, domain and problem as PDDL."""
    return f"{INSTRUCTION}\n\nDomain:\n{dialect.domain_text()}\nProblem:\n{problem_text}"


def distinct_instances(params: Params, domain: str) -> Iterator[Instance]:
    """Seeded problems, new up to renaming, unsolved at the start, and not the base model's to train on.

    Raises:
        ParamsError: a size is missing, or the sizes do not hold that many distinct problems.
    """
    sizes = params.problems.generated[domain]
    ranges = {name: bounds for name, bounds in sizes.items() if not isinstance(bounds, int)}
    count, rng, seen, misses = params.problems.count(domain), Random(f"{params.seed}:{domain}"), set[str](), 0
    while len(seen) < count:
        try:
            instance = GENERATORS[domain](rng, {name: rng.randint(*bounds) for name, bounds in ranges.items()})
        except KeyError as missing:
            raise ParamsError(f"params.yaml: problems.generated.{domain}: missing size {missing}") from None
        problem = generated_problem(domain, instance)
        digest = canonical_hash(problem)
        taken = digest in seen or problem.init >= set(instance.goal)
        if taken or fraction(digest, "base") < params.problems.base_share:
            misses += 1
            if misses > 1000 + 100 * count:
                raise ParamsError(
                    f"params.yaml: problems.generated.{domain}: only {len(seen)} distinct problems found "
                    f"for count {count}; widen the sizes or lower the count"
                )
            continue
        seen.add(digest)
        yield instance


def _write(file: Path, text: str) -> None:
    with written(file) as out:
        out.write(text)

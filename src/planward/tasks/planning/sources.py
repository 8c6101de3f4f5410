"""Problems from any source: generated, JSON lines, or bare PDDL files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import TypeVar

from tqdm import tqdm

from planward.core.files import open_atomic, replace_atomic, write_jsonl
from planward.core.hashing import hash_fraction
from planward.core.parallel import count_threads, map_chunks
from planward.core.records import Meta, Record
from planward.params import ParamsError
from planward.pddl.canonical import hash_problem
from planward.pddl.expressions import PddlError, Symbol, read_pddl_file
from planward.pddl.limits import MAX_FILE_BYTES
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.dialects import Dialect, build_dialect
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, find_plan, render_problem
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.domains.instances import Instance
from planward.tasks.planning.planbench import copy_problems
from planward.tasks.planning.prompt import INSTRUCTION

T = TypeVar("T")
MIN_PROBLEMS_IN_PARALLEL = 5000  # fewer take less time than processes to start
COPY = "fix: copy the file there"
# Possessive, so linear: otherwise each of n semicolons may or may not begin another comment, in 2**n ways.
_DEFINES_DOMAIN = re.compile(r"\A(?:\s|;[^\n]*+)*+\(\s*+define\s*+\(\s*+domain\s", re.IGNORECASE)


def prepare_problems(params: PlanningParams, folder: Path) -> None:
    """Fill an empty folder from the source named in params.yaml; raises ParamsError where it is missing or empty."""
    source, path = params.problems.source, params.problems.path
    if source != "generated" and not path.exists():
        raise ParamsError(f"params.yaml: problems.path: {path} does not exist")
    if source == "generated":
        generate_problems(params, folder)
    elif source == "pddl":
        missing = copy_tree(path, ("*.pddl",), folder)
        records = iter_pddl_records(folder, path.resolve().name, params.difficulty, missing)
        write_jsonl(folder / "problems.jsonl", records)
    elif source == "planbench":
        write_jsonl(folder / "problems.jsonl", copy_problems(path, folder))
    else:
        root, name = (path, "*.jsonl") if path.is_dir() else (path.parent, path.name)
        missing = copy_tree(root, ("*.pddl", name), folder, named=path)
        if lines := [file for file in missing if not file.endswith(".pddl")]:
            raise ParamsError(
                f"params.yaml: problems.path: {root / lines[0]} links to a file outside of {root}; {COPY}"
            )


def copy_tree(folder: Path, patterns: Collection[str], to: Path, named: Path | None = None) -> list[str]:
    """Copy matching files with their folders below `folder`; raises ParamsError where there are none.

    Links to files outside of `folder` are not copied: their paths relative to it are returned. Nor are links to
    folders, which may form cycles: a warning names the first.

    Args:
        named: a file that params.yaml names, so that it may be such a link.
    """
    folder_links = list[Path]()
    files = list(map(str, iter_files(folder, patterns, folder_links)))  # paths take several times the memory
    if folder_links:
        text = f"{len(folder_links)} links to folders are not followed, such as {folder_links[0]}"
        print(f"warning: {text}; fix: copy the folder there", flush=True)
    if not files:
        raise ParamsError(f"params.yaml: problems.path: {folder} holds no {' or '.join(patterns)}")
    missing = list[str]()
    for file in tqdm(files, desc="copying", unit="file"):
        path = Path(file).relative_to(folder)
        is_link = Path(file) != named and Path(file).is_symlink()
        if is_link and not Path(file).resolve().is_relative_to(folder.resolve()):
            missing.append(path.as_posix())
            continue
        with replace_atomic(to / path) as partial:
            shutil.copyfile(file, partial)
    if missing:
        text = f"{len(missing)} links to files outside of {folder} are not copied, such as {missing[0]}"
        print(f"warning: {text}; {COPY}", flush=True)
    return missing


def iter_files(folder: Path, patterns: Collection[str], folder_links: list[Path] | None = None) -> Iterator[Path]:
    """Yield the files below `folder` whose names match a pattern, in the order of sorted paths.

    Args:
        folder_links: gets the links to folders, which are not followed.
    """
    with os.scandir(folder) as entries:
        names = sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)
    for name, is_folder, is_link in names:
        if is_folder:
            yield from iter_files(folder / name, patterns, folder_links)
        elif is_link and (folder / name).is_dir():
            if folder_links is not None:
                folder_links.append(folder / name)
        elif any(fnmatchcase(name, pattern) for pattern in patterns) and (folder / name).is_file():
            yield folder / name


def iter_pddl_records(root: Path, name: str, known: Container[str], missing: Iterable[str] = ()) -> Iterator[Record]:
    """Yield a record per problem file, without a plan.

    Args:
        name: of the folder that was copied to `root`.
        known: names of the domains in params.yaml.
        missing: files that were not copied to `root`; the split quarantines their records.
    """
    for file in chain(iter_files(root, ("*.pddl",)), map(root.joinpath, missing)):
        if is_domain_file(file):
            continue
        domain_file = find_domain_file(file, root)
        folder = domain_file.parent.parent if domain_file.parent.name == "domains" else domain_file.parent
        folder_name = name if folder == root else folder.name
        meta = Meta(
            scenario=find_domain_name(folder_name, domain_file, known),
            domain_file=domain_file.relative_to(root).as_posix(),
            problem_file=file.relative_to(root).as_posix(),
        )
        yield Record(prompt=INSTRUCTION, meta=meta)


def is_domain_file(file: Path) -> bool:
    """Whether a file is domain.pddl, or has `domain` in its name and defines one."""
    if file.name == "domain.pddl":
        return True
    if "domain" not in file.stem or not file.exists():
        return False
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        return bool(_DEFINES_DOMAIN.match(stream.read(MAX_FILE_BYTES)))


def find_domain_file(problem: Path, root: Path) -> Path:
    """Find a problem's own domain file, or else the next domain.pddl beside it or above, up to `root`.

    A problem's own domain file is named as in collections of IPC problems: p01-domain.pddl beside p01.pddl or
    p01-s2.pddl, domain-p01.pddl or domain_p01.pddl beside p01.pddl, or domains/domain-1.pddl for
    instances/instance-1.pddl.
    """
    folder, stem = problem.parent, problem.stem
    own_files = [folder / f"{part}-domain.pddl" for part in (stem, stem.partition("-")[0])]
    own_files += [folder / f"domain{separator}{stem}.pddl" for separator in "-_"]
    own_files.append(folder.parent / "domains" / f"domain-{stem.rpartition('-')[2]}.pddl")
    shared_files = [above / "domain.pddl" for above in problem.parents if above == root or root in above.parents]
    return next((file for file in (*own_files, *shared_files) if file.exists()), folder / "domain.pddl")


def find_domain_name(folder: str, domain_file: Path, known: Container[str]) -> str:
    """Find the domain's name in params.yaml: that of its folder, or else the one in its file."""
    with suppress(PddlError):
        match read_pddl_file(domain_file):
            case [_, [_, Symbol() as name], *_] if folder.lower() not in known:
                return str(name)
    return folder.lower()


def generate_problems(params: PlanningParams, folder: Path) -> None:
    """Write the problems of all domains; where they are many, those of several domains at once."""
    domains, problems = list(params.problems.generated), params.problems
    is_large = sum(map(problems.count, domains)) >= MIN_PROBLEMS_IN_PARALLEL
    workers = min(count_threads(), len(domains)) if is_large else 1
    with open_atomic(folder / "problems.jsonl") as out:
        for part in map_chunks(partial(partial, _write_domain, params, folder), domains, workers):
            with part.open(encoding="utf-8") as lines:
                shutil.copyfileobj(lines, out)
            part.unlink()


def _write_domain(params: PlanningParams, folder: Path, domain: str) -> Path:
    """Generate a domain's problems; returns the file of their records, which the split would not read."""
    path = folder / f"{domain}.part"
    write_jsonl(path, generate_domain_records(params, domain, folder))
    return path


def generate_domain_records(params: PlanningParams, domain: str, folder: Path) -> Iterator[Record]:
    """Write a domain's problems as PDDL below `folder` and yield them with plans.

    Problems are generated and solved, by the domain's rule, in the plain domain, then translated to a dialect.

    Raises:
        ParamsError: as `generate_instances` and `build_dialects`.
    """
    instances = generate_instances(params, domain)
    return _solve_instances(params, domain, folder, instances, params.problems.count(domain), stream="")


def generate_larger_records(params: PlanningParams, domain: str, folder: Path) -> Iterator[Record]:
    """Likewise for the sizes in `transfer.larger`: distinct from all problems of `problems.generated`."""
    known_digests = {hash_problem(build_problem(domain, instance)) for instance in generate_instances(params, domain)}
    larger = params.problems.model_copy(update={"generated": params.transfer.larger})
    params = params.model_copy(update={"problems": larger})
    instances = generate_instances(params, domain, "transfer.larger", known_digests)
    return _solve_instances(params, domain, folder, instances, larger.count(domain), stream=":larger")


def _solve_instances(
    params: PlanningParams, domain: str, folder: Path, instances: Iterable[Instance], count: int, stream: str
) -> Iterator[Record]:
    dialects = build_dialects(domain, params.problems.dialects, params.seed, "problems.dialects")
    rng = Random(f"{params.seed}:{domain}:constraints{stream}")
    for dialect in dialects:
        _write(folder / format_domain_path(dialect), dialect.render_domain())
    pairs = zip(instances, iter_shuffled(dialects, Random(f"{params.seed}:{domain}:deal{stream}")), strict=False)
    for instance, dialect in tqdm(pairs, desc=domain, total=count, unit="problem"):
        file = folder / domain / f"{instance.name}.pddl"
        plan = find_plan(domain, instance)
        assert plan, f"{domain}: {instance.name} has no plan by rule"  # every unconstrained problem has one
        is_constrained = params.problems.constraints == "safety" and rng.random() < params.problems.constrained_share
        if is_constrained and (replacement := constrain_instance(rng, domain, instance, plan)):
            instance, plan = replacement
        text = render_problem(domain, dialect.translate_instance(instance))
        _write(file, text)
        meta = {
            "scenario": domain,
            "domain_file": format_domain_path(dialect),
            "problem_file": f"{domain}/{file.name}",
            "dialect": dialect.number,
        }
        response = "\n".join(dialect.translate_plan(plan))
        yield Record(prompt=render_raw_prompt(dialect, text), response=response, meta=Meta.model_validate(meta))


def build_dialects(domain: str, count: int, seed: int, key: str) -> list[Dialect]:
    """Build the first `count` dialects of a domain, the plain domain first.

    Args:
        key: of `count` in params.yaml, for errors.

    Raises:
        ParamsError: the domain is unknown, or has fewer dialects.
    """
    if domain not in GENERATED_DOMAINS:
        names = ", ".join(GENERATED_DOMAINS)
        raise ParamsError(f"params.yaml: problems.generated.{domain}: no such generator; there are {names}")
    try:
        return [build_dialect(domain, number, seed) for number in range(count)]
    except ValueError as error:
        raise ParamsError(f"params.yaml: {key}: {error}; fix: lower it") from None


def iter_shuffled(items: Sequence[T], rng: Random) -> Iterator[T]:
    """Yield the items forever, in a new random order each time."""
    while True:
        yield from rng.sample(items, len(items))


def format_domain_path(dialect: Dialect) -> str:
    """Format the path of a dialect's domain file, relative to the data root."""
    return f"{dialect.domain_name}/{f'dialect-{dialect.number}' if dialect.number else 'domain'}.pddl"


def render_raw_prompt(dialect: Dialect, problem_text: str) -> str:
    """Render the `prompt` of a generated problem's record: instruction, domain and problem as PDDL."""
    return f"{INSTRUCTION}\n\nDomain:\n{dialect.render_domain()}\nProblem:\n{problem_text}"


def generate_instances(
    params: PlanningParams, domain: str, section: str = "problems.generated", known: Collection[str] = ()
) -> Iterator[Instance]:
    """Generate instances that are distinct up to renaming, not solved at the start, and outside the base model's share.

    Args:
        section: of params.yaml that `params.problems.generated` holds; another one has other random numbers.
        known: digests of further problems that are not generated again.

    Raises:
        ParamsError: a size is missing, or the sizes allow fewer distinct problems.
    """
    sizes = params.problems.generated[domain]
    ranges = {name: bounds for name, bounds in sizes.items() if not isinstance(bounds, int)}
    rng = Random(f"{params.seed}:{domain}{'' if section == 'problems.generated' else f':{section}'}")
    count, digests, misses = params.problems.count(domain), set[str](), 0
    while len(digests) < count:
        try:
            values = {name: rng.randint(*bounds) for name, bounds in ranges.items()}
            instance = GENERATED_DOMAINS[domain].generate(rng, values)
        except KeyError as missing:
            raise ParamsError(f"params.yaml: {section}.{domain}: missing size {missing}") from None
        problem = build_problem(domain, instance)
        digest = hash_problem(problem)
        is_useless = digest in digests or digest in known or problem.init >= set(instance.goal)
        if is_useless or hash_fraction(digest, "base") < params.problems.base_share:
            misses += 1
            if misses > 1000 + 100 * count:
                raise ParamsError(
                    f"params.yaml: {section}.{domain}: only {len(digests)} distinct problems found "
                    f"for count {count}; fix: widen the sizes or lower the count"
                )
            continue
        digests.add(digest)
        yield instance


def _write(file: Path, text: str) -> None:
    with open_atomic(file) as out:
        out.write(text)

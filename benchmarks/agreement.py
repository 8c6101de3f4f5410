"""Judge many plans in-process and by VAL, and print by domain where the two differ.

    python benchmarks/agreement.py                                     100,000 plans: generated problems, tests/domains
    python benchmarks/agreement.py --folder FOLDER                     problems of one's own, below any domain.pddl
    python benchmarks/agreement.py --predictions results/predictions   and what models wrote
    python benchmarks/agreement.py --replay disagreements.jsonl        once more what --out has kept

How plans are made: docs/reference/agreement.md. No plan comes twice for one problem; equal seeds and problems give
equal plans. Generated problems are of three sorts: without constraints, with the pipeline's own (`safety`), and with
constraints drawn from all that the in-process checker knows of PDDL3 (`any`).

The table, by domain: problems; plans compared; of these, those that VAL itself was run on (in the others its wrapper
finds the fault first); VAL's labels; problems that only VAL can judge, which are not compared; problems that neither
side can read; disagreements. The exit status is 1 where there is a disagreement.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from planward import val
from planward.agreement import (
    Agreement,
    Candidate,
    Disagreement,
    compare,
    completed_plans,
    distinct_plans,
    drawn_instance,
)
from planward.params import Params, load_params
from planward.pddl.expressions import PddlError, Unsupported
from planward.pddl.generators import GENERATORS, domain_text, generated_problem, problem_text
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.signature import Types
from planward.records import Label, Outcome, VerifierError, read_records
from planward.tasks.planning.sources import pddl_records

ROOT = Path(__file__).resolve().parent.parent
SORTS = ("", "safety", "any")  # of generated problems
OPERATORS = (
    *(("always", 1), ("sometime", 1), ("at-most-once", 1)),
    *(("sometime-before", 2), ("sometime-after", 2), ("at end", 1)),
)
CHUNK = 100  # plans that a worker is given at once, all of one problem
WINDOW = 3  # chunks in memory for each worker
COLUMNS = (
    *("problems", "plans", "VAL ran"),
    *("success", "goal", "precondition", "safety", "format"),  # as Label has them
    *("only VAL", "unread", "differ"),
)


@dataclass(frozen=True)
class Case:
    """A problem and some plans for it. A `temporary` problem file is deleted when it has been judged."""

    domain: str
    domain_file: Path
    problem_file: Path
    candidates: tuple[Candidate, ...] = ()
    temporary: bool = False
    first: bool = True  # of the cases with this problem


@dataclass(frozen=True)
class Result:
    found: Agreement = field(default_factory=Agreement)
    only_val: bool = False
    unreadable: bool = False


def main() -> int:
    options = parsed_options()
    if options.replay:
        return replay(options.replay)
    rows: dict[str, list[int]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="planward-agreement-")))
        pool = stack.enter_context(ProcessPoolExecutor(options.workers))
        bar = stack.enter_context(tqdm(total=options.plans, unit="plan", smoothing=0.05))
        out = stack.enter_context(options.out.open("w", encoding="utf-8")) if options.out else None
        for case, result in judged(pool, limited(cases(options, folder), options.plans), options.workers * WINDOW):
            row = rows.setdefault(case.domain, [0] * len(COLUMNS))
            rows[case.domain] = [a + b for a, b in zip(row, counts(case, result), strict=True)]
            for disagreement in result.found.disagreements:
                tqdm.write(f"{case.domain}, {disagreement}", file=sys.stderr)
                if out:
                    out.write(json.dumps(as_json(case, disagreement), ensure_ascii=False) + "\n")
                    out.flush()
            if case.temporary:
                case.problem_file.unlink()
            bar.update(result.found.plans)
    sys.stdout.write(table(rows))
    return int(any(row[-1] for row in rows.values()))


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=100_000, help="how many to compare (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="take only problem files from here, beside or below domain.pddl")
    parser.add_argument("--predictions", type=Path, help="a folder or a file of JSON lines with `completion` and `id`")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where the problems of an `id` are")
    parser.add_argument("--out", type=Path, help="write each disagreement there, with the texts of its files")
    parser.add_argument("--replay", type=Path, help="judge again what --out wrote, and nothing else")
    return parser.parse_args()


# The cases.


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """What models wrote, then a case of each source in turn; endless where problems are generated."""
    if options.predictions:
        yield from model_cases(options.predictions, options.results)
    root = options.folder or ROOT / "tests" / "domains"
    homes = sorted({file.parent for file in root.rglob("domain.pddl")})
    sources: list[Iterator[Case]] = []
    if not options.folder:
        params = load_params(ROOT / "params.yaml")
        sources += [generated_cases(d, sort, options.seed, params, folder) for sort in SORTS for d in GENERATORS]
    share = options.plans // max(len(sources) + len(homes), 1) + 1
    waiting = deque([*sources, *(file_cases(home, share, options.seed) for home in homes)])
    if not waiting and not options.predictions:
        sys.exit(f"{options.folder}: no domain.pddl here or below")
    while waiting:
        source = waiting.popleft()
        if case := next(source, None):
            yield case
            waiting.append(source)


def generated_cases(domain: str, sort: str, seed: int, params: Params, folder: Path) -> Iterator[Case]:
    """Problems of the sizes in params.yaml, one case each."""
    domain_file = folder / f"{domain}{sort}.pddl"
    domain_file.write_text(domain_text(domain), encoding="utf-8")
    sizes = {name: bounds for name, bounds in params.problems.generated[domain].items() if not isinstance(bounds, int)}
    for number in count():
        rng = Random(f"{seed}:{domain}:{sort}:{number}")
        instance = drawn_instance(rng, domain, sizes, sort == "safety", params.problems.max_states)
        if sort == "any":
            drawn = Sentences(rng, generated_problem(domain, instance)).constraints()
            instance = replace(instance, constraints=drawn)
        file = folder / f"{instance.name}{sort}{number}.pddl"
        file.write_text(problem_text(domain, instance), encoding="utf-8")
        yield from cases_of(Case(f"{domain} {sort}".rstrip(), domain_file, file, temporary=True), rng, CHUNK)


def file_cases(home: Path, share: int, seed: int) -> Iterator[Case]:
    """The problem files that home/domain.pddl serves, which get about `share` plans in all."""
    records = [record for record in pddl_records(home, home.name, ()) if record.meta.domain_file == "domain.pddl"]
    for record in records:
        case = Case(home.name, home / "domain.pddl", home / record.meta.problem_file)
        yield from cases_of(case, Random(f"{seed}:{record.meta.problem_file}"), share // len(records) + 1)


def cases_of(case: Case, rng: Random, plans: int) -> Iterator[Case]:
    """The case with plans made for it, in chunks; without plans where it cannot be read in-process."""
    made: Iterator[Candidate] = iter(())
    with suppress(PddlError):
        made = islice(distinct_plans(load_problem(case.problem_file, load_domain(case.domain_file)), rng), plans)
    yield replace(case, candidates=tuple(islice(made, CHUNK)))
    while chunk := tuple(islice(made, CHUNK)):
        yield replace(case, candidates=chunk, first=False)


def model_cases(path: Path, results: Path) -> Iterator[Case]:
    """What models wrote: JSON lines with `completion` (or `plan`), and the `id` of a problem of results/split."""
    written: dict[str, list[str]] = defaultdict(list)
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        with file.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                written[row["id"]].append(row["completion"] if "completion" in row else row["plan"])
    known = {
        record.id: record.meta for part in sorted((results / "split").glob("*.jsonl")) for record in read_records(part)
    }
    if lost := written.keys() - known.keys():
        sys.stderr.write(f"{path}: {len(lost)} of {len(written)} problems are not in {results / 'split'}: left out\n")
    for name in sorted(written.keys() & known.keys()):
        meta, folder = known[name], results / "problems"
        plans = tuple(completed_plans(written[name]))
        yield Case(f"{meta.scenario} models", folder / meta.domain_file, folder / meta.problem_file, plans)


def limited(some: Iterable[Case], plans: int) -> Iterator[Case]:
    """The first cases, with `plans` plans in all."""
    for case in some:
        yield replace(case, candidates=case.candidates[:plans])
        plans -= len(case.candidates)
        if plans <= 0:
            return


class Sentences:
    """Draws PDDL3 constraints over a problem's atoms; whether a plan can keep them is left to chance."""

    def __init__(self, rng: Random, problem: Problem) -> None:
        self.rng, self.problem, self.variables = rng, problem, 0
        grounding = ground_problem(problem).grounding
        touched = {atom for operator in grounding.operators for atom in grounding.atoms(operator.adds)}
        self.atoms = sorted(touched | problem.init)

    def constraints(self) -> tuple[str, ...]:
        return tuple(self._constraint({}) for _ in range(self.rng.randint(1, 3)))

    def _constraint(self, scope: dict[str, Types]) -> str:
        draw = self.rng.random()
        if draw < 0.12 and len(scope) < 2:  # VAL dies of some that are deeper
            variable, wider = self._variable(scope)
            return f"(forall ({variable}) {self._constraint(wider)})"
        if draw < 0.24 and not scope:  # nor does it bear all that may stand under `forall`
            return f"(and {self._constraint(scope)} {self._constraint(scope)})"
        operator, arity = self.rng.choice(OPERATORS)
        return f"({operator} {' '.join(self._formula(scope, self.rng.randint(0, 2)) for _ in range(arity))})"

    def _formula(self, scope: dict[str, Types], depth: int) -> str:
        draw = self.rng.randrange(8) if depth else 0
        if draw <= 2:
            return self._atom(scope) if self.rng.random() < 0.6 else f"(not {self._atom(scope)})"
        if draw == 3:
            return f"(not {self._formula(scope, depth - 1)})"
        if draw <= 6:
            word = ("and", "or", "imply")[draw - 4]
            return f"({word} {self._formula(scope, depth - 1)} {self._formula(scope, depth - 1)})"
        variable, wider = self._variable(scope)
        return f"({self.rng.choice(('forall', 'exists'))} ({variable}) {self._formula(wider, depth - 1)})"

    def _atom(self, scope: dict[str, Types]) -> str:
        """An atom that the problem has; perhaps with variables for its objects, or an equality."""
        if scope and self.rng.random() < 0.1:
            return f"(= {self.rng.choice(list(scope))} {self.rng.choice([*scope, *self.problem.objects])})"
        predicate, *arguments = self.rng.choice(self.atoms)
        signature = self.problem.domain.signature
        for at, wanted in enumerate(signature.predicates[predicate]):
            fitting = [variable for variable, kinds in scope.items() if signature.is_a(kinds, wanted)]
            if fitting and self.rng.random() < 0.7:
                arguments[at] = self.rng.choice(fitting)
        return f"({' '.join([predicate, *arguments])})"

    def _variable(self, scope: dict[str, Types]) -> tuple[str, dict[str, Types]]:
        """A new variable's declaration, and the scope with it."""
        self.variables += 1
        name, kinds = f"?v{self.variables}", self.rng.choice(list(self.problem.objects.values()))
        declared = kinds[0] if len(kinds) == 1 else f"(either {' '.join(kinds)})"
        return f"{name} - {declared}" if self.problem.domain.signature.typed else name, scope | {name: kinds}


# Judging.


def judged(pool: ProcessPoolExecutor, some: Iterator[Case], window: int) -> Iterator[tuple[Case, Result]]:
    """Each case and what came of it, in their order; only `window` of them are in memory."""
    waiting: deque[tuple[Case, Future[Result]]] = deque()
    for case in some:
        waiting.append((case, pool.submit(result_of, case)))
        if len(waiting) >= window:
            done, future = waiting.popleft()
            yield done, future.result()
    for done, future in waiting:
        yield done, future.result()


def result_of(case: Case) -> Result:
    """What a worker finds. A problem that only VAL can read is a disagreement on the empty plan."""
    try:
        problem = load_problem(case.problem_file, load_domain(case.domain_file))
        return Result(compare(problem, case.domain_file, case.problem_file, case.candidates))
    except Unsupported:
        return Result(only_val=True)
    except PddlError as error:
        try:
            by_val = val.validate(case.domain_file, case.problem_file, "")
        except (val.InputError, VerifierError):  # VAL dies of some PDDL
            return Result(unreadable=True)
        empty = Disagreement(Candidate("empty", ()), f"{type(error).__name__}: {error}", by_val)
        return Result(Agreement(disagreements=[empty]))


def replay(file: Path) -> int:
    """Judge disagreements again that --out wrote; prints each that is left, and how many."""
    total = left = 0
    with TemporaryDirectory(prefix="planward-agreement-") as folder, file.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            total += 1
            domain_file, problem_file = (Path(folder, f"{kind}-{total}.pddl") for kind in ("domain", "problem"))
            domain_file.write_text(row["domain_text"], encoding="utf-8")
            problem_file.write_text(row["problem_text"], encoding="utf-8")
            plan = Candidate(row["kind"], tuple(row["plan"]))
            found = result_of(Case(row["domain"], domain_file, problem_file, (plan,))).found
            for disagreement in found.disagreements:
                left += 1
                sys.stdout.write(f"{row['domain']}, {disagreement}\n")
    sys.stdout.write(f"{left} of {total} disagreements are left\n")
    return int(left > 0)


# What is printed and written.


def counts(case: Case, result: Result) -> list[int]:
    """The numbers of COLUMNS."""
    found = result.found
    labels = [found.labels[label] for label in Label]
    skipped = [int(result.only_val), int(result.unreadable)]
    return [int(case.first), found.plans, found.val_runs, *labels, *skipped, len(found.disagreements)]


def table(rows: dict[str, list[int]]) -> str:
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    width = max(map(len, rows), default=0)
    lines = [("", COLUMNS), *sorted(rows.items()), ("all", total)]
    return "".join(f"{name:{width}}" + "".join(f" {cell:>12}" for cell in cells) + "\n" for name, cells in lines)


def as_json(case: Case, disagreement: Disagreement) -> dict[str, Any]:
    def side(outcome: Outcome | str) -> Any:
        return outcome if isinstance(outcome, str) else asdict(outcome)

    return {
        "domain": case.domain,
        "problem_file": case.problem_file.name,
        "kind": disagreement.candidate.kind,
        "plan": disagreement.candidate.plan,
        "in_process": side(disagreement.in_process),
        "by_val": side(disagreement.by_val),
        "domain_text": case.domain_file.read_text(encoding="utf-8"),
        "problem_text": case.problem_file.read_text(encoding="utf-8"),
    }


if __name__ == "__main__":
    sys.exit(main())

"""Judge many plans in-process and by VAL, and print the disagreements by domain.

    python benchmarks/agreement.py                                     100,000 plans: generated problems, tests/domains
    python benchmarks/agreement.py --folder FOLDER                     your own problems, beside or below a domain.pddl
    python benchmarks/agreement.py --predictions results/predictions   also plans in models' completions
    python benchmarks/agreement.py --replay disagreements.jsonl        judge again what --out wrote

docs/reference/agreement.md describes the plans. No plan is repeated for a problem; equal seeds and problems give equal
plans. Generated problems are of three sorts: without constraints, with those of the pipeline (`safety`), and with
random constraints of every PDDL3 operator that the in-process verifier supports (`any`).

The table, by domain: problems; compared plans; plans that VAL itself ran on (for the others `planward.val` finds a
format error first); VAL's labels; problems that only VAL can judge, which are not compared; problems that neither side
can read; disagreements. The exit status is 1 where there is a disagreement.
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

from candidate_plans import Candidate, iter_distinct_plans
from planward import val
from planward.core.records import read_records
from planward.core.registry import load_params
from planward.core.verdicts import Label, Outcome, VerifierError
from planward.pddl.expressions import PddlError, UnsupportedError
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, load_domain, load_problem
from planward.pddl.signature import Types
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_domain_text, render_problem
from planward.tasks.planning.sources import iter_pddl_records
from verifier_agreement import Agreement, Disagreement, compare_verifiers, extract_candidates, sample_instance

ROOT = Path(__file__).resolve().parent.parent
SORTS = ("", "safety", "any")  # of generated problems
OPERATORS = (
    *(("always", 1), ("sometime", 1), ("at-most-once", 1)),
    *(("sometime-before", 2), ("sometime-after", 2), ("at end", 1)),
)
CHUNK_SIZE = 100  # plans per job of a worker, all for one problem
MAX_PENDING_CHUNKS = 3  # in memory, for each worker
COLUMNS = (
    *("problems", "plans", "VAL ran"),
    *("success", "goal", "precondition", "safety", "format"),  # in the order of Label
    *("only VAL", "unread", "differ"),
)


@dataclass(frozen=True)
class Case:
    """A problem and some plans for it; a `temporary` problem file is deleted after its last use."""

    domain: str
    domain_file: Path
    problem_file: Path
    candidates: tuple[Candidate, ...] = ()
    temporary: bool = False
    first: bool = True  # whether it is the first case of its problem


@dataclass(frozen=True)
class Result:
    """What a worker found for a case."""

    agreement: Agreement = field(default_factory=Agreement)
    only_val: bool = False
    unreadable: bool = False


def main() -> int:
    """Compare the verifiers; returns the exit status."""
    options = parse_options()
    if options.replay:
        return replay_disagreements(options.replay)
    rows: dict[str, list[int]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="planward-agreement-")))
        pool = stack.enter_context(ProcessPoolExecutor(options.workers))
        bar = stack.enter_context(tqdm(total=options.plans, unit="plan", smoothing=0.05))
        out = stack.enter_context(options.out.open("w", encoding="utf-8")) if options.out else None
        cases = limit_plans(iter_cases(options, folder), options.plans)
        for case, result in judge_cases(pool, cases, options.workers * MAX_PENDING_CHUNKS):
            row = rows.setdefault(case.domain, [0] * len(COLUMNS))
            rows[case.domain] = [a + b for a, b in zip(row, build_row(case, result), strict=True)]
            for disagreement in result.agreement.disagreements:
                tqdm.write(f"{case.domain}, {disagreement}", file=sys.stderr)
                if out:
                    out.write(json.dumps(build_json_row(case, disagreement), ensure_ascii=False) + "\n")
                    out.flush()
            if case.temporary:
                case.problem_file.unlink()
            bar.update(result.agreement.plans)
    sys.stdout.write(render_table(rows))
    return int(any(row[-1] for row in rows.values()))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=100_000, help="number of plans (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="use only problem files from here, beside or below domain.pddl")
    parser.add_argument("--predictions", type=Path, help="a folder or a file of JSON lines with `completion` and `id`")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where the problem of an `id` is found")
    parser.add_argument("--out", type=Path, help="write each disagreement there, with the texts of its files")
    parser.add_argument("--replay", type=Path, help="only judge again what --out wrote")
    return parser.parse_args()


# Cases


def iter_cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """Yield cases from models' completions, then from each source in turn; endless where problems are generated."""
    if options.predictions:
        yield from iter_model_cases(options.predictions, options.results)
    root = options.folder or ROOT / "tests" / "domains"
    domain_folders = sorted({file.parent for file in root.rglob("domain.pddl")})
    sources: list[Iterator[Case]] = []
    if not options.folder:
        params = load_params(root=ROOT)
        assert isinstance(params, PlanningParams)
        sources += [
            iter_generated_cases(domain, sort, options.seed, params, folder)
            for sort in SORTS
            for domain in GENERATED_DOMAINS
        ]
    share = options.plans // max(len(sources) + len(domain_folders), 1) + 1
    pending = deque([*sources, *(iter_file_cases(domain, share, options.seed) for domain in domain_folders)])
    if not pending and not options.predictions:
        sys.exit(f"{options.folder}: no domain.pddl here or below")
    while pending:
        source = pending.popleft()
        if case := next(source, None):
            yield case
            pending.append(source)


def iter_generated_cases(domain: str, sort: str, seed: int, params: PlanningParams, folder: Path) -> Iterator[Case]:
    """Yield one case for each of endless problems, with the sizes of params.yaml."""
    domain_file = folder / f"{domain}{sort}.pddl"
    domain_file.write_text(load_domain_text(domain), encoding="utf-8")
    sizes = {name: bounds for name, bounds in params.problems.generated[domain].items() if not isinstance(bounds, int)}
    for number in count():
        rng = Random(f"{seed}:{domain}:{sort}:{number}")
        instance = sample_instance(rng, domain, sizes, sort == "safety")
        if sort == "any":
            constraints = ConstraintSampler(rng, build_problem(domain, instance)).sample_constraints()
            instance = replace(instance, constraints=constraints)
        file = folder / f"{instance.name}{sort}{number}.pddl"
        file.write_text(render_problem(domain, instance), encoding="utf-8")
        yield from iter_chunks(Case(f"{domain} {sort}".rstrip(), domain_file, file, temporary=True), rng, CHUNK_SIZE)


def iter_file_cases(folder: Path, share: int, seed: int) -> Iterator[Case]:
    """Yield the cases of a folder's domain.pddl and its problem files, with about `share` plans in all."""
    records = [r for r in iter_pddl_records(folder, folder.name, ()) if r.meta.domain_file == "domain.pddl"]
    for record in records:
        case = Case(folder.name, folder / "domain.pddl", folder / record.meta.problem_file)
        yield from iter_chunks(case, Random(f"{seed}:{record.meta.problem_file}"), share // len(records) + 1)


def iter_chunks(case: Case, rng: Random, plans: int) -> Iterator[Case]:
    """Yield the case with up to `plans` candidates, in chunks; without any where it cannot be read in-process."""
    candidates: Iterator[Candidate] = iter(())
    with suppress(PddlError):
        problem = load_problem(case.problem_file, load_domain(case.domain_file))
        candidates = islice(iter_distinct_plans(problem, rng), plans)
    yield replace(case, candidates=tuple(islice(candidates, CHUNK_SIZE)))
    while chunk := tuple(islice(candidates, CHUNK_SIZE)):
        yield replace(case, candidates=chunk, first=False)


def iter_model_cases(path: Path, results: Path) -> Iterator[Case]:
    """Yield cases from JSON lines with `completion` (or `plan`), and the `id` of a problem in results/split."""
    completions: dict[str, list[str]] = defaultdict(list)
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        with file.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                completions[row["id"]].append(row["completion"] if "completion" in row else row["plan"])
    metas = {
        record.id: record.meta for part in sorted((results / "split").glob("*.jsonl")) for record in read_records(part)
    }
    if unknown := completions.keys() - metas.keys():
        sys.stderr.write(
            f"{path}: {len(unknown)} of {len(completions)} problems are not in {results / 'split'}: left out\n"
        )
    for problem_id in sorted(completions.keys() & metas.keys()):
        meta, folder = metas[problem_id], results / "problems"
        candidates = tuple(extract_candidates(completions[problem_id]))
        yield Case(f"{meta.scenario} models", folder / meta.domain_file, folder / meta.problem_file, candidates)


def limit_plans(cases: Iterable[Case], plans: int) -> Iterator[Case]:
    """Yield the first cases, with `plans` plans in all."""
    for case in cases:
        yield replace(case, candidates=case.candidates[:plans])
        plans -= len(case.candidates)
        if plans <= 0:
            return


class ConstraintSampler:
    """Samples PDDL3 constraints over a problem's atoms, satisfiable or not."""

    def __init__(self, rng: Random, problem: Problem) -> None:
        self.rng, self.problem, self.variable_num = rng, problem, 0
        grounding = ground_problem(problem).grounding
        atoms = {atom for operator in grounding.operators for atom in grounding.decode_state(operator.adds)}
        self.atoms = sorted(atoms | problem.init)

    def sample_constraints(self) -> tuple[str, ...]:
        """Sample one to three constraints."""
        return tuple(self._sample_constraint({}) for _ in range(self.rng.randint(1, 3)))

    def _sample_constraint(self, scope: dict[str, Types]) -> str:
        draw = self.rng.random()
        if draw < 0.12 and len(scope) < 2:  # VAL crashes on some deeper ones
            declaration, inner = self._declare_variable(scope)
            return f"(forall ({declaration}) {self._sample_constraint(inner)})"
        if draw < 0.24 and not scope:  # VAL crashes on some `and` under `forall`
            return f"(and {self._sample_constraint(scope)} {self._sample_constraint(scope)})"
        operator, arity = self.rng.choice(OPERATORS)
        formulas = (self._sample_formula(scope, self.rng.randint(0, 2)) for _ in range(arity))
        return f"({operator} {' '.join(formulas)})"

    def _sample_formula(self, scope: dict[str, Types], depth: int) -> str:
        draw = self.rng.randrange(8) if depth else 0
        if draw <= 2:
            return self._sample_atom(scope) if self.rng.random() < 0.6 else f"(not {self._sample_atom(scope)})"
        if draw == 3:
            return f"(not {self._sample_formula(scope, depth - 1)})"
        if draw <= 6:
            word = ("and", "or", "imply")[draw - 4]
            return f"({word} {self._sample_formula(scope, depth - 1)} {self._sample_formula(scope, depth - 1)})"
        declaration, inner = self._declare_variable(scope)
        quantifier = self.rng.choice(("forall", "exists"))
        return f"({quantifier} ({declaration}) {self._sample_formula(inner, depth - 1)})"

    def _sample_atom(self, scope: dict[str, Types]) -> str:
        """Sample an atom of the problem, with some objects replaced by variables, or an equality."""
        if scope and self.rng.random() < 0.1:
            return f"(= {self.rng.choice(list(scope))} {self.rng.choice([*scope, *self.problem.objects])})"
        predicate, *arguments = self.rng.choice(self.atoms)
        signature = self.problem.domain.signature
        for at, types in enumerate(signature.predicates[predicate]):
            variables = [
                variable for variable, variable_types in scope.items() if signature.is_a(variable_types, types)
            ]
            if variables and self.rng.random() < 0.7:
                arguments[at] = self.rng.choice(variables)
        return f"({' '.join([predicate, *arguments])})"

    def _declare_variable(self, scope: dict[str, Types]) -> tuple[str, dict[str, Types]]:
        """Return the declaration of a new variable, and the scope with it."""
        self.variable_num += 1
        name, types = f"?v{self.variable_num}", self.rng.choice(list(self.problem.objects.values()))
        type_text = types[0] if len(types) == 1 else f"(either {' '.join(types)})"
        return f"{name} - {type_text}" if self.problem.domain.signature.typed else name, scope | {name: types}


# Verdicts


def judge_cases(pool: ProcessPoolExecutor, cases: Iterator[Case], window: int) -> Iterator[tuple[Case, Result]]:
    """Yield each case with its result, in order, with at most `window` of them in memory."""
    pending: deque[tuple[Case, Future[Result]]] = deque()
    for case in cases:
        pending.append((case, pool.submit(judge_case, case)))
        if len(pending) >= window:
            first, future = pending.popleft()
            yield first, future.result()
    for first, future in pending:
        yield first, future.result()


def judge_case(case: Case) -> Result:
    """Compare the verifiers on a case; a problem that only VAL can read is a disagreement on the empty plan."""
    try:
        problem = load_problem(case.problem_file, load_domain(case.domain_file))
        return Result(compare_verifiers(problem, case.domain_file, case.problem_file, case.candidates))
    except UnsupportedError:
        return Result(only_val=True)
    except PddlError as error:
        try:
            by_val = val.validate(case.domain_file, case.problem_file, "")
        except (val.InputError, VerifierError):  # VAL crashes on some PDDL
            return Result(unreadable=True)
        empty = Disagreement(Candidate("empty", ()), f"{type(error).__name__}: {error}", by_val)
        return Result(Agreement(disagreements=[empty]))


def replay_disagreements(file: Path) -> int:
    """Judge the disagreements again that --out wrote; prints those that remain, and returns the exit status."""
    total = remaining = 0
    with TemporaryDirectory(prefix="planward-agreement-") as folder, file.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            total += 1
            domain_file, problem_file = (Path(folder, f"{part}-{total}.pddl") for part in ("domain", "problem"))
            domain_file.write_text(row["domain_text"], encoding="utf-8")
            problem_file.write_text(row["problem_text"], encoding="utf-8")
            candidate = Candidate(row["kind"], tuple(row["plan"]))
            result = judge_case(Case(row["domain"], domain_file, problem_file, (candidate,)))
            for disagreement in result.agreement.disagreements:
                remaining += 1
                sys.stdout.write(f"{row['domain']}, {disagreement}\n")
    sys.stdout.write(f"{remaining} of {total} disagreements remain\n")
    return int(remaining > 0)


# Output


def build_row(case: Case, result: Result) -> list[int]:
    """Return the numbers of COLUMNS."""
    agreement = result.agreement
    labels = [agreement.labels[label] for label in Label]
    failures = [int(result.only_val), int(result.unreadable)]
    return [int(case.first), agreement.plans, agreement.val_runs, *labels, *failures, len(agreement.disagreements)]


def render_table(rows: dict[str, list[int]]) -> str:
    """Render the rows and their sum as text."""
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    width = max(map(len, rows), default=0)
    lines = [("", COLUMNS), *sorted(rows.items()), ("all", total)]
    return "".join(f"{name:{width}}" + "".join(f" {cell:>12}" for cell in cells) + "\n" for name, cells in lines)


def build_json_row(case: Case, disagreement: Disagreement) -> dict[str, Any]:
    """Return what --replay needs."""

    def convert(outcome: Outcome | str) -> Any:
        return outcome if isinstance(outcome, str) else asdict(outcome)

    return {
        "domain": case.domain,
        "problem_file": case.problem_file.name,
        "kind": disagreement.candidate.kind,
        "plan": disagreement.candidate.plan,
        "in_process": convert(disagreement.in_process),
        "by_val": convert(disagreement.by_val),
        "domain_text": case.domain_file.read_text(encoding="utf-8"),
        "problem_text": case.problem_file.read_text(encoding="utf-8"),
    }


if __name__ == "__main__":
    sys.exit(main())

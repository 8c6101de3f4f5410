"""Problems that are unlike those of training: renamed ones, larger ones, and those of held-out domains."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from planward.core.files import open_atomic, replace_atomic
from planward.core.records import Record, TransferKind, TransferProblem
from planward.core.tasks import Task
from planward.curriculum.buckets import Thresholds
from planward.curriculum.training_sets import select_balanced
from planward.pddl.expressions import PddlError
from planward.pddl.language import load_domain, load_problem
from planward.tasks.planning.anonymise import AnonymousDomain
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.matching import translate_problem
from planward.tasks.planning.prompt import INSTRUCTION
from planward.tasks.planning.sources import generate_larger_records
from planward.val import InputError


class TransferSource:
    """Builds the problems of each kind, with their PDDL files below a folder.

    Worked examples of a problem are those of stage `evaluate`: drawn by `params.seed`, in the prompt's order.
    """

    def __init__(self, params: PlanningParams, original: Task, copy: Task, problems: Path, folder: Path) -> None:
        """Prepare for building.

        Args:
            original: the task, with the problem files in `problems`.
            copy: the task, with the problem files in `folder`.
        """
        self.params, self.original, self.copy = params, original, copy
        self.problems, self.folder = problems, folder
        self.left_out = Counter[TransferKind]()  # problems that could not be copied

    def iter_renamed(self, test: Sequence[Record], pool: Sequence[Record]) -> Iterator[TransferProblem]:
        """Yield copies of test problems, each with new names for everything, and its examples in the same names.

        The problems are the first `transfer.renamed`, balanced over the domains. One whose copy does not have the
        verdicts of the original, in-process and of VAL, is left out.
        """
        problems = select_balanced(test, self.params.transfer.renamed)
        for problem in tqdm(problems, desc="renamed", unit="problem"):
            records = [problem, *self._select_examples("renamed", problem, pool)]
            try:
                copies = self._rename(records)
                is_valid = all(self.copy.verify(record, record.response or "").success for record in copies)
                verdicts = self.copy.judge([(record, record.response or "") for record in copies[:1]])
            except (PddlError, InputError, KeyError, ValueError):  # a part of PDDL that has no copy
                is_valid, verdicts = False, []
            if is_valid and all(verdict.success for verdict in verdicts):
                yield self._build("renamed", copies[0], copies[1:])
            else:
                self.left_out["renamed"] += 1

    def iter_larger(self, pool: Sequence[Record], bounds: dict[str, Thresholds]) -> Iterator[TransferProblem]:
        """Yield generated problems of the sizes in `transfer.larger`, of the domains that are trained on.

        Args:
            bounds: of the difficulty buckets, by domain.
        """
        problems = self.params.problems
        for domain in self.params.transfer.larger if problems.source == "generated" else ():
            if domain not in problems.generated or domain not in bounds:
                continue
            for larger_record in generate_larger_records(self.params, domain, self.folder / "larger"):
                line = _move(larger_record, "larger").model_dump()
                record, _ = self.copy.validate_line(line, domain)
                score = self.copy.score_difficulty(record) or 0.0
                record = record.model_copy(update={"score": score, "bucket": bounds[domain].classify(score)})
                examples = [self._copy(example, "larger") for example in self._select_examples("larger", record, pool)]
                yield self._build("larger", record, examples)

    def iter_unseen(self, held_out: Sequence[Record]) -> Iterator[TransferProblem]:
        """Yield the first `transfer.unseen` problems of each held-out domain, with examples from all others of it.

        Problems that differ from one only in names and constraints are no examples of it: their plans could be copied.
        """
        records = [self._copy(record, "unseen") for record in sorted(held_out, key=lambda record: record.id)]
        domain_counts = Counter[str]()
        for record in records:
            domain_counts[record.domain] += 1
            if domain_counts[record.domain] <= self.params.transfer.unseen:
                digest = self.copy.core_digest(record)
                pool = [other for other in records if self.copy.core_digest(other) != digest]
                yield self._build("unseen", record, self._select_examples("unseen", record, pool))

    def _select_examples(self, kind: TransferKind, problem: Record, pool: Sequence[Record]) -> list[Record]:
        count = max(getattr(self.params.transfer.shots, kind))
        meta = problem.meta
        if kind == "larger":  # the pool's domain files are those of the original problems
            file = meta.domain_file.removeprefix("larger/")
            problem = problem.model_copy(update={"meta": meta.model_copy(update={"domain_file": file})})
        return self.original.select_examples(problem, pool, count, str(self.params.seed))

    def _rename(self, records: Sequence[Record]) -> list[Record]:
        """Write copies of a problem and its examples with the same new names of their domain."""
        first, rng = records[0], Random(f"{self.params.seed}:{records[0].id}:renamed")
        domain = AnonymousDomain(self._read(first.meta.domain_file), rng)
        folder = f"renamed/{first.domain}/{first.id}"
        self._write(f"{folder}/domain.pddl", domain.text)
        copies = []
        for number, record in enumerate(records):
            copy, file = domain.copy_problem(self._read(record.meta.problem_file)), f"{folder}/problem-{number}.pddl"
            self._write(file, copy.text)
            files = {"domain_file": f"{folder}/domain.pddl", "problem_file": file}
            plan = [action.lower() for action in extract_plan(record.response or "") or []]
            changes: dict[str, Any] = {"prompt": INSTRUCTION, "response": "\n".join(copy.translate_plan(plan))}
            copies.append(record.model_copy(update=changes | {"meta": record.meta.model_copy(update=files)}))
        return copies

    def _copy(self, record: Record, folder: str) -> Record:
        """Copy a problem's files from the folder of the originals."""
        for name in (record.meta.domain_file, record.meta.problem_file):
            with replace_atomic(self.folder / folder / name) as partial:
                shutil.copyfile(self.problems / name, partial)
        return _move(record, folder)

    def _build(self, kind: TransferKind, record: Record, examples: list[Record]) -> TransferProblem:
        fields = record.model_dump() | {"kind": kind, "known_to_base": self._is_known(record), "examples": examples}
        return TransferProblem.model_validate(fields)

    def _is_known(self, record: Record) -> bool:
        domain, problem = (self.folder / file for file in (record.meta.domain_file, record.meta.problem_file))
        try:
            return translate_problem(load_problem(problem, load_domain(domain))) is not None
        except PddlError:  # only VAL can read it
            return False

    def _read(self, file: str) -> str:
        return (self.problems / file).read_text(encoding="utf-8")

    def _write(self, file: str, text: str) -> None:
        with open_atomic(self.folder / file) as out:
            out.write(text)


def _move(record: Record, folder: str) -> Record:
    """Return the record with its files in a subfolder."""
    meta = record.meta
    files = {"domain_file": f"{folder}/{meta.domain_file}", "problem_file": f"{folder}/{meta.problem_file}"}
    return record.model_copy(update={"meta": meta.model_copy(update=files)})

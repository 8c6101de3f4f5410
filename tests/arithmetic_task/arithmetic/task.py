"""Problems, prompts and verdicts of the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from planward.core.files import write_jsonl
from planward.core.records import Meta, Record
from planward.core.tasks import NO_RENAMING, InvalidLine, Renaming, Task, parse_record
from planward.core.verdicts import Verdict
from planward.params import Params

OPERATIONS = {"sum": "+", "difference": "-"}


class ArithmeticTask(Task):
    """Implements `planward.core.tasks.Task`."""

    name = "arithmetic"
    labels = ("right", "wrong", "no_number")
    domains = tuple(OPERATIONS)

    def __init__(self, params: Params, root: Path) -> None:
        self.params, self.root = params, root

    def prepare_problems(self, folder: Path) -> None:
        write_jsonl(folder / "arithmetic.jsonl", iter_problems())

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        record = parse_record(line, domain)
        if not self.verify(record, record.response or "").success:
            raise InvalidLine(f"bad reference: {record.response!r}")
        digest = self.core_digest(record)
        return record.model_copy(update={"id": digest}), digest

    def score_difficulty(self, problem: Record) -> float | None:
        return float(solve(problem))

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        example_texts = [f"{example.prompt} {example.response} ;" for example in examples]
        return " ".join([*example_texts, problem.prompt])

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:  # noqa: ARG002
        answer = completion.strip()
        if not answer.isdigit():
            return Verdict("no_number", -1.0, False, detail="the completion is no number")
        right = int(answer) == solve(problem)
        return Verdict("right" if right else "wrong", 1.0 if right else -0.5, right, plan=answer)


def iter_problems() -> Iterator[Record]:
    for (domain, sign), a, b in product(OPERATIONS.items(), range(10), range(10)):
        if domain == "sum" or a >= b:
            meta = Meta(scenario=domain, domain_file="arithmetic", problem_file=f"{domain}-{a}-{b}")
            yield Record(prompt=f"{a} {sign} {b} =", response=str(a + b if domain == "sum" else a - b), meta=meta)


def solve(problem: Record) -> int:
    a, sign, b, _ = problem.prompt.split()
    return int(a) + int(b) if sign == "+" else int(a) - int(b)

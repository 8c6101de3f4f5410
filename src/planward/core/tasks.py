"""The protocol between a task and the trainers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import ValidationError

from planward.core.records import Record
from planward.core.verdicts import Verdict

Messages = list[dict[str, str]]
Renaming = Mapping[str, str]  # new object names by old, a permutation; empty: the problem is unchanged
NO_RENAMING: Renaming = MappingProxyType({})


class InvalidLine(ValueError):
    """A line of a problem file is invalid; the message is the reason written to quarantine."""


def parse_record(line: Mapping[str, Any], domain: str) -> Record:
    """Parse a line of a problem file as a record of `domain`; raises InvalidLine."""
    if isinstance(line.get("meta"), dict):
        line = {**line, "meta": {**line["meta"], "scenario": domain}}
    try:
        return Record.model_validate(line)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidLine(f"bad record: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def compute_training_reward(reward: float, success: bool, reward_type: Literal["dense", "sparse"]) -> float:
    """Return the reward for the trainer under `grpo.reward`: dense, the verdict's own; sparse, 1 or -1."""
    if reward_type == "dense":
        return reward
    return 1.0 if success else -1.0


class Task(Protocol):
    """What stages, trainers and evaluators need from a task.

    `prompt` returns plain text for models without a chat template, chat messages otherwise. `verify` judges one
    completion, fast, for training rewards; `judge` judges many, and is the authority for every published number.

    A prompt may have other names than the problem: a random renaming exchanges names of objects, and a task may state
    all problems in one language. Completions of the prompt then have its names, as does `reference_completion`;
    `undo_renaming` translates them to the problem's own names, to which verdicts refer, and `rename_completion` back.

    A task that inherits from this class gets the defaults below: no other names, random examples of the same domain,
    and one verifier.
    """

    name: str
    labels: tuple[str, ...]  # of verdicts, success first
    domains: tuple[str, ...]  # of its problems

    def prepare_problems(self, folder: Path) -> None:
        """Write problems into an empty folder: JSON lines (*.jsonl) and the files that they name.

        Raises:
            ParamsError: the problems that params.yaml asks for cannot be produced.
        """
        ...

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """Return a line of the problem files as a record with `id` and a reference, and its `core_digest`.

        The split keeps problems of equal digest on one side.

        Args:
            domain: as claimed by the line or by its file's name; may be none of `domains`.

        Raises:
            InvalidLine: the line is unusable; the message is the reason.
            VerifierError: no verdict on its reference could be reached.
        """
        ...

    def score_difficulty(self, problem: Record) -> float | None:
        """Return the difficulty on the scale of the problem's domain; None where it is unknown."""
        ...

    def select_examples(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        """Return up to `count` other problems of `pool` as worked examples, in the prompt's order.

        `seed` seeds a random choice. Default: random problems of the same domain; a smaller count takes the first of
        a larger one's.
        """
        others = [other for other in pool if other.domain == problem.domain and other.id != problem.id]
        return Random(f"{seed}:{problem.id}").sample(others, len(others))[:count]

    def draw_renaming(self, problem: Record, seed: str) -> Renaming:  # noqa: ARG002
        """Draw a random renaming of the problem's objects by `seed`; empty for a task without renaming."""
        return NO_RENAMING

    def core_digest(self, problem: Record) -> str:
        """Return a digest that is equal for problems that differ only in object names or constraints."""
        return sha256(problem.prompt.encode()).hexdigest()[:16]

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str | Messages:
        """Render the worked examples unchanged, then the problem, renamed."""
        ...

    def reference_completion(self, problem: Record, renaming: Renaming = NO_RENAMING) -> str:
        """Return the reference completion in the prompt's names, without the end-of-sequence token."""
        if problem.response is None:
            raise ValueError(f"{problem.id or problem.meta.problem_file}: the record has no reference completion")
        return self.rename_completion(problem, problem.response, renaming)

    def undo_renaming(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        """Translate a completion from the names of the problem's prompt to its own; never fails."""
        return completion

    def rename_completion(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        """Translate a completion from the problem's own names to its prompt's; the inverse of `undo_renaming`."""
        return completion

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:
        """Judge one completion in-process.

        Args:
            renaming: of the prompt, in whose names the completion is; None: it is in the problem's own names.

        Raises:
            VerifierError: no verdict could be reached.
        """
        ...

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        """Judge completions in the problems' own names; raises VerifierError where no verdict could be reached."""
        return [self.verify(problem, completion) for problem, completion in pairs]


@runtime_checkable
class SplitGeneration(Protocol):
    """Optional: a task whose problems are generated in independent units, which `integrations.ray` runs in parallel.

    `prepare_problems` must have the same result as writing the records of all units, in order, to problems.jsonl.
    """

    def generation_units(self) -> list[str]:
        """Names of the units, in the order of their records; empty where problems are not generated."""
        ...

    def generate_unit(self, unit: str, folder: Path) -> Iterable[Record]:
        """Write a unit's problem files below `folder` and yield its records."""
        ...


@runtime_checkable
class SplitValidation(Protocol):
    """Optional: a task whose lines several processes can validate.

    `validate_line` must have the same result as `validate_problem`, then `check_domain` where no problem with the same
    key has passed it.
    """

    def validate_problem(self, line: dict[str, Any], domain: str) -> tuple[Record, str, str]:
        """As `Task.validate_line`, whatever lines went before; returns a key of what `check_domain` checks, too."""
        ...

    def check_domain(self, problem: Record) -> None:
        """Check what the problems with a key have in common; raises as `Task.validate_line` does."""
        ...

"""Problems of files that no stage has checked: bad lines are set aside, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planward.core.line_validation import get_scenario
from planward.core.lines import Line, find_file, iter_lines, parse_object
from planward.core.records import Record
from planward.core.tasks import InvalidLine, Task, parse_record
from planward.pddl.expressions import PddlError
from planward.publication.provenance import PublicationError
from planward.tasks.planning.identity import identify_problem

PROBLEMS_FOLDER = "problems"


@dataclass
class ProblemFile:
    """Usable problems, and the lines that are none, as in results/split/quarantine.jsonl."""

    problems: list[Record] = field(default_factory=list)
    bad_lines: list[dict[str, Any]] = field(default_factory=list)


def read_problem_file(path: Path, task: Task, root: Path | None = None, *, solved: bool = False) -> ProblemFile:
    """Read JSON lines with the paths of PDDL files.

    A line without `id` gets that of `split`, a hash that does not depend on objects' names.

    Args:
        root: of the PDDL files; None: the folder `problems` beside the file, or else the file's own.
        solved: each line needs a reference plan.

    Raises:
        PublicationError: there is no such file.
    """
    if not path.is_file():
        raise PublicationError(f"{path}: no such file")
    beside = path.parent / PROBLEMS_FOLDER
    root = (root or (beside if beside.is_dir() else path.parent)).absolute()
    problem_file, ids = ProblemFile(), set[str]()
    for line in iter_lines(path):
        if not line.raw.strip():
            continue
        try:
            record = _parse_problem(line, task, root, needs_plan=solved)
            if record.id in ids:
                raise InvalidLine(f"duplicate: an earlier line has the id {record.id}")
        except InvalidLine as reason:
            text = line.raw.decode("utf-8", "backslashreplace")
            problem_file.bad_lines.append({"file": str(path), "line": line.number, "reason": str(reason), "text": text})
        else:
            ids.add(record.id)
            problem_file.problems.append(record)
    return problem_file


def _parse_problem(line: Line, task: Task, root: Path, *, needs_plan: bool) -> Record:
    """Parse a line; raises InvalidLine where it cannot be used in a prompt."""
    data = parse_object(line)
    record = parse_record(data, get_scenario(data, ""))
    names = (record.meta.domain_file, record.meta.problem_file)
    domain_file, problem_file = (str(find_file(root, name)) for name in names)
    meta = record.meta.model_copy(update={"domain_file": domain_file, "problem_file": problem_file})
    record = record.model_copy(update={"meta": meta})
    if needs_plan and not (record.response or "").strip():
        raise InvalidLine("no reference plan: the line has no `response`")
    try:
        id = record.id or identify_problem(Path(domain_file), Path(problem_file)).id
        task.core_digest(record)
        task.prompt(record, [])
    except PddlError as error:
        raise InvalidLine(f"bad PDDL: {error}") from None
    except RecursionError:
        raise InvalidLine(f"bad PDDL: {names[1]}: nested too deeply") from None
    except ValueError as error:  # of a prompt: too many symbols
        raise InvalidLine(f"no prompt: {error}") from None
    return record.model_copy(update={"id": id})

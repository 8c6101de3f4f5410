"""Plans for all problems of a folder, written as they are found; a run that was stopped continues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from planward.core.files import open_atomic, write_json, write_jsonl
from planward.core.hashing import compute_md5
from planward.core.model_folders import find_adapter_base
from planward.core.prompt_templates import identify_prompts
from planward.core.records import Record
from planward.core.verdicts import VerifierError
from planward.params import ParamsError
from planward.planner.planner import Conversation, Planner
from planward.planner.problems import IdentifiedSelector, hash_examples
from planward.planner.results import PlanResult
from planward.planner.search import SearchConfig
from planward.tasks.planning.sources import is_domain_file

RESULTS_FILE, SETTINGS_FILE, QUARANTINE_FILE = "results.jsonl", "settings.json", "quarantine.jsonl"


@dataclass(frozen=True)
class FolderSummary:
    """Counts of a folder's problems.

    Attributes:
        known: those with a result from before, which is part of `solved` and `failed` too.
    """

    solved: int
    failed: int
    quarantined: int
    known: int


def plan_folder(
    planner: Planner,
    domain: Path,
    folder: Path,
    out: Path,
    search: SearchConfig,
    examples: IdentifiedSelector | Sequence[Record] = (),
) -> FolderSummary:
    """Plan for every *.pddl file below `folder` except domains, `settings.batch_size` problems at a time.

    Writes to `out`, under the names of the problem files: NAME.plan for each valid plan, results.jsonl with a line for
    each judged problem, quarantine.jsonl with the files that cannot be used, and settings.json. Problems with a line in
    results.jsonl whose file has not changed since are skipped.

    Raises:
        ParamsError: there are no problems, or `out` holds the results of other settings; the message names them.
        ValueError: no file can be used; the message has the first one's reason.
    """
    domain_file = domain.resolve()
    files = [f for f in sorted(folder.rglob("*.pddl")) if not is_domain_file(f) and f.resolve() != domain_file]
    if not files:
        raise ParamsError(f"{folder}: holds no problem files (*.pddl)")
    _check_settings(out / SETTINGS_FILE, _describe_settings(planner, domain, search, examples))
    digests = {file.relative_to(folder).as_posix(): compute_md5(file) for file in files}
    rows = {row["problem"]: row for row in _read_rows(out / RESULTS_FILE)}
    for name in [name for name, row in rows.items() if digests.get(name) != row["md5"]]:  # changed, or deleted
        (out / name).with_suffix(".plan").unlink(missing_ok=True)
        del rows[name]
    write_jsonl(out / RESULTS_FILE, rows.values())  # without a line cut off
    num_known, faults, pending = len(rows), dict[str, str](), list[tuple[str, Conversation]]()
    for name in tqdm([name for name in digests if name not in rows], desc="prompts", unit="problem"):
        try:
            pending.append((name, planner.start(domain, folder / name, examples)))
        except (ValueError, VerifierError, OSError) as error:
            faults[name] = str(error)
    pending.sort(key=lambda item: (len(item[1].ids), item[0]))  # prompts of a batch are padded to the longest
    size = planner.settings.batch_size
    with (
        (out / RESULTS_FILE).open("a", encoding="utf-8", newline="\n") as results,
        tqdm(total=len(pending), desc="plans", unit="problem") as progress,
    ):
        for start in range(0, len(pending), size):
            batch = pending[start : start + size]
            planner.solve([conversation for _, conversation in batch], search)
            for name, conversation in batch:
                try:
                    result = conversation.build_result()
                except (ValueError, VerifierError) as error:
                    faults[name] = str(error)
                    continue
                _write_plan(out / Path(name).with_suffix(".plan"), result)
                rows[name] = {**result.as_dict(), "problem": name, "md5": digests[name]}
                results.write(json.dumps(rows[name], ensure_ascii=False) + "\n")
            results.flush()
            progress.update(len(batch))
            progress.set_postfix(solved=sum(row["success"] for row in rows.values()))
    write_jsonl(out / QUARANTINE_FILE, ({"file": name, "reason": faults[name]} for name in sorted(faults)))
    if not rows:
        raise ValueError(f"none of {len(files)} files can be used; {min(faults)}: {faults[min(faults)]}")
    num_solved = sum(row["success"] for row in rows.values())
    return FolderSummary(num_solved, len(rows) - num_solved, len(faults), num_known)


def _write_plan(file: Path, result: PlanResult) -> None:
    """Write a valid plan; without one, remove what a killed run has written."""
    if not result.success:
        file.unlink(missing_ok=True)
        return
    with open_atomic(file) as out:
        out.write(result.format_plan())


def _describe_settings(
    planner: Planner, domain: Path, search: SearchConfig, examples: IdentifiedSelector | Sequence[Record]
) -> dict[str, Any]:
    """Return all that decides the plans: weights and templates by content, decoding, worked examples."""
    if isinstance(examples, Sequence):
        identity: dict[str, Any] = {"examples": hash_examples(examples) if examples else None, "shots": len(examples)}
    else:
        identity = examples.identity
    base = find_adapter_base(planner.folder)
    return {
        "model": _hash_folder(planner.folder),
        "adapter_base": _hash_folder(base) if base is not None else None,
        "loading": planner.settings.model.model_dump(mode="json", exclude={"path", "lora"}),
        "prompt": identify_prompts(planner.prompt_config) | {"template": None},
        "repair_template": compute_md5(planner.repair_template) if search.repair else None,
        "domain": compute_md5(domain),
        "search": asdict(search),
        **identity,
    }


def _hash_folder(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".md"]
    return {file.relative_to(folder).as_posix(): compute_md5(file) for file in files}


def _check_settings(file: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or raise ParamsError where the folder has results of others."""
    if file.exists():
        old = json.loads(file.read_text(encoding="utf-8"))
        if changed_keys := [key for key in settings if old.get(key) != settings[key]]:
            raise ParamsError(
                f"{file.parent}: holds plans of other settings ({', '.join(changed_keys)}; see {file.name}); "
                "fix: another folder, or delete this one"
            )
    write_json(file, settings)


def _read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Read result lines; the last one may have been cut off."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").split("\n"):  # splitlines() would cut lines at U+2028
        try:
            yield json.loads(line)
        except ValueError:
            return

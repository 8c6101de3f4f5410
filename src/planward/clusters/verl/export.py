"""A GRPO run as a folder that a Ray cluster can train from: problems, prompts, weights, settings, rewards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML
from tqdm import tqdm

from planward import __version__
from planward.clusters.verl.rewards import PARAMS, PROBLEMS
from planward.clusters.verl.rows import SCHEMA, Row, training_rows, validation_rows
from planward.clusters.verl.settings import (
    DIFFERENCES,
    PLAIN,
    REWARD,
    TRAIN,
    VALIDATION,
    VERL,
    check_possible,
    hydra_lines,
    settings,
)
from planward.curriculum.sets import balanced, training_set
from planward.params import Params, ParamsError
from planward.records import Record, Run, read_records, write_json, written
from planward.tasks import PROBLEMS as PROBLEM_FILES
from planward.tasks import load_task
from planward.tasks.base import Task

MODEL, OVERRIDES, MANIFEST = "./model", "overrides.txt", "manifest.json"
OUT = Path("results/verl")
LARGEST = 400 << 20  # bytes of weights that go with a job: Ray takes 512 MiB in all
BATCH = 256  # rows written at a time

REWARD_FILE = '''"""verl loads this file in every worker that judges completions; the folder around it says how."""

from functools import partial
from pathlib import Path

from planward.clusters.verl import rewards

compute_score = partial(rewards.compute_score, folder=Path(__file__).resolve().parent)
'''


class FolderTaken(ValueError):
    """The folder to write holds something else than an exported run."""


def exported(params: Params, run: Run, folder: Path | None = None) -> Path:
    """Write the run as a folder, complete or not at all, in place of an earlier one; returns the folder.

    Reads the task's results: score/{train,validation}.jsonl, schedules/RUN.parquet, problems/, models/sft-N-SEED.

    Args:
        params: of the task (`Params.of`).
        run: GRPO or one of its variants.
        folder: by default results/verl/RUN of the task.

    Raises:
        ParamsError: verl cannot do what params.yaml asks for; the message names the keys.
        FileNotFoundError: a stage that comes before has not run; the message names the file.
        FolderTaken, PromptTooLong, OtherTokens: see there.
        ValueError: the schedule was made for other parameters or problems, or a reference answer is no success.
        VerifierError: no verdict could be reached.
    """
    own = params.variant(run.method).model_copy(update={"seed": run.seed})
    check_possible(own)
    folder = params.placed(OUT) / run.name if folder is None else folder
    partial = _cleared(folder)
    base = params.placed(Path("results/models")) / replace(run, method="sft").name
    score, schedule_file = params.placed(Path("results/score")), params.placed(Path("results/schedules"))
    records = training_set(read_records(_there(score / "train.jsonl")), run.size)
    problems = balanced(read_records(_there(score / "validation.jsonl")), own.validation.problems)
    schedule = _checked(pq.read_table(_there(schedule_file / f"{run.name}.parquet")).to_pylist(), records, own)

    task = load_task(own)
    _check_references(task, records)
    try:
        partial.mkdir(parents=True)
        model = _weights(own, base, partial / MODEL)
        tokenizer, plain = _tokenizer(base), isinstance(task.prompt(records[0], []), str)
        if plain:
            tokenizer.chat_template = PLAIN
        rows = tqdm(training_rows(task, tokenizer, records, schedule, own), "prompts", len(schedule), unit="row")
        _write_parquet(partial / TRAIN, rows)
        _write_parquet(partial / VALIDATION, validation_rows(task, tokenizer, problems, own))
        files = _copy_problems(params.placed(PROBLEM_FILES), [*records, *problems], partial / PROBLEMS)
        _write_params(own, partial / PARAMS)
        (partial / REWARD).write_text(REWARD_FILE, encoding="utf-8")

        name = f"{own.task}-{run.name}"
        checkpoints = own.cluster.checkpoints / f"{name}-{_digest(own, records, partial, base)}"
        chosen = settings(own, model=model, plain=plain, name=name, checkpoints=checkpoints)
        with written(partial / OVERRIDES) as out:
            out.writelines(f"{line}\n" for line in hydra_lines(chosen))
        write_json(partial / MANIFEST, _manifest(own, run, partial, len(schedule), len(problems), files, checkpoints))
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def overrides(folder: Path) -> list[str]:
    """The arguments of verl.trainer.main_ppo that lie in an exported folder.

    Raises:
        FileNotFoundError: `folder` is no exported folder.
    """
    file = folder / OVERRIDES
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; planward export verl writes the folder")
    return file.read_text(encoding="utf-8").splitlines()


def _cleared(folder: Path) -> Path:
    """Where to build the folder. Raises FolderTaken where `folder` holds something else than an exported run."""
    if folder.exists() and not (folder.is_dir() and ((folder / MANIFEST).exists() or not any(folder.iterdir()))):
        raise FolderTaken(f"{folder} is there and no exported run: name another folder, or remove it")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; run the stages up to sft and schedule first")
    return path


def _checked(schedule: Sequence[Row], records: Sequence[Record], params: Params) -> Sequence[Row]:
    """The schedule, known to fit the parameters and the problems, as `training.grpo` would check it."""
    grpo, known = params.grpo, {record.id for record in records}
    steps = [step for step in range(grpo.steps) for _ in range(grpo.batch_size)]
    if [row["step"] for row in schedule] != steps or any(row["id"] not in known for row in schedule):
        raise ValueError(
            f"the schedule's {len(schedule)} rows are not {grpo.steps} steps of {grpo.batch_size} prompts of the "
            "training set: it was made for other parameters; run the stage `schedule` again"
        )
    return schedule


def _check_references(task: Task, records: Sequence[Record]) -> None:
    """Raises ValueError where the reward function would not know a right answer; the message names problems."""
    wrong = [record.id for record in records if not task.verify(record, task.answer(record)).success]
    if wrong:
        raise ValueError(f"{len(wrong)} reference answer(s) are no success, of problems {', '.join(wrong[:5])}")


def _weights(params: Params, base: Path, out: Path) -> str:
    """The SFT weights as the cluster finds them: `cluster.model`, or copied into the exported folder.

    Raises:
        ParamsError: the weights are an adapter, or too large to go with a job.
    """
    if params.cluster.model is not None:
        return params.cluster.model
    size = sum(file.stat().st_size for file in _there(base).iterdir())
    if size > LARGEST:
        raise ParamsError(
            f"cluster.model: {base} holds {size / 2**30:.1f} GiB, too much to go with a job; copy it to where all "
            "machines find it, and name that folder"
        )
    if (base / "adapter_config.json").exists():
        raise ParamsError(f"model.lora.merge: {base} holds an adapter, verl starts from whole weights; take true")
    shutil.copytree(base, out, ignore=shutil.ignore_patterns(".*"))
    return MODEL


def _tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(_there(base)), trust_remote_code=False)


def _write_parquet(path: Path, rows: Iterator[Row] | tqdm[Row]) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as out:
        batch = list[Row]()
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH:
                out.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch.clear()
        out.write_table(pa.Table.from_pylist(batch, SCHEMA))


def _copy_problems(root: Path, records: Sequence[Record], out: Path) -> int:
    """Copy the files that the records name, where the task has such files; returns how many."""
    names = sorted({name for record in records for name in (record.meta.domain_file, record.meta.problem_file)})
    found = [name for name in names if (root / name).is_file()]
    for name in found:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, out / name)
    out.mkdir(exist_ok=True)
    return len(found)


def _write_params(params: Params, path: Path) -> None:
    editor = YAML()
    editor.default_flow_style = False
    with written(path) as out:
        out.write("# What this run was exported with: defaults, task, variant and seed laid over one another.\n")
        editor.dump(params.model_dump(mode="json"), out)


def _digest(params: Params, records: Sequence[Record], folder: Path, base: Path) -> str:
    """What decides whether a checkpoint is this run's, as `training.grpo` has it: what is trained, on what, and how.

    With `grpo.extendable`, another number of steps is the same run. Checkpoints hold a share for each GPU.
    """
    longer = {"steps"} if params.grpo.extendable else set[str]()
    said = {
        "seed": params.seed,
        "prompt": params.prompt.model_dump(mode="json"),
        "model": params.model.model_dump(mode="json"),
        "grpo": params.grpo.model_dump(mode="json", exclude={"save_steps", "report_to", *longer}),
        "phases": params.model_dump(mode="json", include={"curriculum", "curriculum_by_domain"}),
        "gpus": [params.cluster.nodes, params.cluster.gpus_per_node],
        "records": [record.model_dump(mode="json") for record in records],
    }
    files = [*sorted(base.glob("*.safetensors")), *([] if longer else [folder / TRAIN])]
    digest = sha256(json.dumps(said, sort_keys=True).encode())
    for file in files:
        with file.open("rb") as data:
            digest.update(file_digest(data, "sha256").digest())
    return digest.hexdigest()[:12]


def _manifest(
    params: Params, run: Run, folder: Path, rows: int, problems: int, files: int, checkpoints: Path
) -> dict[str, Any]:
    return {
        "planward": __version__,
        "verl": VERL,
        "task": params.task,
        "run": run.name,
        "rows": {TRAIN: rows, VALIDATION: problems},
        "problem_files": files,
        "checkpoints": str(checkpoints),
        "unlike_trl": list(DIFFERENCES),
        "sha256": {
            str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.rglob("*"))
            if file.is_file() and PROBLEMS not in file.relative_to(folder).parts
        },
    }

"""Export a GRPO run to a folder that verl trains from: problems, prompts, weights, settings, rewards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML
from tqdm import tqdm

from planward import __version__
from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.model_folders import find_start_weights
from planward.core.prompt_templates import identify_prompts
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.core.tasks import NO_RENAMING, Task
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.integrations.verl.config import CLUSTER_FILE, ClusterConfig
from planward.integrations.verl.rewards import PARAMS_FILE, PROBLEMS_DIR
from planward.integrations.verl.rows import SCHEMA, Row, build_training_rows, build_validation_rows
from planward.integrations.verl.settings import (
    DIFFERENCES,
    PLAIN_CHAT_TEMPLATE,
    REWARD_FILE,
    TRAIN_FILE,
    VALIDATION_FILE,
    VERL_VERSION,
    build_settings,
    check_supported,
    format_overrides,
)
from planward.params import Params, ParamsError

MODEL, OVERRIDES_FILE, MANIFEST_FILE = "./model", "overrides.txt", "manifest.json"
MAX_WEIGHTS_BYTES = 400 << 20  # uploaded with a job; Ray accepts 512 MiB in all
ROW_BATCH_SIZE = 256  # rows written at a time

REWARD_CODE = '''"""Loaded by verl in every worker that judges completions."""

from functools import partial
from pathlib import Path

from planward.integrations.verl import rewards

compute_score = partial(rewards.compute_score, folder=Path(__file__).resolve().parent)
'''


class FolderInUse(ValueError):
    """The output folder holds something other than an exported run."""


def export_run(params: Params, run: Run, cluster: ClusterConfig, folder: Path | None = None) -> Path:
    """Export a run to a folder, replacing an earlier export; return the folder. It is written completely or not at all.

    Reads the task's results: score/{train,validation}.jsonl, schedules/RUN.parquet, problems/; and `grpo.from`.

    Args:
        params: of the task.
        run: GRPO or one of its variants.
        folder: by default results/verl/RUN of the task.

    Raises:
        ParamsError: verl does not support the parameters; the message names the keys.
        FileNotFoundError: an earlier stage has not run; the message names the file.
        FolderInUse: `folder` holds something else.
        PromptTooLong, TokenMismatch: see `rows.build_training_rows`.
        ValueError: the schedule does not match the parameters or problems, or a reference completion fails.
        VerifierError: no verdict could be reached.
    """
    params = params.variant(run.method).move_grpo_lora()
    ablations = params.ablations.model_copy(update={"run": [], "variants": {}})  # which may change grpo.lora
    params = params.model_copy(update={"seed": run.seed, "ablations": ablations})
    check_supported(params, cluster)
    results = paths.results(params.task)
    folder = results.export(run) if folder is None else folder
    partial = _prepare_folder(folder)
    base = Path(find_start_weights(params, run))
    records = select_training_set(read_records(_require(results.score / "train.jsonl")), run.size)
    problems = select_balanced(read_records(_require(results.score / "validation.jsonl")), params.validation.problems)
    if not problems:
        raise ValueError(f"{results.score / 'validation.jsonl'}: verl needs a problem in it; fix: split.validation")
    schedule = pq.read_table(_require(results.schedule(run))).to_pylist()
    _check_schedule(schedule, records, params)

    task = load_task(params)
    _check_references(task, records)
    try:
        partial.mkdir(parents=True)
        model = _copy_weights(cluster, base, partial / MODEL)
        tokenizer, plain = _load_tokenizer(base), isinstance(task.prompt(records[0], []), str)
        if plain:
            tokenizer.chat_template = PLAIN_CHAT_TEMPLATE
        rows = build_training_rows(task, tokenizer, records, schedule, params)
        _write_parquet(partial / TRAIN_FILE, tqdm(rows, "prompts", len(schedule), unit="row"))
        _write_parquet(partial / VALIDATION_FILE, build_validation_rows(task, tokenizer, problems, params))
        file_count = _copy_problems(results.problems, [*records, *problems], partial / PROBLEMS_DIR)
        _write_params(params, partial / PARAMS_FILE)
        (partial / REWARD_FILE).write_text(REWARD_CODE, encoding="utf-8")

        name = f"{params.task}-{run.name}"
        checkpoints = cluster.checkpoints / f"{name}-{_compute_digest(params, cluster, records, partial, base)}"
        settings = build_settings(params, cluster, model=model, plain=plain, name=name, checkpoints=checkpoints)
        with open_atomic(partial / OVERRIDES_FILE) as out:
            out.writelines(f"{line}\n" for line in format_overrides(settings))
        manifest = {
            "planward": __version__,
            "verl": VERL_VERSION,
            "run": run.as_dict(params.task),
            "rows": {TRAIN_FILE: len(schedule), VALIDATION_FILE: len(problems)},
            "problem_files": file_count,
            "checkpoints": str(checkpoints),
            "unlike_trl": list(DIFFERENCES),
            "sha256": _compute_file_digests(partial),
        }
        write_json(partial / MANIFEST_FILE, manifest)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def read_overrides(folder: Path) -> list[str]:
    """Arguments of verl.trainer.main_ppo in an exported folder; raises FileNotFoundError if there are none."""
    file = folder / OVERRIDES_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; fix: planward export verl")
    return file.read_text(encoding="utf-8").splitlines()


def _prepare_folder(folder: Path) -> Path:
    """Remove an unfinished export and return the folder to build in; raises FolderInUse."""
    if folder.exists() and not (folder.is_dir() and ((folder / MANIFEST_FILE).exists() or not any(folder.iterdir()))):
        raise FolderInUse(f"{folder} exists and is not an exported run; fix: name another folder, or remove it")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def _require(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; fix: run the stages up to sft and schedule first")
    return path


def _check_schedule(schedule: Sequence[Row], records: Sequence[Record], params: Params) -> None:
    """Raise ValueError if the schedule does not fit the parameters and problems, as `training.grpo` does."""
    grpo, ids = params.grpo, {record.id for record in records}
    steps = [step for step in range(grpo.steps) for _ in range(grpo.batch_size)]
    if [row["step"] for row in schedule] != steps or any(row["id"] not in ids for row in schedule):
        raise ValueError(
            f"the schedule's {len(schedule)} rows are not {grpo.steps} steps of {grpo.batch_size} prompts of the "
            "training set: it was built for other parameters; fix: run the stage `schedule` again"
        )


def _check_references(task: Task, records: Sequence[Record]) -> None:
    """Raise ValueError, naming problems, if the reward function would not accept a reference completion."""
    pairs = ((record, task.reference_completion(record)) for record in records)
    failed_ids = [record.id for record, completion in pairs if not task.verify(record, completion, NO_RENAMING).success]
    if failed_ids:
        raise ValueError(f"{len(failed_ids)} reference completion(s) fail, of problems {', '.join(failed_ids[:5])}")


def _copy_weights(cluster: ClusterConfig, base: Path, out: Path) -> str:
    """Copy the SFT weights into the export, unless the cluster has them (`model`); return their path on the cluster.

    Raises:
        ParamsError: the weights are an adapter, or too large to upload with a job.
    """
    if cluster.model is not None:
        return cluster.model
    size = sum(file.stat().st_size for file in _require(base).iterdir())
    if size > MAX_WEIGHTS_BYTES:
        raise ParamsError(
            f"{CLUSTER_FILE}: model: {base} holds {size / 2**30:.1f} GiB, too much to upload with a job; "
            "fix: copy it to a folder that all nodes can read, and name that folder"
        )
    if (base / "adapter_config.json").exists():
        raise ParamsError(f"model.lora.merge: {base} holds an adapter, verl needs full weights; fix: true")
    shutil.copytree(base, out, ignore=shutil.ignore_patterns(".*"))
    return MODEL


def _load_tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(_require(base)), trust_remote_code=False)


def _write_parquet(path: Path, rows: Iterator[Row] | tqdm[Row]) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as out:
        batch = list[Row]()
        for row in rows:
            batch.append(row)
            if len(batch) == ROW_BATCH_SIZE:
                out.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch.clear()
        out.write_table(pa.Table.from_pylist(batch, SCHEMA))


def _copy_problems(root: Path, records: Sequence[Record], out: Path) -> int:
    """Copy the problem files of the records, if the task has any; return their number."""
    names = sorted({name for record in records for name in (record.meta.domain_file, record.meta.problem_file)})
    names = [name for name in names if (root / name).is_file()]
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, out / name)
    out.mkdir(exist_ok=True)
    return len(names)


def _write_params(params: Params, path: Path) -> None:
    editor = YAML()
    editor.default_flow_style = False
    with open_atomic(path) as out:
        out.write("# The parameters of this run: task, variant and seed applied.\n")
        editor.dump(params.model_dump(mode="json"), out)


def _compute_digest(params: Params, cluster: ClusterConfig, records: Sequence[Record], folder: Path, base: Path) -> str:
    """Digest of everything that decides whether a checkpoint belongs to this run, as in `training.grpo`.

    With `grpo.extendable`, the number of steps is left out. GPUs count, since a checkpoint holds one shard for each.
    """
    ignored_keys = {"steps"} if params.grpo.extendable else set[str]()
    identity = {
        "seed": params.seed,
        "prompt": identify_prompts(params.prompt),
        "model": params.model.model_dump(mode="json"),
        "grpo": params.grpo.model_dump(mode="json", exclude={"save_steps", *ignored_keys}),
        "phases": params.model_dump(mode="json", include={"curriculum", "curriculum_by_domain"}),
        "gpus": [cluster.nodes, cluster.gpus_per_node],
        "records": [record.model_dump(mode="json") for record in records],
    }
    files = [*sorted(base.glob("*.safetensors")), *([] if ignored_keys else [folder / TRAIN_FILE])]
    digest = sha256(json.dumps(identity, sort_keys=True).encode())
    for file in files:
        with file.open("rb") as data:
            digest.update(file_digest(data, "sha256").digest())
    return digest.hexdigest()[:12]


def _compute_file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of an exported folder by relative path, without those of the problems."""
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and PROBLEMS_DIR not in file.relative_to(folder).parts
    }

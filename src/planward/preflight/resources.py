"""Folders, disk and memory: whether a stage's files can be written, and its weights fit.

Sizes are the least that a stage takes, and no estimate (`planward doctor --model`): nothing that would run is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from planward.core import paths
from planward.inference.models import has_cuda
from planward.params import ModelConfig, Params
from planward.preflight.stages import Need, StageNeeds

GIB = 2**30
MIN_DISK_BYTES = 2**24  # for tables, curves and metrics
FLOAT_BYTES, HALF_BYTES, MIN_NF4_BYTES = 4, 2, 0.5
ADAM_BYTES = 2 * FLOAT_BYTES  # two moments of each weight
SMALL_BYTES = GIB  # a GPU has so much


@dataclass(frozen=True)
class CgroupFiles:
    """Where a version of Linux's control groups states memory.

    Attributes:
        names: of the files with limit, use and statistics, after `memory.`.
        cached: the statistic of what can be freed.
    """

    mount: str
    names: tuple[str, str, str]
    cached: str


CGROUP_FILES = {  # by the controller in /proc/self/cgroup; version 2 names none
    "": CgroupFiles("sys/fs/cgroup", ("max", "current", "stat"), "inactive_file"),
    "memory": CgroupFiles("sys/fs/cgroup/memory", ("limit_in_bytes", "usage_in_bytes", "stat"), "total_inactive_file"),
}


@dataclass(frozen=True)
class DiskUse:
    """Bytes that a stage writes at least.

    Attributes:
        model: of the trained weights.
        checkpoints: while it trains.
    """

    model: int = 0
    checkpoints: int = 0


def list_folder_faults(folder: Path) -> list[str]:
    """Return why files cannot be written in a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing == Path():
        existing = existing.absolute()
    if not existing.is_dir():
        return [f"{existing}: a file, where a folder is to be written; fix: move it away"]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [f"{existing}: cannot be written by {_find_user()}; fix: chmod or chown it, or mount it writable"]
    return []


def compute_disk_use(stage: StageNeeds, params: Params, parameters: int) -> DiskUse:
    """Compute what training writes: its model, and checkpoints with Adam's moments, of which two are kept.

    Adapters are small, and count as nothing. What is there already of the run, and is replaced, is subtracted.
    """
    if stage.run is None or Need.TRAINING not in stage.needs:
        return DiskUse()
    model = params.model
    width = 0 if model.keeps_adapter else FLOAT_BYTES if model.lora is None else HALF_BYTES
    checkpoint = 0 if model.lora is not None else parameters * (FLOAT_BYTES + ADAM_BYTES)
    steps, interval = params.grpo.steps, params.grpo.save_steps
    if stage.family == "sft":
        steps, interval = stage.run.size * params.sft.epochs // params.sft.batch_size, params.sft.save_steps
    checkpoint_bytes = measure_folders(*paths.CHECKPOINTS.glob(f"{stage.run.name}-*"))
    model_bytes = measure_folders(paths.results(params.task).model(stage.run))
    return DiskUse(
        max(0, parameters * width - model_bytes), max(0, checkpoint * (2 if steps > interval else 1) - checkpoint_bytes)
    )


def list_disk_faults(uses: list[DiskUse]) -> list[str]:
    """Return where the models of all stages, and the checkpoints of the one with most, do not fit."""
    sizes = {
        paths.RESULTS: MIN_DISK_BYTES + sum(use.model for use in uses),
        paths.CHECKPOINTS: max((use.checkpoints for use in uses), default=0),
    }
    disks = dict[int, list[Path]]()
    for folder in sizes:
        disks.setdefault(_find_existing(folder).stat().st_dev, []).append(folder)
    faults = []
    for folders in disks.values():
        need, free = sum(sizes[folder] for folder in folders), shutil.disk_usage(_find_existing(folders[0])).free
        if free < need:
            names = " and ".join(map(str, folders))
            text = f"{format_size(free)} free on their disk; models and checkpoints take at least {format_size(need)}"
            faults.append(f"{names}: {text}; fix: free space (dvc gc --workspace), or fewer dataset_sizes and seeds")
    return faults


def compute_least_memory(params: Params, parameters: int, *, trains: bool, grpo: bool, cuda: bool) -> int:
    """Compute the bytes of weights and, in training, of gradients and Adam's moments; no activations, no cache.

    Where several processes run, they may share out the weights, so they count as if they did.

    Args:
        parameters: the numbers in the weights.
        grpo: a KL term has a second copy of weights that are trained in full.
        cuda: on a GPU.
    """
    model = params.model
    width: float = HALF_BYTES if _is_half(model, trains=trains, cuda=cuda) else FLOAT_BYTES
    if model.load_in_4bit:
        width = MIN_NF4_BYTES
    elif trains and model.lora is None:
        width *= 5 if grpo and params.grpo.beta else 4  # weights, their copy, gradients, two moments
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    shares = max(processes, model.vllm.tensor_parallel_size if model.generation == "vllm" else 1)
    return int(parameters * width / (shares if cuda else 1))


def _is_half(model: ModelConfig, *, trains: bool, cuda: bool) -> bool:
    """Whether weights are in 16 bits, or may be: Unsloth chooses."""
    if model.backend != "transformers" and cuda:
        return True
    if model.generation == "vllm" and not trains:
        return model.precision != "float32"
    bfloat16 = model.precision == "bfloat16" or (model.precision == "auto" and cuda)
    return (model.precision == "bfloat16" and not trains) or (model.lora is not None and bfloat16)


def list_memory_faults(need_by_device: dict[bool, int], source: str) -> list[str]:
    """Return whether weights do not fit into the GPU, where there is one, or into the memory that is free.

    Args:
        need_by_device: bytes on a GPU (true) and without one (false).
        source: file and key that name the weights.
    """
    if max(need_by_device.values()) < SMALL_BYTES and measure_free_memory() >= need_by_device[False]:
        return []
    fix = "planward doctor --model says how much it takes; model.load_in_4bit with model.lora, or a smaller model"
    if has_cuda():
        size, need = measure_gpu_memory(), need_by_device[True]
        if size is not None and size < need:
            text = f"the GPU has {format_size(size)}; weights and optimizer take at least {format_size(need)}"
            return [f"{source}: {text}; fix: {fix}"]
        return []
    free, need = measure_free_memory(), need_by_device[False]
    if free < need:
        text = f"{format_size(free)} of memory are free, and no GPU; weights and optimizer take at least"
        return [f"{source}: {text} {format_size(need)}; fix: {fix}"]
    return []


def measure_gpu_memory() -> int | None:
    """Return the memory of the GPU that a stage uses, the first visible one; None where nvidia-smi does not say.

    torch would have to initialise CUDA, which vLLM wants to do itself.
    """
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]:
        command += ["--id", visible]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(text.splitlines()[0]) * 2**20
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def measure_free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are free or can be freed, within the limits of a container and of a Slurm job.

    Args:
        root: the folder with `proc` and `sys`.
    """
    free = [psutil.virtual_memory().available]
    if (megabytes := os.environ.get("SLURM_MEM_PER_NODE", "")).isdigit() and int(megabytes):  # 0: all of the node's
        free.append(int(megabytes) * 2**20)
    for folder, files in _list_cgroups(root):
        try:
            limit, usage, statistics = ((folder / f"memory.{name}").read_text(encoding="ascii") for name in files.names)
        except OSError:
            continue
        if limit.strip().isdigit():
            cache_match = re.search(rf"^{files.cached} (\d+)", statistics, re.M)
            free.append(int(limit) - int(usage) + (int(cache_match[1]) if cache_match else 0))
    return min(free)


def _list_cgroups(root: Path) -> list[tuple[Path, CgroupFiles]]:
    """Return the folders of this process's control groups and of all above them: each may have a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = list[tuple[Path, CgroupFiles]]()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if (files := CGROUP_FILES.get("memory" if "memory" in controllers.split(",") else controllers)) is None:
            continue
        parts = [] if ".." in Path(path).parts else Path(path).parts[1:]  # `..`: outside of what a container sees
        folders += [(root / files.mount / Path(*parts[:depth]), files) for depth in range(len(parts) + 1)]
    return folders


def format_size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / 2**20:.1f} MiB"


def _find_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def measure_folders(*folders: Path) -> int:
    """Bytes of all files; those that vanish meanwhile, such as another run's old checkpoints, count as nothing."""
    size = 0
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):
                    size += Path(parent, name).lstat().st_size
    return size


def _find_user() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"

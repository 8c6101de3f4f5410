"""Verification and problem generation on a Ray cluster; results are those of one machine.

A Ray task carries all its inputs: a chunk of completions with their problem files, or the name of a unit to generate.
Workers keep no state between tasks and share no file system, so the task of a worker that died is run again elsewhere.
Results are put together in input order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tqdm import tqdm

from planward.core import paths
from planward.core.files import replace_atomic, write_jsonl
from planward.core.records import Record
from planward.core.registry import load_task
from planward.core.tasks import SplitGeneration, Task
from planward.core.verdicts import Verdict, VerifierError
from planward.integrations.ray.connection import (
    ClusterError,
    Installation,
    check_installation,
    connect,
    get_installation,
)
from planward.params import Params

CHUNK_SIZE = 16  # completions a Ray task, about 0.1 s of VAL; overhead: benchmarks/ray_engine.py
MAX_RETRIES = 5  # of a Ray task whose worker died
Pair = tuple[Record, str]  # problem and completion


@dataclass(frozen=True)
class Chunk:
    """Completions to verify, and their problem files by path relative to the task's root."""

    pairs: tuple[Pair, ...]
    files: dict[str, bytes]


class RayTask:
    """A task that runs `judge` and `prepare_problems` on a cluster and delegates everything else."""

    def __init__(self, task: Task, params: Params, root: Path, ray: Any) -> None:
        self.task, self.params, self.root, self.ray = task, params, root, ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The task's verdicts, in the order of `pairs`.

        Raises:
            VerifierError: as the task's own `judge`, or a Ray task lost its worker too often.
        """
        chunks = split_into_chunks(pairs)
        object_refs = [self.ray.put(each) for each in (get_installation(), _limit_to_one_worker(self.params))]
        calls = ((*object_refs, str(self.root), build_chunk([pairs[i] for i in chunk], self.root)) for chunk in chunks)
        verdicts: dict[int, Verdict] = {}
        with tqdm(total=len(pairs), desc="verdicts", unit="plan") as bar:
            try:
                for number, chunk_verdicts in run_remote(self.ray, judge_chunk, calls):
                    verdicts.update(zip(chunks[number], chunk_verdicts, strict=True))
                    bar.update(len(chunk_verdicts))
            except WorkerLost as error:
                raise VerifierError(str(error)) from error
        return [verdicts[index] for index in range(len(pairs))]

    def prepare_problems(self, folder: Path) -> None:
        """Generate one unit a CPU; a task without units (see `SplitGeneration`) generates its problems here."""
        units = self.task.generation_units() if isinstance(self.task, SplitGeneration) else []
        if units:
            write_jsonl(folder / "problems.jsonl", generate_records(self.params, units, folder, self.ray))
        else:
            print("Ray: these problems have no independent units; generating here", file=sys.stderr, flush=True)
            self.task.prepare_problems(folder)


@contextmanager
def open_task(params: Params, engine: str, address: str | None = None) -> Iterator[Task]:
    """Load the task of `params` with an engine: `local`, or `ray` on the cluster at `address`.

    Raises:
        ClusterError: as `connection.connect`.
    """
    task = load_task(params)
    if engine == "local":
        yield task
        return
    with connect(address) as ray:
        yield cast(Task, RayTask(task, params, paths.results(params.task).problems, ray))


def generate_records(params: Params, units: Sequence[str], folder: Path, ray: Any) -> Iterator[Record]:
    """Generate units on a cluster, write their files below `folder` and yield their records, in the order of `units`.

    A unit is the smallest piece of work, since its problems come from one random stream: more CPUs than units do not
    help.

    Raises:
        ClusterError: a unit lost its worker too often.
        ParamsError and the task's own errors, as on one machine.
    """
    object_refs = [ray.put(each) for each in (get_installation(), params)]
    records: dict[int, list[Record]] = {}
    with tqdm(total=len(units), desc="problems", unit="unit") as bar:
        for number, (unit_records, files) in run_remote(ray, generate_unit, ((*object_refs, unit) for unit in units)):
            for name, content in files.items():
                with replace_atomic(folder / name) as partial:
                    partial.write_bytes(content)
            records[number] = unit_records
            bar.update()
    for number in range(len(units)):
        yield from records[number]


class WorkerLost(ClusterError):
    """A Ray task lost its worker more than `MAX_RETRIES` times."""


def run_remote(ray: Any, function: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Call `function` on a cluster, one CPU a call, and yield `(call number, result)` in order of completion.

    Two calls a CPU are in flight; the arguments of the others are not built yet.

    Raises:
        WorkerLost: a call lost its worker more than `MAX_RETRIES` times.
        Exception: the error that the function raised; no further call is started.
    """
    remote = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(function)
    numbered_calls, in_flight = enumerate(calls), dict[Any, int]()
    try:
        while True:
            room = 2 * max(1, round(ray.cluster_resources().get("CPU", 0))) - len(in_flight)
            in_flight |= {remote.remote(*call): number for number, call in islice(numbered_calls, max(0, room))}
            if not in_flight:
                return
            ready, _ = ray.wait(list(in_flight), num_returns=1)
            yield in_flight.pop(ready[0]), _get_result(ray, ready[0])
    finally:
        for reference in in_flight:
            ray.cancel(reference)


def _get_result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise WorkerLost(f"a task lost its worker on the Ray cluster {MAX_RETRIES + 1} times: {error}") from error


def split_into_chunks(pairs: Sequence[Pair]) -> list[list[int]]:
    """Indices of pairs in chunks of `CHUNK_SIZE`; sorted by problem, so that VAL parses most problems only once."""
    order = sorted(range(len(pairs)), key=lambda index: list_files(pairs[index]))
    return [order[start : start + CHUNK_SIZE] for start in range(0, len(order), CHUNK_SIZE)]


def build_chunk(pairs: Sequence[Pair], root: Path) -> Chunk:
    """Pairs with the contents of their files; files that do not exist are left out, and the task reports them."""
    names = sorted({name for pair in pairs for name in list_files(pair)})
    return Chunk(tuple(pairs), {name: (root / name).read_bytes() for name in names if (root / name).is_file()})


def list_files(pair: Pair) -> tuple[str, str]:
    """The file names of a problem; a task without files has names that do not exist on disk."""
    return pair[0].meta.domain_file, pair[0].meta.problem_file


def judge_chunk(expected: Installation, params: Params, root: str, chunk: Chunk) -> list[Verdict]:
    """Verdicts of a chunk; runs on a worker. `root` is the task's root on the calling machine, for error messages."""
    check_installation(expected)
    with _open_temporary_root(root) as folder:
        for name, content in chunk.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return load_task(params, folder).judge(chunk.pairs)


def generate_unit(expected: Installation, params: Params, unit: str) -> tuple[list[Record], dict[str, bytes]]:
    """A unit's records, and its files by relative path; runs on a worker."""
    check_installation(expected)
    with _open_temporary_root("") as folder:
        task = cast(SplitGeneration, load_task(params, folder))
        records = list(task.generate_unit(unit, folder))
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return records, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def _limit_to_one_worker(params: Params) -> Params:
    """Parameters whose `val.workers`, where the task has that key, is 1: a Ray task has one CPU."""
    val = getattr(params, "val", None)
    return params if val is None else params.model_copy(update={"val": val.model_copy(update={"workers": 1})})


@contextmanager
def _open_temporary_root(root: str) -> Iterator[Path]:
    """Yield a temporary folder; errors name its files as if they were in the folder `root`."""
    with TemporaryDirectory(prefix="planward-ray-") as folder:
        try:
            yield Path(folder)
        except Exception as error:
            prefix = folder if root else f"{folder}/"
            error.args = tuple(arg.replace(prefix, root) if isinstance(arg, str) else arg for arg in error.args)
            raise

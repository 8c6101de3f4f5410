"""Bulk work on a Ray cluster: the same verdicts and the same problems as on one machine.

Each piece of work is a Ray task that holds all it needs: chunks of completions with the files of their problems, or
a domain to generate. Nothing is kept on a machine between two pieces, and no file system is shared, so a piece
whose worker dies is simply done again elsewhere. Results are put together in the order of the work, not of its
completion.
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

from planward.clusters.connection import ClusterError, Stamp, agree, connected, stamp
from planward.params import Params
from planward.records import Record, Verdict, VerifierError, replaced, write_jsonl
from planward.tasks import PROBLEMS, load_task
from planward.tasks.base import Task
from planward.tasks.planning.sources import domain_records

CHUNK = 16  # completions a Ray task: VAL takes a tenth of a second for them; benchmarks/ray_engine.py has Ray's share
RETRIES = 5  # of a piece of work whose worker died; a piece that kills every worker must end the run some time
Pair = tuple[Record, str]


@dataclass(frozen=True)
class Chunk:
    """Completions to judge, and the files of their problems by path below the task's root."""

    pairs: tuple[Pair, ...]
    files: dict[str, bytes]


class RayTask:
    """A task whose `judge` and `bring` are done on a cluster; all else is the task's own."""

    def __init__(self, task: Task, params: Params, root: Path, ray: Any) -> None:
        self.task, self.params, self.root, self.ray = task, params, root, ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The task's verdicts, in the order of the pairs.

        Raises:
            VerifierError: as the task's own, and where a piece of work lost its worker too often.
        """
        places = places_of_chunks(pairs)
        limits = self.params.val.model_copy(update={"workers": 1})  # a Ray task has one CPU
        shared = [self.ray.put(each) for each in (stamp(), self.params.model_copy(update={"val": limits}))]
        calls = ((*shared, str(self.root), chunk([pairs[place] for place in some], self.root)) for some in places)
        verdicts: dict[int, Verdict] = {}
        with tqdm(total=len(pairs), desc="verdicts", unit="plan") as bar:
            try:
                for number, found in completed(self.ray, judged, calls):
                    verdicts.update(zip(places[number], found, strict=True))
                    bar.update(len(found))
            except LostWork as error:
                raise VerifierError(str(error)) from error
        return [verdicts[place] for place in range(len(pairs))]

    def bring(self, folder: Path) -> None:
        """Generate a domain on each CPU; other sources, and the economy, have nothing to spread."""
        if self.params.task != "planning" or self.params.problems.source != "generated":
            print("Ray: these problems are brought by one process; nothing to spread", file=sys.stderr, flush=True)
            self.task.bring(folder)
        else:
            write_jsonl(folder / "problems.jsonl", generated_records(self.params, folder, self.ray))


@contextmanager
def engaged_task(params: Params, engine: str, address: str | None = None) -> Iterator[Task]:
    """The task that `params` names, with the engine that does its bulk work: `local`, or `ray` at `address`.

    Raises:
        ClusterError: as `connection.connected`.
    """
    task, root = load_task(params), params.placed(PROBLEMS)
    if engine == "local":
        yield task
        return
    with connected(address) as ray:
        yield cast(Task, RayTask(task, params, root, ray))


def generated_records(params: Params, folder: Path, ray: Any) -> Iterator[Record]:
    """What `sources.generated_records` yields and writes below `folder`, with the domains generated on a cluster.

    A domain is one piece of work, for its problems are drawn one after another from one random stream: smaller
    pieces would be other problems. So more CPUs than domains do not help.

    Raises:
        ClusterError: a domain lost its worker too often.
        ParamsError, PddlError, SearchLimit: as on one machine.
    """
    domains = list(params.problems.generated)
    shared = [ray.put(each) for each in (stamp(), params)]
    records: dict[int, list[Record]] = {}
    with tqdm(total=len(domains), desc="problems", unit="domain") as bar:
        for number, (found, files) in completed(ray, generated, ((*shared, domain) for domain in domains)):
            for name, content in files.items():
                with replaced(folder / name) as partial:
                    partial.write_bytes(content)
            records[number] = found
            bar.update()
    for number in range(len(domains)):
        yield from records[number]


class LostWork(ClusterError):
    """A piece of work lost its worker, again and again."""


def completed(ray: Any, function: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """The function's results on a cluster, one CPU a call, as they come, each with the number of its call.

    So many calls are handed in as keep every CPU busy; the rest waits here, where it takes no memory yet.

    Raises:
        LostWork: a call lost its worker more than `RETRIES` times.
        Exception: what the function raised, as it raised it; no further call is started.
    """
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(function)
    numbered, waiting = enumerate(calls), dict[Any, int]()
    try:
        while True:
            room = 2 * max(1, round(ray.cluster_resources().get("CPU", 0))) - len(waiting)
            waiting |= {remote.remote(*call): number for number, call in islice(numbered, max(0, room))}
            if not waiting:
                return
            done, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done[0]), _result(ray, done[0])
    finally:
        for reference in waiting:
            ray.cancel(reference)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise LostWork(f"a task lost its worker on the Ray cluster {RETRIES + 1} times: {error}") from error


def places_of_chunks(pairs: Sequence[Pair]) -> list[list[int]]:
    """Places of pairs, `CHUNK` at a time, those of a problem side by side: VAL's parser reads it about once."""
    ordered = sorted(range(len(pairs)), key=lambda place: files_of(pairs[place]))
    return [ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK)]


def chunk(pairs: Sequence[Pair], root: Path) -> Chunk:
    """Pairs with the files they need; a file that is missing here is missing there, and the task says so."""
    named = sorted({name for pair in pairs for name in files_of(pair)})
    return Chunk(tuple(pairs), {name: (root / name).read_bytes() for name in named if (root / name).is_file()})


def files_of(pair: Pair) -> tuple[str, str]:
    """The files that a problem names; a task may have none, and names that are no files."""
    return pair[0].meta.domain_file, pair[0].meta.problem_file


def judged(expected: Stamp, params: Params, root: str, work: Chunk) -> list[Verdict]:
    """A chunk's verdicts, on a worker; `root` is the task's on the machine that asks."""
    agree(expected)
    with _folder_called(root) as folder:
        for name, content in work.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return load_task(params, folder).judge(work.pairs)


def generated(expected: Stamp, params: Params, domain: str) -> tuple[list[Record], dict[str, bytes]]:
    """A domain's records, and the files they name by path, on a worker."""
    agree(expected)
    with _folder_called("") as folder:
        records = list(domain_records(params, domain, folder))
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return records, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@contextmanager
def _folder_called(name: str) -> Iterator[Path]:
    """A temporary folder; errors tell of its files as if they lay in the folder `name`."""
    with TemporaryDirectory(prefix="planward-ray-") as folder:
        try:
            yield Path(folder)
        except Exception as error:
            place = folder if name else f"{folder}/"
            error.args = tuple(arg.replace(place, name) if isinstance(arg, str) else arg for arg in error.args)
            raise

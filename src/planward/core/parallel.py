"""A function of chunks in several processes: results in the order of the chunks, a bounded number of them in flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

CHUNKS_PER_WORKER = 4  # in flight
_function: Callable[[Any], Any]  # of a worker process


class WorkerKilled(RuntimeError):
    """A worker process was killed, usually because memory ran out."""


def count_processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """PLANWARD_THREADS, which Snakemake sets, or as many as processors."""
    return int(os.environ.get("PLANWARD_THREADS") or count_processors())


def map_chunks(
    build: Callable[[], Callable[[Chunk], Result]], chunks: Iterable[Chunk], workers: int, alone: int = 0
) -> Iterator[Result]:
    """Apply a function to chunks, in their order; with one worker in this process.

    Args:
        build: builds the function, once in each process; it is pickled, as chunks and results are.
        alone: this process takes so many chunks before it starts others.

    Raises:
        WorkerKilled: a process was killed.
    """
    if workers == 1:
        yield from map(build(), chunks)
        return
    chunks = iter(chunks)
    if alone:
        yield from map(build(), islice(chunks, alone))
    if (chunk := next(chunks, None)) is None:
        return
    yield from _map_in_pool(build, chain([chunk], chunks), workers)


def _map_in_pool(
    build: Callable[[], Callable[[Chunk], Result]], chunks: Iterable[Chunk], workers: int
) -> Iterator[Result]:
    # This process may have threads, as a progress bar has, so it is not forked.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (build,))
    futures: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            futures.append(pool.submit(_apply, chunk))
            if len(futures) >= CHUNKS_PER_WORKER * workers:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool:
        raise WorkerKilled(f"one of {workers} processes was killed; fix: more memory, or fewer of them") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(build: Callable[[], Callable[[Any], Any]]) -> None:
    global _function
    Thread(target=_end_with_parent, daemon=True).start()
    _function = build()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _apply(chunk: Any) -> Any:
    return _function(chunk)

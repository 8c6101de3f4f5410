"""Chunks through a pool of processes, in their order and with a bounded number in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from planward.core.lines import Line
from planward.core.verdicts import VerifierError
from planward.judgement.problems import ProblemIndex
from planward.judgement.verdicts import Judge, Result, Settings

CHUNKS_PER_WORKER = 4  # in flight
_judge: Judge  # of a worker process


def judge_chunks(
    chunks: Iterable[list[Line]], index: ProblemIndex, settings: Settings, workers: int
) -> Iterator[list[Result]]:
    """Judge chunks in their order; with one worker in this process.

    Raises:
        VerifierError: no verdict could be reached, or a process ended.
    """
    if workers == 1:
        judge = Judge(index, settings)
        yield from map(judge.judge_lines, chunks)
        return
    context = get_context("spawn")  # this process may have threads, as a progress bar has
    pool = ProcessPoolExecutor(workers, context, _start_worker, (index, settings))
    pending: deque[Future[list[Result]]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_judge_chunk, chunk))
            if len(pending) >= CHUNKS_PER_WORKER * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise VerifierError("a process that judged lines was ended; fix: more memory, or fewer --workers") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(index: ProblemIndex, settings: Settings) -> None:
    global _judge
    _judge = Judge(index, settings)


def _judge_chunk(chunk: list[Line]) -> list[Result]:
    return _judge.judge_lines(chunk)

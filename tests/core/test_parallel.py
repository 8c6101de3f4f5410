"""Chunks in several processes: their order, how many are read ahead, and what happens when a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from planward.core.parallel import CHUNKS_PER_WORKER, WorkerKilled, map_chunks

POWERS = partial(partial, pow, 2)
SLEEPING_WORKERS = """
import time
from functools import partial
from planward.core.parallel import map_chunks

for _ in map_chunks(partial(partial, time.sleep), [300.0] * 4, workers=2):
    pass
"""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("alone", [0, 7, 50])
def test_results_come_in_the_order_of_the_chunks(workers: int, alone: int) -> None:
    assert list(map_chunks(POWERS, range(40), workers, alone)) == [2**n for n in range(40)]


def test_chunks_are_read_only_as_they_are_needed() -> None:
    chunks = count()
    results = map_chunks(POWERS, chunks, workers=2)
    assert list(islice(results, 20)) == [2**n for n in range(20)]
    assert next(chunks) <= 20 + 2 * CHUNKS_PER_WORKER
    results.close()  # type: ignore[attr-defined]


def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(WorkerKilled, match="fix: more memory"):
        list(map_chunks(partial(partial, os._exit), [1, 1], workers=2))


def test_processes_end_with_the_one_that_started_them() -> None:
    parent = subprocess.Popen([sys.executable, "-c", SLEEPING_WORKERS])
    deadline = time.monotonic() + 60
    while len(list_workers(parent.pid)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers = list_workers(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def list_workers(pid: int) -> list[int]:
    """The children of a process that have started to work; Python's resource tracker is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path("/proc", child, "cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

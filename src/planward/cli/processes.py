"""The process of a stage: it ends with DVC, which runs it, and runs alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psutil

DVC_VARIABLE = "DVC_STAGE"  # set by DVC for the commands that it runs
SLURM_VARIABLE = "SLURM_JOB_ID"
SLURM_WAIT_S = 600  # longer than between Slurm's SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1  # prctl(2)
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what file systems without flock answer


class StageIsRunning(Exception):
    """Another process runs the stage; the message names it."""


def end_with_parent() -> None:
    """Let DVC's end, if DVC runs this process, be this process's end.

    A stage that outlived DVC would write its outputs beside the next run. SIGTERM, which the rules ignore, ends it as
    well, but for Slurm's: a job that ends by itself is not requeued.
    """
    if not os.environ.get(DVC_VARIABLE) or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if is_slurm_job() else signal.SIG_DFL)
    if shell := find_shell():
        Thread(target=_end_with, args=(shell.parent(),), daemon=True).start()


def find_shell() -> psutil.Process | None:
    """Return the shell that DVC runs this process with, if it waits for the process (dash does, bash becomes it)."""
    parent = psutil.Process().parent()
    shell = os.environ.get("SHELL") or "/bin/sh"  # as DVC chooses it
    return parent if parent and parent.cmdline()[:1] == [shell] else None


def _end_with(process: psutil.Process | None) -> None:
    if process:
        process.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def is_slurm_job() -> bool:
    return SLURM_VARIABLE in os.environ


def wait_for_slurm() -> None:
    """Wait until Slurm, which has sent SIGTERM, kills the job: then it requeues a preempted one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waiting for Slurm, which cancels or requeues the job", flush=True)
    time.sleep(SLURM_WAIT_S)


@contextmanager
def lock_stage(file: Path) -> Iterator[None]:
    """Hold a lock that ends with the process at the latest; `file` names the process while it holds it.

    Where the file system has no flock, warn and go on without a lock.

    Raises:
        StageIsRunning: another process holds it, on this machine or on another one that shares the file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise StageIsRunning(
                f"{stream.read() or 'another process'} runs this stage; fix: wait until it ends, or end it"
            ) from None
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            text = f"the file system of {file.parent.absolute()} has no flock ({error.strerror})"
            print(f"warning: {text}: nothing keeps this stage from running twice at once", file=sys.stderr, flush=True)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}")
        stream.flush()
        yield
        stream.truncate(0)

"""Locks of killed runs are removed; the process that holds one is named."""

import fcntl
import socket
from datetime import datetime
from pathlib import Path

from dvc.lock import LockError
from dvc.rwlock import RWLockFileCorruptedError
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from planward.core.files import NO_FLOCK

DVC_LOCK = Path(".dvc/tmp/rwlock")
RUN = Path(".snakemake/run")  # every snakemake in this folder shares a lock on it, which ends with the process


def remove_stale_locks():
    """Remove Snakemake's lock if no run is alive that may hold it; else say which one does."""
    global run_lock  # open, and so locked, as long as this process lives
    RUN.parent.mkdir(exist_ok=True)
    run_lock = RUN.open("a+")
    try:
        fcntl.flock(run_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning(f"Also in this folder: {RUN.read_text() or 'another snakemake'}.")
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        logger.warning(
            f"The file system of {RUN.parent.absolute()} has no flock ({error.strerror}): the lock of a killed run is "
            "not removed (snakemake --unlock does), and another run in this folder is not named."
        )
        return
    else:
        if locks := list(Path(".snakemake/locks").glob("*")):
            for lock in locks:
                lock.unlink()
            logger.warning(f"Removed the lock of a killed run: {RUN.read_text() or 'its process is gone'}.")
        RUN.write_text("")
    fcntl.flock(run_lock, fcntl.LOCK_SH)


def find_changed(repo):
    """The addresses of the stages that DVC finds changed.

    Raises:
        WorkflowError: another process has the stages' files.
    """
    try:
        with repo.lock:
            return {stage.addressing for stage in repo.index.stages if not stage.frozen and stage.status()}
    except RWLockFileCorruptedError:  # DVC was killed while it wrote the file
        logger.warning(f"Removed {DVC_LOCK}, which a killed process left incomplete.")
        DVC_LOCK.unlink()
        return find_changed(repo)
    except LockError as error:
        lines = dict.fromkeys(str(error).splitlines())  # DVC repeats the process for each of its files
        raise WorkflowError("DVC: " + "\n".join(lines)) from None


def record_run():
    """Write which process runs jobs, for those that find its locks."""
    if workflow.is_main_process:
        RUN.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M}")


if workflow.is_main_process:
    remove_stale_locks()

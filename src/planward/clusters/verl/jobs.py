"""A job on a Ray cluster that is there already: submitted through Ray's job API, and followed to its end."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import planward
from planward.clusters.verl.export import overrides

MODULE = "verl.trainer.main_ppo"
DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit statuses
PAUSE = 2.0  # seconds between two looks at a job whose log has broken off


class NoCluster(OSError):
    """Ray is not installed, or no cluster answers at the address."""


def _said(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def command(folder: Path) -> list[str]:
    """What trains the exported folder, started in it."""
    return ["python", "-m", MODULE, *overrides(folder)]


def launched(
    folder: Path,
    address: str,
    *,
    entrypoint: Sequence[str] | None = None,
    dry_run: bool = False,
    say: Callable[[str], object] = _said,
) -> int:
    """Submit an exported folder to the cluster at `address`, and follow the job's log until it ends.

    The folder goes to the cluster as the job's working directory, and this planward with it; the machines need verl
    and what planward imports.

    Args:
        address: of the cluster's dashboard, `http://HOST:8265`, or of its Ray client, `ray://HOST:10001`.
        entrypoint: in place of `command(folder)`.
        dry_run: say what would be submitted, and do not.

    Returns:
        The exit status: 0 where the job succeeded, 1 where it failed or was stopped, 130 where following it was
        interrupted (the job goes on).

    Raises:
        NoCluster: see there.
        FileNotFoundError: `folder` is no exported folder.
    """
    arguments = command(folder) if entrypoint is None else list(entrypoint)
    if dry_run:
        ways = ["ray", "job", "submit", "--address", address, "--working-dir", str(folder), "--", *arguments]
        say(shlex.join(ways) + "\n")
        return DONE
    client = _client(address)
    job = client.submit_job(
        entrypoint=shlex.join(arguments),
        runtime_env={
            "working_dir": str(folder.resolve()),
            "py_modules": [str(Path(planward.__file__).resolve().parent)],
        },
        metadata={"planward": folder.name},
    )
    say(f"job {job} at {address}\n")
    try:
        status, message = followed(client, job, say)
    except KeyboardInterrupt:
        say(
            f"\nThe job goes on. Follow it: ray job logs --address {address} --follow {job}\n"
            f"Stop it: ray job stop --address {address} {job}\n"
        )
        return INTERRUPTED
    reason = message.partition("\n")[0].partition(", last available logs")[0] if status != "SUCCEEDED" else ""
    say(f"job {job}: {status.lower()}" + (f" ({reason})\n" if reason else "\n"))
    return DONE if status == "SUCCEEDED" else FAILED


def followed(client: Any, job: str, say: Callable[[str], object]) -> tuple[str, str]:
    """Say a job's log as it grows; returns the job's status and message when it has ended.

    The connection may break off and is made again, without a line said twice.

    Raises:
        NoCluster: the cluster answers no more.
    """
    said = 0

    async def follow() -> None:
        nonlocal said
        passed = 0
        async for lines in client.tail_job_logs(job):
            fresh = lines[max(said - passed, 0) :]
            passed += len(lines)
            said = max(said, passed)
            say(fresh)

    while True:
        try:
            asyncio.run(follow())
        except (RuntimeError, OSError):
            time.sleep(PAUSE)
        try:
            info = client.get_job_info(job)
        except (ConnectionError, RuntimeError) as error:
            raise NoCluster(f"the cluster answers no more ({error}); job {job} may go on") from error
        if info.status.is_terminal():
            return str(info.status.value), info.message or ""
        time.sleep(PAUSE / 10)


def _client(address: str) -> Any:
    try:
        submission = import_module("ray.job_submission")
    except ModuleNotFoundError:
        raise NoCluster("Ray is not installed: pip install 'planward[cluster]'") from None
    try:
        return submission.JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, import_module("ray").exceptions.AuthenticationError) as error:
        raise NoCluster(f"no Ray cluster takes jobs at {address}: {error}") from error

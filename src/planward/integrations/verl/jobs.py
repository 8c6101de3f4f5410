"""Submit a job to a running Ray cluster through Ray's job API and follow its log until it ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import planward
from planward.integrations.verl.export import read_overrides

TRAINER_MODULE = "verl.trainer.main_ppo"
EXIT_SUCCEEDED, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
RETRY_INTERVAL_S = 2.0  # after the log stream broke off
STATUS_INTERVAL_S = 0.2  # after the log stream ended

Print = Callable[[str], object]


class ClusterUnavailable(OSError):
    """Ray is not installed, or no cluster answers at the address."""


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def build_command(folder: Path) -> list[str]:
    """The command that trains an exported run; its working directory is the folder."""
    return ["python", "-m", TRAINER_MODULE, *read_overrides(folder)]


def launch_job(
    folder: Path,
    address: str,
    *,
    entrypoint: Sequence[str] | None = None,
    dry_run: bool = False,
    print_text: Print = _print,
) -> int:
    """Submit an exported folder to the cluster at `address` and print the job's log until the job ends.

    The folder is uploaded as the job's working directory, together with this planward package; the nodes need verl and
    the dependencies of planward.

    Args:
        address: of the cluster's dashboard, `http://HOST:8265`, or of its Ray client, `ray://HOST:10001`.
        entrypoint: command to run in place of `build_command(folder)`.
        dry_run: print the command of the submission and do nothing.

    Returns:
        The exit status: 0 if the job succeeded, 1 if it failed or was stopped, 130 if following it was interrupted
        (the job goes on).

    Raises:
        ClusterUnavailable: Ray is not installed, or no cluster answers at `address`.
        FileNotFoundError: `folder` is not an exported run.
    """
    arguments = build_command(folder) if entrypoint is None else list(entrypoint)
    modules = {"py_modules": [str(Path(planward.__file__).resolve().parent)]}
    if dry_run:
        options = ["--address", address, "--working-dir", str(folder), "--runtime-env-json", json.dumps(modules)]
        print_text(shlex.join(["ray", "job", "submit", *options, "--", *arguments]) + "\n")
        return EXIT_SUCCEEDED
    client = _connect(address)
    job = client.submit_job(
        entrypoint=shlex.join(arguments),
        runtime_env={"working_dir": str(folder.resolve()), **modules},
        metadata={"planward": folder.name},
    )
    print_text(f"job {job} at {address}\n")
    try:
        status, message = follow_job(client, job, print_text)
    except KeyboardInterrupt:
        print_text(
            f"\nThe job goes on. Follow it: ray job logs --address {address} --follow {job}\n"
            f"Stop it: ray job stop --address {address} {job}\n"
        )
        return EXIT_INTERRUPTED
    reason = message.partition("\n")[0].partition(", last available logs")[0] if status != "SUCCEEDED" else ""
    print_text(f"job {job}: {status.lower()}" + (f" ({reason})\n" if reason else "\n"))
    return EXIT_SUCCEEDED if status == "SUCCEEDED" else EXIT_FAILED


def follow_job(client: Any, job: str, print_text: Print) -> tuple[str, str]:
    """Print a job's log as it grows; return the job's final status and message.

    A broken connection is opened again; no text is printed twice.

    Raises:
        ClusterUnavailable: the cluster no longer answers.
    """
    num_printed = 0  # characters of the log

    async def stream_log() -> None:
        nonlocal num_printed
        num_received = 0
        async for text in client.tail_job_logs(job):
            fresh = text[max(num_printed - num_received, 0) :]
            num_received += len(text)
            num_printed = max(num_printed, num_received)
            print_text(fresh)

    while True:
        try:
            asyncio.run(stream_log())
        except (RuntimeError, OSError):
            time.sleep(RETRY_INTERVAL_S)
        try:
            info = client.get_job_info(job)
        except (ConnectionError, RuntimeError) as error:
            raise ClusterUnavailable(f"the cluster no longer answers ({error}); job {job} may still run") from error
        if info.status.is_terminal():
            return str(info.status.value), info.message or ""
        time.sleep(STATUS_INTERVAL_S)


def _connect(address: str) -> Any:
    try:
        submission = import_module("ray.job_submission")
    except ModuleNotFoundError:
        raise ClusterUnavailable("Ray is not installed; fix: pip install 'planward[cluster]'") from None
    try:
        return submission.JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, import_module("ray").exceptions.AuthenticationError) as error:
        raise ClusterUnavailable(f"no Ray cluster accepts jobs at {address}: {error}") from error

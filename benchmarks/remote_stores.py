"""Stores for DVC remotes: a folder, and servers of S3 (moto) and SSH (sshd) on the loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

START_TIMEOUT_S = 30
BUCKET = "planward"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
SSHD_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PasswordAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Store:
    """Where a DVC remote keeps files, and what `dvc remote modify` must set."""

    url: str
    options: dict[str, str] = field(default_factory=dict)  # for everybody
    credentials: dict[str, str] = field(default_factory=dict)  # with `--local`


def find_missing(name: str) -> str:
    """What a store needs and is not installed; empty where it can be served."""
    if name == "s3" and not all(map(find_spec, ("dvc_s3", "moto", "flask", "flask_cors"))):
        return "dvc-s3 or moto is not installed; fix: pip install -r requirements-remotes.lock"
    if name == "ssh" and not find_spec("dvc_ssh"):
        return "dvc-ssh is not installed; fix: pip install -r requirements-remotes.lock"
    if name == "ssh" and not SSHD:
        return "there is no sshd; fix: apt-get install openssh-server"
    return ""


@contextmanager
def serve(name: str, folder: Path) -> Iterator[Store]:
    """Serve the store `folder`, `s3` or `ssh` while the context is open; its files go under `folder`.

    Raises:
        RuntimeError: the server does not start; the message has what it printed.
    """
    folder.mkdir(parents=True)
    (folder / "store").mkdir()
    port = _find_free_port()
    if name == "folder":
        yield Store(str(folder / "store"))
    elif name == "s3":  # moto keeps its files in memory
        with _run([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, folder / "log"):
            url = f"http://127.0.0.1:{port}"
            urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"))
            credentials = {"access_key_id": "tester", "secret_access_key": "not-a-secret"}
            yield Store(f"s3://{BUCKET}/results", {"endpointurl": url}, credentials)
    elif name == "ssh":
        _write_keys(folder)
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(port=port, folder=folder))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd confines the process that is not logged in yet
        with _run([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], port, folder / "log"):
            credentials = {"user": getpass.getuser(), "keyfile": str(folder / "user_key")}
            yield Store(f"ssh://127.0.0.1:{port}{folder / 'store'}", credentials=credentials)
    else:
        raise ValueError(f"{name}: no such store; there are folder, s3, ssh")


def _write_keys(folder: Path) -> None:
    import asyncssh

    for name in ("host_key", "user_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
        (folder / name).chmod(0o600)


@contextmanager
def _run(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server, from the moment that it accepts connections."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _accepts(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield
        finally:
            server.terminate()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

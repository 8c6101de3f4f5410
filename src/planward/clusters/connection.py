"""A Ray cluster: found, or started on this machine, with the same planward on all its machines.

Nothing is shipped to the machines: each must have the environment of requirements.lock. That is checked,
for a machine with another version would give other numbers and say nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import planward
from planward import val
from planward.records import VerifierError

AUTO = "auto"
OBJECT_STORE = 128 << 20  # bytes, of a cluster started here: what travels is small
KNOCK = 10  # seconds to wait for a cluster's door
MEND = "install the same planward (requirements.lock) on every machine, and let VAL_BINARY name the same VAL on all"


class ClusterError(OSError):
    """The cluster cannot be used; the message says why, and which machine is at fault."""


@dataclass(frozen=True)
class Stamp:
    """What must be the same on all machines. Digests are of the package's sources and of VAL's program."""

    version: str
    sources: str
    validator: str  # empty where VAL is missing


def installed() -> Any:
    """The package ray; raises ClusterError where it is not installed."""
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise ClusterError("Ray is not installed; mend: pip install 'planward[cluster]'") from None


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """The package ray, connected to a cluster whose machines have been checked; what it starts, it ends.

    A process that is connected already stays so.

    Args:
        address: `HOST:PORT`, `ray://HOST:PORT`; None or `auto` for a cluster that this machine is part of or that
            RAY_ADDRESS names, and one started here where there is none; `local` for one started here.
        cpus: of a cluster started here; None for all that this machine has.

    Raises:
        ClusterError: Ray is missing, there is no cluster at `address`, or a machine has another planward.
    """
    ray = installed()
    if ray.is_initialized():
        yield checked(ray)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray prints a tip about it
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == "local" or not _joined(ray, address or AUTO, quiet):
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                **quiet,
            )
            _say(f"Ray: started here with {ray.cluster_resources()['CPU']:.0f} CPU(s); it ends with this command")
        yield checked(ray)
    finally:
        ray.shutdown()


def checked(ray: Any) -> Any:
    """`ray`, once every machine of the cluster has said that it has this planward.

    Raises:
        ClusterError: a machine has another, or none, or there is no machine that works.
    """
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if not nodes:
        raise ClusterError("the Ray cluster has no CPUs; mend: start a node with some (ray start --num-cpus)")
    check, mine = ray.remote(num_cpus=0)(agree), ray.put(stamp())
    said = [check.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(mine) for node in nodes]
    for node, answer in zip(nodes, said, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ClusterError):
                raise error.cause from None
            reason = str(error.cause).strip().splitlines()[-1]
            raise ClusterError(f"node {name} cannot run planward: {reason}; mend: {MEND}") from error
        except ray.exceptions.RayError as error:
            raise ClusterError(f"node {name} does not answer: {error}") from error
    return ray


def agree(expected: Stamp) -> None:
    """Raises ClusterError where this machine's planward is not the one that `expected` describes."""
    own = stamp()
    here, there = (
        f"planward {each.version}, sources {each.sources[:8]}, VAL {each.validator[:8] or 'missing'}"
        for each in (own, expected)
    )
    if own != expected:
        name = f"{socket.gethostname()} ({installed().util.get_node_ip_address()})"
        raise ClusterError(f"node {name} has {here}; the command was started with {there}; mend: {MEND}")


@cache
def stamp() -> Stamp:
    """This machine's planward, as it is the first time that somebody asks."""
    package, digest = Path(planward.__file__).parent, sha256()
    for file in sorted(file for pattern in ("*.py", "*.pddl") for file in package.rglob(pattern)):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + sha256(file.read_bytes()).digest())
    try:
        validator = sha256(val.binary().read_bytes()).hexdigest()
    except VerifierError:
        validator = ""  # whoever needs it will say so
    return Stamp(planward.__version__, digest.hexdigest(), validator)


def _joined(ray: Any, address: str, quiet: dict[str, Any]) -> bool:
    """Join the cluster at `address`; False where none was named and none is there."""
    named = address if address != AUTO else os.environ.get("RAY_ADDRESS", "")
    try:
        _knock(named)
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if not named:
            return False
        mend = (
            "see that the cluster runs (ray status, there), that its ports can be reached from here, and, where it "
            "asks for a token, that this machine has it and RAY_AUTH_MODE=token is set"
        )
        raise ClusterError(f"no Ray cluster can be joined at {named}: {error}; mend: {mend}") from error
    return True


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at HOST:PORT: Ray itself would try for minutes, then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

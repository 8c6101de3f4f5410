"""Connect to a Ray cluster, or start one on this machine, and check that all nodes run the same Planward.

Nothing is shipped to the nodes: each needs the environment of requirements.lock. A node with another version could
return other results without an error, so every node is checked before it gets work.
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
from planward.core.verdicts import VerifierError

AUTO = "auto"
OBJECT_STORE_BYTES = 128 << 20  # of a cluster started here; its messages are small
CONNECT_TIMEOUT_S = 10
VERSION_FIX = "install the same version of planward (requirements.lock) and of VAL (VAL_BINARY) on every machine"


class ClusterError(OSError):
    """The cluster cannot be used; the message gives the reason and the node."""


@dataclass(frozen=True)
class Installation:
    """What must be identical on all nodes."""

    version: str
    source_digest: str  # SHA-256 of the package's .py and .pddl files
    val_digest: str  # SHA-256 of the VAL binary; empty where VAL is missing


def import_ray() -> Any:
    """Import the package ray; raises ClusterError if it is not installed."""
    try:
        return import_module("ray")
    except ModuleNotFoundError:
        raise ClusterError("Ray is not installed; fix: pip install 'planward[cluster]'") from None


@contextmanager
def connect(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Connect to a cluster, check its nodes and yield the package ray; disconnect on exit.

    A process that is already connected stays connected. A cluster started here ends on exit.

    Args:
        address: `HOST:PORT` or `ray://HOST:PORT`; None or `auto` for the cluster that this machine belongs to or that
            RAY_ADDRESS names, else a new one on this machine; `local` for a new one on this machine.
        cpus: number of CPUs of a cluster started here; None for all CPUs of this machine.

    Raises:
        ClusterError: Ray is missing, there is no cluster at `address`, or a node runs another Planward.
    """
    ray = import_ray()
    if ray.is_initialized():
        check_nodes(ray)
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning of Ray
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == "local" or not _join_cluster(ray, address or AUTO, quiet):
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
            cpu_count = f"{ray.cluster_resources()['CPU']:.0f}"
            message = f"Ray: started on this machine with {cpu_count} CPU(s); it ends with this command"
            print(message, file=sys.stderr, flush=True)
        check_nodes(ray)
        yield ray
    finally:
        ray.shutdown()


def check_nodes(ray: Any) -> None:
    """Run `check_installation` on every node that has CPUs.

    Raises:
        ClusterError: a node has another installation, none, or does not answer; or no node has CPUs.
    """
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if not nodes:
        raise ClusterError("the Ray cluster has no CPUs; fix: start a node with some (ray start --num-cpus)")
    check, expected = ray.remote(num_cpus=0)(check_installation), ray.put(get_installation())
    calls = [check.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(expected) for node in nodes]
    for node, call in zip(nodes, calls, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ClusterError):
                raise error.cause from None
            reason = str(error.cause).strip().splitlines()[-1]
            raise ClusterError(f"node {name} cannot run planward: {reason}; fix: {VERSION_FIX}") from error
        except ray.exceptions.RayError as error:
            raise ClusterError(f"node {name} does not answer: {error}") from error


def check_installation(expected: Installation) -> None:
    """Raise ClusterError if this node's installation differs from `expected`."""
    installation = get_installation()
    here, there = (
        f"planward {each.version}, sources {each.source_digest[:8]}, VAL {each.val_digest[:8] or 'missing'}"
        for each in (installation, expected)
    )
    if installation != expected:
        name = f"{socket.gethostname()} ({import_ray().util.get_node_ip_address()})"
        raise ClusterError(f"node {name} has {here}; the command was started with {there}; fix: {VERSION_FIX}")


@cache
def get_installation() -> Installation:
    """Version, source digest and VAL digest of the local installation (cached)."""
    package, digest = Path(planward.__file__).parent, sha256()
    for file in sorted(file for pattern in ("*.py", "*.pddl") for file in package.rglob(pattern)):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + sha256(file.read_bytes()).digest())
    try:
        val_digest = sha256(val.find_binary().read_bytes()).hexdigest()
    except VerifierError:
        val_digest = ""  # reported by the first call that needs VAL
    return Installation(planward.__version__, digest.hexdigest(), val_digest)


def _join_cluster(ray: Any, address: str, quiet: dict[str, Any]) -> bool:
    """Join the cluster at `address`; False if no address is given and this machine belongs to no cluster.

    Raises:
        ClusterError: the cluster at the given address cannot be joined.
    """
    target = address if address != AUTO else os.environ.get("RAY_ADDRESS", "")
    try:
        _check_reachable(target)
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if not target:
            return False
        fix = (
            "check that the cluster runs (`ray status` there), that its ports can be reached from here and, if it "
            "needs a token, that this machine has the token and RAY_AUTH_MODE=token"
        )
        raise ClusterError(f"no Ray cluster can be joined at {target}: {error}; fix: {fix}") from error
    return True


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray would retry for minutes and then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()

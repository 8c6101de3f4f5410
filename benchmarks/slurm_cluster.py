"""A real Slurm of one node, in namespaces of its own: it touches nothing of the machine and ends with its process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "nsenter", "ip")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin", "/sbin"])
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=node
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
NodeName=node CPUs=2 RealMemory=16000
PartitionName=low Nodes=node Default=YES PriorityTier=1 GraceTime=5
PartitionName=high Nodes=node PriorityTier=2 PreemptMode=OFF
"""
START = """\
set -e
mount --bind {folder}/configuration /etc/slurm
mount --bind {folder}/hosts /etc/hosts
hostname node
ip link set lo up
ip link add cluster0 type veth peer name cluster1  # Slurm asks for an address that is not of the loopback
ip addr add 10.0.0.1/24 dev cluster0
ip link set cluster0 up
munged --force --socket={folder}/munge/socket --key-file={folder}/munge/key --pid-file={folder}/munge/pid \
  --log-file={folder}/munge/log --seed-file={folder}/munge/seed
slurmctld
slurmd -N node
exec {python} -c '{init}'
"""
INIT = """\
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(1)
"""  # as any init: a killed process whose parent is gone must not stay as a zombie, which DVC takes for alive


def find_missing() -> str:
    """What of the machine a cluster needs and does not have; empty where it has all."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=PATH)]:
        return f"not installed: {', '.join(missing)} (Debian: slurm-wlm munge util-linux iproute2)"
    return "" if Path("/etc/slurm").is_dir() else "no folder /etc/slurm"


class SlurmCluster:
    """A node of two cores with the partitions `low` and `high`; a job in `high` preempts one in `low`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("configuration", "munge", "state", "spool"):
            (folder / name).mkdir(parents=True)
        (folder / "configuration/slurm.conf").write_text(CONFIGURATION.format(folder=folder))
        (folder / "hosts").write_text("127.0.0.1 localhost\n10.0.0.1 node\n")
        (folder / "munge").chmod(0o700)
        (folder / "munge/key").write_bytes(os.urandom(128))
        (folder / "munge/key").chmod(0o400)
        namespaces = ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*namespaces, "sh", "-c", START.format(folder=folder, python=sys.executable, init=INIT)],
            env=os.environ | {"PATH": PATH},
        )
        self._wait_until_idle()

    def command(self, *command: str, folder: Path = Path("/")) -> list[str]:
        """The command line that runs a command in the cluster."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return ["nsenter", "--target", children[0], "--mount", "--pid", "--net", "--uts", f"--wd={folder}", *command]

    def run(self, *command: str) -> str:
        """What a command prints in the cluster."""
        process = subprocess.run(
            self.command(*command), env=os.environ | {"PATH": PATH}, capture_output=True, text=True, check=True
        )
        return process.stdout

    def list_jobs(self, state: str, rule: str) -> list[str]:
        """The ids of a rule's jobs in a state; of an array, one for each of its jobs."""
        lines = self.run("squeue", "--noheader", "--array", f"--states={state}", "--format=%i %k").splitlines()
        return [line.split()[0] for line in lines if line.split()[1].startswith(rule)]

    def show_job(self, job: str) -> dict[str, str]:
        """What Slurm says of a job."""
        return dict(field.split("=", 1) for field in self.run("scontrol", "show", "job", job).split() if "=" in field)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _wait_until_idle(self) -> None:
        for _ in range(120):
            assert self.process.poll() is None, "the cluster did not start"
            try:
                if set(self.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"}:
                    return
            except (subprocess.CalledProcessError, IndexError, FileNotFoundError):
                pass
            time.sleep(0.5)
        logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise AssertionError(f"no idle node after a minute:\n{logs}")

"""Kill the pipeline at random moments; one rerun of the same command must give the hashes of an uninterrupted run.

    python benchmarks/crashes.py [TRIALS] [SEED] [FOLDER]

Each trial starts from a project whose data stages have run, starts Snakemake, `dvc repro` or a stage's own command,
and sends SIGKILL, SIGTERM or SIGINT to it, to all of it, to DVC or to the stage. The rerun must end without error, with
equal hashes, and leave no process, no lock and no partial file. Prints a table of trials by command, victim and signal;
failed trials stay in FOLDER, if one is named, with the output of both runs. Ctrl-C ends it with the table so far.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import psutil
import yaml
from tqdm import tqdm

ROOT = Path(__file__).parent.parent
PARAMS = """
dataset_sizes: [10]
tracks: []
problems:
  generated:
    blocksworld: {count: 16, blocks: [3, 4]}
    ferry: {count: 16, locations: [3, 4], cars: [2, 3]}
    grippers: {count: 0}
    spanner: {count: 0}
    delivery: {count: 0}
    elevator: {count: 0}
split: {held_out_domains: []}
sft: {epochs: 8, save_steps: 2}
grpo: {steps: 12, batch_size: 4, num_generations: 4, save_steps: 2}
evaluate: {shots: [0], samples: {count: 0, methods: []}}
transfer: {methods: [], renamed: 0, unseen: 0, dataset_size: 10}
ablations: {dataset_size: 10, run: []}
"""  # laid over workflow/recipes/quick.yaml
MODELS = """
base:
  batch_tokens: 1024
  hidden_size: 32
  intermediate_size: 64
  layers: 1
  precision: float32
  validation: 5
  compile: false
  save_steps: 4
  phases: [{steps: 8}, {steps: 8}]
economy: {households: 60, months: 24, steps: 12, validation: 10, save_steps: 4}
"""  # laid over models/params.yaml
SET_UP = (
    "git init --quiet",
    "git add --all",
    "git -c user.name=crashes -c user.email=crashes@example.org commit --quiet --message state",
    "planward params workflow/recipes/quick.yaml",
    "planward params recipe.yaml",
)
DATA = "snakemake --cores 2 results/score/metrics.json"
COMMANDS = {
    "snakemake": "snakemake --cores 2 results/predictions/grpo-10-3407.json",
    "dvc": "dvc repro evaluate@grpo-10-3407",
    "sft": "dvc repro --single-item sft@10-3407",
    "snakemake-sft": "snakemake --cores 2 results/models/sft-10-3407",
    "grpo": "dvc repro --single-item grpo@10-3407",
    "selector": "dvc repro --single-item workflow/selectors/dvc.yaml:sft@10-3407",
    "base": "dvc repro --single-item models/dvc.yaml:base",
    "adapter": "dvc repro --single-item models/dvc.yaml:adapter",
}
PREPARATION = {
    "grpo": "snakemake --cores 2 --until schedule start",
    "selector": "dvc repro workflow/selectors/dvc.yaml:embed workflow/selectors/dvc.yaml:beams@train",
    "base": "dvc unfreeze models/dvc.yaml:base",
    "adapter": "dvc unfreeze models/dvc.yaml:adapter",
}  # what a command needs beside the data stages
VICTIMS = {
    "snakemake": ("all", "snakemake", "dvc", "stage"),
    "dvc": ("all", "dvc", "stage"),
    "sft": ("dvc", "stage"),
    "grpo": ("dvc", "stage"),
    "selector": ("stage",),
    "base": ("stage",),
    "adapter": ("stage",),
}  # of a campaign
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
RUN_S = 900  # any run takes less
END_S = 5  # in which what a killed command started must end as well


@dataclass(frozen=True)
class Trial:
    command: str
    victim: str
    number: signal.Signals
    delay: float  # seconds
    since: str = ""  # from the start of `dvc` or `stage`, or from the first `checkpoint`; else from the command's start

    def __str__(self) -> str:
        since = f" of {self.since}" if self.since else ""
        return f"{self.command}, {self.number.name} to {self.victim} after {self.delay:.1f} s{since}"


class TooLate(Exception):
    """There was nothing to kill; the message names the trial."""


class Campaign:
    """A project with finished data stages, and the hashes and seconds of each command's uninterrupted run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.resolve()
        self.hashes: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        ready = folder / "ready"
        copy_project(ready)
        (ready / "recipe.yaml").write_text(PARAMS, encoding="utf-8")
        shrink_models(ready / "models/params.yaml")
        for command in (*SET_UP, DATA):
            self._finish(command, ready)

    def measure(self, command: str) -> None:
        """Run a command without interruption, after what it needs."""
        if command in PREPARATION:
            self._finish(PREPARATION[command], self._copy("ready", f"ready-{command}"))
        project = self._copy_ready(command, f"whole-{command}")
        start = time.perf_counter()
        self._finish(COMMANDS[command], project)
        self.seconds[command] = time.perf_counter() - start
        self.hashes[command] = read_hashes(project)

    def run(self, trial: Trial) -> list[str]:
        """What is wrong after a trial; its folder is deleted where nothing is.

        Raises:
            TooLate: the command or the process to kill had ended before.
        """
        project = self._copy_ready(trial.command, "trial")
        with (
            (project / "killed.log").open("w") as log,
            kill_on_error(start(COMMANDS[trial.command], project, log)) as process,
        ):
            victims = wait_for_victims(process, trial, project)
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
                    victim.send_signal(trial.number)
            wait(process)
        if not victims:
            shutil.rmtree(project)
            raise TooLate(str(trial))
        faults = [f"left behind: {orphan}" for orphan in wait_for_end(project)]
        with (project / "rerun.log").open("w") as log:
            status = wait(start(COMMANDS[trial.command], project, log))
        output = (project / "rerun.log").read_text()
        faults += [f"the rerun ends with {status}"] if status else []
        faults += ["the rerun shows a traceback"] if "Traceback" in output else []
        if read_hashes(project) != self.hashes[trial.command]:
            faults.append("other hashes")
        faults += [f"left behind: {path.relative_to(project)}" for path in find_remains(project)]
        if faults:
            project.rename(self.folder / f"failed-{len(list(self.folder.glob('failed-*')))}")
        else:
            shutil.rmtree(project)
        return faults

    def _copy_ready(self, command: str, name: str) -> Path:
        """Copy the project in which all is done that a command needs."""
        return self._copy(f"ready-{command}" if command in PREPARATION else "ready", name)

    def _copy(self, source: str, name: str) -> Path:
        shutil.copytree(self.folder / source, self.folder / name, symlinks=True)
        return self.folder / name

    def _finish(self, command: str, project: Path) -> None:
        with (project / "whole.log").open("w") as log:
            status = wait(start(command, project, log))
        if status:
            raise RuntimeError(f"{command}: exit status {status}\n{(project / 'whole.log').read_text()[-4000:]}")


def main(trials: int = 100, seed: int = 0, folder: Path | None = None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    rng, counts = Random(seed), defaultdict[tuple[str, str, str], list[int]](lambda: [0, 0])
    with tempfile.TemporaryDirectory() as temporary:
        campaign = Campaign(folder or Path(temporary))
        for command in VICTIMS:
            campaign.measure(command)
        for trial in tqdm(draw_trials(rng, trials, campaign.seconds), total=trials, unit="kill"):
            try:
                faults = campaign.run(trial)
            except TooLate:
                tqdm.write(f"{trial}: had ended before, not counted")
                continue
            except KeyboardInterrupt:
                break
            key = (trial.command, trial.victim, trial.number.name)
            counts[key][0] += 1
            counts[key][1] += bool(faults)
            if faults:
                tqdm.write(f"{trial}: {'; '.join(faults)}")
    print("| command | victim | signal | kills | failed |\n|---|---|---|---:|---:|")
    for key, (kills, failures) in sorted(counts.items()):
        print(f"| {' | '.join(key)} | {kills} | {failures} |")
    print(
        f"{sum(kills for kills, _ in counts.values())} kills, {sum(failures for _, failures in counts.values())} failed"
    )


def copy_project(folder: Path) -> None:
    """Copy this repository's tracked files, as they are now, without the record of results."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and (not name.endswith("dvc.lock") or name == "models/dvc.lock"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def shrink_models(file: Path) -> None:
    """Lay MODELS over a file of parameters; phases one by one."""
    values, changes = yaml.safe_load(file.read_text(encoding="utf-8")), yaml.safe_load(MODELS)
    for phase, change in zip(values["base"]["phases"], changes["base"].pop("phases"), strict=True):
        phase.update(change)
    for section, change in changes.items():
        values[section].update(change)
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def draw_trials(rng: Random, count: int, seconds: dict[str, float]) -> Iterator[Trial]:
    """Every combination equally often, in random order, at random moments of the command's run."""
    combinations = [
        (command, victim, number) for command in VICTIMS for victim, number in product(VICTIMS[command], SIGNALS)
    ]
    order: list[tuple[str, str, signal.Signals]] = []
    while len(order) < count:
        order += rng.sample(combinations, len(combinations))
    for command, victim, number in order[:count]:
        since = "" if victim in ("all", command) else victim
        share = rng.random() * (0.15 if since else 0.9)  # one stage lasts a part of the run
        yield Trial(command, victim, number, share * seconds[command], since)


def start(command: str, project: Path, log: object) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; its stages run in sh, which need not turn into them as bash does.

    It does not ignore SIGINT, whatever this process does.
    """
    environment = os.environ | {
        "SHELL": "/bin/sh",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.Popen(
        command.split(),
        cwd=project,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,  # type: ignore[call-overload,no-any-return]
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait(process: subprocess.Popen[bytes]) -> int:
    """Return a command's exit status; one that hangs is killed."""
    with kill_on_error(process):
        try:
            return process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


@contextmanager
def kill_on_error(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Leave no process behind where an error, or Ctrl-C, ends the block."""
    try:
        yield process
    except BaseException:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        raise


def wait_for_victims(process: subprocess.Popen[bytes], trial: Trial, project: Path) -> list[psutil.Process]:
    """The processes to signal, after the trial's delay; none where the command ends before."""

    def has_begun() -> bool:
        if trial.since == "checkpoint":
            return any(project.glob(".checkpoints/*/checkpoint-*"))
        return not trial.since or bool(find_victims(process, trial.since))

    while not has_begun() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(trial.delay)
    return find_victims(process, trial.victim)


def find_victims(process: subprocess.Popen[bytes], victim: str) -> list[psutil.Process]:
    """Of a command and what it started: all, or Snakemake, DVC or the stages."""
    victims = []
    with suppress(psutil.NoSuchProcess):
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if each.status() != psutil.STATUS_ZOMBIE and (victim == "all" or is_victim(each, victim)):
                    victims.append(each)
    return victims


def is_victim(process: psutil.Process, victim: str) -> bool:
    """Whether a process is Snakemake, DVC or a stage."""
    words = [Path(word).name for word in process.cmdline()[:4]]  # python -P -m planward
    return {"stage": "planward"}.get(victim, victim) in words


def find_processes(project: Path) -> list[psutil.Process]:
    """The living processes whose working folder is the project."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == project:
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return processes


def wait_for_end(project: Path) -> list[str]:
    """The commands of a project's processes that live on for END_S."""
    _, processes = psutil.wait_procs(find_processes(project), END_S)
    commands = []
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            commands.append(" ".join(process.cmdline()))
    return commands


def find_remains(project: Path) -> list[Path]:
    """Locks that nobody holds, and partial files."""
    return [
        *project.glob(".snakemake/locks/*"),
        *(path for path in project.rglob("*.partial") if ".git" not in path.parts),
    ]


def read_hashes(project: Path) -> dict[str, str]:
    """The hash of every output in all dvc.lock files, without those of timings and of the page."""
    hashes = dict[str, str]()
    for lock in (project / "dvc.lock", project / "models/dvc.lock", *sorted(project.glob("workflow/*/dvc.lock"))):
        for stage in yaml.safe_load(lock.read_text(encoding="utf-8"))["stages"].values():
            for out in stage.get("outs", []):
                if "timing" not in out["path"] and not out["path"].endswith("report.html"):  # which shows timings
                    hashes[f"{lock.parent.relative_to(project)}:{out['path']}"] = out["md5"]
    return hashes


if __name__ == "__main__":
    values = sys.argv[1:]
    main(*map(int, values[:2]), *map(Path, values[2:3]))

"""Time to push and pull the finished results through DVC remotes on the loopback, and plain copies of the same files.

    pip install -r requirements-remotes.lock
    python benchmarks/remotes.py [RUNS]

Run it from the project's root after `make report` and a commit of dvc.lock. Remotes: a folder, S3 (moto's server) and
SSH (sshd); one that cannot be served is left out with its reason. Push is from the project's cache to an empty remote.
`clone and pull` begins with `git clone`, sets the remote up (one to four starts of DVC) and ends with all results in
place, `report alone` with results/report.html. The copies are of the files in the remote, without checks: `cp -r`, ten
threads of boto3, `scp -r`. Prints wall seconds and the ratio of medians to the copy.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from remote_stores import BUCKET, Store, find_missing, serve

Copies = tuple[Callable[[], None], Callable[[], None]]  # of a folder to a store, and back


def main(repeats: int) -> None:
    project = Path.cwd()
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        objects = root / "objects"  # as DVC's remotes keep them
        for repeat in range(repeats):
            for name in ("folder", "s3", "ssh"):
                if missing := find_missing(name):
                    print(f"{name}: {missing}")
                    continue
                trial_folder = root / f"{name}-{repeat}"
                with serve(name, trial_folder / "server") as store:
                    times = measure(project, trial_folder, store)
                    if name == "folder" and not objects.exists():
                        shutil.copytree(store.url, objects)
                    copy_there, copy_back = build_copies(name, objects, trial_folder / "copy", store)
                    times["copy there"], times["copy back"] = measure_time(copy_there), measure_time(copy_back)
                for operation, value in times.items():
                    seconds.setdefault((name, operation), []).append(value)
                shutil.rmtree(trial_folder)
        files = [path for path in objects.rglob("*") if path.is_file()]
        print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB in the remote")
    print_table(seconds)


def measure(project: Path, folder: Path, store: Store) -> dict[str, float]:
    """Push the project's results from its own cache; pull them into fresh clones."""

    def clone(name: str) -> Path:
        run(folder, "git", "clone", "--quiet", str(project), name)
        run(folder / name, "dvc", "remote", "add", "--local", "--default", "store", store.url)
        for key, value in (store.options | store.credentials).items():
            run(folder / name, "dvc", "remote", "modify", "--local", "store", key, value)
        return folder / name

    cache = subprocess.run(["dvc", "cache", "dir"], cwd=project, capture_output=True, text=True, check=True).stdout
    source = clone("source")
    run(source, "dvc", "cache", "dir", "--local", str(project / cache.strip()))
    times = {"push": measure_time(lambda: run(source, "dvc", "push"))}
    times["push again"] = measure_time(lambda: run(source, "dvc", "push"))
    times["clone and pull"] = measure_time(lambda: run(clone("reader"), "dvc", "pull"))
    times["report alone"] = measure_time(lambda: run(clone("visitor"), "dvc", "pull", "results/report.html"))
    if not (folder / "reader/results/report.html").is_file():
        sys.exit("there is no results/report.html after `dvc pull`: run `make report`, then measure")
    return times


def build_copies(name: str, objects: Path, folder: Path, store: Store) -> Copies:
    """The plain copies of a folder to a store and back that DVC is compared with."""
    folder.mkdir()
    there, back = folder / "there", folder / "back"
    if name == "folder":
        return lambda: run(folder, "cp", "-r", str(objects), str(there)), lambda: run(
            folder, "cp", "-r", str(there), str(back)
        )
    if name == "ssh":
        address = urlsplit(store.url)
        options = ["-q", "-r", "-P", str(address.port), "-i", store.credentials["keyfile"]]
        options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        target = f"{store.credentials['user']}@{address.hostname}:{there}"
        return lambda: run(folder, "scp", *options, str(objects), target), lambda: run(
            folder, "scp", *options, target, str(back)
        )

    import boto3
    from botocore.config import Config

    keys = {f"aws_{key}": value for key, value in store.credentials.items()}
    settings = Config(max_pool_connections=10)
    client = boto3.client("s3", endpoint_url=store.options["endpointurl"], config=settings, **keys)
    paths = [path.relative_to(objects) for path in objects.rglob("*") if path.is_file()]

    def copy_there() -> None:
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda path: client.upload_file(str(objects / path), BUCKET, f"copy/{path}"), paths))

    def copy_back() -> None:
        for parent in {path.parent for path in paths}:
            (back / parent).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda path: client.download_file(BUCKET, f"copy/{path}", str(back / path)), paths))

    return copy_there, copy_back


def run(folder: Path, *command: str) -> None:
    process = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{process.stdout}")


def measure_time(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def print_table(seconds: dict[tuple[str, str], list[float]]) -> None:
    copies = {"push": "copy there", "clone and pull": "copy back"}
    print(f"{'':6} {'':14} {'median':>7} {'min':>7} {'max':>7} {'to copy':>7}")
    for (name, operation), values in seconds.items():
        median = statistics.median(values)
        ratio = f"{median / statistics.median(seconds[name, copies[operation]]):7.1f}" if operation in copies else ""
        print(f"{name:6} {operation:14} {median:7.1f} {min(values):7.1f} {max(values):7.1f} {ratio}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

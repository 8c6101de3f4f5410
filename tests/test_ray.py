"""Bulk work on a real Ray cluster on this machine: nothing that a reader of results could see is different."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from planward.agreement import distinct_plans
from planward.cli import app
from planward.clusters import engine
from planward.clusters.connection import ClusterError, connected
from planward.clusters.engine import CHUNK, engaged_task, places_of_chunks
from planward.params import Evaluate, Params
from planward.pddl.language import load_domain, load_problem
from planward.records import Label, Meta, Record, VerifierError, read_records
from planward.tasks import load_task
from planward.val import InputError

BASE = ["evaluate", "--method", "base"]
REPOSITORY = Path(__file__).parent.parent
PACKAGE = Path(engine.__file__).parent.parent
ROOT = Path("results/problems")
Pairs = list[tuple[Record, str]]
Small = Callable[..., Params]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with two CPUs, started and ended as the commands do it."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'planward[cluster]'")
    # A short path, for sockets lie below it; what killed workers leave behind goes with it.
    with (
        TemporaryDirectory(prefix="planward-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        with connected("local", cpus=2) as ray:
            yield ray


@pytest.fixture(scope="module")
def params(small: Small) -> Params:
    return small()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A project whose problems were brought by this process alone."""
    folder = tmp_path_factory.mktemp("ray")
    load_task(params).bring(folder / ROOT)
    return folder


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(folder: Path) -> Pairs:
    """Completions of all kinds, in no order."""
    found: Pairs = []
    for record in list(read_records(folder / ROOT / "problems.jsonl"))[::2]:
        domain = load_domain(folder / ROOT / record.meta.domain_file)
        problem = load_problem(folder / ROOT / record.meta.problem_file, domain)
        plans = distinct_plans(problem, Random(record.meta.problem_file))
        found += [(record, "\n".join(next(plans).plan)) for _ in range(22)]
        found += [(record, "I would rather not."), (record, ""), (record, f"The plan:\n{record.response}")]
    Random(1).shuffle(found)
    return found


def busy(name: str) -> list[Any]:
    """The Ray workers below this process that run a function now."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{name}"]:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def shoot(name: str, killed: list[int], rounds: int) -> None:
    """Kill all workers that run a function, so many times, while they do."""
    end = time.monotonic() + 60
    for _ in range(rounds):
        while not (found := busy(name)) and time.monotonic() < end:
            time.sleep(0.01)
        for process in found:
            process.kill()
            killed.append(process.pid)
        time.sleep(0.3)


@pytest.mark.usefixtures("cluster", "inside")
def test_verdicts_are_those_of_this_process(params: Params, pairs: Pairs) -> None:
    expected = load_task(params).judge(pairs)
    with engaged_task(params, "ray") as task:
        assert task.judge(pairs) == expected
        assert task.judge([]) == []
    assert len(pairs) == 300
    assert {verdict.label for verdict in expected} >= {Label.SUCCESS, Label.GOAL, Label.PRECONDITION, Label.FORMAT}


@pytest.mark.usefixtures("cluster", "inside")
def test_all_else_is_the_tasks_own(params: Params, pairs: Pairs) -> None:
    alone = load_task(params)
    with engaged_task(params, "ray") as task:
        record = pairs[0][0]
        assert (task.name, task.labels, task.domains) == (alone.name, alone.labels, alone.domains)
        assert task.prompt(record, []) == alone.prompt(record, [])
        assert task.verify(record, record.response or "").success


@pytest.mark.usefixtures("cluster", "inside")
def test_killed_workers_change_no_verdict(params: Params, pairs: Pairs) -> None:
    killed: list[int] = []
    shooter = Thread(target=shoot, args=("judged", killed, 3))
    with engaged_task(params, "ray") as task:
        shooter.start()
        found = task.judge(pairs)
        shooter.join()
    assert len(set(killed)) >= 2
    assert found == load_task(params).judge(pairs)


@pytest.mark.usefixtures("cluster")
def test_problems_are_those_of_this_process(inside: Path, params: Params, tmp_path: Path) -> None:
    with engaged_task(params, "ray") as task:
        task.bring(tmp_path)
    assert contents(tmp_path) == contents(inside / ROOT)
    assert len(contents(tmp_path)) == 2 + 24 + 1


@pytest.mark.usefixtures("cluster")
def test_the_commands_write_the_same_files_with_either_engine(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = {"shots": [0], "batch_size": 64}
    text = params.model_copy(update={"evaluate": Evaluate(**evaluate)}).model_dump_json(
        exclude={"task"}
    )  # JSON is YAML
    written = []
    for name in ("local", "ray"):
        project = tmp_path / name
        project.mkdir()
        monkeypatch.chdir(project)
        (project / "params.yaml").write_text(text)
        (project / "models").symlink_to(REPOSITORY / "models")
        for command in (["problems", "--engine", name], ["split"], ["score"], [*BASE, "--engine", name]):
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 0, done.output
        shutil.rmtree(project / "results/timing")
        written.append(contents(project / "results"))
    assert written[0] == written[1]
    assert {"problems/problems.jsonl", "predictions/base-0.jsonl"} <= written[0].keys()


@pytest.mark.usefixtures("cluster")
def test_killed_workers_change_no_problem(inside: Path, params: Params, tmp_path: Path) -> None:
    killed: list[int] = []
    shooter = Thread(target=shoot, args=("generated", killed, 1))
    with engaged_task(params, "ray") as task:
        shooter.start()
        task.bring(tmp_path)
        shooter.join()
    assert killed
    assert contents(tmp_path) == contents(inside / ROOT)


@pytest.mark.usefixtures("cluster")
def test_other_sources_are_brought_by_one_process(
    inside: Path, small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = small(problems={"source": "pddl", "path": str(inside / ROOT / "ferry")})
    with engaged_task(params, "ray") as task:
        task.bring(tmp_path)
    assert "nothing to spread" in capsys.readouterr().err
    assert len(list(read_records(tmp_path / "problems.jsonl"))) == 12


@pytest.mark.usefixtures("cluster", "project")
def test_the_economy_is_judged_there_and_simulated_here(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    simulator = {"households": 60, "months": 40}
    economy = small(economy={"simulator": simulator, "problems": 40}).of("economy")
    root = economy.placed(ROOT)
    with engaged_task(economy, "ray") as task:
        task.bring(root)
        assert "nothing to spread" in capsys.readouterr().err
        records = list(read_records(root / "economy.jsonl"))
        pairs = [(record, text) for record in records for text in (record.response or "", '{"work": 2}', "I work.")]
        found = task.judge(pairs)
    assert found == load_task(economy).judge(pairs)
    assert {verdict.label for verdict in found} == {"good_decision", "format_error"}


@pytest.mark.usefixtures("cluster", "inside")
def test_a_broken_verifier_stops_the_run(small: Small, pairs: Pairs) -> None:
    broken = small(val={"timeout": 1e-9})
    with engaged_task(broken, "ray") as task, pytest.raises(VerifierError, match="no answer in 1e-09 s") as hit:
        task.judge(pairs)
    assert type(hit.value) is VerifierError
    assert f"no verdict on a plan for {ROOT}/" in str(hit.value)  # and no folder of another machine


@pytest.mark.usefixtures("cluster", "inside")
def test_a_missing_file_is_named_as_it_is_here(params: Params, pairs: Pairs) -> None:
    meta = Meta(scenario="ferry", domain_file="ferry/domain.pddl", problem_file="ferry/gone.pddl")
    lost = [*pairs[:5], (Record(prompt="", meta=meta), "(sail a b)")]
    with pytest.raises(InputError) as here:
        load_task(params).judge(lost)
    with engaged_task(params, "ray") as task, pytest.raises(InputError) as there:
        task.judge(lost)
    assert str(there.value) == str(here.value)


@pytest.mark.usefixtures("cluster", "inside")
def test_work_that_kills_its_workers_stops_the_run(
    params: Params, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(*_: object) -> None:
        os._exit(1)

    monkeypatch.setattr(engine, "RETRIES", 1)
    monkeypatch.setattr(engine, "judged", deadly)
    with engaged_task(params, "ray") as task, pytest.raises(VerifierError, match=r"lost its worker .* 2 times"):
        task.judge(pairs[:CHUNK])


def joining(address: str, package: Path, folder: Path) -> tuple[str, str]:
    """What a new process prints, and its errors, that joins a cluster with the planward in `package`."""
    script = f"from planward.clusters.connection import connected\nwith connected({address!r}): print('joined')"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def test_a_machine_with_another_planward_is_refused(cluster: Any, tmp_path: Path) -> None:
    """A command whose sources differ by a comment from those of the cluster that it joins."""
    address = cluster.get_runtime_context().gcs_address
    assert "joined" in joining(address, PACKAGE, tmp_path)[0]
    other = tmp_path / "src/planward"
    shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "records.py").open("a") as source:
        source.write("# another\n")
    printed, errors = joining(address, other, tmp_path)
    assert "joined" not in printed
    assert "ClusterError: node " in errors
    assert "the command was started with planward" in errors


@pytest.mark.usefixtures("cluster")
def test_an_address_where_no_cluster_is_does_not_start_one(tmp_path: Path) -> None:
    printed, errors = joining("127.0.0.1:1", PACKAGE, tmp_path)
    assert "joined" not in printed
    assert "no Ray cluster can be joined at 127.0.0.1:1" in errors


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"planward\[cluster\]"), connected():
        pass


@given(st.lists(st.integers(0, 9), max_size=100))
def test_chunks_hold_every_pair_once_and_problems_side_by_side(problems: list[int]) -> None:
    pairs = [(Record(prompt="", meta=Meta(scenario="d", domain_file="d", problem_file=f"{n}")), "") for n in problems]
    chunks = places_of_chunks(pairs)
    assert sorted(place for chunk in chunks for place in chunk) == list(range(len(pairs)))
    assert all(len(chunk) == CHUNK for chunk in chunks[:-1])
    order = [problems[place] for chunk in chunks for place in chunk]
    assert order == sorted(order)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

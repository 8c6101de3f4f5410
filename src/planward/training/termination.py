"""SIGTERM during training: the step is finished and a checkpoint written before the process ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

EXIT_STATUS = 128 + signal.SIGTERM


class Terminated(Exception):
    """Training ended on SIGTERM; the message names the checkpoint."""


class Termination:
    """Notes the first SIGTERM while it is watched for; the second one ends the process."""

    def __init__(self) -> None:
        self.is_requested = False
        self._previous: Any = signal.SIG_DFL

    def watch(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._previous = signal.signal(signal.SIGTERM, self._note)

    def stop_watching(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.is_requested = True
        print("SIGTERM: training ends after this step, with a checkpoint", flush=True)

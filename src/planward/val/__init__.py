"""The real VAL (`Validate -v`): the authority behind every published number.

VAL: Howey, Long and Fox, "VAL: automatic plan validation, continuous effects and mixed initiative
planning using PDDL", ICTAI 2004. What it prints, and the label that each form is given, was measured;
docs/reference/verdicts.md holds the table.
"""

from planward.val.inputs import InputError
from planward.val.process import binary
from planward.val.validation import TIMEOUT, validate, validate_many

__all__ = ["TIMEOUT", "InputError", "binary", "validate", "validate_many"]

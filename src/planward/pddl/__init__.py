"""PDDL in-process: parse, ground, simulate, search, generate."""

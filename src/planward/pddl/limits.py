"""Limits on the size of PDDL. They are counted, not timed: a file is accepted on every machine or on none.

docs/reference/limits.md says what time and memory they allow for.
"""

MAX_FILE_BYTES = 1 << 21  # of a domain or problem file
MAX_DEPTH = 200  # of parentheses: parsing and grounding take up to three frames of Python's 1,000 for each
MAX_SUPERTYPES = 100  # of a type, itself included: VAL fails on chains of thousands
MAX_ARGUMENTS = 100  # of a predicate, function, action or quantifier
MAX_OBJECTS = 10_000  # constants included
MAX_FACTS = 50_000  # in the initial state
MAX_EXPANSION = 20_000  # atoms of a problem's goal and constraints and of its domain's actions, quantifiers expanded
MAX_ATOMS = 60_000  # ground, that actions may change: each has a number with as many bits; above, VAL judges
MAX_PLAN_BITS = 1 << 31  # of a plan's ground actions: each is a few numbers with up to a bit for every atom
MAX_CACHED_BITS = 1 << 27  # of the ground actions that are kept for further plans
MAX_REFINEMENT = 3_000_000  # words compared to tell objects apart, for a digest that does not depend on names

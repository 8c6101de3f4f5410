"""Planning: PDDL problems in, plans out, VAL's verdict on them."""

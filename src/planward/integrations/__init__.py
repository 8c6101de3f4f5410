"""Optional backends for other systems: Ray (verification and problem generation) and verl (training)."""

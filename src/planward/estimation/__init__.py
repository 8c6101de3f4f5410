"""Memory and time of a run before it starts: `planward doctor --model`."""

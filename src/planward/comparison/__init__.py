"""`planward diff`: compare what Git revisions and DVC experiments hold."""

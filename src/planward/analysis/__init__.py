"""Statistics and tables, computed from stored predictions."""
